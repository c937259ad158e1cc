"""The drawing of a µGraph as SVG, self-contained: kernels as boxes, loops as frames, accumulators on their lower edge.

In a kernel data flows from top to bottom. On its upper edge is said how each operand is cut (imap and fmap), on its
lower edge how each result is put together (omap). What is inside a frame runs in each iteration of that loop; what
is above it runs before, what is below it after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from pipeline.ir.graph import Shape
from pipeline.report.layered_layout import Box, Edge, Layout, Point, layout
from pipeline.report.mugraph_listing import (
    axis_text,
    block_stages,
    cut_text,
    expression,
    grid_text,
    number_text,
    omap_text,
    scalar_tensors,
    shortened,
    size_text,
    tensor_names,
    value_texts,
)
from pipeline.superopt.mugraph.graph import Accumulate, BlockGraph, MuGraph, RescaledSum, Running
from pipeline.superopt.mugraph.shapes import BlockShapes, Shapes, shapes

FONT, LETTER, LINE = 12, 7.3, 16  # size, width and height of a letter in a font of fixed width
PAD, INSET, TITLE = 10, 14, 20  # around text; of a frame in the next; the height of a title
LONGEST = 44  # letters on a line
RISE = 26  # between layers
STYLES = {  # fill, line
    "tensor": ("#ddf4ff", "#0969da"),
    "operator": ("#ffffff", "#57606a"),
    "tile": ("#ddf4ff", "#0969da"),
    "accumulator": ("#fff1c2", "#9a6700"),
    "running": ("#fbefff", "#8250df"),
    "map": ("#eaeef2", "#8c959f"),
    "result": ("#dafbe1", "#1a7f37"),
}


def draw_svg(
    graph: MuGraph,
    inputs: Mapping[str, Shape] | None = None,
    extents: Mapping[str, int] | None = None,
    *,
    title: str = "",
) -> str:
    """The text of an SVG file that shows a valid µGraph; with shapes of the inputs also those of all tiles.

    inputs, extents  as in `pipeline.superopt.mugraph.shapes.shapes`; CheckError where they do not fit
    title            a heading
    """
    found = None if inputs is None else shapes(graph, inputs, extents)
    scene = _Scene()
    width, height = _kernels(graph, found, extents or {}, scene, (16.0, 16.0 + (TITLE + 8 if title else 0)))
    heading = _lines((16.0, 28.0), [title], "start", weight="bold", size=14) if title else ""
    width = max(width, len(title) * LETTER * 14 / FONT + 16) + 16
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height + 16:.0f}"'
        f' viewBox="0 0 {width:.0f} {height + 16:.0f}"'
        f' font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="{FONT}">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#57606a"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height + 16:.0f}" fill="#ffffff"/>',
        heading, *scene.back, *scene.edges, *scene.front, "</svg>", "",
    ])  # fmt: skip


class _Scene:
    """What is drawn, in three heights: frames, edges, boxes."""

    def __init__(self) -> None:
        self.back: list[str] = []
        self.edges: list[str] = []
        self.front: list[str] = []

    def edge(self, points: Sequence[Point]) -> None:
        """A smooth line, vertical in each of its points."""
        path = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
        for (x, y), (u, v) in pairwise(points):
            half = (v - y) / 2
            path.append(f"C{x:.1f} {y + half:.1f} {u:.1f} {v - half:.1f} {u:.1f} {v:.1f}")
        self.edges.append(
            f'<path d="{" ".join(path)}" fill="none" stroke="#57606a" stroke-width="1.2" marker-end="url(#tip)"/>'
        )

    def frame(self, corner: Point, size: Point, title: str, *, dashed: bool) -> None:
        look = 'fill="none" stroke="#0969da" stroke-dasharray="6 4"' if dashed else 'fill="#f6f8fa" stroke="#8c959f"'
        (x, y), (width, height) = corner, size
        self.back.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="8" {look}/>')
        colour = "#0969da" if dashed else "#24292f"
        # An edge that passes behind the title leaves room for its letters.
        self.front.append(
            f'<g stroke="#f6f8fa" stroke-width="4" paint-order="stroke">'
            f"{_lines((x + PAD, y + 15), [title], 'start', colour=colour, weight='bold')}</g>"
        )


@dataclass(frozen=True, slots=True)
class _Label:
    """A box with a few short lines; `hint` has the whole of what was shortened."""

    lines: tuple[str, ...]
    style: str
    hint: str

    @property
    def width(self) -> float:
        return max(len(line) for line in self.lines) * LETTER + 2 * PAD

    @property
    def height(self) -> float:
        return len(self.lines) * LINE + (4 if self.style == "map" else 8)

    def put(self, corner: Point, scene: _Scene) -> None:
        (x, y), (fill, line) = corner, STYLES[self.style]
        round_ = self.height / 2 if self.style in ("tensor", "result", "map") else 4
        thick = 2 if self.style in ("accumulator", "running") else 1
        middle = (x + self.width / 2, y + (self.height - LINE * len(self.lines)) / 2 + 12)
        scene.front.append(
            f'<g><title>{escape(self.hint)}</title><rect x="{x:.1f}" y="{y:.1f}" width="{self.width:.1f}"'
            f' height="{self.height:.1f}" rx="{round_:.0f}" fill="{fill}" stroke="{line}" stroke-width="{thick}"/>'
            f"{_lines(middle, self.lines, 'middle')}</g>"
        )


def _label(style: str, text: str, shape: Shape | None, hint: str = "") -> _Label:
    lines = [shortened(text, LONGEST)]
    if shape is not None:
        lines.append(size_text(shape))
    return _Label(tuple(lines), style, hint or text)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A kernel and what is in it, placed from its own corner.

    enters, leaves  where the operands come in and the results go out, along the edges, from the middle
    """

    title: str
    width: float
    height: float
    labels: tuple[tuple[Point, _Label], ...]
    routes: tuple[tuple[Point, ...], ...]
    frames: tuple[tuple[Point, Point, str], ...]
    enters: tuple[float, ...]
    leaves: tuple[float, ...]

    def put(self, corner: Point, scene: _Scene) -> None:
        def moved(point: Point) -> Point:
            return (corner[0] + point[0], corner[1] + point[1])

        scene.frame(corner, (self.width, self.height), self.title, dashed=False)
        for at, size, title in self.frames:
            scene.frame(moved(at), size, title, dashed=True)
        for points in self.routes:
            scene.edge([moved(point) for point in points])
        for at, label in self.labels:
            label.put(moved(at), scene)


