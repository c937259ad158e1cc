"""The layout of a directed acyclic graph in layers, from top to bottom, after Sugiyama, Tagawa and Toda (1981).

Boxes have a size and a layer, given by the caller. Edges that pass layers run through points in them. The order in a
layer is that of the mean place of the neighbours, swept up and down; then each box moves as near to its neighbours as
the order allows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Point = tuple[float, float]
Rows = list[list[int]]
Neighbours = list[list[tuple[int, float, float]]]
_Line = tuple[int, float, int, float]  # from a box and a place on it to a box and a place on it
SWEEPS = 8  # for the order
MOVES = 24  # for the places
STRAIGHT = (1.0, 2.0, 8.0)  # the weight of a line between two boxes, a box and a bend, two bends
BEND = 12.0  # the width that an edge takes where it passes a layer


@dataclass(frozen=True, slots=True)
class Box:
    """Something to place: its size, and the layer that it is in, from 0 at the top."""

    width: float
    height: float
    layer: int


@dataclass(frozen=True, slots=True)
class Edge:
    """From the bottom of one box to the top of another in a later layer; `leaves` and `enters`, from the middle."""

    source: int
    target: int
    leaves: float = 0.0
    enters: float = 0.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are: the left upper corner of each box, the points of each edge, and the size of the whole.

    tops, bottoms  of each layer
    """

    corners: tuple[Point, ...]
    routes: tuple[tuple[Point, ...], ...]
    tops: tuple[float, ...]
    bottoms: tuple[float, ...]
    width: float
    height: float


def layout(boxes: Sequence[Box], edges: Sequence[Edge], *, gap: float = 18, rise: Sequence[float] = ()) -> Layout:
    """Boxes and edges placed so that boxes do not overlap.

    gap   between neighbours
    rise  the space above each layer; 30 for layers that it does not name
    """
    count = len(boxes)
    layers = 1 + max((box.layer for box in boxes), default=-1)
    widths = [box.width for box in boxes]
    layer = [box.layer for box in boxes]
    paths: list[list[int]] = []
    for edge in edges:
        path = [edge.source]
        for between in range(boxes[edge.source].layer + 1, boxes[edge.target].layer):
            path.append(len(widths))
            widths.append(BEND)
            layer.append(between)
        paths.append([*path, edge.target])
    # Of each box its neighbours above and below: which, how far from the two middles the line ends, and how much it
    # counts that the line is straight: most where it only passes.
    above: Neighbours = [[] for _ in widths]
    below: Neighbours = [[] for _ in widths]
    lines: list[list[_Line]] = [[] for _ in range(layers)]
    for edge, path in zip(edges, paths, strict=True):
        for upper, lower in pairwise(path):
            leaves = edge.leaves if upper == edge.source else 0.0
            enters = edge.enters if lower == edge.target else 0.0
            weight = STRAIGHT[(upper >= count) + (lower >= count)]
            below[upper].append((lower, enters - leaves, weight))
            above[lower].append((upper, leaves - enters, weight))
            lines[layer[upper]].append((upper, leaves, lower, enters))
    rows = [[i for i in range(len(widths)) if layer[i] == number] for number in range(layers)]
    rows = _ordered(rows, widths, above, below, lines, gap)
    middle = _placed(rows, widths, above, below, gap)
    for edge, path in zip(edges, paths, strict=True):
        _straighten(path[1:-1], middle[edge.target] + edge.enters, middle, rows, layer, widths, gap)
    left = min((middle[i] - widths[i] / 2 for i in range(len(widths))), default=0.0)
    middle = [x - left for x in middle]
    tops, bottoms, y = [], [], 0.0
    for number, row in enumerate(rows):
        y += rise[number] if number < len(rise) else 30.0
        tops.append(y)
        y += max((boxes[i].height for i in row if i < count), default=0.0)
        bottoms.append(y)
    # A box stands in the middle of its layer.
    corners = tuple(
        (middle[i] - box.width / 2, (tops[box.layer] + bottoms[box.layer] - box.height) / 2)
        for i, box in enumerate(boxes)
    )
    routes = []
    for edge, path in zip(edges, paths, strict=True):
        points = [(middle[edge.source] + edge.leaves, corners[edge.source][1] + boxes[edge.source].height)]
        for i in path[1:-1]:
            points += [(middle[i], tops[layer[i]]), (middle[i], bottoms[layer[i]])]
        routes.append((*points, (middle[edge.target] + edge.enters, corners[edge.target][1])))
    width = max((middle[i] + widths[i] / 2 for i in range(len(widths))), default=0.0)
    return Layout(corners, tuple(routes), tuple(tops), tuple(bottoms), width, y)


