"""The derived tolerance: honest programs pass it, planted errors do not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.frontend.workloads.bert import Bert
from pipeline.ir import graph as g
from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_primitives import axis_map
from pipeline.verification import error_tensor
from pipeline.verification import verdict as verdict_module
from pipeline.verification.hostile import hostile_feeds, random_feeds
from pipeline.verification.rounding import sum_factor
from pipeline.verification.tolerance import evaluate_with_bound
from pipeline.verification.verdict import compare


def matmul_graph(m: int, n: int, k: int, dtype: g.DType = "float32") -> Graph:
    b = GraphBuilder()
    x, w = b.input("x", (m, k), dtype), b.input("w", (k, n), dtype)
    return b.finish([("y", b.matmul(x, w))])


def unary_graph(fn: str, n: int = 1000) -> Graph:
    b = GraphBuilder()
    return b.finish([("y", b.elementwise(fn, b.input("x", (n,), "float32")))])


def layer_norm_graph(rows: int, n: int) -> Graph:
    b = GraphBuilder()
    return b.finish([("y", b.layer_norm(b.input("x", (rows, n), "float32"), [-1]))])


def softmax_graph(rows: int, n: int) -> Graph:
    b = GraphBuilder()
    return b.finish([("y", b.softmax(b.input("x", (rows, n), "float32")))])


def mlp_graph(rows: int, n: int) -> Graph:
    b = GraphBuilder()
    x, w1, w2 = (b.input(name, shape, "float32") for name, shape in (("x", (rows, n)), ("w1", (n, n)), ("w2", (n, n))))
    hidden = b.gelu(b.matmul(x, w1))
    return b.finish([("y", b.softmax(b.layer_norm(b.elementwise("add", x, b.matmul(hidden, w2)), [-1])))])


def mixed_rows_graph(rows: int, n: int) -> Graph:
    """Rows of a softmax added up with weights: beside large probabilities there are some of 1e-30, off by far less."""
    b, rng = GraphBuilder(), np.random.default_rng(1)
    w1, w2 = (b.constant(rng.standard_normal(shape).astype(np.float32)) for shape in ((n, 53), (9, rows)))
    return b.finish([("y", b.matmul(w2, b.softmax(b.matmul(b.input("x", (rows, n), "float32"), w1))))])


def attention_graph(rows: int, n: int) -> Graph:
    b, rng = GraphBuilder(), np.random.default_rng(1)
    k, v = (b.constant(rng.standard_normal(shape).astype(np.float32)) for shape in ((n, 29), (29, 8)))
    return b.finish([("y", b.matmul(b.softmax(b.matmul(b.input("q", (rows, n), "float32"), k)), v))])


def native(graph: Graph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with np.errstate(all="ignore"):
        return evaluate(graph, feeds, precision="native")


SIZES = st.sampled_from([1, 2, 3, 7, 16, 31, 64, 129, 257])
MAKERS: dict[str, Callable[[int, int], Graph]] = {
    "matmul": lambda r, n: matmul_graph(r, 5, n),
    "softmax": softmax_graph,
    "layer_norm": layer_norm_graph,
    "mlp": mlp_graph,
    "mixed rows": mixed_rows_graph,
    "attention": attention_graph,
}


@pytest.mark.parametrize("name", MAKERS)
@given(rows=SIZES, n=SIZES, seed=st.integers(0, 1000), scale=st.sampled_from([1e-6, 1.0, 1e4]))
@settings(max_examples=25, deadline=None)
def test_honest_float32_passes_over_many_shapes_and_scales(
    name: str, rows: int, n: int, seed: int, scale: float
) -> None:
    graph = MAKERS[name](rows, n)
    feeds = {k: (v * np.float32(scale)) for k, v in random_feeds(graph, np.random.default_rng(seed)).items()}
    verdict = compare(native(graph, feeds)["y"], evaluate_with_bound(graph, feeds)["y"])
    assert verdict.ok, verdict.reason


@pytest.mark.parametrize("name", MAKERS)
def test_honest_float32_passes_on_hostile_feeds(name: str) -> None:
    for seed, (rows, n) in enumerate([(9, 33), (133, 37), (1, 5)]):
        graph = MAKERS[name](rows, n)
        for kind, feeds in hostile_feeds(graph, np.random.default_rng(seed)):
            verdict = compare(native(graph, feeds)["y"], evaluate_with_bound(graph, feeds)["y"])
            assert verdict.ok, (kind, verdict.reason)


SMOOTH = [
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "tanh",
    "sigmoid",
    "erf",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "floor",
    "ceil",
    "round",
    "neg",
    "abs",
    "sign",
]


@pytest.mark.parametrize("fn", SMOOTH)
def test_every_function_passes_honestly_and_fails_by_a_thousandth(fn: str) -> None:
    b = GraphBuilder()
    x, y = b.input("x", (3000,), "float32"), b.input("y", (3000,), "float32")
    graph = b.finish([("y", b.elementwise(fn, b.elementwise("add", x, y)))])
    rng = np.random.default_rng(1)
    feeds = {"x": rng.uniform(0.1, 0.9, 3000).astype(np.float32), "y": np.float32(rng.uniform(-1e-3, 1e-3, 3000))}
    if fn == "acosh":
        feeds["x"] += np.float32(1)
    reference = evaluate_with_bound(graph, feeds)["y"]
    got = native(graph, feeds)["y"]
    assert compare(got, reference).ok, compare(got, reference).reason
    assert not compare(got * np.float32(1.001) + np.float32(1e-4), reference).ok


def test_a_dropped_term_of_a_long_sum_is_found() -> None:
    graph = matmul_graph(16, 16, 768)
    feeds = random_feeds(graph, np.random.default_rng(0))
    reference = evaluate_with_bound(graph, feeds)["y"]
    assert compare(feeds["x"] @ feeds["w"], reference).ok
    short = feeds["x"][:, :-1] @ feeds["w"][:-1]
    assert not compare(short, reference).ok
    one_element = feeds["x"] @ feeds["w"]
    one_element[3, 5] -= feeds["x"][3, 0] * feeds["w"][0, 5]
    verdict = compare(one_element, reference)
    assert not verdict.ok
    assert verdict.worst == (3, 5)
    assert "element [3, 5]" in verdict.reason


def test_accumulation_in_half_precision_is_found() -> None:
    graph = matmul_graph(8, 8, 256)
    feeds = random_feeds(graph, np.random.default_rng(0))
    total = np.zeros((8, 8), np.float16)
    for k in range(256):
        total = (total + feeds["x"][:, k : k + 1] * feeds["w"][k]).astype(np.float16)
    assert not compare(total.astype(np.float32), evaluate_with_bound(graph, feeds)["y"]).ok


def test_operands_rounded_to_bfloat16_are_found() -> None:
    graph = matmul_graph(8, 8, 256)
    feeds = random_feeds(graph, np.random.default_rng(0))
    rounded = {k: (v.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for k, v in feeds.items()}
    assert not compare(rounded["x"] @ rounded["w"], evaluate_with_bound(graph, feeds)["y"]).ok


def test_a_variance_from_two_means_is_found_where_it_cancels() -> None:
    graph = layer_norm_graph(4, 300)
    feeds = dict(hostile_feeds(graph, np.random.default_rng(0)))["tiny variance"]
    x = feeds["x"]
    mean = x.mean(-1, keepdims=True)
    careless = (x - mean) / np.sqrt((x * x).mean(-1, keepdims=True) - mean * mean + np.float32(1e-5))
    reference = evaluate_with_bound(graph, feeds)["y"]
    assert compare(native(graph, feeds)["y"], reference).ok
    assert not compare(careless, reference).ok


def test_a_softmax_without_its_maximum_is_found_at_large_logits() -> None:
    graph = softmax_graph(4, 50)
    feeds = dict(hostile_feeds(graph, np.random.default_rng(0)))["large"]
    x = feeds["x"] + np.float32(10)
    with np.errstate(all="ignore"):
        power = np.exp(x, dtype=np.float32)
        careless = power / power.sum(-1, keepdims=True)
    assert not compare(careless, evaluate_with_bound(graph, {"x": x})["y"]).ok


def test_half_precision_graphs_have_wider_bounds_and_still_find_an_error() -> None:
    graph = matmul_graph(8, 8, 64, "float16")
    feeds = random_feeds(graph, np.random.default_rng(0))
    reference = evaluate_with_bound(graph, feeds)["y"]
    assert compare(native(graph, feeds)["y"], reference).ok
    assert not compare(native(graph, feeds)["y"] * np.float16(1.01), reference).ok


def test_a_deep_network_keeps_a_tight_bound() -> None:
    graph = Bert(layers=3, hidden=64, heads=4, intermediate=128, vocabulary=50, sequence=12).build(0)
    feeds = random_feeds(graph, np.random.default_rng(0))
    got = native(graph, feeds)
    for name, reference in evaluate_with_bound(graph, feeds).items():
        verdict = compare(got[name], reference)
        assert verdict.ok, verdict.reason
        assert verdict.unstable == 0
        assert reference.bound.max() < 1e-3 * np.abs(reference.value).max()
        assert not compare(got[name] + np.float32(2e-3) * np.abs(got[name]).max(), reference).ok


def test_the_reference_is_the_float64_evaluation() -> None:
    graph = mlp_graph(5, 17)
    feeds = random_feeds(graph, np.random.default_rng(0))
    np.testing.assert_array_equal(evaluate_with_bound(graph, feeds)["y"].value, evaluate(graph, feeds)["y"])


def test_a_comparison_near_a_tie_is_unstable_and_a_clear_one_is_not() -> None:
    b = GraphBuilder()
    x, y = b.input("x", (3,), "float32"), b.input("y", (3,), "float32")
    graph = b.finish([("y", b.elementwise("lt", b.elementwise("exp", x), b.elementwise("exp", y)))])
    feeds = {"x": np.float32([1, 1, 1]), "y": np.float32([1, 2, np.nextafter(np.float32(1), np.float32(2))])}
    reference = evaluate_with_bound(graph, feeds)["y"]
    np.testing.assert_array_equal(reference.bound > 0, [True, False, True])
    assert compare(np.array([True, True, False]), reference).ok
    assert not compare(np.array([True, False, False]), reference).ok
    assert compare(np.array([True, True, False]), reference).unstable == pytest.approx(2 / 3)


def test_exact_inputs_have_exact_comparisons_and_the_first_of_equals() -> None:
    b = GraphBuilder()
    x = b.input("x", (4,), "float32")
    graph = b.finish([("y", b.reduce("argmax", x, [0]))])
    reference = evaluate_with_bound(graph, {"x": np.float32([1, 5, 5, 0])})["y"]
    assert compare(np.array(1), reference).ok
    assert not compare(np.array(2), reference).ok


def test_an_argmax_near_a_tie_may_be_either() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 3), "float32")
    graph = b.finish([("y", b.reduce("argmax", b.elementwise("exp", x), [1]))])
    reference = evaluate_with_bound(graph, {"x": np.float32([[1, 5, 5], [1, 2, 3]])})["y"]
    assert compare(np.array([2, 2]), reference).ok
    assert not compare(np.array([2, 1]), reference).ok


def test_top_k_near_a_tie_may_swap_its_indices_and_not_its_values() -> None:
    b = GraphBuilder()
    values, indices = b.topk(b.elementwise("exp", b.input("x", (5,), "float32")), 3)
    graph = b.finish([("v", values), ("i", indices)])
    references = evaluate_with_bound(graph, {"x": np.float32([0, 3, 1, 1, 2])})
    v, i = references["v"], references["i"]
    assert compare(np.array([1, 4, 3]), i).ok
    assert not compare(np.array([4, 1, 3]), i).ok
    assert compare(v.value.astype(np.float32), v).ok
    assert not compare(v.value.astype(np.float32) * np.float32(1.001), v).ok


def test_a_selection_by_an_unstable_condition_may_be_either_branch_and_nothing_else() -> None:
    b = GraphBuilder()
    x = b.elementwise("exp", b.input("x", (1,), "float32"))
    condition = b.elementwise("lt", x, b.constant(np.float32([np.e])))
    graph = b.finish(
        [("y", b.elementwise("where", condition, b.constant(np.float32([3])), b.constant(np.float32([4]))))]
    )
    reference = evaluate_with_bound(graph, {"x": np.float32([1])})["y"]
    assert compare(np.float32([3]), reference).ok
    assert compare(np.float32([4]), reference).ok
    assert not compare(np.float32([5.1]), reference).ok


def test_values_that_are_not_finite_must_match_in_kind() -> None:
    graph = unary_graph("log", 4)
    reference = evaluate_with_bound(graph, {"x": np.float32([0, -1, np.inf, 1])})["y"]
    right = np.float32([-np.inf, np.nan, np.inf, 0])
    assert compare(right, reference).ok
    for position, wrong in ((0, np.inf), (0, -3e38), (1, 0.0), (1, np.inf), (2, np.nan), (3, np.nan), (3, 1e-3)):
        got = right.copy()
        got[position] = wrong
        verdict = compare(got, reference)
        assert not verdict.ok
        assert verdict.worst == (position,)


def test_an_overflow_of_float32_is_left_aside() -> None:
    graph = unary_graph("exp", 3)
    reference = evaluate_with_bound(graph, {"x": np.float32([88, 89, 1])})["y"]
    assert np.isinf(reference.bound[1])
    assert compare(np.float32([np.exp(88), np.inf, np.e]), reference).ok
    assert not compare(np.float32([np.inf, np.inf, np.e]), reference).ok


def test_integers_and_shapes_and_dtypes_are_exact() -> None:
    b = GraphBuilder()
    graph = b.finish([("y", b.elementwise("add", b.input("x", (3,), "int32"), b.constant(np.int32(1))))])
    reference = evaluate_with_bound(graph, {"x": np.int32([1, 2, 3])})["y"]
    assert compare(np.int32([2, 3, 4]), reference).ok
    assert not compare(np.int32([2, 3, 5]), reference).ok
    assert "shape" in compare(np.int32([2, 3]), reference).reason
    assert "dtype" in compare(np.float32([2, 3, 4]), reference).reason


def test_a_gather_by_an_uncertain_index_is_left_aside() -> None:
    b = GraphBuilder()
    x = b.elementwise("exp", b.input("x", (2,), "float32"))
    index = b.cast(x, "int64")
    graph = b.finish([("y", b.gather(b.constant(np.float32([1, 2, 3, 4])), index))])
    assert np.isinf(evaluate_with_bound(graph, {"x": np.float32([0, 0.5])})["y"].bound).all()


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatters_pass_honestly_and_find_errors(reduction: str) -> None:
    b = GraphBuilder()
    data = b.elementwise("exp", b.input("x", (6, 4), "float32"))
    updates = b.elementwise("exp", b.input("u", (5, 4), "float32"))
    rows = [0, 3, 1, 5, 2] if reduction == "none" else [0, 3, 3, 5, 3]
    indices = b.constant(np.repeat(np.int64(rows)[:, None], 4, 1))
    graph = b.finish([("y", b.scatter_elements(data, indices, updates, 0, reduction))])
    feeds = random_feeds(graph, np.random.default_rng(0))
    reference = evaluate_with_bound(graph, feeds)["y"]
    assert compare(native(graph, feeds)["y"], reference).ok
    assert not compare(native(graph, feeds)["y"] * np.float32(1.0001), reference).ok


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
def test_scans_and_windows_pass_honestly_and_find_errors(kind: str) -> None:
    b = GraphBuilder()
    x = b.elementwise("exp", b.input("x", (3, 40), "float32"))
    outputs = [("scan", b.scan(kind, x, 1)), ("reduce", b.reduce(kind, x, [1]))]
    if kind != "prod":
        slide = (g.AffineDim(((0, 1),)), g.AffineDim(((1, 2), (2, 1))))
        outputs.append(("window", b.reduce_window(kind, x, (3, 19), (3,), slide)))
    graph = b.finish(outputs)
    feeds = random_feeds(graph, np.random.default_rng(0))
    got = native(graph, feeds)
    for name, reference in evaluate_with_bound(graph, feeds).items():
        assert compare(got[name], reference).ok, name
        assert not compare(got[name] * np.float32(1.001), reference).ok, name


def test_views_carry_the_bounds_of_their_operands() -> None:
    b = GraphBuilder()
    x = b.elementwise("exp", b.input("x", (2, 3), "float32"))
    y = b.pad(b.transpose(b.concat([x, x], 0), (1, 0)), (1, 0), (0, 2))
    graph = b.finish([("y", y)])
    feeds = random_feeds(graph, np.random.default_rng(0))
    reference = evaluate_with_bound(graph, feeds)["y"]
    assert (reference.bound[1:, :4] > 0).all()
    assert (reference.bound[0] == 0).all()
    assert (reference.bound[:, 4:] == 0).all()
    np.testing.assert_array_equal(reference.bound[1:, :2], reference.bound[1:, 2:4])


def test_the_factor_of_a_sum_grows_with_its_root_and_is_the_worst_case_for_short_ones() -> None:
    assert sum_factor(4) == 5
    assert sum_factor(10000) == 600


def test_an_output_without_elements_is_right() -> None:
    graph = matmul_graph(0, 3, 4)
    feeds = random_feeds(graph, np.random.default_rng(0))
    assert compare(np.zeros((0, 3), np.float32), evaluate_with_bound(graph, feeds)["y"]).ok


@pytest.mark.parametrize("small", [1e-9, 1e-12, 1e-25])
@pytest.mark.parametrize("position", [0, 1])
def test_the_error_of_a_small_number_times_a_small_one_is_not_lost(small: float, position: int) -> None:
    """Beside numbers near 1, in float32, the square of their product vanishes."""
    op = g.Contract((2, 2), (1,), *(axis_map(axis, 2) for axis in (0, 1)))
    error, size = np.array([[1.0], [small]]), np.array([[1.0], [1e-12]], np.float32)
    pair = (error, size) if position == 0 else (size, error)
    root = error_tensor._root_of_squares(op, error, size, position)
    np.testing.assert_allclose(root, pair[0] @ pair[1].T.astype(np.float64), rtol=1e-5)


@pytest.mark.parametrize("shape", [(7,), (5, 3), (2, 4, 9), (3, 1, 50)])
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "where", "product"])
def test_bounds_do_not_depend_on_the_pieces_in_which_they_are_found(
    name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    b = GraphBuilder()
    x = b.input("x", shape, "float32")
    match name:
        case "softmax":
            y = b.softmax(b.elementwise("exp", x), len(shape) - 1)
        case "layer_norm":
            y = b.elementwise("tanh", b.elementwise("div", x, b.input("scale", shape[-1:], "float32")))
        case "product":
            y = b.matmul(b.elementwise("tanh", b.reshape(x, (-1, shape[-1]))), b.input("w", (shape[-1], 5), "float32"))
            y = b.einsum("ij,kj->ik", y, y)
        case _:
            y = b.elementwise(
                "where", b.elementwise("gt", b.elementwise("sin", x), b.constant(np.zeros((), np.float32))), x, x
            )
    graph = b.finish([("y", y)])
    feeds = random_feeds(graph, np.random.default_rng(0))
    feeds["x"].flat[0], feeds["x"].flat[-1] = np.inf, 1e30
    whole = evaluate_with_bound(graph, feeds)["y"]
    for most in (1, 4, 10):
        monkeypatch.setattr(error_tensor, "PIECE", most)
        pieces = evaluate_with_bound(graph, feeds)["y"]
        np.testing.assert_array_equal(pieces.value, whole.value)
        np.testing.assert_array_equal(pieces.bound, whole.bound)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("place", [(0, 0), (1, 3), (4, 6)])
def test_a_fault_is_found_in_whichever_piece_it_is(
    dtype: str, place: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = np.arange(35).reshape(5, 7).astype(dtype)
    bound = np.full(want.shape, 0.5 if dtype == "float32" else 0.0)
    bound[2, 2] = np.inf
    got = want.copy()
    got[place] += 3
    got[2, 2] += 50
    whole = compare(got, want, bound)
    assert (whole.ok, whole.worst, whole.max_absolute) == (False, place, 3.0) and whole.unstable == 1 / 35
    for most in (1, 4, 35):
        monkeypatch.setattr(verdict_module, "_PIECE", most)
        assert compare(got, want, bound) == whole
        assert compare(want, want, bound).ok


def zeros_made_visible(kind: str) -> Graph:
    b = GraphBuilder()
    x = b.input("x", (3, 4), "float32")
    match kind:
        case "relu":
            made = b.elementwise("max", x, b.constant(np.float32(0)))
        case "reduce":
            made = b.reduce("max", x, (1,))
        case _:
            made = b.elementwise("sign", b.elementwise("min", x, b.constant(np.float32(0))))
    return b.finish([("y", b.elementwise("reciprocal", made))])


@pytest.mark.parametrize("kind", ["relu", "reduce", "sign"])
def test_either_zero_is_right_where_an_extremum_may_give_both(kind: str) -> None:
    """Its sign is left to the processor, and 1 / x makes infinities of it. All else is asked for as ever."""
    x = np.array([[-0.0, 0.0, -0.0, 0.0], [1, -2, 1, 1], [-3, -3, -4, -3]], np.float32)
    graph = zeros_made_visible(kind)
    got = native(graph, {"x": x})["y"]
    reference = evaluate_with_bound(graph, {"x": x})["y"]
    assert compare(got, reference).ok
    open_ = np.isinf(reference.bound)
    assert open_.any() and compare(np.where(open_, -got, got), reference).ok
    assert not compare(-got, reference).ok, "where the sign is not left open it is still asked for"


def test_the_sign_of_a_zero_that_is_given_is_asked_for() -> None:
    b = GraphBuilder()
    graph = b.finish([("y", b.elementwise("reciprocal", b.input("x", (2,), "float32")))])
    feeds = {"x": np.array([-0.0, 0.0], np.float32)}
    reference = evaluate_with_bound(graph, feeds)["y"]
    assert compare(np.array([-np.inf, np.inf], np.float32), reference).ok
    assert not compare(np.array([np.inf, np.inf], np.float32), reference).ok


def test_a_few_zeros_of_either_sign_in_a_large_array() -> None:
    """Errors are worked out piece by piece, and most pieces have none."""
    graph_ = GraphBuilder()
    x = graph_.input("x", (4, 1 << 17), "float32")
    made = graph_.elementwise("reciprocal", graph_.elementwise("max", x, graph_.constant(np.float32(0))))
    graph = graph_.finish([("y", made)])
    feed = np.ones((4, 1 << 17), np.float32)
    feed[2, 5] = -0.0
    reference = evaluate_with_bound(graph, {"x": feed})["y"]
    got = native(graph, {"x": feed})["y"]
    got[2, 5] *= -1
    assert compare(got, reference).ok
    assert np.argwhere(np.isinf(reference.bound)).tolist() == [[2, 5]]