def _kernels(
    graph: MuGraph, found: Shapes | None, extents: Mapping[str, int], scene: _Scene, corner: Point
) -> tuple[float, float]:
    """All kernels, placed: the place of the right lower corner."""
    names, numbers = tensor_names(graph), scalar_tensors(graph)
    things: list[_Label | _Drawn] = []
    boxes: list[Box] = []
    edges: list[Edge] = []
    made: list[tuple[int, float]] = []  # the box of each tensor, and where on it the tensor comes out
    depth = [0] * len(graph.inputs)

    def shape(tensor: int) -> Shape | None:
        return None if found is None else found.tensors[tensor]

    def add(thing: _Label | _Drawn, layer: int, reads: Sequence[tuple[int, float]]) -> int:
        things.append(thing)
        boxes.append(Box(thing.width, thing.height, layer))
        for tensor, enters in dict.fromkeys(reads):
            edges.append(Edge(made[tensor][0], len(boxes) - 1, made[tensor][1], enters))
        return len(boxes) - 1

    for i, name in enumerate(graph.inputs):
        made.append((add(_label("tensor", names[i], shape(i), name), 0, ()), 0.0))
    for number, node in enumerate(graph.nodes):
        first, layer = len(made), max((depth[i] + 1 for i in node.inputs), default=0)
        depth += [layer] * node.results
        if isinstance(node.op, BlockGraph):
            results = names[first : first + node.results]
            tiles = None if found is None else found.blocks[number]
            drawn = _block(number, node.op, [names[i] for i in node.inputs], results, tiles, extents)
            at = add(drawn, layer, list(zip(node.inputs, drawn.enters, strict=True)))
            made += [(at, x) for x in drawn.leaves]
        else:
            text = expression(node.op, [number_text(numbers[i]) if i in numbers else names[i] for i in node.inputs])
            label = _label("operator", f"{names[first]} = {text}", shape(first))
            made.append((add(label, layer, [(i, 0.0) for i in node.inputs]), 0.0))
    for i, tensor in enumerate(graph.outputs):
        text = f"output {i}" if len(graph.outputs) > 1 else "output"
        add(_label("result", text, shape(tensor)), depth[tensor] + 1, [(tensor, 0.0)])
    placed = layout(boxes, edges, rise=[0.0] + [44.0] * len(boxes))
    for thing, (x, y) in zip(things, placed.corners, strict=True):
        thing.put((corner[0] + x, corner[1] + y), scene)
    for route in placed.routes:
        scene.edge([(corner[0] + x, corner[1] + y) for x, y in route])
    return corner[0] + placed.width, corner[1] + placed.height


