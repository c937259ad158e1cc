"""The invariants of µGraphs: what is written by hand keeps them, and each one refuses what breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pipeline.errors import CheckError
from pipeline.superopt.mugraph.builder import MuGraphBuilder
from pipeline.superopt.mugraph.check import CHECKS, accumulator_levels, check
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    Axis,
    BlockGraph,
    BlockInput,
    BlockNode,
    BlockOutput,
    Concat,
    Contract,
    Fold,
    KernelNode,
    Map,
    MuGraph,
    RescaledSum,
    Running,
    Scalar,
    Squeeze,
    Transpose,
    Unsqueeze,
)
from pipeline.superopt.mugraph.operator import result_rank, wrong_attributes, wrong_operands
from tests.superopt.expert_mugraphs import EXPERT, EXPERT_SHAPES, online_attention, rmsnorm_linear, two_loops


@pytest.mark.parametrize("name", EXPERT)
def test_what_an_expert_writes_is_valid_with_and_without_ranks(name: str) -> None:
    check(EXPERT[name])
    check(EXPERT[name], {tensor: len(shape) for tensor, shape in EXPERT_SHAPES[name][0].items()})


def _block(graph: MuGraph) -> BlockGraph:
    assert isinstance(graph.nodes[0].op, BlockGraph)
    return graph.nodes[0].op


def _with(graph: MuGraph, change: Callable[[BlockGraph], BlockGraph]) -> MuGraph:
    node = graph.nodes[0]
    return replace(graph, nodes=(replace(node, op=change(_block(graph))), *graph.nodes[1:]))


def _node(number: int, node: BlockNode) -> Callable[[BlockGraph], BlockGraph]:
    """The block with another node at a position among its nodes."""
    return lambda block: replace(block, nodes=(*block.nodes[:number], node, *block.nodes[number + 1 :]))


# 0 x (m, k), 1 w (k, n), 2 x * x, 3 sum, 4 accumulated, 5 product, 6 accumulated, 7 width, 8 mean, 9 root, 10
RMS = rmsnorm_linear()
# 0 q, 1 k, 2 v, 3 s, 4 max, 5 running, 6 s - m, 7 p, 8 sum, 9 rescaled, 10 product, 11 rescaled, 12
ATTENTION = online_attention()

BROKEN: dict[str, tuple[MuGraph, str, str]] = {
    "an input twice": (replace(RMS, inputs=("x", "x")), "names_are_plain_and_unique", "2 times"),
    "an axis twice": (
        _with(RMS, lambda b: replace(b, loops=(Axis("n"),))),
        "names_are_plain_and_unique",
        "axis n of kernel 0",
    ),
    "an axis of no plain name": (
        _with(RMS, lambda b: replace(b, loops=(Axis("k 1"),))),
        "names_are_plain_and_unique",
        "'k 1'",
    ),
    "an extent of zero": (_with(RMS, lambda b: replace(b, grid=(Axis("n", 0),))), "extents_are_positive", "extent 0"),
    "two extents of one name": (
        MuGraph(
            ("x", "w"),
            (*RMS.nodes, KernelNode(replace(_block(RMS), grid=(Axis("n", 2),)), (2, 1))),
            (3,),
        ),
        "one_name_has_one_extent",
        "axis n of kernel 1 has extent 2",
    ),
    "a tensor that comes later": (
        replace(RMS, nodes=(replace(RMS.nodes[0], inputs=(0, 2)),)),
        "operands_come_earlier",
        "kernel 0 reads tensor 2",
    ),
    "a tile that comes later": (
        _with(RMS, _node(0, BlockNode(Map("mul"), (0, 2)))),
        "operands_come_earlier",
        "value 2 of kernel 0 reads value 2",
    ),
    "an output that is no tensor": (replace(RMS, outputs=(3,)), "operands_come_earlier", "output 3"),
    "a store of no value": (
        _with(RMS, lambda b: replace(b, outputs=(BlockOutput(11, (1,)),))),
        "operands_come_earlier",
        "writes value 11",
    ),
    "no outputs": (replace(RMS, outputs=()), "there_are_outputs", "no output"),
    "no stores": (_with(RMS, lambda b: replace(b, outputs=())), "there_are_outputs", "writes nothing"),
    "an operand that is not cut": (
        replace(RMS, nodes=(replace(RMS.nodes[0], inputs=(0, 1, 1)),)),
        "maps_have_an_entry_for_each_axis",
        "3 operands and cuts 2",
    ),
    "an imap that is too short": (
        _with(RMS, lambda b: replace(b, inputs=(BlockInput((), (1,)), b.inputs[1]))),
        "maps_have_an_entry_for_each_axis",
        "0 imap entries for 1 grid axes",
    ),
    "an fmap that is too long": (
        _with(RMS, lambda b: replace(b, inputs=(BlockInput((None,), (1, None)), b.inputs[1]))),
        "maps_have_an_entry_for_each_axis",
        "2 fmap entries for 1 loops",
    ),
    "an omap that is too short": (
        _with(RMS, lambda b: replace(b, outputs=(BlockOutput(10, ()),))),
        "maps_have_an_entry_for_each_axis",
        "0 omap entries",
    ),
    "an omap of no kind": (
        _with(RMS, lambda b: replace(b, outputs=(BlockOutput(10, ("min",)),))),  # type: ignore[arg-type]
        "maps_have_an_entry_for_each_axis",
        "'min'",
    ),
    "a sum and a maximum": (
        _with(
            RMS,
            lambda b: replace(
                b,
                grid=(*b.grid, Axis("z")),
                inputs=(BlockInput((None, 0), (1,)), BlockInput((1, None), (0,))),
                outputs=(BlockOutput(10, ("sum", "max")),),
            ),
        ),
        "an_output_is_reduced_in_one_way",
        "output 0 of kernel 0",
    ),
    "a grid axis that cuts nothing": (
        _with(RMS, lambda b: replace(b, inputs=(b.inputs[0], BlockInput((None,), (0,))))),
        "every_axis_partitions_an_input",
        "axis n",
    ),
    "a loop that cuts nothing": (
        _with(RMS, lambda b: replace(b, inputs=(BlockInput((None,), (None,)), BlockInput((1,), (None,))))),
        "every_axis_partitions_an_input",
        "axis k",
    ),
    "a function that is not there": (
        _with(RMS, _node(0, BlockNode(Map("gemm"), (0, 0)))),
        "operators_mean_something",
        "value 2 of kernel 0: no such scalar function: 'gemm'",
    ),
    "an accumulator of tensors": (
        MuGraph(("x",), (KernelNode(Accumulate("sum"), (0,)),), (1,)),  # type: ignore[arg-type]
        "operators_mean_something",
        "outside of a block",
    ),
    "a function of too many": (_with(RMS, _node(0, BlockNode(Map("exp"), (0, 0)))), "ranks_agree", "takes 1 operands"),
    "a fold of a dimension that is not there": (
        _with(RMS, _node(1, BlockNode(Fold("sum", (2,)), (2,)))),
        "ranks_agree",
        "no dimension 2",
    ),
    "a cut of a dimension that is not there": (
        _with(RMS, lambda b: replace(b, inputs=(b.inputs[0], BlockInput((2,), (0,))))),
        "ranks_agree",
        "no dimension 2 to cut",
    ),
    "a store along a dimension that is not there": (
        _with(RMS, lambda b: replace(b, outputs=(BlockOutput(10, (2,)),))),
        "ranks_agree",
        "output 0 of kernel 0 has no dimension 2",
    ),
    "an accumulator after the loops": (
        _with(RMS, _node(2, BlockNode(Accumulate("sum", 1), (3,)))),
        "accumulators_combine_a_loop",
        "loops from 1 on, but its operand has depth 1",
    ),
    "a rescaled sum of a maximum that does not run": (
        _with(ATTENTION, _node(6, BlockNode(RescaledSum(), (8, 4)))),
        "rescaled_sums_follow_a_running_maximum",
        "not Fold",
    ),
    "a rescaled sum of a running minimum": (
        _with(ATTENTION, _node(2, BlockNode(Running("min"), (4,)))),
        "rescaled_sums_follow_a_running_maximum",
        "'min'",
    ),
    "an accumulator that is read in its loop": (
        _with(RMS, _node(3, BlockNode(Contract("mk,kn->mn"), (4, 1)))),
        "loops_are_traversed_once",
        "reads value 4 inside loop 0",
    ),
    "an output in the loop": (
        _with(RMS, lambda b: replace(b, outputs=(BlockOutput(5, (1,)),))),
        "outputs_have_depth_zero",
        "value 5 of depth 1",
    ),
    "a tile that nothing reads": (
        _with(RMS, _node(8, BlockNode(Map("div"), (6, 8)))),
        "everything_reaches_an_output",
        "value 9 of kernel 0",
    ),
    "a kernel that nothing reads": (
        MuGraph(("x",), (KernelNode(Map("exp"), (0,)), KernelNode(Map("log"), (0,))), (2,)),
        "everything_reaches_an_output",
        "result 0 of kernel 0",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_breaks_an_invariant_is_refused_by_its_name(what: str) -> None:
    graph, invariant, why = BROKEN[what]
    ranks = {"x": 2, "w": 2} if graph.inputs == ("x", "w") else {}
    with pytest.raises(CheckError) as caught:
        check(graph, ranks)
    assert invariant.replace("_", " ") in str(caught.value)
    assert why in str(caught.value)


def test_every_invariant_is_broken_by_some_graph() -> None:
    assert {invariant.__name__ for invariant in CHECKS} == {invariant for _, invariant, _ in BROKEN.values()}


def test_without_ranks_what_follows_from_them_is_not_known_to_be_wrong() -> None:
    graph = MuGraph(("x",), (KernelNode(Fold("sum", (4,)), (0,)),), (1,))
    check(graph)
    check(graph, {"x": 5})
    with pytest.raises(CheckError, match="rank 4"):
        check(graph, {"x": 4})


def test_an_axis_of_one_point_need_not_cut_anything() -> None:
    check(_with(RMS, lambda b: replace(b, grid=(Axis("n", 1),), inputs=(b.inputs[0], BlockInput((None,), (0,))))))


def test_an_accumulator_of_an_inner_loop_may_be_read_in_the_outer_one_only() -> None:
    graph = two_loops()
    # 0 x, 1 w, 2 product, 3 max, 4 accumulated over k, 5 sum, 6 accumulated, 7
    assert accumulator_levels(_block(graph))[3:] == (float("inf"), 1, 1, 0, 0)
    with pytest.raises(CheckError, match="once"):
        check(_with(graph, _node(3, BlockNode(Map("add"), (4, 2)))), {"x": 3, "w": 1})


def test_a_rescaled_sum_follows_a_maximum_through_views_but_through_nothing_else() -> None:
    b = MuGraphBuilder()
    with b.kernel(loops={"n": None}) as k:
        s = k.load(b.input("s", 2), fmap={"n": 1})
        top = k.running(k.fold("max", s, axis=1))
        seen = k.unsqueeze(k.transpose(k.squeeze(top, [1]), [0]), [1])
        y = k.store(k.rescaled_sum(k.exp(s - top), seen))
    graph = b.finish(y)
    check(graph, {"s": 2})
    # 0 s, 1 max, 2 running, 3 squeeze, 4 transpose, 5 unsqueeze
    with pytest.raises(CheckError, match="not Map"):
        check(_with(graph, _node(3, BlockNode(Map("neg"), (3,)))), {"s": 2})


def test_a_rescaled_sum_follows_the_maximum_of_its_own_level() -> None:
    b = _block(ATTENTION)
    deeper = replace(b, loops=(Axis("z"), Axis("n")),
                     inputs=tuple(replace(tile, fmap=(None, *tile.fmap)) for tile in b.inputs))  # fmt: skip
    deeper = replace(deeper, inputs=(replace(deeper.inputs[0], fmap=(1, None)), *deeper.inputs[1:]))
    check(_with(ATTENTION, lambda _: deeper))
    with pytest.raises(CheckError, match="of that level"):
        check(_with(ATTENTION, lambda _: _node(2, BlockNode(Running("max", 1), (4,)))(deeper)))


@pytest.mark.parametrize(
    "op",
    [
        Scalar(float("nan")),
        Map("cast"),
        Contract("ab,bc"),
        Contract("ab->ab"),
        Contract("aab,b->a"),
        Contract("ab,bc->aa"),
        Contract("ab,bc->ad"),
        Contract("a.,.b->ab"),
        Fold("mean", (0,)),  # type: ignore[arg-type]
        Fold("sum", ()),
        Fold("sum", (1, 0)),
        Fold("sum", (0, 0)),
        Fold("sum", (-1,)),
        Fold("sum", (0,), 0),
        Transpose((0, 2)),
        Unsqueeze((1, 1)),
        Squeeze(()),
        Concat(-1),
        Accumulate("sum", -1),
        Accumulate("sum", 0, 1),
        Accumulate("concat"),
        Accumulate("concat", 0, -1),
        Accumulate("mean"),  # type: ignore[arg-type]
        Running("sum"),  # type: ignore[arg-type]
        Running("max", -1),
        RescaledSum(-1),
    ],
    ids=str,
)
def test_an_operator_that_means_nothing_is_refused(op) -> None:  # type: ignore[no-untyped-def]  # of any kind
    assert wrong_attributes(op)


@pytest.mark.parametrize(
    ("op", "ranks", "result"),
    [
        (Scalar(2.0), (), 0),
        (Map("add"), (2, 3), 3),
        (Map("add"), (2, None), None),
        (Map("where"), (1, 2, 0), 2),
        (Contract("ab,bc->abc"), (2, 2), 3),
        (Contract("ab,->a"), (2, 0), 1),
        (Contract("ab,bc->"), (None, None), 0),
        (Fold("max", (0, 2)), (3,), 3),
        (Transpose((1, 0)), (2,), 2),
        (Transpose(()), (0,), 0),
        (Unsqueeze((0, 3)), (2,), 4),
        (Squeeze((0, 1)), (3,), 1),
        (Concat(0), (1, 1, None), 1),
        (Accumulate("concat", 0, 1), (2,), 2),
        (RescaledSum(), (2, 2), 2),
    ],
    ids=str,
)
def test_the_rank_of_a_result_follows_from_the_operands(op, ranks, result) -> None:  # type: ignore[no-untyped-def]
    assert not wrong_attributes(op) and not wrong_operands(op, ranks)
    assert result_rank(op, ranks) == result


@pytest.mark.parametrize(
    ("op", "ranks"),
    [
        (Scalar(1.0), (1,)),
        (Map("exp"), ()),
        (Map("where"), (1, 1)),
        (Contract("ab,bc->ac"), (2, 3)),
        (Contract("ab,bc->ac"), (2,)),
        (Fold("sum", (1,)), (1,)),
        (Transpose((1, 0)), (3,)),
        (Unsqueeze((3,)), (2,)),
        (Squeeze((2,)), (2,)),
        (Concat(0), (1,)),
        (Concat(0), (1, 2)),
        (Concat(1), (1, 1)),
        (Accumulate("concat", 0, 2), (2,)),
        (RescaledSum(), (1, 2)),
    ],
    ids=str,
)
def test_operands_that_an_operator_cannot_take_are_refused(op, ranks) -> None:  # type: ignore[no-untyped-def]
    assert not wrong_attributes(op)
    assert wrong_operands(op, ranks)
