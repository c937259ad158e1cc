"""GpuTensorRows: fused kernels whose rows stay in the registers of warps, with their products on tensor cores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.codegen.cuda.build import emit_kernel
from pipeline.codegen.cuda.execute import execute
from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.ir.interpret import interpret
from pipeline.ir.poly import Poly
from pipeline.ir.program import Alloc, Loop, Program, blocks, walk
from pipeline.ir.program_bounds import check_bounds
from pipeline.ir.program_check import check
from pipeline.ir.target import Target
from pipeline.schedule.constraint import AtMost
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.space import ParameterSpace
from pipeline.schedule.steps import Unroll
from pipeline.schedule.trace import from_json, replay, to_json
from pipeline.superopt.lowering.lower import lower_mugraph
from rules.schedule.gpu_feasible import possible
from rules.schedule.gpu_tensor_region import GpuTensorRegion, region_of, turned_region
from rules.schedule.gpu_tensor_rows import GpuTensorRows
from tests.rules.schedule.a100 import A100, T4
from tests.search.spaces import TARGET as CPU
from tests.superopt.lowered_cases import (
    Case,
    attention,
    gated_mlp,
    layer_norm_linear,
    lora,
    qknorm,
    rmsnorm_linear,
    split_attention,
)
from tests.superopt.lowered_runs import changed, names_of

CASES: dict[str, Case] = {
    "qknorm": qknorm(heads=2, queries=32, keys=48, dim=32),
    "split": split_attention(heads=2, queries=16, keys=64, dim=16, width=16),
    "gated": gated_mlp(rows=16, hidden=64, inner=48),
    "lora": lora(rows=16, hidden=64, outputs=64, rank=16),
    "gated of eight rows": gated_mlp(rows=8, hidden=64, inner=48),
    "rmsnorm of eight rows": rmsnorm_linear(rows=8, hidden=64, outputs=64),
    "rmsnorm": rmsnorm_linear(rows=16, hidden=64, outputs=64),
    "layer norm": layer_norm_linear(rows=32, hidden=64, outputs=48),
    "plain": attention(heads=2, queries=32, keys=64, dim=32, width=48, scale=0.5),
    "mask": attention(heads=2, queries=32, keys=48, dim=16, width=16, scale=0.3, mask="add"),
    "keys": attention(heads=2, queries=48, keys=32, dim=16, width=24, mask="keys"),
}


def lowered(case: Case, dtype: str = "float16", target: Target = A100) -> Sketch:
    """The sketch of a µGraph over tensors of halves."""
    spec, graph = case
    for one in spec.inputs:
        spec = changed(spec, one.name, dtype=dtype)
    return lower_mugraph(replace(spec, dtype=dtype), graph, "p", list(names_of(spec)), target)  # type: ignore[arg-type]


def in_rows(start: Sketch, target: Target = A100) -> list[Sketch]:
    """What the rule makes of it, each block having had its turn from the last to the first."""
    return [
        made for block in reversed(blocks(start.program)) for made in GpuTensorRows().apply(start, block.name, target)
    ]


def candidates(sketch: Sketch, count: int, seed: int = 0) -> list[Program]:
    space = ParameterSpace.of(sketch)
    rows = space.unique(space.draw(4 * count, np.random.default_rng(seed)))[:count]
    return [sketch.candidate(space.values(row)) for row in rows]


def feeds(program: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        buffer.name: rng.standard_normal([extent.value for extent in buffer.shape]).astype(np.float16)
        for buffer in program.buffers
        if buffer.role == "input"
    }


@pytest.mark.parametrize("name", CASES)
def test_a_fused_kernel_stays_what_it_is(name: str) -> None:
    start = lowered(CASES[name])
    (sketch,) = in_rows(start)
    check(sketch.program)
    given = feeds(sketch.program)
    wanted = interpret(candidates(start, 1)[0], given)["out0"]
    for program in candidates(sketch, 2):
        check(program)
        check_bounds(program)
        np.testing.assert_allclose(interpret(program, given)["out0"], wanted, rtol=4e-3, atol=2e-3)


def test_nothing_but_what_is_fetched_is_in_shared_memory() -> None:
    (sketch,) = in_rows(lowered(CASES["plain"]))
    scopes = {s.buffer.name: s.buffer.scope for s in walk(sketch.program.body) if isinstance(s, Alloc)}
    assert {name for name, scope in scopes.items() if scope == "shared"} == {"k0_v3_right", "k0_v13_right"}
    units = [str(s.annotation("tensorize")) for s in walk(sketch.program.body) if isinstance(s, Loop) and s.annotations]
    assert units.count("mma.m16n8k16_f16f16f32") == 2
    assert {"mma.row_max_16x8", "mma.row_sum_16x8", "mma.map_rows_16", "mma.map_16x8"} <= set(units)


def test_the_trace_makes_the_sketch_again() -> None:
    start = lowered(CASES["plain"])
    (sketch,) = in_rows(start)
    made = replay(start.program, from_json(to_json(sketch.trace)))
    assert made.program == sketch.program


@pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")
def test_the_emitted_kernel_runs_without_faults_or_conflicts() -> None:
    start = lowered(CASES["plain"])
    (sketch,) = in_rows(start)
    given = feeds(sketch.program)
    wanted = interpret(candidates(start, 1)[0], given)["out0"].astype(np.float32)
    for program in candidates(sketch, 2, seed=3):
        run = execute(emit_kernel(program, A100), given)
        assert not run.faults
        np.testing.assert_allclose(run.outputs["out0"].astype(np.float32), wanted, atol=2e-3)
        (counts,) = run.counts
        assert all(traffic.conflicts == 0 for traffic in counts.loads.values())
        assert counts.loads["k"].sector_use == counts.loads["v"].sector_use == 1.0


def test_an_older_device_multiplies_by_shorter_units() -> None:
    (sketch,) = in_rows(lowered(CASES["plain"], target=T4), T4)
    units = {s.annotation("tensorize") for s in walk(sketch.program.body) if isinstance(s, Loop)}
    assert "mma.m16n8k8_f16f16f32" in units


def test_a_kernel_with_loose_ends_is_left_to_other_rules() -> None:
    for case in (
        attention(heads=2, queries=40, keys=64, dim=32, width=48),  # rows that are no whole units
        attention(heads=2, queries=32, keys=40, dim=32, width=48),  # columns
        attention(heads=2, queries=32, keys=64, dim=24, width=48),  # terms of the sum
        attention(heads=2, queries=32, keys=64, dim=32, width=44),  # columns of the result
        rmsnorm_linear(rows=4, hidden=64, outputs=64),  # fewer rows than a unit has
    ):
        assert in_rows(lowered(case)) == []


def test_a_region_says_what_it_found() -> None:
    start = lowered(CASES["qknorm"])
    last = blocks(start.program)[-1].name
    found = region_of(start.program, last, ("f16",), A100)
    assert isinstance(found, GpuTensorRegion)
    assert found.products == ("k0_v15", "k0_v24") and found.loose == ("k0_v10",)
    assert region_of(start.program, blocks(start.program)[0].name, ("f16",), A100) is None


def test_eight_rows_become_columns() -> None:
    start = lowered(CASES["gated of eight rows"])
    turned = turned_region(start, "k0_out0")
    assert turned is not None and [str(e) for e in turned.program.buffer("k0_v5_acc").shape][1] == "8"
    assert turned_region(start, "k0_v5") is None
    assert turned_region(lowered(CASES["gated"]), "k0_out0") is None


def test_a_sketch_without_candidates_is_not_possible() -> None:
    start = lowered(CASES["plain"])
    assert possible(lambda: start.require(AtMost("nothing", Poly.of(1), 0)), "none") == []
    assert possible(lambda: start.apply(Unroll("nowhere")), "no such loop") == []
    (made,) = possible(lambda: start, "itself")
    assert made is start


def test_other_numbers_and_other_devices_are_left_to_other_rules() -> None:
    assert in_rows(lowered(CASES["plain"], "float32")) == []
    assert in_rows(lowered(CASES["plain"]), CPU) == []
