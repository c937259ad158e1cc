"""Operators that read an image at computed places, between its elements."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.operators import operator
from pipeline.frontend.onnx.ops_shape import join
from pipeline.frontend.onnx.tensor import Tensor

CUBIC = -0.75


@operator("GridSample", 16, 20, 22)
def grid_sample(call: Call) -> Tensor:
    """The last dimension of the grid holds a place, x first, from -1 to 1 over the image."""
    x, grid = call.operand(0), call.operand(1)
    mode, padding = call.get("mode", "linear"), call.get("padding_mode", "zeros")
    corners, extents = bool(call.get("align_corners", 0)), x.shape[2:]
    places = []
    for axis, extent in enumerate(extents):
        last = len(extents) - 1 - axis
        unit = grid.part(grid.rank - 1, last, last + 1).reshape(grid.shape[:-1])
        scale = (extent - 1 if corners else extent) / 2
        places.append(unit * scale + (extent - 1) / 2)
    image = x.transpose((0, *range(2, x.rank), 1))
    if mode not in ("cubic", "bicubic"):  # there only the elements around a place are moved inside, not the place
        places = [moved_inside(at, extent, padding, corners) for at, extent in zip(places, extents, strict=True)]
    taps = [taps_along(call, place, mode) for place in places]
    terms = []
    for chosen in itertools.product(*taps):
        weight = functools.reduce(Tensor.__mul__, [weight for _, weight in chosen])
        value = read(image, [at for at, _ in chosen], extents, padding, corners)
        terms.append(value * weight.unsqueeze(weight.rank))
    total = functools.reduce(Tensor.__add__, terms)
    return total.transpose((0, total.rank - 1, *range(1, total.rank - 1)))


def taps_along(call: Call, place: Tensor, mode: str) -> list[tuple[Tensor, Tensor]]:
    """Whole positions around a place along one axis, still as floats, with their weights."""
    below = place.fn("floor")
    rest = place - below
    match mode:
        case "nearest":
            near = place.fn("round")
            return [(near, near.like(1.0).broadcast(near.shape))]
        case "linear" | "bilinear":
            return [(below, 1.0 - rest), (below + 1.0, rest)]
        case "cubic" | "bicubic":
            return [(below + float(step), cubic((rest - float(step)).fn("abs"), step)) for step in (-1, 0, 1, 2)]
        case _:
            call.refuse(f"GridSample mode {mode} is not known", why="ONNX has nearest, linear and cubic")


def cubic(distance: Tensor, step: int) -> Tensor:
    """Keys' kernel; steps 0 and 1 are within one element, the others within two."""
    if step in (0, 1):
        return ((distance * (CUBIC + 2) - (CUBIC + 3)) * distance * distance) + 1.0
    return (((distance - 5.0) * distance + 8.0) * distance - 4.0) * CUBIC


def moved_inside(place: Tensor, extent: int, padding: str, corners: bool) -> Tensor:
    match padding:
        case "border":
            return place.fn("max", 0).fn("min", extent - 1)
        case "reflection":
            return reflected(place, extent, corners)
        case _:
            return place


def reflected(place: Tensor, extent: int, corners: bool) -> Tensor:
    """Mirrored at the centres of the border elements, or at their outer edges, as often as it takes."""
    low, span = (0.0, float(extent - 1)) if corners else (-0.5, float(extent))
    if span == 0.0:
        return place.like(0.0).broadcast(place.shape)
    along = (place - low).fn("abs").fn("fmod", 2 * span)
    return along.fn("min", 2 * span - along) + low


def read(image: Tensor, positions: Sequence[Tensor], extents: Sequence[int], padding: str, corners: bool) -> Tensor:
    """The channels at whole positions; outside of the image zeros, the border, or the mirror image."""
    inside, indices = [], []
    for at, extent in zip(positions, extents, strict=True):
        if padding == "reflection":
            at = reflected(at, extent, corners)
        if padding == "zeros":
            inside.append(at.fn("ge", 0.0).fn("and", at.fn("le", float(extent - 1))))
        indices.append(at.fn("max", 0.0).fn("min", float(extent - 1)).cast("int64").unsqueeze(at.rank))
    index = join(indices, indices[0].rank - 1)
    value = image.of(image.builder.gather_nd(image.value, index.value, 1))
    if not inside:
        return value
    mask = functools.reduce(lambda left, right: left.fn("and", right), inside)
    return mask.unsqueeze(mask.rank).where(value, value.like(0))