def _block(
    number: int,
    block: BlockGraph,
    operands: Sequence[str],
    results: Sequence[str],
    tiles: BlockShapes | None,
    extents: Mapping[str, int],
) -> _Drawn:
    count, loops = len(block.inputs), len(block.loops)
    stages, texts = block_stages(block), value_texts(block, operands)
    layers, tops = _layers(block, stages)
    last = max(layers.values(), default=0) + 1
    labels: list[_Label] = []
    boxes: list[Box] = []
    edges: list[Edge] = []

    def add(label: _Label, layer: int) -> int:
        labels.append(label)
        boxes.append(Box(label.width, label.height, layer))
        return len(boxes) - 1

    cuts = [add(_label("map", cut_text(block, i) or "whole", None), 0) for i in range(count)]
    at: dict[int, int] = {}
    for value, layer in layers.items():
        op = None if value < count else block.nodes[value - count].op
        style = "tile" if op is None else "running" if isinstance(op, Running) else "operator"
        style = "accumulator" if isinstance(op, Accumulate | RescaledSum) else style
        text = f"v{value} = {operands[value] if op is None else texts[value]}"
        at[value] = add(_label(style, text, None if tiles is None else tiles.tiles[value]), layer)
        if op is None:
            edges.append(Edge(cuts[value], at[value]))
        else:
            edges += [Edge(at[i], at[value]) for i in dict.fromkeys(block.nodes[value - count].inputs) if i in at]
    stores = []
    for i, out in enumerate(block.outputs):
        text = f"{results[i]} = {f'v{out.value}' if out.value in at else texts[out.value]}"
        joined = omap_text(block, i)
        shape = None if tiles is None else tiles.results[i]
        stores.append(add(_label("map", f"{text} [{joined}]" if joined else text, shape), last))
        if out.value in at:
            edges.append(Edge(at[out.value], stores[-1]))
    rise = [0.0] + [float(RISE)] * last
    for layer in tops.values():
        rise[layer] += TITLE + 4
    rise[last] += 6.0
    placed = layout(boxes, edges, rise=rise)
    side = PAD + INSET * loops
    title = f"kernel {number}: {grid_text(block, extents)}"
    names = [f"loop {axis_text(axis, extents)}" for axis in block.loops]
    wide = max([placed.width, *((len(name) + 2) * LETTER for name in (title, *names))])
    shift = (side + (wide - placed.width) / 2, TITLE + 8.0)

    def moved(point: Point) -> Point:
        return (point[0] + shift[0], point[1] + shift[1])

    frames = []
    for loop, name in enumerate(names):
        top, bottom = _span(block, placed, stages, layers, tops, loop)
        inset = PAD + INSET * loop
        size = (wide + 2 * side - 2 * inset, bottom - top)
        frames.append(((float(inset), top + shift[1]), size, name))
    corners = [moved(corner) for corner in placed.corners]
    width = wide + 2 * side
    middles = [x + label.width / 2 - width / 2 for (x, _), label in zip(corners, labels, strict=True)]
    return _Drawn(
        title=title,
        width=width,
        height=shift[1] + placed.height + 4,
        labels=tuple(zip(corners, labels, strict=True)),
        routes=tuple(tuple(map(moved, route)) for route in placed.routes),
        frames=tuple(frames),
        enters=tuple(middles[i] for i in cuts),
        leaves=tuple(middles[i] for i in stores),
    )


def _layers(block: BlockGraph, stages: Mapping[int, float]) -> tuple[dict[int, int], dict[int, int]]:
    """The layer of each value that is drawn, from 1 on, and the first layer inside each loop."""
    count, loops = len(block.inputs), len(block.loops)
    layers: dict[int, int] = {}
    tops: dict[int, int] = {}
    base = 1
    for stage in [half / 2 for half in range(4 * loops + 1)]:
        here = sorted(value for value, at in stages.items() if at == stage)
        if stage == int(stage) and 0 < stage <= loops:
            tops[int(stage) - 1] = base
        for value in here:
            below = [] if value < count else [layers[i] + 1 for i in block.nodes[value - count].inputs if i in layers]
            layers[value] = max([base, *below])
        for value in here:  # a tile is loaded just before it is read
            readers = [layers[v] for v in here if v >= count and value in block.nodes[v - count].inputs]
            if value < count and readers:
                layers[value] = max(base, min(readers) - 1)
        if here:
            base = max(layers[value] for value in here) + 1
    return layers, tops


def _span(
    block: BlockGraph,
    placed: Layout,
    stages: Mapping[int, float],
    layers: Mapping[int, int],
    tops: Mapping[int, int],
    loop: int,
) -> tuple[float, float]:
    """From where to where the frame of a loop goes: its lower edge runs through the accumulators that leave it."""
    end = 2 * len(block.loops) - loop - 0.5
    inside = [layers[value] for value, at in stages.items() if loop + 1 <= at < end]
    leaving = [layers[value] for value, at in stages.items() if at == end]
    begun = sum(at == tops[loop] for inner, at in tops.items() if inner >= loop)  # this one and those inside it
    top = placed.tops[tops[loop]] - begun * (TITLE + 4) - 4
    if leaving:
        return top, (placed.tops[leaving[0]] + placed.bottoms[leaving[0]]) / 2
    return top, placed.bottoms[max(inside, default=tops[loop])] + 8


def _lines(
    at: Point, lines: Sequence[str], anchor: str, *, colour: str = "#24292f", weight: str = "normal", size: int = FONT
) -> str:
    return "".join(
        f'<text x="{at[0]:.1f}" y="{at[1] + LINE * i:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
        f' font-size="{size}" fill="{colour if i == 0 else "#57606a"}">{escape(line)}</text>'
        for i, line in enumerate(lines)
    )
