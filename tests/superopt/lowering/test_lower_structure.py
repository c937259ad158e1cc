"""Lowering keeps what a µGraph computes: random ones, tiles that take one another's place, and refusals."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from pipeline.errors import CheckError, CodegenError
from pipeline.ir.algebra import FloatAlgebra
from pipeline.ir.graph import Shape
from pipeline.ir.interpret import interpret
from pipeline.ir.poly import Poly
from pipeline.ir.program import Alloc, Loop, walk
from pipeline.schedule.variables import Tile
from pipeline.search.candidates import SketchSpace
from pipeline.space.generate import generate
from pipeline.superopt.lowering.lower import lower_mugraph
from pipeline.superopt.mugraph.builder import Extents, Handle, KernelBuilder, MuGraphBuilder, Together
from pipeline.superopt.mugraph.graph import Accumulate, BlockGraph, KernelNode, MuGraph, RescaledSum
from pipeline.superopt.mugraph.interpret import run_mugraph
from pipeline.superopt.mugraph.shapes import shapes
from tests.codegen.kernel_runs import cpu_rules, native
from tests.superopt.lowered_cases import gated_mlp
from tests.superopt.lowered_runs import changed, names_of
from tests.superopt.lowered_structure import assert_kept, feeds_of, lowered, outline, with_extents
from tests.superopt.random_mugraphs import RandomMuGraph, mugraphs, random_mugraph

QUIET = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def fixed(made: RandomMuGraph) -> MuGraph:
    graph = with_extents(made.graph, made.extents)
    return replace(graph, outputs=graph.outputs[:1])


@settings(QUIET, max_examples=40)
@given(mugraphs(kernels=2, steps=5))
def test_a_random_mugraph_computes_the_same_when_lowered_or_is_refused(made: RandomMuGraph) -> None:
    try:
        lowered(fixed(made), made.inputs)
    except CodegenError as error:
        assert error.what == "a µGraph cannot be lowered" and error.why
        return
    assert_kept(fixed(made), made.inputs)


def test_the_rules_and_the_compiler_keep_random_mugraphs() -> None:
    kept = 0
    for seed in range(70):
        made = random_mugraph(random.Random(seed), kernels=2, steps=5)
        try:
            lowered(fixed(made), made.inputs)
        except CodegenError:
            continue
        assert_kept(fixed(made), made.inputs, rules=True, compiled=kept % 5 == 0, seed=seed)
        kept += 1
    assert kept >= 12


def test_random_mugraphs_keep_their_meaning_at_any_extents_that_divide() -> None:
    rows = 0
    for seed in range(150):
        made = random_mugraph(random.Random(seed), kernels=1, steps=5)
        graph = with_extents(replace(made.graph, outputs=made.graph.outputs[:1]), {})
        shape = shapes(graph, made.inputs, made.extents).tensors[graph.outputs[0]]
        try:
            sketch = lowered(graph, made.inputs, made.extents)
        except CodegenError:
            continue
        feeds = feeds_of(made.inputs, seed)
        space = SketchSpace(0, sketch, native())
        for row in space.space.unique(space.draw(3, np.random.default_rng(seed))):
            values = space.space.values(row)
            if any(one.extent % math.prod(values[name] for name in one.symbols) for one in sketch.variables):
                continue
            program = space.program(row)
            extents = {
                axis.var.removeprefix("k0_"): axis.extent.value
                for loop in walk(program.body) if isinstance(loop, Loop) for axis in loop.axes
            }  # fmt: skip
            try:
                (want,) = run_mugraph(
                    graph, {n: a.astype(np.float64) for n, a in feeds.items()}, FloatAlgebra(), extents
                )
            except CheckError:
                continue  # a tile of one element that it squeezes is larger now
            if want.shape != shape:
                continue  # stacked along an axis
            found = interpret(program, feeds, precision="float64")["out0"]
            np.testing.assert_allclose(found, want, 1e-9, 1e-9)
            rows += 1
    assert rows >= 40


# ---------------------------------------------------------------------- what takes its turn when

Body = Callable[[KernelBuilder, Handle, Handle, Handle], Handle]
SHAPES: dict[str, Shape] = {"x": (4, 4), "y": (4, 4, 6), "z": (4, 4, 6, 6)}


def kernel(body: Body) -> MuGraph:
    """Of x (m, n), y (m, n, i) and z (m, n, i, j): a grid over m and loops over i and j."""
    b = MuGraphBuilder()
    x, y, z = (b.input(name, len(shape)) for name, shape in SHAPES.items())
    with b.kernel(grid={"m": 2}, loops={"i": 3, "j": 2}) as g:
        tiles = g.load(x, {"m": 0}), g.load(y, {"m": 0}, {"i": 2}), g.load(z, {"m": 0}, {"i": 2, "j": 3})
        out = g.store(body(g, *tiles), omap={"m": 0})
    return b.finish(out)


def narrow(g: KernelBuilder, tile: Handle) -> Handle:
    """A tile of y or z as one of x: its last dimensions summed."""
    gone = tuple(range(2, tile.rank))
    return g.squeeze(g.fold("sum", tile, axis=gone), gone)


def before_the_loop(g: KernelBuilder, x: Handle, y: Handle, z: Handle) -> Handle:
    """A tile that is made once; in each iteration another one of its kind is made of it."""
    power = g.exp(x)
    step = g.exp(power * 0.1 - power * narrow(g, y))
    return g.accumulate("sum", step * g.sigmoid(step)) + g.accumulate("sum", narrow(g, z))


def after_the_loop(g: KernelBuilder, x: Handle, y: Handle, z: Handle) -> Handle:
    """A tile that is read after the loops, by what is written down before the tile that could take its place."""
    power = g.exp(x)
    late = g.sigmoid(g.accumulate("sum", narrow(g, z)) * power)
    other = g.exp(power * 0.5)
    return late * late + other * g.sigmoid(other) + g.accumulate("sum", narrow(g, y))


def across(g: KernelBuilder, x: Handle, y: Handle, z: Handle) -> Handle:
    """A tile and its transpose in one expression."""
    square = g.contract("mi,mj->ij", x, x)
    turned = g.exp(square * 0.1 - g.transpose(square, [1, 0]))
    rest = g.accumulate("sum", narrow(g, z)) + g.accumulate("sum", narrow(g, y))
    return g.contract("mi,ij->mj", x, turned) + rest


def changes_outside(g: KernelBuilder, x: Handle, y: Handle, z: Handle) -> Handle:
    """A rescaled sum over both loops whose maximum changes in the outer one only."""
    top = g.running(narrow(g, y))
    return g.rescaled_sum(g.exp(narrow(g, z) - top), top) + x


def comes_late(g: KernelBuilder, x: Handle, y: Handle, z: Handle) -> Handle:
    """A maximum of what is known after the inner loop; a rescaled sum of what is known before it."""
    top = g.running(g.accumulate("sum", narrow(g, z), loop="j"))
    return g.rescaled_sum(g.exp(narrow(g, y)), top) + x


def read_alone(g: KernelBuilder, x: Handle, y: Handle, z: Handle) -> Handle:
    """A running maximum after the inner loop, read by what depends on nothing else."""
    top = g.running(g.accumulate("sum", narrow(g, z), loop="j"))
    return g.accumulate("sum", g.sigmoid(top)) + x * g.accumulate("sum", narrow(g, y))


def last_of_outer(g: KernelBuilder, x: Handle, y: Handle, z: Handle) -> Handle:
    """The last value of a maximum over both loops, and what it was after each inner loop."""
    top = g.running(narrow(g, z))
    steps = g.accumulate("sum", g.exp(g.accumulate("last", top, loop="j")))
    return g.accumulate("last", top) + steps + x * g.accumulate("sum", narrow(g, y))


TURNS = (before_the_loop, after_the_loop, across, changes_outside, comes_late, read_alone, last_of_outer)


@pytest.mark.parametrize("body", TURNS, ids=[body.__name__ for body in TURNS])
def test_each_operator_reads_what_its_operands_are_at_its_turn(body: Body) -> None:
    assert_kept(kernel(body), SHAPES, compiled=True)


# ---------------------------------------------------------------------- refusals


def refused(graph: MuGraph, inputs: Mapping[str, Shape], extents: Mapping[str, int], why: str) -> None:
    with pytest.raises(CodegenError, match=why) as caught:
        lower_mugraph(outline(graph, inputs, extents), graph, "p", list(graph.inputs), native())
    assert caught.value.what == "a µGraph cannot be lowered"


Tiled = Callable[[KernelBuilder, Handle], Handle]


def on_tiles(
    body: Tiled, omap: Mapping[str, Together], *, grid: Extents | None = None, loops: Extents | None = None,
    imap: Mapping[str, int] | None = None, fmap: Mapping[str, int] | None = None,
) -> MuGraph:  # fmt: skip
    """One kernel of x (6, 6)."""
    b = MuGraphBuilder()
    x = b.input("x", 2)
    with b.kernel(grid={"m": None} if grid is None else grid, loops=loops) as g:
        out = g.store(body(g, g.load(x, {"m": 0} if imap is None else imap, fmap)), omap=omap)
    return b.finish(out)


X = {"x": (6, 6)}


@pytest.mark.parametrize(
    ("graph", "extents", "why"),
    [
        (on_tiles(lambda g, x: g.concat([x, x], 1), {"m": 0}), {"m": 2}, "a concatenation of tiles"),
        (on_tiles(lambda g, x: g.fold("sum", x, 1, keep=2), {"m": 0}), {"m": 2}, "a fold that keeps groups"),
        (
            on_tiles(lambda g, x: g.accumulate("concat", g.exp(x), axis=1), {"m": 0}, loops={"j": None}, fmap={"j": 1}),
            {"m": 2, "j": 3},
            "puts side by side",
        ),
        (
            on_tiles(lambda g, x: g.accumulate("last", g.exp(x)), {"m": 0}, loops={"j": None}, fmap={"j": 1}),
            {"m": 2, "j": 6},
            "only the last value of a running maximum",
        ),
        (
            on_tiles(
                lambda g, x: g.accumulate("last", g.running(g.exp(x), loop="j")), {},
                grid={}, imap={}, loops={"i": None, "j": None}, fmap={"i": 0, "j": 1},
            ),
            {"i": 2, "j": 2},
            "only the last value of a running maximum",
        ),
        (on_tiles(lambda g, x: g.squeeze(x, [0]), {"m": 0}, grid={"m": 6}), {}, "an axis cuts is taken out"),
        (on_tiles(lambda g, x: g.exp(x), {"m": "stack"}), {"m": 2}, "cut by m and put together along none"),
        (on_tiles(lambda g, x: g.exp(x), {"m": 1}), {"m": 2}, "cut by m and put together along none"),
        (on_tiles(lambda g, x: g.fold("sum", x, 0), {"m": 1}), {"m": 2}, "cut by no axis and put together along m"),
        (
            on_tiles(lambda g, x: g.exp(x), {"m": 0, "n": "sum"}, grid={"m": None, "n": None}, imap={"m": 0, "n": 0}),
            {"m": 2, "n": 3},
            "cut by m, n and put together along m",
        ),
        (
            on_tiles(lambda g, x: g.exp(x), {"m": 0, "n": 0}, grid={"m": 2, "n": None}, imap={"m": 0, "n": 0}),
            {"n": 3},
            "some are fixed and some are parameters",
        ),
        (
            on_tiles(lambda g, x: g.contract("ab,ba->ab", x, x), {"m": 0}),
            {"m": 1},
            "index [ab] of ab,ba->ab is cut in two ways",
        ),
        (
            on_tiles(lambda g, x: x + g.transpose(x, [1, 0]), {"m": 0}),
            {"m": 1},
            "of the operands is cut in two ways",
        ),
    ],
)  # fmt: skip
def test_what_is_not_lowered_is_refused_with_its_reason(graph: MuGraph, extents: Mapping[str, int], why: str) -> None:
    refused(graph, X, extents, why)


def two_inputs(imaps: tuple[dict[str, int], dict[str, int]], shapes_: Mapping[str, Shape]) -> tuple[MuGraph, Mapping]:
    b = MuGraphBuilder()
    x, y = b.input("x", 2), b.input("y", 2)
    names = sorted({*imaps[0], *imaps[1]})
    with b.kernel(grid=dict.fromkeys(names)) as g:
        total = [g.fold("sum", g.load(one, imap), axis=(0, 1)) for one, imap in zip((x, y), imaps, strict=True)]
        out = g.store(total[0] + total[1], omap=dict.fromkeys(names, "sum"))
    return b.finish(out), shapes_


def test_an_axis_cuts_dimensions_of_one_length_only() -> None:
    graph, inputs = two_inputs(({"m": 0}, {"m": 0}), {"x": (6, 2), "y": (4, 2)})
    refused(graph, inputs, {"m": 2}, "axis m cuts dimensions of 6 and 4")


def test_axes_that_cut_one_dimension_cut_others_together_too() -> None:
    graph, inputs = two_inputs(({"m": 0, "n": 0}, {"m": 0}), {"x": (6, 2), "y": (6, 2)})
    refused(graph, inputs, {"m": 2, "n": 3}, "axis m cuts dimensions that other axes cut in different ways")


def test_what_is_stacked_along_a_parameter_is_not_cut_again() -> None:
    b = MuGraphBuilder()
    x = b.input("x", 2)
    with b.kernel(grid={"s": None}, loops={"j": None}) as g:
        part = g.accumulate("sum", g.fold("sum", g.load(x, {"s": 1}, {"j": 1}), axis=1))
        parts = g.store(part, omap={"s": "stack"})
    with b.kernel(grid={"t": None}) as g:
        out = g.store(g.fold("sum", g.load(parts, {"t": 0}), axis=0), omap={"t": "sum"})
    refused(b.finish(out), X, {"s": 3, "j": 2, "t": 3}, "axis t cuts a dimension whose extent is a parameter")


def test_an_axis_that_cuts_nothing_has_no_extent() -> None:
    b = MuGraphBuilder()
    x = b.input("x", 2)
    with b.kernel(grid={"m": 1}) as g:
        out = g.store(g.exp(g.load(x)), omap={"m": "sum"})
    graph = with_extents(b.finish(out), {})
    refused(graph, X, {"m": 1}, "axis m cuts nothing")


def test_a_result_is_one_tensor_that_a_kernel_makes() -> None:
    b = MuGraphBuilder()
    x = b.input("x", 2)
    graph = b.finish(b.exp(x), b.sigmoid(x))
    refused(graph, X, {}, "not one tensor that a kernel makes")
    refused(replace(graph, nodes=(), outputs=(0,)), X, {}, "not one tensor that a kernel makes")


def test_only_reals_and_masks_are_lowered() -> None:
    spec, graph = gated_mlp()
    with pytest.raises(CodegenError, match="int32 is not lowered, only bfloat16, bool, float16, float32"):
        lower_mugraph(changed(spec, "x", dtype="int32"), graph, "p", names_of(spec), native())


def test_partial_results_are_combined_in_one_way() -> None:
    b = MuGraphBuilder()
    x = b.input("x", 2)
    with b.kernel(grid={"m": None, "n": None}) as g:
        tile = g.load(x, {"m": 0, "n": 1})
        out = g.store(g.fold("sum", tile, axis=(0, 1)), omap={"m": "sum", "n": "sum"})
    graph = b.finish(out)
    (node,) = graph.nodes
    assert isinstance(node.op, BlockGraph)
    mixed = replace(node.op, outputs=(replace(node.op.outputs[0], omap=("sum", "max")),))
    refused(replace(graph, nodes=(replace(node, op=mixed),)), X, {"m": 2, "n": 2}, "combined in different ways")


def test_an_accumulator_is_no_operator_on_whole_tensors() -> None:
    graph = MuGraph(("x",), (KernelNode(Accumulate("sum"), (0,)),), (1,))  # type: ignore[arg-type]
    with pytest.raises(CodegenError, match="Accumulate is no operator on tiles"):
        lower_mugraph(outline(replace(graph, outputs=(0,)), X), graph, "p", ["x"], native())


def test_a_rescaled_sum_wants_a_running_maximum() -> None:
    def body(g: KernelBuilder, x: Handle) -> Handle:
        top = g.running(g.fold("max", x, axis=1))
        return g.rescaled_sum(g.fold("sum", g.exp(x - top), axis=1), top)

    graph = on_tiles(body, {"m": 0}, loops={"j": None}, fmap={"j": 1})
    (node,) = graph.nodes
    assert isinstance(node.op, BlockGraph)
    inner = tuple(
        replace(one, inputs=(one.inputs[0], one.inputs[0])) if isinstance(one.op, RescaledSum) else one
        for one in node.op.nodes
    )
    broken = replace(graph, nodes=(replace(node, op=replace(node.op, nodes=inner)),))
    refused(broken, X, {"m": 2, "j": 2}, "no running maximum")


def test_a_sum_that_its_accumulator_took_over_is_asked_by_nobody_what_it_reads() -> None:
    """An exponential before the loop looks for a tile to take, and the sum in the loop was written down before it."""
    b = MuGraphBuilder()
    x, w, bias, v = b.input("x", rank=2), b.input("w", rank=2), b.input("bias", rank=2), b.input("v", rank=2)
    with b.kernel(grid={"i": None}, loops={"k": None}) as k:
        tx, tw = k.load(x, imap={"i": 0}, fmap={"k": 1}), k.load(w, fmap={"k": 0})
        total = k.accumulate("sum", k.contract("ik,kj->ij", tx, tw))
        first = k.exp(k.load(bias, imap={"i": 0}))
        power = k.exp(first - k.fold("max", first, axis=1))
        product = k.contract("ij,je->ie", power, k.load(v))
        out = k.store(product * k.fold("sum", total, axis=1), omap={"i": 0})
    inputs = {"x": (5, 6), "w": (6, 7), "bias": (5, 7), "v": (7, 4)}
    assert_kept(with_extents(b.finish(out), {"i": 5, "k": 2}), inputs, rules=True)


def projected_attention(
    tokens: int = 20, hidden: int = 24, heads: int = 2, dim: int = 16
) -> tuple[MuGraph, dict[str, Shape]]:  # fmt: skip
    """softmax((x Wq)(x Wk)ᵀ)(x Wv), a head at a time: what the projections make, further products read."""
    b = MuGraphBuilder()
    x, wq, wk, wv = b.input("x", 2), b.input("wq", 3), b.input("wk", 3), b.input("wv", 3)
    with b.kernel(grid={"i": None, "h": None}) as g:
        rows, every = g.load(x, imap={"i": 0}), g.load(x)
        q, k, v = (g.load(w, imap={"h": 0}) for w in (wq, wk, wv))
        keys, values = g.contract("hcd,jc->hdj", k, every), g.contract("hcd,jc->hdj", v, every)
        scores = g.contract("hid,hdj->hij", g.contract("ic,hcd->hid", rows, q), keys)
        p = g.exp(scores - g.fold("max", scores, axis=-1))
        y = g.contract("hij,hdj->hid", p, values) / g.fold("sum", p, axis=-1)
        out = g.store(y, omap={"h": 0, "i": 1})
    shapes_ = {"x": (tokens, hidden), **dict.fromkeys(("wq", "wk", "wv"), (heads, hidden, dim))}
    return b.finish(out), shapes_


def test_a_product_that_another_one_reads_lies_as_that_reads_it() -> None:
    """Lanes run along the width of a head in the second product: its operand is made with that dimension last."""
    graph, inputs = projected_attention()
    sketch = lowered(graph, inputs, {"i": 1, "h": 2})
    allocated = {stmt.buffer.name: stmt.buffer for stmt in walk(sketch.program.body) if isinstance(stmt, Alloc)}
    turned = [name for name in allocated if name.endswith("_turned")]
    assert len(turned) == 1  # the keys: made along the width of a head, read along the keys
    assert [n.value for n in allocated[turned[0]].shape] == [16, 20]
    made = allocated[turned[0].replace("_turned", "_tile")]
    assert [n.value for n in made.shape] == [20, 16]
    values = [one for name, one in allocated.items() if one.shape == made.shape and name != made.name]
    assert len(values) == 1  # made as they are read


@pytest.mark.parametrize("sizes", [(20, 24, 2, 16), (1, 3, 1, 1), (17, 5, 3, 33), (33, 16, 2, 7)])
def test_projections_and_attention_in_one_kernel_keep_their_meaning(sizes: tuple[int, ...]) -> None:
    graph, inputs = projected_attention(*sizes)
    parts = next(n for n in (3, 2, 1) if sizes[0] % n == 0)
    assert_kept(with_extents(graph, {"i": parts, "h": sizes[2]}), inputs, rules=True, compiled=True, seed=1)


def test_a_tile_that_a_product_would_read_across_its_lanes_is_turned_once() -> None:
    b = MuGraphBuilder()
    q, keys, v = b.input("q", 2), b.input("k", 2), b.input("v", 2)
    with b.kernel(grid={"i": None}) as g:
        rows = g.load(q, imap={"i": 0})
        p = g.exp(g.contract("id,jd->ij", rows, g.load(keys) * 0.125))
        out = g.store(g.contract("ij,je->ie", p, g.load(v)), omap={"i": 0})
    graph, inputs = b.finish(out), {"q": (20, 24), "k": (34, 24), "v": (34, 18)}
    sketch = lowered(graph, inputs, {"i": 1})
    (turned,) = [
        stmt.buffer for stmt in walk(sketch.program.body)
        if isinstance(stmt, Alloc) and stmt.buffer.name.endswith("_turned")
    ]  # fmt: skip
    assert [n.value for n in turned.shape] == [24, 34]
    for parts in (1, 2):
        assert_kept(with_extents(graph, {"i": parts}), inputs, rules=True, compiled=True)


def normalized(*, apart: bool) -> MuGraph:
    """Rows over their root mean square, times weights. apart: one kernel has the sums of squares, the next the rest."""
    b = MuGraphBuilder()
    x, w = b.input("x", 2), b.input("w", 2)
    sums = None
    if apart:
        with b.kernel(grid={"i": None}) as k:
            rows = k.load(x, imap={"i": 0})
            sums = k.store(k.contract("ab,ab->a", rows, rows), omap={"i": 0})
    with b.kernel(grid={"i": None, "j": None}) as k:
        rows, columns = k.load(x, imap={"i": 0}), k.load(w, imap={"j": 1})
        squares = k.contract("ab,ab->a", rows, rows) if sums is None else k.load(sums, imap={"i": 0})
        scale = k.unsqueeze(k.rsqrt(squares), [1])
        out = k.store(scale * k.contract("ab,bc->ac", rows, columns), omap={"i": 0, "j": 1})
    return b.finish(out)


@pytest.mark.parametrize("apart", [False, True])
def test_rows_that_are_squared_and_summed_up_share_the_weights_behind_that(apart: bool) -> None:
    """A tile has several rows, as many as registers hold, and lanes run across the columns and along the squares."""
    graph, inputs = normalized(apart=apart), {"x": (96, 160), "w": (160, 192)}
    sketch = lowered(graph, inputs, {"i": 1, "j": 1})
    kernel = "k1" if apart else "k0"
    tiles = {symbol: one for one in sketch.variables if isinstance(one, Tile) for symbol in one.symbols}
    lanes = native().lanes(4)
    assert tiles[f"{kernel}_i_t0"].multiple_of[-1] < lanes and tiles[f"{kernel}_i_t0"].at_most[-1] > 1
    assert tiles[f"{kernel}_j_t0"].multiple_of[-1] % lanes == 0
    spread = [
        stmt.axes[0].extent for stmt in walk(generate(sketch, cpu_rules(), native())[0].program.body)
        if isinstance(stmt, Loop) and stmt.kind == "vectorized"
    ]  # fmt: skip
    assert Poly.of(160) in spread
    for parts in ((1, 1), (3, 2)):
        assert_kept(with_extents(graph, dict(zip("ij", parts, strict=True))), inputs, rules=True, compiled=True)
