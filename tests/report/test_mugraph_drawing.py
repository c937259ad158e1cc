"""The SVG of µGraphs: it is well-formed, everything is said, and nothing overlaps or runs over."""

from __future__ import annotations

import itertools
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from pipeline.errors import CheckError
from pipeline.report.mugraph_drawing import LETTER, draw_svg
from pipeline.superopt.mugraph.builder import MuGraphBuilder
from pipeline.superopt.mugraph.graph import MuGraph
from pipeline.superopt.proof.mirage_json import import_mirage, input_shapes, read_mirage
from tests.superopt.expert_mugraphs import EXPERT, EXPERT_SHAPES, online_attention, split_decoding
from tests.superopt.random_mugraphs import RandomMuGraph, mugraphs

SAVED = sorted((Path(__file__).parent.parent / "superopt" / "data").glob("*.json"))
SVG = "{http://www.w3.org/2000/svg}"
Rectangle = tuple[float, float, float, float]


def _rectangle(rect: ElementTree.Element) -> Rectangle:
    x, y, width, height = (float(rect.get(key, 0)) for key in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


class Picture:
    """An SVG taken apart: labels with their rectangles, kernels, loops, and the rectangle of it all."""

    def __init__(self, text: str) -> None:
        self.root = ElementTree.fromstring(text)
        self.labels: list[tuple[Rectangle, list[str]]] = []
        for group in self.root.iter(f"{SVG}g"):
            rect = group.find(f"{SVG}rect")
            if rect is not None:
                self.labels.append((_rectangle(rect), ["".join(t.itertext()) for t in group.iter(f"{SVG}text")]))
        plain = self.root.findall(f"{SVG}rect")
        self.all = _rectangle(plain[0])
        self.kernels = [_rectangle(rect) for rect in plain[1:] if not rect.get("stroke-dasharray")]
        self.loops = [_rectangle(rect) for rect in plain[1:] if rect.get("stroke-dasharray")]
        self.text = [text.text or "" for text in self.root.iter(f"{SVG}text")]

    def check(self) -> None:
        for (left, top, right, bottom), lines in self.labels:
            assert max(map(len, lines)) * LETTER <= right - left
            assert self.all[0] <= left and self.all[1] <= top and right <= self.all[2] and bottom <= self.all[3]
        for (a, first), (b, second) in itertools.combinations(self.labels, 2):
            assert not _meet(a, b), f"{first} lies over {second}"
        for a, b in itertools.combinations(self.kernels, 2):
            assert not _meet(a, b), "two kernels overlap"
        for loop in self.loops:
            assert any(_within(loop, kernel) for kernel in self.kernels), "a loop leaves its kernel"
        for a, b in itertools.combinations(self.loops, 2):
            assert not _meet(a, b) or _within(a, b) or _within(b, a), "loops cross"


def _meet(a: Rectangle, b: Rectangle) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _within(a: Rectangle, b: Rectangle) -> bool:
    return b[0] <= a[0] and b[1] <= a[1] and a[2] <= b[2] and a[3] <= b[3]


@pytest.mark.parametrize("name", EXPERT)
def test_what_an_expert_writes_is_drawn_without_overlaps(name: str) -> None:
    for arguments in ((), EXPERT_SHAPES[name]):
        Picture(draw_svg(EXPERT[name], *arguments, title=name)).check()


@given(mugraphs(steps=9))
@settings(max_examples=40, deadline=None)
def test_a_random_mugraph_is_drawn_without_overlaps(made: RandomMuGraph) -> None:
    Picture(draw_svg(made.graph, made.inputs, made.extents)).check()


@pytest.mark.parametrize("path", SAVED, ids=lambda path: path.stem)
def test_a_saved_mugraph_of_another_system_is_drawn_without_overlaps(path: Path) -> None:
    for saved in read_mirage(path):
        shapes = input_shapes(saved)
        names = [f"x{i}" for i in range(len(shapes))]
        Picture(draw_svg(import_mirage(saved, names), dict(zip(names, shapes, strict=True)))).check()


def test_grid_loops_maps_accumulators_and_tiles_are_said() -> None:
    picture = Picture(draw_svg(split_decoding(), *EXPERT_SHAPES["split_decoding"], title="decoding"))
    for text in ("decoding", "kernel 0: grid h = 2, s = 5", "loop n = 2", "h→0 s→1 n→1", "v7 = hn,hnd→hd(v4, v2)",
                 "%4 = v8 [h→0 s→stack]", "5×4×8", "%9 = %8 / %6", "output"):  # fmt: skip
        assert text in picture.text


def test_accumulators_lie_on_the_lower_edge_of_their_loop_and_what_follows_below() -> None:
    picture = Picture(draw_svg(online_attention()))
    place = {lines[0].partition(" ")[0]: rectangle for rectangle, lines in picture.labels}
    (loop,) = picture.loops
    for value in ("v9", "v11"):
        assert place[value][1] < loop[3] < place[value][3]
    for value in ("v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v10"):
        assert _within(place[value], loop)
    assert place["v0"][3] < loop[1] and place["v12"][1] > loop[3]


def _long_names() -> MuGraph:
    b = MuGraphBuilder()
    x, y = b.input("model.layers.12.self_attention.query.weight" * 5, 2), b.input("<&\"'>", 2)
    axis = "a_very_long_name_of_an_axis" * 4
    with b.kernel({axis: None}, {axis + "2": None}) as k:
        tiles = [k.load(t, {axis: 0}, {axis + "2": 1}) for t in (x, y)]
        z = k.store(k.accumulate("sum", k.concat(tiles * 12, 1)), {axis: 0})
    return b.finish(z)


def test_long_names_are_shortened_and_stand_whole_in_a_hint() -> None:
    graph = _long_names()
    text = draw_svg(graph)
    picture = Picture(text)
    picture.check()
    hints = [title.text for title in picture.root.iter(f"{SVG}title")]
    assert graph.inputs[0] in hints and graph.inputs[1] in hints
    assert picture.all[2] < 1000


def test_a_drawing_needs_nothing_from_outside() -> None:
    text = draw_svg(online_attention())
    assert "href" not in text and "url(#tip)" in text and text.count("http") == 1  # the name of the format


def test_a_drawing_is_the_same_each_time() -> None:
    assert draw_svg(split_decoding()) == draw_svg(split_decoding())


@pytest.mark.parametrize("name", EXPERT)
def test_shapes_that_do_not_fit_are_refused(name: str) -> None:
    inputs, extents = EXPERT_SHAPES[name]
    with pytest.raises(CheckError):
        draw_svg(EXPERT[name], inputs, {axis: 7 for axis in extents})
    with pytest.raises(CheckError, match="has no extent"):
        draw_svg(EXPERT[name], inputs)
