"""The builder: what a few lines give, and the refusal of each mistake at the line that makes it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline.errors import CheckError
from pipeline.superopt.mugraph.builder import KernelBuilder, MuGraphBuilder
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    Axis,
    BlockGraph,
    BlockInput,
    BlockNode,
    BlockOutput,
    Contract,
    Fold,
    KernelNode,
    Map,
    MuGraph,
    Scalar,
)
from tests.superopt.expert_mugraphs import EXPERT, rmsnorm_linear, split_decoding


def test_a_few_lines_give_the_fused_normalisation_and_product() -> None:
    block = BlockGraph(
        grid=(Axis("n"),),
        loops=(Axis("k", 16),),
        inputs=(BlockInput((None,), (1,)), BlockInput((1,), (0,))),
        nodes=(
            BlockNode(Map("mul"), (0, 0)),
            BlockNode(Fold("sum", (1,)), (2,)),
            BlockNode(Accumulate("sum"), (3,)),
            BlockNode(Contract("mk,kn->mn"), (0, 1)),
            BlockNode(Accumulate("sum"), (5,)),
            BlockNode(Scalar(64.0), ()),
            BlockNode(Map("div"), (4, 7)),
            BlockNode(Map("sqrt"), (8,)),
            BlockNode(Map("div"), (6, 9)),
        ),
        outputs=(BlockOutput(10, (1,)),),
    )
    assert rmsnorm_linear(64.0, 16) == MuGraph(("x", "w"), (KernelNode(block, (0, 1)),), (2,))


def test_tensors_are_numbered_inputs_first_whenever_they_are_asked_for() -> None:
    b = MuGraphBuilder()
    x = b.input("x", rank=1)
    e = b.exp(x)
    y = b.input("y", rank=1)
    assert b.finish(e + y) == MuGraph(("x", "y"), (KernelNode(Map("exp"), (0,)), KernelNode(Map("add"), (2, 1))), (3,))


def test_the_results_of_a_kernel_with_two_stores_follow_one_another() -> None:
    graph = split_decoding()
    assert [node.results for node in graph.nodes] == [2, 1, 1, 1, 1, 1]
    assert [node.inputs for node in graph.nodes] == [(0, 1, 2), (3,), (5,), (4,), (7,), (8, 6)]


def test_operators_of_handles_are_scalar_functions_with_numbers_as_scalars() -> None:
    b = MuGraphBuilder()
    x = b.input("x", rank=0)
    graph = b.finish(1 - (2 / (-x + 3)) * x, b.silu(x))
    fns = [node.op.fn if isinstance(node.op, Map) else node.op.value for node in graph.nodes]  # type: ignore[union-attr]
    assert fns == ["neg", 3.0, "add", 2.0, "div", "mul", 1.0, "sub", "sigmoid", "mul"]


@pytest.mark.parametrize("name", EXPERT)
def test_a_loop_by_its_name_is_its_level(name: str) -> None:
    levels = {
        node.op.level
        for kernel in EXPERT[name].nodes
        if isinstance(kernel.op, BlockGraph)
        for node in kernel.op.nodes
        if isinstance(node.op, Accumulate)
    }
    assert levels <= ({0, 1} if name == "two_loops" else {0})


def test_an_error_inside_a_kernel_leaves_the_builder_usable() -> None:
    b = MuGraphBuilder()
    x = b.input("x", rank=2)
    with pytest.raises(CheckError), b.kernel(loops={"k": None}) as k:
        k.load(x, fmap={"z": 1})
    b.finish(b.exp(x))


Wrong = Callable[[MuGraphBuilder, KernelBuilder], object]
IN_A_KERNEL: dict[str, tuple[Wrong, str]] = {
    "an unknown axis": (lambda b, k: k.load(b.input("x", 2), imap={"k": 0}), "'k' is none of g"),
    "a dimension that is not there": (lambda b, k: k.load(b.input("x", 2), fmap={"k": 2}), "no dimension 2"),
    "a tensor that was not loaded": (lambda b, k: k.exp(b.input("x", 2)), "Load a tensor"),
    "an operator on tensors": (lambda b, k: b.exp(b.input("x", 2)), "a kernel is open"),
    "another kernel inside": (lambda b, k: b.kernel().__enter__(), "kernels do not nest"),
    "a store in the loop": (lambda b, k: k.store(_tile(b, k), {"g": 0}), "depth 1. Accumulate it first"),
    "an omap without an axis": (lambda b, k: k.store(_tile(b, k)), "the grid is g"),
    "an omap of an unknown kind": (lambda b, k: k.store(_sum(b, k), {"g": "min"}), "sum, max, stack"),  # type: ignore[dict-item]
    "an omap of a dimension that is not there": (lambda b, k: k.store(_sum(b, k), {"g": 2}), "tiles of rank 2"),
    "an accumulator after the loop": (lambda b, k: k.accumulate("sum", _sum(b, k)), "its operand has depth 0"),
    "an accumulator of no loop": (lambda b, k: k.accumulate("sum", _tile(b, k), loop="g"), "'g' is none of k"),
    "a sum along an axis": (lambda b, k: k.accumulate("sum", _tile(b, k), axis=1), "sum has no axis"),
    "a concatenation without one": (lambda b, k: k.accumulate("concat", _tile(b, k)), "needs an axis"),
    "a second traversal": (lambda b, k: _tile(b, k) / _sum(b, k), "has not ended yet in loop k"),
    "a rescaled sum of a plain maximum": (
        lambda b, k: k.rescaled_sum(t := _tile(b, k), k.fold("max", t, axis=1)),
        "follows a running maximum",
    ),
    "letters that do not fit": (lambda b, k: k.contract("abc,bc->a", t := _tile(b, k), t), "operand of rank 2"),
    "a function that is not there": (lambda b, k: k.map("softmax", _tile(b, k)), "'softmax'"),
    "two operands for one": (lambda b, k: k.map("exp", t := _tile(b, k), t), "takes 1 operands"),
}


def _tile(b: MuGraphBuilder, k: KernelBuilder):  # type: ignore[no-untyped-def]  # a handle
    return k.load(b.input(f"x{len(b._inputs)}", 2), imap={"g": 0}, fmap={"k": 1})


def _sum(b: MuGraphBuilder, k: KernelBuilder):  # type: ignore[no-untyped-def]  # a handle
    return k.accumulate("sum", _tile(b, k))


@pytest.mark.parametrize("what", IN_A_KERNEL)
def test_a_mistake_in_a_kernel_is_refused_where_it_is_made(what: str) -> None:
    wrong, why = IN_A_KERNEL[what]
    b = MuGraphBuilder()
    with pytest.raises(CheckError) as caught, b.kernel(grid={"g": None}, loops={"k": None}) as k:
        wrong(b, k)
        pytest.fail("it was accepted")
    assert why in str(caught.value)


def test_a_kernel_without_a_store_is_refused_at_its_end() -> None:
    b = MuGraphBuilder()
    with pytest.raises(CheckError, match="writes nothing"), b.kernel() as k:
        k.load(b.input("x", 1))


def test_a_value_of_a_closed_kernel_is_refused_outside_and_in_the_next_one() -> None:
    b = MuGraphBuilder()
    x = b.input("x", rank=1)
    with b.kernel() as first:
        tile = first.load(x)
        first.store(tile)
    with pytest.raises(CheckError, match="made by the kernel"):
        b.exp(tile)
    with pytest.raises(CheckError, match="not open"):
        first.exp(tile)
    with b.kernel() as second:
        with pytest.raises(CheckError, match="made by the kernel"):
            second.exp(tile)
        second.store(second.load(x))


@pytest.mark.parametrize(
    ("grid", "loops"),
    [({"a": 0}, {}), ({"a b": 1}, {}), ({"a": 2}, {"a": 2})],
    ids=["no extent", "no plain name", "one name twice"],
)
def test_axes_that_are_none_are_refused(grid: dict[str, int], loops: dict[str, int]) -> None:
    with pytest.raises(CheckError):
        MuGraphBuilder().kernel(grid, loops)


def test_an_input_of_a_name_that_is_taken_is_refused() -> None:
    b = MuGraphBuilder()
    b.input("x", 1)
    with pytest.raises(CheckError, match="twice"):
        b.input("x", 2)


def test_what_reaches_no_output_is_refused_at_the_end() -> None:
    b = MuGraphBuilder()
    x = b.input("x", rank=1)
    b.exp(x)
    with pytest.raises(CheckError, match="not used"):
        b.finish(b.log(x))
