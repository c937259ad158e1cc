"""GpuTensorTiling: products on the tensor cores of a GPU.

What a sketch computes is looked at by the interpreter, its limits by counts of its own programs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.errors import UserError
from pipeline.frontend.workloads.attention import Attention
from pipeline.frontend.workloads.tbg import Tbg
from pipeline.ir.graph import ITEM_BYTES, DType, Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.program import Alloc, Loop, Program, blocks, walk
from pipeline.ir.target import Target
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.space import ParameterSpace
from pipeline.schedule.trace import from_json, replay, to_json
from pipeline.space.generate import generate
from rules.graph.channels_last import ChannelsLast
from rules.schedule.auto_inline import AutoInline
from rules.schedule.gpu_tensor_fetch import GpuTensorFetch, pieces
from rules.schedule.gpu_tensor_operands import with_casts
from rules.schedule.gpu_tensor_product import GpuTensorProduct, product_of
from rules.schedule.gpu_tensor_tiling import GpuTensorTiling
from rules.schedule.gpu_tensor_units import UNITS, GpuTensorUnits, units_for
from tests.rules.schedule.a100 import A100, GPU, T4
from tests.rules.schedule.sketches import keeps, lowered, says_nothing
from tests.search.spaces import TARGET as CPU


def product(
    m: int, n: int, k: int, dtype: DType = "float16", *, left: str = "mk", right: str = "kn", batch: int = 0
) -> Graph:
    """A product of matrices, either operand perhaps turned."""
    g = GraphBuilder()
    many = (batch,) if batch else ()
    rank = len(many) + 2
    turned = [*range(rank - 2), rank - 1, rank - 2]
    a = g.input("a", (*many, *((k, m) if left == "km" else (m, k))), dtype)
    b = g.input("b", (*many, *((n, k) if right == "nk" else (k, n))), dtype)
    a = g.transpose(a, turned) if left == "km" else a
    b = g.transpose(b, turned) if right == "nk" else b
    return g.finish([("c", g.matmul(a, b))])


def tiled(graph: Graph, target: Target = A100, rule: GpuTensorTiling | None = None) -> Sketch:
    """The one sketch of a task."""
    (sketch,) = generate(lowered(graph), [AutoInline(), rule or GpuTensorTiling()], target)
    return sketch


def units_in(program: Program) -> set[str]:
    """The instructions of warps in a program."""
    notes = [dict(stmt.annotations) for stmt in walk(program.body) if isinstance(stmt, Loop)]
    return {str(note["tensorize"]) for note in notes if "tensorize" in note}


@pytest.mark.parametrize(
    ("sizes", "left", "right"),
    [
        ((100, 96, 64), "mk", "kn"),
        ((100, 96, 64), "km", "nk"),
        ((17, 33, 40), "mk", "nk"),
        ((17, 33, 40), "km", "kn"),
        ((1, 8, 16), "mk", "kn"),
        ((48, 40, 50), "mk", "nk"),
        ((48, 40, 50), "km", "kn"),
    ],
)
def test_a_product_of_any_size_and_layout_is_right(sizes: tuple[int, int, int], left: str, right: str) -> None:
    graph = product(*sizes, left=left, right=right)
    sketch = tiled(graph)
    keeps(lowered(graph), sketch, 2)
    loads = "mma.load_a_16x16_f16_trans" if left == "km" and sizes[0] > 1 else "mma.load_a_16x16_f16"
    wanted = {"mma.m16n8k16_f16f16f32", "mma.fill_16x8_f32", "mma.map_16x8", "mma.load_b_16x8_f16"}
    assert units_in(sketch.program) - {"mma.load_a_16x16_f16", "mma.load_a_16x16_f16_trans"} == wanted
    assert sizes[0] == 1 or loads in units_in(sketch.program)


def test_twenty_candidates_are_right() -> None:
    graph = product(40, 24, 40)
    keeps(lowered(graph), tiled(graph), 20, seed=1)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("left", ["mk", "km"])
def test_other_numbers_have_units_of_their_own(dtype: DType, left: str) -> None:
    graph = product(50, 40, 70, dtype, left=left)
    sketch = tiled(graph)
    keeps(lowered(graph), sketch, 2)
    assert any(name.startswith("mma.m16n8k") and ("bf16" in name or "s8" in name) for name in units_in(sketch.program))


def test_batches_and_heads_are_blocks_of_the_grid() -> None:
    for graph in (
        product(20, 17, 24, batch=3),
        Tbg(dtype="float16", seq=20, head=3, dim=16).build(0),
    ):
        keeps(lowered(graph), tiled(graph), 2)


def test_both_products_of_attention_are_tiled() -> None:
    graph = Attention(batch=2, heads=2, queries=20, keys=24, dim=16, dtype="float16").build(0)
    sketch = tiled(graph)
    products = [
        stmt
        for stmt in walk(sketch.program.body)
        if isinstance(stmt, Loop) and stmt.annotation("tensorize") == "mma.m16n8k16_f16f16f32"
    ]
    assert len(products) == 2
    keeps(lowered(graph), sketch, 2)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_is_a_product_of_matrices(stride: int, last: bool) -> None:
    g = GraphBuilder()
    x, w = g.input("x", (2, 8, 9, 7), "float16"), g.input("w", (12, 8, 3, 3), "float16")
    y = g.conv(x, w, strides=[stride] * 2, pads_low=[1, 1], pads_high=[1, 1], dilations=[1, 1], groups=1)
    graph = g.finish([("y", g.elementwise("tanh", y))])
    graph = ChannelsLast().apply(graph) if last else graph
    sketch = tiled(graph)
    assert "mma.m16n8k16_f16f16f32" in units_in(sketch.program)
    keeps(lowered(graph), sketch, 2)


def test_what_follows_a_product_is_computed_where_it_is_stored() -> None:
    g = GraphBuilder()
    a, b = g.input("a", (40, 32), "float16"), g.input("b", (32, 48), "float16")
    r, bias = g.input("r", (40, 48), "float16"), g.input("bias", (48,), "float16")
    c = g.elementwise("add", g.matmul(a, b), g.broadcast(bias, (40, 48)))
    graph = g.finish([("c", g.elementwise("add", g.elementwise("tanh", c), r))])
    sketch = tiled(graph)
    assert len(sketch.program.body.body) == 1
    keeps(lowered(graph), sketch)


def test_operands_are_fetched_in_pieces_of_sixteen_bytes_where_rows_allow() -> None:
    def vectors(graph: Graph) -> list[int]:
        program = lowered(graph)
        found = product_of(program, next(block.name for block in blocks(program) if block.combine == "sum"))
        assert isinstance(found, GpuTensorProduct)
        return [pieces("float16", width) for width in found.vector]

    assert vectors(product(64, 64, 64)) == [8, 8]
    assert vectors(product(64, 36, 64)) == [8, 4]
    assert vectors(product(64, 33, 50)) == [2, 1]
    assert pieces("int8", 64) == 16 and pieces("float32", 64) == 4
    assert GpuTensorFetch.__slots__  # what fetches is a value


@pytest.mark.parametrize(
    ("sizes", "target"),
    [((4096, 4096, 4096), A100), ((4096, 4096, 4096), T4), ((1, 4096, 4096), A100), ((1000, 77, 333), A100)],
)
def test_candidates_keep_the_limits_of_the_device(sizes: tuple[int, int, int], target: Target) -> None:
    sketch = tiled(product(*sizes), target)
    space = ParameterSpace.of(sketch)
    assert target.gpu is not None
    for row in space.draw(20, np.random.default_rng(0)):
        program = sketch.candidate(space.values(row))
        (region,) = program.body.body
        shared, accumulators = 0, 0
        for stmt in walk(region):
            if isinstance(stmt, Alloc):
                count = int(np.prod([extent.value for extent in stmt.buffer.shape]))
                if stmt.buffer.scope == "shared":
                    shared += count * ITEM_BYTES[stmt.buffer.dtype] + stmt.buffer.pad.value * stmt.buffer.shape[0].value
                elif stmt.buffer.dtype == "float32":
                    accumulators += count // 32
        stages = max(int(s.annotation("software_pipeline") or 1) for s in walk(region) if isinstance(s, Loop))
        warps = {
            int(np.prod([axis.extent.value for axis in stmt.axes]))
            for stmt in walk(region)
            if isinstance(stmt, Loop) and stmt.kind == "threadIdx.y"
        }
        lanes = {
            int(np.prod([axis.extent.value for axis in stmt.axes]))
            for stmt in walk(region)
            if isinstance(stmt, Loop) and stmt.kind == "threadIdx.x"
        }
        assert len(warps) == 1 and lanes == {32}
        threads = 32 * warps.pop()
        assert threads <= target.gpu.threads_per_block
        assert shared * stages <= target.gpu.shared_per_block
        assert accumulators + 32 < target.gpu.registers_per_thread
        assert (accumulators + 32) * threads <= target.gpu.registers
        assert stages <= (5 if target is A100 else 2)


def test_the_trace_makes_the_sketch_again() -> None:
    graph = product(100, 96, 64)
    sketch = tiled(graph)
    assert replay(lowered(graph), from_json(to_json(sketch.trace))).program == sketch.program


def test_an_older_device_has_shorter_units() -> None:
    graph = product(40, 24, 40)
    sketch = tiled(graph, T4)
    assert "mma.m16n8k8_f16f16f32" in units_in(sketch.program)
    keeps(lowered(graph), sketch, 2)
    assert says_nothing(GpuTensorTiling(), lowered(product(40, 24, 40, "int8")), T4)


def test_float32_is_rounded_only_where_that_is_asked_for() -> None:
    graph = product(40, 24, 40, "float32", right="nk")
    assert says_nothing(GpuTensorTiling(), lowered(graph), A100)
    sketch = tiled(graph, rule=GpuTensorTiling(("tf32",)))
    assert "mma.m16n8k8_tf32" in units_in(sketch.program)
    keeps(lowered(graph), sketch, 2)


def test_units_of_unknown_names_are_one_clear_error() -> None:
    with pytest.raises(UserError, match="there are no tensor-core units fp4"):
        GpuTensorTiling(("f16", "fp4"))


def test_what_is_no_product_for_tensor_cores_stays() -> None:
    g = GraphBuilder()
    rows = g.finish([("y", g.reduce("sum", g.input("x", (6, 11), "float16"), [1]))])
    for graph in (rows, product(8, 8, 8, "float64"), product(8, 8, 8, "float32")):
        assert says_nothing(GpuTensorTiling(), lowered(graph), A100)
    assert says_nothing(GpuTensorTiling(), lowered(product(8, 8, 8)), CPU)


def test_a_device_without_tensor_cores_has_no_units() -> None:
    plain = replace(A100, gpu=replace(GPU, tensor_fma={}))
    assert units_for("float16", "float32", ("f16",), plain) is None
    found = units_for("float16", "float32", ("f16", "f16_k8"), A100)
    assert isinstance(found, GpuTensorUnits) and found in UNITS and found.depth == 16


def test_operands_are_converted_while_they_are_fetched() -> None:
    g = GraphBuilder()
    a = g.cast(g.input("a", (40, 32), "float32"), "float16")
    graph = g.finish([("c", g.matmul(a, g.input("b", (32, 24), "float16")))])
    sketch = tiled(graph)
    assert len(sketch.program.body.body) == 1
    keeps(lowered(graph), sketch, 2)
    assert product_of(with_casts(Sketch(lowered(graph)), "contract3").program, "contract3").vector == (4, 24)  # type: ignore[union-attr]


def test_other_rules_may_see_the_product_too() -> None:
    graph = product(40, 24, 40)
    sketches = generate(lowered(graph), [GpuTensorTiling(beside=True)], A100)
    assert [bool(units_in(sketch.program)) for sketch in sketches] == [True, False]
