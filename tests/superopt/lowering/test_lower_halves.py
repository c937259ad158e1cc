"""Lowered µGraphs of tensors in half precision: read wide, multiplied as halves, added up in float32, then rounded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.codegen.llvm.build import build_kernel
from pipeline.frontend.workloads.gqa import Gqa
from pipeline.frontend.workloads.head_attention import HeadAttention
from pipeline.frontend.workloads.qknorm import Qknorm
from pipeline.ir.graph import DType
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_types import HALVES, numpy_dtype
from pipeline.ir.interpret import interpret
from pipeline.ir.program import Alloc, walk
from pipeline.space.lower import argument_name
from pipeline.superopt.label import Opaque, specify
from pipeline.superopt.spec import Spec, spec_graph
from pipeline.verification.tolerance import evaluate_with_bound
from tests.codegen.kernel_runs import native, run_kernel
from tests.superopt.lowered_cases import attention, gated_mlp, lora, rmsnorm_linear, split_attention, split_product
from tests.superopt.lowered_runs import at_labels, drawn, programs
from tests.superopt.spec_agreement import seen

STEP = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


def halved(spec: Spec, dtype: DType) -> Spec:
    inputs = tuple(replace(one, dtype=dtype) if one.dtype == "float32" else one for one in spec.inputs)
    return replace(spec, inputs=inputs, dtype=dtype)


def agree(spec: Spec, got: np.ndarray, feeds: dict[str, np.ndarray]) -> bool:
    """Within the rounding of the result and of one tile of factors that a sum in float32 takes."""
    wide = {
        tensor.name: seen(tensor, feeds[tensor.name], spec.extents).astype(
            np.float32 if tensor.dtype in HALVES else numpy_dtype(tensor.dtype))
        for tensor in spec.inputs
    }  # fmt: skip
    want = evaluate_with_bound(spec_graph(spec), wide)["out"]
    allowed = want.bound + 4 * STEP[spec.dtype] * np.abs(want.value).max()
    return bool((np.abs(at_labels(spec, got).astype(np.float64) - want.value) <= allowed).all())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", [attention, gated_mlp, lora, rmsnorm_linear, split_product, split_attention])
def test_halves_are_lowered_right(case: object, dtype: DType) -> None:
    spec, graph = case()  # type: ignore[operator]
    spec = halved(spec, dtype)
    feeds = drawn(spec)
    given = {argument_name(name): array for name, array in feeds.items()}
    for what, program in programs(spec, graph, native(), 2):
        found = interpret(program, given)["out0"]
        assert found.dtype == numpy_dtype(dtype)
        assert agree(spec, found, feeds), f"interpreted: {what}"
        kernel = build_kernel(program, native())
        assert agree(spec, run_kernel(kernel, given, native())["out0"], feeds), f"compiled: {what}"


def test_a_wrong_result_does_not_agree() -> None:
    spec, graph = attention()
    spec = halved(spec, "float16")
    feeds = drawn(spec)
    _, program = next(iter(programs(spec, graph, native(), 1)))
    found = interpret(program, {argument_name(name): array for name, array in feeds.items()})["out0"]
    assert agree(spec, found, feeds)
    assert not agree(spec, found * np.float16(1.02), feeds)


def test_tiles_that_only_products_read_are_halves_and_sums_are_not() -> None:
    spec, graph = attention()
    spec = halved(spec, "float16")
    _, program = next(iter(programs(spec, graph, native(), 1)))
    dtypes = {stmt.buffer.name: stmt.buffer.dtype for stmt in walk(program.body) if isinstance(stmt, Alloc)}
    assert {dtype for name, dtype in dtypes.items() if name.endswith("_acc")} == {"float32"}
    assert "float16" in dtypes.values()


@pytest.mark.parametrize("workload", [Gqa("gqa", dtype="float16"), Qknorm("qknorm", dtype="bfloat16")])
def test_a_workload_in_halves_has_the_specification_of_the_same_in_float32(workload: HeadAttention) -> None:
    halves, wide = specify(workload.build(0)), specify(replace(workload, dtype="float32").build(0))
    assert isinstance(halves, Spec) and isinstance(wide, Spec)
    assert halves.nodes == wide.nodes
    assert halves.dtype == workload.dtype and {one.dtype for one in halves.inputs} == {workload.dtype}
    assert spec_graph(halves).nodes == spec_graph(wide).nodes


def test_integers_are_not_proven() -> None:
    b = GraphBuilder()
    x, y = b.input("x", (4, 5), "int32"), b.input("y", (5, 6), "int32")
    found = specify(b.finish([("z", b.matmul(x, y))]))
    assert isinstance(found, Opaque) and "only bfloat16, float16, float32 are proven" in found.reason