def _ordered(
    rows: Rows,
    widths: Sequence[float],
    above: Neighbours,
    below: Neighbours,
    lines: Sequence[Sequence[_Line]],
    gap: float,
) -> Rows:
    """The rows in the order of least crossings that the sweeps find."""
    best, fewest = rows, _crossings(rows, lines)
    for sweep in range(SWEEPS):
        rows = [list(row) for row in rows]
        x = _side_by_side(rows, widths, gap)
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            near = above if down else below
            wish = {i: sum(x[j] + dx for j, dx, _ in near[i]) / len(near[i]) if near[i] else x[i] for i in row}
            row.sort(key=wish.__getitem__)
            x |= _side_by_side([row], widths, gap)
        crossings = _crossings(rows, lines)
        if crossings < fewest:
            best, fewest = rows, crossings
    return best


def _side_by_side(rows: Rows, widths: Sequence[float], gap: float) -> dict[int, float]:
    """The middle of each box where each row stands close together, around 0."""
    found: dict[int, float] = {}
    for row in rows:
        x = -(sum(widths[i] for i in row) + gap * (len(row) - 1)) / 2
        for i in row:
            found[i] = x + widths[i] / 2
            x += widths[i] + gap
    return found


def _crossings(rows: Rows, lines: Sequence[Sequence[_Line]]) -> int:
    place = {i: at for row in rows for at, i in enumerate(row)}
    total = 0
    for layer in lines:
        ends = [((place[i], leaves), (place[j], enters)) for i, leaves, j, enters in layer]
        total += sum((a < c and b > d) or (a > c and b < d) for k, (a, b) in enumerate(ends) for c, d in ends[:k])
    return total


def _placed(rows: Rows, widths: Sequence[float], above: Neighbours, below: Neighbours, gap: float) -> list[float]:
    """The middle of each box: near to its neighbours, in order, without overlap."""
    x = _side_by_side(rows, widths, gap)
    for sweep in range(MOVES):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wish = [_mean([*above[i], *below[i]], x) if above[i] or below[i] else x[i] for i in row]
            for i, at in zip(row, _spread(wish, [widths[i] for i in row], gap), strict=True):
                x[i] = at
    return [x[i] for i in range(len(widths))]


def _straighten(
    bends: Sequence[int], wish: float, middle: list[float], rows: Rows, layer: Sequence[int], widths: Sequence[float],
    gap: float,
) -> None:  # fmt: skip
    """Puts the bends of one edge over one another, near to the wished place, where their neighbours leave room."""
    low, high = -math.inf, math.inf
    for i in bends:
        row = rows[layer[i]]
        at = row.index(i)
        if at:
            low = max(low, middle[row[at - 1]] + (widths[row[at - 1]] + widths[i]) / 2 + gap)
        if at + 1 < len(row):
            high = min(high, middle[row[at + 1]] - (widths[row[at + 1]] + widths[i]) / 2 - gap)
    if low <= high:
        for i in bends:
            middle[i] = min(max(wish, low), high)


def _mean(near: Sequence[tuple[int, float, float]], x: Mapping[int, float]) -> float:
    return sum((x[j] + dx) * weight for j, dx, weight in near) / sum(weight for *_, weight in near)


def _spread(wish: Sequence[float], widths: Sequence[float], gap: float) -> list[float]:
    """The places nearest to the wished ones at which neighbours keep their distance: blocks that meet move as one."""
    blocks: list[tuple[float, int, float]] = []  # sum of wished starts, members, width
    for at, width in zip(wish, widths, strict=True):
        total, members, size = at - width / 2, 1, width + gap
        while blocks and blocks[-1][0] / blocks[-1][1] + blocks[-1][2] > total / members:
            before, others, wide = blocks.pop()
            total, members, size = before + total - members * wide, others + members, wide + size
        blocks.append((total, members, size))
    found: list[float] = []
    number = 0
    for total, members, _ in blocks:
        start = total / members
        for width in widths[number : number + members]:
            found.append(start + width / 2)
            start += width + gap
        number += members
    return found
