"""What the code of tiled products holds: tensor-core instructions, copies under way, no conflicts, whole sectors."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from pipeline.codegen.cuda.build import build_kernel, emit_kernel
from pipeline.codegen.cuda.compile import compile_ptx
from pipeline.codegen.cuda.execute import execute
from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.program import Program
from pipeline.schedule.space import ParameterSpace
from pipeline.space.generate import generate
from rules.schedule.gpu_tensor_tiling import GpuTensorTiling
from tests.rules.schedule.a100 import A100
from tests.rules.schedule.sketches import lowered

# 128 x 128 of the result for eight warps, 32 terms at a time, four of those under way
TILE = {"wm": 2, "wn": 4, "fm": 4, "fn": 4, "y": 8, "steps": 2, "right_y": 4, "right_x": 8, "group": 1, "stages": 4}
WIDE = {"wm": 2, "wn": 2, "fm": 4, "fn": 8, "y": 8, "steps": 2, "right_y": 2, "right_x": 16, "group": 1, "stages": 3}


def candidate(size: int, sizes: dict[str, int]) -> Program:
    """A square product of halves at one value for each parameter."""
    g = GraphBuilder()
    a, b = g.input("a", (size, size), "float16"), g.input("b", (size, size), "float16")
    (sketch,) = generate(lowered(g.finish([("c", g.matmul(a, b))])), [GpuTensorTiling()], A100)
    values = {f"t_contract2_{name}": value for name, value in sizes.items()}
    space = ParameterSpace.of(sketch)
    assert space.valid(np.array([[values[column] for column in space.columns]])).all()
    return sketch.candidate(values)


@pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="NVRTC is not installed")
def test_a_large_product_compiles_to_tensor_core_instructions_without_a_spill() -> None:
    kernel = build_kernel(candidate(4096, TILE), A100)
    (used,) = kernel.resources.values()
    assert used.spill_stores == used.spill_loads == used.stack == 0 and used.registers <= 128
    (launch,) = kernel.program.launches
    assert launch.shared_bytes == 4 * 2 * (128 + 128) * 32 > 48 << 10 and launch.threads == 256
    ptx = compile_ptx(kernel.program.source, "sm_80")
    assert all(instruction in ptx for instruction in ("mma.sync.aligned.m16n8k16", "ldmatrix.sync", "cp.async.cg"))


@pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("sizes", [TILE, WIDE])
def test_a_block_has_no_bank_conflicts_and_reads_whole_sectors(sizes: dict[str, int]) -> None:
    program = candidate(256, sizes)
    source = emit_kernel(program, A100)
    rng = np.random.default_rng(0)
    given = {name: rng.integers(-3, 4, (256, 256)).astype(np.float16) for name in "ab"}
    run = execute(source, given, blocks=lambda launch: [(launch.grid[0] - 1, 0, 0)])
    assert not run.faults
    (counts,) = run.counts
    assert all(traffic.conflicts == 0 for traffic in (*counts.loads.values(), *counts.stores.values()))
    assert counts.loads["a"].sector_use == counts.loads["b"].sector_use == 1.0
    assert counts.instructions["cp.async"] > 0 and counts.instructions["ldmatrix"] > 0
    written = run.written["out0"]
    wanted = given["a"].astype(np.float32) @ given["b"].astype(np.float32)
    assert written.sum() == 128 * 128
    np.testing.assert_array_equal(run.outputs["out0"][written].astype(np.float32), wanted[written].astype(np.float16))
