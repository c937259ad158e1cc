"""The layout in layers: boxes keep apart, edges go down and do not cross without need."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.report.layered_layout import Box, Edge, Layout, layout


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Box], list[Edge]]:
    count = draw(st.integers(0, 14))
    boxes: list[Box] = []
    edges: list[Edge] = []
    for i in range(count):
        reads = draw(st.lists(st.integers(0, i - 1), max_size=3, unique=True)) if i else []
        layer = max((boxes[j].layer + 1 for j in reads), default=0)
        boxes.append(Box(draw(st.sampled_from((10, 50, 200))), draw(st.sampled_from((10, 40))), layer))
        edges += [Edge(j, i, draw(st.sampled_from((0.0, 4.0))), draw(st.sampled_from((0.0, -4.0)))) for j in reads]
    return boxes, edges


@given(graphs())
@settings(max_examples=60, deadline=None)
def test_boxes_keep_apart_and_inside_and_edges_go_down(given_: tuple[list[Box], list[Edge]]) -> None:
    boxes, edges = given_
    found = layout(boxes, edges, gap=18)
    for (x, y), box in zip(found.corners, boxes, strict=True):
        assert x >= -1e-6 and x + box.width <= found.width + 1e-6
        assert found.tops[box.layer] - 1e-6 <= y and y + box.height <= found.bottoms[box.layer] + 1e-6
    for i, j in itertools.combinations(range(len(boxes)), 2):
        if boxes[i].layer == boxes[j].layer:
            left, right = sorted((i, j), key=lambda k: found.corners[k][0])
            assert found.corners[right][0] >= found.corners[left][0] + boxes[left].width + 18 - 1e-6
    for edge, route in zip(edges, found.routes, strict=True):
        assert all(a[1] < b[1] or (a[1] == b[1] and a[0] == b[0]) for a, b in itertools.pairwise(route))
        (x, y), box = found.corners[edge.source], boxes[edge.source]
        assert route[0] == (x + box.width / 2 + edge.leaves, y + box.height)
        for (x, y), _ in itertools.pairwise(route[1:-1]):
            for (left, _), box in zip(found.corners, boxes, strict=True):
                assert found.tops[box.layer] != y or not left < x < left + box.width, "an edge runs through a box"
        (x, y), box = found.corners[edge.target], boxes[edge.target]
        assert route[-1] == (x + box.width / 2 + edge.enters, y)


def _middles(found: Layout, boxes: list[Box]) -> list[float]:
    return [x + box.width / 2 for (x, _), box in zip(found.corners, boxes, strict=True)]


def test_two_edges_that_need_not_cross_do_not() -> None:
    boxes = [Box(20, 20, 0), Box(20, 20, 0), Box(20, 20, 1), Box(20, 20, 1)]
    a, b, c, d = _middles(layout(boxes, [Edge(0, 3), Edge(1, 2)]), boxes)
    assert (a < b) == (d < c)


def test_edges_from_two_places_of_one_box_do_not_cross() -> None:
    boxes = [Box(100, 20, 0), Box(20, 20, 1), Box(20, 20, 1)]
    _, left, right = _middles(layout(boxes, [Edge(0, 1, leaves=40), Edge(0, 2, leaves=-40)]), boxes)
    assert right < left


def test_a_chain_is_straight_and_a_parent_stands_over_the_middle_of_its_children() -> None:
    boxes = [Box(20, 20, 0), Box(80, 20, 1), Box(20, 20, 2)]
    a, b, c = _middles(layout(boxes, [Edge(0, 1), Edge(1, 2)]), boxes)
    assert a == b == c
    boxes = [Box(20, 20, 0), Box(20, 20, 1), Box(20, 20, 1)]
    a, b, c = _middles(layout(boxes, [Edge(0, 1), Edge(0, 2)]), boxes)
    assert abs(a - (b + c) / 2) < 1e-6


def test_an_edge_goes_round_the_boxes_of_the_layers_that_it_passes() -> None:
    boxes = [Box(20, 20, 0), Box(200, 20, 1), Box(20, 20, 2)]
    found = layout(boxes, [Edge(0, 1), Edge(1, 2), Edge(0, 2)])
    x, _ = found.corners[1]
    at = [point[0] for point in found.routes[2][1:-1]]
    assert len(at) == 2 and all(place < x or place > x + 200 for place in at)


def test_nothing_is_laid_out_as_nothing() -> None:
    assert layout([], []) == Layout((), (), (), (), 0.0, 0.0)
