"""Products, convolutions and pooling against direct definitions, and torch where it is installed."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.errors import CheckError
from pipeline.ir import graph as g
from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_check import check

SMALL = st.integers(1, 3)


def draw_array(shape, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def drawn(data: st.DataObject, rank: int, numbers: st.SearchStrategy[int]) -> tuple[int, ...]:
    return data.draw(st.tuples(*[numbers] * rank))


def run(build, *arrays: np.ndarray) -> np.ndarray:
    b = GraphBuilder()
    values = [b.input(f"x{i}", array.shape, "float64") for i, array in enumerate(arrays)]
    graph = b.finish([("y", build(b, *values))])
    check(graph)
    return evaluate(graph, {f"x{i}": array for i, array in enumerate(arrays)})["y"]


def direct_conv(x, w, strides, low, high, dilations, groups):
    """One output element at a time."""
    rank = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *zip(low, high, strict=True)])
    outputs, inner, *window = w.shape
    space = [(x.shape[2 + i] - dilations[i] * (window[i] - 1) - 1) // strides[i] + 1 for i in range(rank)]
    y = np.zeros((x.shape[0], outputs, *space))
    for n, o, *at in np.ndindex(*y.shape):
        first = o // (outputs // groups) * inner
        for c, *tap in itertools.product(range(inner), *map(range, window)):
            place = tuple(a * s + t * d for a, s, t, d in zip(at, strides, tap, dilations, strict=True))
            y[(n, o, *at)] += x[(n, first + c, *place)] * w[(o, c, *tap)]
    return y


def direct_conv_transpose(x, w, strides, low, high, extra, dilations, groups):
    """Every input element spreads the window over the output."""
    batch, channels, *size = x.shape
    _, outer, *window = w.shape
    whole = [s * (n - 1) + d * (k - 1) + 1 + e
             for s, n, d, k, e in zip(strides, size, dilations, window, extra, strict=True)]  # fmt: skip
    y = np.zeros((batch, outer * groups, *whole))
    for n, c, *at in np.ndindex(*x.shape):
        group = c // (channels // groups)
        for o, *tap in itertools.product(range(outer), *map(range, window)):
            place = tuple(a * s + t * d for a, s, t, d in zip(at, strides, tap, dilations, strict=True))
            y[(n, group * outer + o, *place)] += x[(n, c, *at)] * w[(c, o, *tap)]
    return y[(..., *(slice(lo, full - hi) for lo, hi, full in zip(low, high, whole, strict=True)))]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)),
        ((5, 2, 3), (5, 3, 4)), ((1, 2, 3), (5, 3, 4)), ((5, 1, 2, 3), (1, 6, 3, 4)), ((3,), (5, 3, 4)),
        ((1, 1, 1), (1, 1, 1)), ((2, 0), (0, 3)), ((0, 3), (3, 2)), ((1, 2, 3), (1, 3)), ((7, 1, 2, 3), (6, 3, 1)),
    ],
)  # fmt: skip
def test_matmul_is_that_of_numpy(left, right):
    a, c = draw_array(left), draw_array(right, 1)
    if right[-2:] == (1, 3):
        c = c.reshape(3, 1)
    np.testing.assert_allclose(run(lambda b, x, y: b.matmul(x, y), a, c), a @ c, rtol=1e-12, atol=1e-12)


def test_a_matrix_product_is_one_contract():
    b = GraphBuilder()
    x, w = b.input("x", (5, 1, 2, 3), "float32"), b.input("w", (6, 3, 4), "float32")
    graph = b.finish([("y", b.matmul(x, w))])
    assert [type(node.op) for node in graph.nodes] == [g.Input, g.Input, g.Contract]
    op = graph.nodes[2].op
    assert isinstance(op, g.Contract)
    assert [dim.terms for dim in op.lhs] == [((0, 1),), (), ((2, 1),), ((4, 1),)], "the broadcast dimension is absent"


@pytest.mark.parametrize(
    ("spec", "left", "right"),
    [
        ("ij,jk->ik", (2, 3), (3, 4)), ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)), ("i,j->ij", (2,), (3,)),
        ("ij,ij->", (2, 3), (2, 3)), ("ij,ij->ji", (2, 3), (2, 3)), ("ij,k->", (2, 3), (4,)), ("ii,i->i", (3, 3), (3,)),
        ("abc,cd->d", (2, 3, 4), (4, 5)),
    ],
)  # fmt: skip
def test_einsum_is_that_of_numpy(spec: str, left, right):
    a, c = draw_array(left), draw_array(right, 1)
    np.testing.assert_allclose(run(lambda b, x, y: b.einsum(spec, x, y), a, c), np.einsum(spec, a, c), atol=1e-12)


@given(st.data())
def test_conv_is_its_definition(data: st.DataObject):
    rank = data.draw(st.integers(1, 2))
    sizes = partial(drawn, data, rank)
    groups, inner, outer = data.draw(SMALL), data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    window, strides, dilations = (
        sizes(SMALL),
        sizes(SMALL),
        sizes(st.integers(1, 2)),
    )
    low, high = sizes(st.integers(0, 2)), sizes(st.integers(0, 2))
    x, w = (
        draw_array((2, groups * inner, *sizes(st.integers(1, 6)))),
        draw_array((groups * outer, inner, *window), 1),
    )
    assume(all(n + a + c > d * (k - 1) for n, a, c, d, k in
               zip(x.shape[2:], low, high, dilations, window, strict=True)))  # fmt: skip
    got = run(lambda b, v, u: b.conv(v, u, strides=strides, pads_low=low, pads_high=high, dilations=dilations,
                                     groups=groups), x, w)  # fmt: skip
    np.testing.assert_allclose(got, direct_conv(x, w, strides, low, high, dilations, groups), atol=1e-12)


@given(st.data())
def test_conv_transpose_is_its_definition(data: st.DataObject):
    rank = data.draw(st.integers(1, 2))
    sizes = partial(drawn, data, rank)
    groups, inner, outer = data.draw(SMALL), data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    window, strides = sizes(st.integers(1, 4)), sizes(SMALL)
    dilations = sizes(st.integers(1, 2)) if data.draw(st.booleans()) else (1,) * rank
    low, high, extra = (
        sizes(st.integers(0, 2)),
        sizes(st.integers(0, 2)),
        sizes(st.integers(0, 1)),
    )
    x, w = (
        draw_array((2, groups * inner, *sizes(st.integers(1, 4)))),
        draw_array((groups * inner, outer, *window), 1),
    )
    expected = direct_conv_transpose(x, w, strides, low, high, extra, dilations, groups)
    assume(all(s * (n - 1) + d * (k - 1) + 1 + e > a + c for s, n, d, k, e, a, c in
               zip(strides, x.shape[2:], dilations, window, extra, low, high, strict=True)))  # fmt: skip
    got = run(lambda b, v, u: b.conv_transpose(v, u, strides=strides, pads_low=low, pads_high=high,
                                               output_padding=extra, dilations=dilations, groups=groups),
              x, w)  # fmt: skip
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_a_transposed_convolution_multiplies_nothing_by_the_zeros_between():
    b = GraphBuilder()
    x, w = b.input("x", (1, 8, 4, 4), "float32"), b.input("w", (8, 2, 4, 4), "float32")
    y = b.conv_transpose(
        x, w, strides=[2, 2], pads_low=[1, 1], pads_high=[1, 1], output_padding=[0, 0], dilations=[1, 1]
    )
    graph = b.finish([("y", y)])
    (op,) = [node.op for node in graph.nodes if isinstance(node.op, g.Contract)]
    assert op.reduced == (8, 2, 2), "a quarter of the window at each position"
    assert not any(any(node.op.interior) for node in graph.nodes if isinstance(node.op, g.Pad))


def test_a_window_of_one_is_a_matrix_product():
    b = GraphBuilder()
    x, w = b.input("x", (1, 8, 4, 4), "float32"), b.input("w", (2, 8, 1, 1), "float32")
    y = b.conv(x, w, strides=[1, 1], pads_low=[0, 0], pads_high=[0, 0], dilations=[1, 1])
    (op,) = [node.op for node in b.finish([("y", y)]).nodes if isinstance(node.op, g.Contract)]
    assert op.reduced == (8,)


@given(st.data())
def test_pooling_is_its_definition(data: st.DataObject):
    sizes = partial(drawn, data, 2)
    window, strides, dilations = sizes(SMALL), sizes(SMALL), sizes(st.integers(1, 2))
    low, high, more = (
        sizes(st.integers(0, 1)),
        sizes(st.integers(0, 1)),
        sizes(st.integers(0, 1)),
    )
    x, counted = draw_array((1, 2, *sizes(st.integers(2, 6)))), data.draw(st.booleans())
    kind = data.draw(st.sampled_from(("max", "average")))
    ends = list(zip(low, [a + c for a, c in zip(high, more, strict=True)], strict=True))
    padded = np.pad(x, [(0, 0), (0, 0), *ends], constant_values=np.nan)
    inside = np.pad(np.ones(x.shape[2:]), ends)
    if counted:
        inside = np.pad(np.ones([n + a + c for n, a, c in zip(x.shape[2:], low, high, strict=True)]),
                        [(0, c) for c in more])  # fmt: skip
    space = [(n - d * (k - 1) - 1) // s + 1
             for n, d, k, s in zip(padded.shape[2:], dilations, window, strides, strict=True)]  # fmt: skip
    assume(min(space) > 0)
    expected = np.zeros((1, 2, *space))
    for n, c, *at in np.ndindex(*expected.shape):
        box = tuple(slice(a * s, a * s + d * (k - 1) + 1, d)
                    for a, s, d, k in zip(at, strides, dilations, window, strict=True))  # fmt: skip
        values, weights = padded[(n, c, *box)], inside[box]
        assume(not np.isnan(values).all() and weights.sum() > 0)
        expected[(n, c, *at)] = np.nanmax(values) if kind == "max" else np.nansum(values) / weights.sum()
    got = run(lambda b, v: b.pool(kind, v, window, strides, low, high, dilations, counted, more), x)
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_max_pooling_of_integers_pads_with_the_smallest():
    b = GraphBuilder()
    x = b.input("x", (1, 1, 3), "int8")
    graph = b.finish([("y", b.pool("max", x, [2], [1], [1], [0]))])
    got = evaluate(graph, {"x": np.array([[[-128, -7, -9]]], np.int8)})["y"]
    assert got.tolist() == [[[-128, -7, -7]]]


@pytest.mark.parametrize(
    ("attempt", "why"),
    [
        (lambda b, x, w: b.conv(x, w, strides=[1], pads_low=[0], pads_high=[0], dilations=[1], groups=2), "do not fit"),
        (lambda b, x, w: b.conv(x, w, strides=[1], pads_low=[0], pads_high=[0], dilations=[3]), "larger than"),
        (lambda b, x, w: b.conv_transpose(x, w, strides=[1], pads_low=[9], pads_high=[9], output_padding=[0],
                                          dilations=[1]), "removes the whole"),
        (lambda b, x, w: b.pool("median", x, [1], [1], [0], [0]), "neither max nor average"),
    ],
)  # fmt: skip
def test_windows_that_do_not_fit_are_refused(attempt, why: str):
    b = GraphBuilder()
    x, w = b.input("x", (1, 4, 5), "float32"), b.input("w", (4, 4, 3), "float32")
    with pytest.raises(CheckError, match=why):
        attempt(b, x, w)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize(("stride", "pad", "dilation"), [(1, 0, 1), (2, 1, 1), (1, 2, 2), (3, 1, 2)])
def test_convolutions_agree_with_torch(groups: int, stride: int, pad: int, dilation: int):
    torch = pytest.importorskip("torch")
    x, w = draw_array((2, 6, 9, 8)), draw_array((12, 6 // groups, 3, 2), 1)
    settings = {"strides": [stride] * 2, "pads_low": [pad] * 2, "pads_high": [pad] * 2, "dilations": [dilation] * 2}
    got = run(lambda b, v, u: b.conv(v, u, groups=groups, **settings), x, w)
    options = {"stride": stride, "padding": pad, "dilation": dilation, "groups": groups}
    expected = torch.nn.functional.conv2d(torch.tensor(x), torch.tensor(w), **options)
    np.testing.assert_allclose(got, expected.numpy(), atol=1e-12)

    w = draw_array((6, 2, 3, 4), 2)
    got = run(lambda b, v, u: b.conv_transpose(v, u, groups=groups, output_padding=[0, 0], **settings), x, w)
    expected = torch.nn.functional.conv_transpose2d(torch.tensor(x), torch.tensor(w), **options)
    np.testing.assert_allclose(got, expected.numpy(), atol=1e-12)
