"""What a graph is over labelled axes: equal to the graph where there is a specification, refused with a reason else."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.ir.graph import AffineDim, Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_primitives import axis_map
from pipeline.superopt.label import Opaque, specify
from pipeline.superopt.spec import Spec, spec_graph
from tests.ir.random_graphs import graphs
from tests.superopt.spec_agreement import agrees


def labelled(graph: Graph) -> Spec:
    made = specify(graph)
    assert isinstance(made, Spec), made
    return made


def refused(graph: Graph) -> str:
    made = specify(graph)
    assert isinstance(made, Opaque)
    return made.reason


def attention(b: GraphBuilder, q: int, k: int, v: int) -> int:
    """Of (position, head, dim) tensors, merged again."""
    scores = b.einsum("qhd,khd->hqk", q, k)
    return b.einsum("hqk,khd->qhd", b.softmax(b.elementwise("mul", scores, b.scalar(0.5, scores))), v)


def test_heads_side_by_side_in_one_dimension_are_read_by_an_affine_map() -> None:
    b = GraphBuilder()
    x = b.input("qkv", (6, 24), "float32")
    q = b.contract(x, x, (2, 6, 6), (4,),
                   (AffineDim(((1, 1),)), AffineDim(((0, 4), (3, 1)))),
                   (AffineDim(((2, 1),)), AffineDim(((0, 4), (3, 1)), 8)))  # fmt: skip
    out = b.contract(b.softmax(q), x, (6, 2, 4), (6,), axis_map(1, 0, 3),
                     (AffineDim(((3, 1),)), AffineDim(((1, 4), (2, 1)), 16)))  # fmt: skip
    graph = b.finish([("y", out)])
    spec = labelled(graph)
    assert [(one.name, one.source, one.access[1].offset) for one in spec.inputs] == [
        ("qkv", 0, 0), ("qkv_1", 0, 8), ("qkv_2", 0, 16)
    ]  # fmt: skip
    assert sorted(spec.extents) == [2, 4, 4, 6, 6], (
        "keys and values share their position, queries have one of their own"
    )
    agrees(graph, spec)


def test_a_reshape_into_heads_splits_an_axis() -> None:
    b = GraphBuilder()
    q, k, v = (b.reshape(b.input(name, (5, 6), "float32"), (5, 2, 3)) for name in "qkv")
    graph = b.finish([("y", b.reshape(attention(b, q, k, v), (5, 6)))])
    spec = labelled(graph)
    assert sorted(spec.extents) == [2, 3, 3, 5, 5]
    assert [len(one.labels) for one in spec.inputs] == [3, 3, 3]
    agrees(graph, spec)


def test_what_is_normalised_and_then_multiplied_runs_over_one_axis() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (4, 8), "float32"), b.input("w", (8, 3), "float32")
    graph = b.finish([("y", b.matmul(b.normalize(x, [-1], 1e-5), w))])
    spec = labelled(graph)
    assert len(spec.extents) == 3 and len(spec.inputs) == 2
    agrees(graph, spec)


def test_a_tensor_times_its_own_transpose_is_two_inputs() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 8), "float32")
    graph = b.finish([("y", b.einsum("mk,nk->mn", x, x))])
    spec = labelled(graph)
    assert [(one.name, one.source) for one in spec.inputs] == [("x", 0), ("x_1", 0)]
    assert len(spec.extents) == 3, "the summed axis is shared, the others are not"
    agrees(graph, spec)


def test_a_square_product_of_a_tensor_with_itself_shares_no_axis_that_would_be_a_diagonal() -> None:
    b = GraphBuilder()
    x = b.input("x", (5, 5), "float32")
    graph = b.finish([("y", b.matmul(x, x))])
    spec = labelled(graph)
    assert len(spec.extents) == 3 and len(spec.inputs) == 2
    agrees(graph, spec)


def test_a_residual_of_the_same_tensor_keeps_the_axis_of_the_result() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (3, 5), "float32"), b.input("w", (5, 5), "float32")
    graph = b.finish([("y", b.elementwise("add", x, b.matmul(x, w)))])
    agrees(graph, labelled(graph))


def test_a_mask_is_an_input_of_type_bool() -> None:
    b = GraphBuilder()
    x, mask = b.input("x", (2, 3, 4), "float32"), b.input("mask", (3, 4), "bool")
    graph = b.finish([("y", b.softmax(b.elementwise("where", mask, x, b.scalar(-1e4, x))))])
    spec = labelled(graph)
    assert [one.dtype for one in spec.inputs] in (["float32", "bool"], ["bool", "float32"])
    agrees(graph, spec)


def test_a_slice_is_an_offset() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (4, 9), "float32"), b.input("w", (4, 2), "float32")
    graph = b.finish([("y", b.matmul(b.slice(x, [5], [9], axes=[1]), w))])
    spec = labelled(graph)
    assert spec.inputs[0].access[1].offset == 5 and spec.inputs[0].shape == (4, 9)
    agrees(graph, spec)


def test_constants_are_told_by_their_key() -> None:
    b = GraphBuilder()
    x, w = b.input("x0", (4, 9), "float32"), b.input("w1", (9, 2), "float32")
    spec = specify(b.finish([("y", b.matmul(x, w))]), ("w1",))
    assert isinstance(spec, Spec) and [one.key for one in spec.inputs] == [None, "w1"]


def test_equal_graphs_have_equal_specifications() -> None:
    def made() -> Graph:
        b = GraphBuilder()
        q, k, v = (b.input(name, (5, 2, 3), "float32") for name in "qkv")
        return b.finish([("y", attention(b, q, k, v))])

    assert specify(made()) == specify(made())


def build(kind: str) -> Graph:
    b = GraphBuilder()
    x = b.input("x", (4, 6), "float32")
    square = b.input("s", (4, 4), "float32")
    match kind:
        case "window":
            image = b.input("i", (1, 2, 6, 6), "float32")
            weight = b.input("w", (3, 2, 3, 3), "float32")
            y = b.conv(image, weight, strides=[1, 1], pads_low=[0, 0], pads_high=[0, 0], dilations=[1, 1])
        case "gather":
            y = b.elementwise("exp", b.gather(x, b.input("n", (3,), "int64")))
        case "scan":
            y = b.elementwise("exp", b.scan("sum", x, 1))
        case "double":
            y = b.elementwise("add", b.cast(x, "float64"), b.input("d", (4, 6), "float64"))
        case "sum with its transpose":
            twice = b.elementwise("mul", square, square)
            y = b.elementwise("add", twice, b.transpose(twice, (1, 0)))
        case "two exponentials":
            y = b.elementwise("exp", b.softmax(x))
        case "sine":
            y = b.elementwise("sin", x)
        case "part of what is computed":
            y = b.elementwise("exp", b.slice(b.elementwise("exp", x), [0], [2], axes=[0]))
        case "broadcast":
            y = b.broadcast(b.reduce("sum", x, [1], True), (4, 6))
        case "view":
            y = b.transpose(x, (1, 0))
        case "sum along a broadcast":
            y = b.reduce("sum", b.broadcast(b.reduce("sum", x, [1], True), (4, 6)), [1])
        case "argmax":
            y = b.reduce("argmax", x, [1])
        case "empty":
            y = b.elementwise("exp", b.input("e", (0, 3), "float32"))
        case "borders that do not meet":
            y = b.elementwise("exp", b.reshape(b.elementwise("exp", x), (3, 8)))
        case _:
            raise AssertionError(kind)
    return b.finish([("y", y)])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("window", "window"), ("gather", "gather is not algebraic"), ("scan", "scan is not"), ("double", "float64"),
        ("sum with its transpose", "two dimensions of one value"), ("two exponentials", "second exponential"),
        ("sine", "sin is no function"), ("part of what is computed", "slice of what is computed"),
        ("broadcast", "broadcast"), ("view", "nothing is computed"), ("sum along a broadcast", "broadcast"),
        ("argmax", "argmax|int64"), ("empty", "without elements"), ("borders that do not meet", "borders|same axes"),
    ],
)  # fmt: skip
def test_what_cannot_be_labelled_or_proven_is_refused_with_the_reason(kind: str, said: str) -> None:
    assert re.search(said, refused(build(kind)))


def test_a_graph_of_two_outputs_is_refused() -> None:
    b = GraphBuilder()
    x = b.input("x", (4,), "float32")
    assert "2 outputs" in refused(b.finish([("y", b.elementwise("exp", x)), ("z", b.elementwise("neg", x))]))


@settings(max_examples=150, deadline=None)
@given(graphs(steps=5))
def test_random_graphs_are_refused_or_agree_with_their_specification(graph: Graph) -> None:
    made = specify(graph)
    if isinstance(made, Spec):
        agrees(graph, made)


@st.composite
def algebraic(draw: st.DrawFn) -> Graph:
    """A graph of products, reductions, views and elementwise functions: most of them have a specification."""
    b = GraphBuilder()
    sizes = draw(st.tuples(*[st.sampled_from((1, 2, 3, 4, 6))] * 3))
    values = [b.input("x", sizes, "float32"), b.input("z", (sizes[1], sizes[2]), "float32")]
    for number in range(draw(st.integers(1, 6))):
        x = draw(st.sampled_from(values))
        shape = b.shape(x)
        rank = len(shape)
        axis = draw(st.integers(0, max(rank - 1, 0)))
        match draw(
            st.sampled_from(("map", "pair", "reduce", "keep", "transpose", "merge", "split", "product", "norm"))
        ):
            case "map":
                values.append(b.elementwise(draw(st.sampled_from(("tanh", "neg", "erf", "abs"))), x))
            case "pair":
                y = draw(st.sampled_from(values))
                values.append(b.elementwise("add", x, y if b.shape(y) == shape else x))
            case "reduce" if rank:
                values.append(b.reduce(draw(st.sampled_from(("sum", "max"))), x, [axis]))
            case "keep" if rank:
                values.append(b.elementwise("sub", x, b.reduce("max", x, [axis], True)))
            case "transpose":
                values.append(b.transpose(x, draw(st.permutations(range(rank)))))
            case "merge":
                values.append(b.reshape(x, (-1,)))
            case "split" if rank and shape[-1] % 2 == 0:
                values.append(b.reshape(x, (*shape[:-1], shape[-1] // 2, 2)))
            case "product" if rank:
                w = b.input(f"w{number}", (shape[-1], draw(st.sampled_from((1, 2, 5)))), "float32")
                values.append(b.einsum(f"{'abcdef'[:rank]},{'abcdef'[rank - 1]}z->{'abcdef'[: rank - 1]}z", x, w))
            case "norm" if rank:
                values.append(b.softmax(b.elementwise("tanh", x), axis) if rank < 4 else x)
    return b.finish([("y", values[-1])])


@settings(max_examples=200, deadline=None)
@given(algebraic(), st.integers(0, 3))
def test_graphs_of_algebraic_operations_agree_with_their_specification(graph: Graph, seed: int) -> None:
    made = specify(graph)
    if isinstance(made, Spec):
        agrees(graph, made, seed)
        shrunk = tuple(min(n, 2) for n in made.extents)
        (result,) = spec_graph(made, shrunk).outputs
        assert spec_graph(made, shrunk).nodes[result[1]].type.shape == tuple(
            shrunk[label] for label in made.labels(made.output)
        )
