"""Resize and Upsample: along every axis a gather of known positions, weighted where the mode interpolates."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.operators import operator
from pipeline.frontend.onnx.tensor import Tensor
from pipeline.ir.graph import AffineDim

MOST_TAPS_TO_GATHER = 4


@dataclass(frozen=True, slots=True)
class Axis:
    """How one axis is resized. The region of interest counts only for tf_crop_and_resize."""

    axis: int
    extent: int
    size: int
    scale: float
    start: float = 0.0
    end: float = 1.0


@operator("Upsample", 7)
def upsample_by_attribute(call: Call) -> Tensor:
    return asymmetric(call, list(call.need("scales")))


@operator("Upsample", 9, 10)
@operator("Resize", 10)
def upsample(call: Call) -> Tensor:
    return asymmetric(call, call.known(1, "scales").reshape(-1).tolist())


def asymmetric(call: Call, scales: list[float]) -> Tensor:
    """Before opset 11: coordinates are i / scale, and nearest rounds down where the tensor grows, else up: the text
    does not say, but the tests that came with it do."""
    x = call.operand(0)
    axes = [scaled(axis, x.shape[axis], scale) for axis, scale in enumerate(scales)]
    return resized(call, x, axes, "asymmetric", None)


@operator("Resize", 11, 13, 18, 19)
def resize(call: Call) -> Tensor:
    x = call.operand(0)
    chosen = [call.dimension(int(axis), x.rank) for axis in call.get("axes", range(x.rank))]
    roi = [0.0] * len(chosen) + [1.0] * len(chosen)
    transform = call.get("coordinate_transformation_mode", "half_pixel")
    if transform == "tf_crop_and_resize":
        roi = call.known(1, "region of interest").reshape(-1).tolist()
    scales = call.optional(2)
    if scales is not None and 0 not in scales.shape:
        numbers = call.known(2, "scales").reshape(-1).tolist()
        axes = [scaled(axis, x.shape[axis], scale) for axis, scale in zip(chosen, numbers, strict=True)]
    else:
        axes = sized(call, x, chosen, call.integers(3, "sizes"))
    count = len(chosen)
    axes = [Axis(a.axis, a.extent, a.size, a.scale, roi[i], roi[i + count]) for i, a in enumerate(axes)]
    return resized(call, x, axes, transform, call.get("nearest_mode", "round_prefer_floor"))


def scaled(axis: int, extent: int, scale: float) -> Axis:
    """In float32, as the scale is stored: 10 * 0.7 is then 7."""
    return Axis(axis, extent, math.floor(np.float32(scale) * np.float32(extent)), float(np.float32(scale)))


def sized(call: Call, x: Tensor, chosen: list[int], sizes: list[int]) -> list[Axis]:
    """From sizes; with an aspect-ratio policy all axes share the smallest or the largest scale."""
    policy = call.get("keep_aspect_ratio_policy", "stretch")
    scales = [size / x.shape[axis] for size, axis in zip(sizes, chosen, strict=True)]
    if policy != "stretch":
        shared = min(scales) if policy == "not_larger" else max(scales)
        scales = [shared] * len(scales)
        sizes = [math.floor(shared * x.shape[axis] + 0.5) for axis in chosen]
    return [Axis(axis, x.shape[axis], size, scale) for axis, size, scale in zip(chosen, sizes, scales, strict=True)]


def resized(call: Call, x: Tensor, axes: list[Axis], transform: str, rounding: str | None) -> Tensor:
    mode = call.get("mode", "nearest")
    given = x.dtype
    if mode != "nearest" and not x.is_float:
        x = x.cast("float32")
    outside = []
    for axis in axes:
        if axis.size == axis.extent and axis.scale == 1.0 and transform != "tf_crop_and_resize":
            continue
        at = coordinates(call, axis, transform)
        if transform == "tf_crop_and_resize":
            outside.append(call.constant((at < 0) | (at > axis.extent - 1), "bool").along(axis.axis, x.rank))
        if mode == "nearest":
            x = nearest(call, x, axis, at, rounding)
        else:
            x = weighted(x, axis, *taps(call, axis, at, mode))
    if not x.is_float or x.dtype != given:
        x = x.cast(given)
    for mask in outside:
        x = mask.where(x.like(call.get("extrapolation_value", 0.0)), x)
    return x


def coordinates(call: Call, axis: Axis, transform: str) -> np.ndarray:
    """The place in the data, in elements, of every element of the result."""
    i, scale = np.arange(axis.size, dtype=np.float32), np.float32(axis.scale)
    half, last = np.float32(0.5), axis.extent - 1
    match transform:
        case "half_pixel":
            return (i + half) / scale - half
        case "pytorch_half_pixel":
            return (i + half) / scale - half if axis.size > 1 else np.zeros(axis.size, np.float32)
        case "half_pixel_symmetric":
            offset = axis.extent / 2 * (1 - axis.size / (axis.extent * axis.scale))
            return np.float32(offset) + (i + half) / scale - half
        case "asymmetric":
            return i / scale
        case "align_corners":
            return i * np.float32(last / (axis.size - 1)) if axis.size > 1 else np.zeros(axis.size, np.float32)
        case "tf_half_pixel_for_nn":
            return (i + half) / scale
        case "tf_crop_and_resize":
            if axis.size > 1:
                step = (axis.end - axis.start) * last / (axis.size - 1)
                return (axis.start * last + i * step).astype(np.float32)
            return np.full(axis.size, (axis.start + axis.end) * last / 2, np.float32)
        case _:
            call.refuse(f"coordinate_transformation_mode {transform} is not known")


def nearest(call: Call, x: Tensor, axis: Axis, at: np.ndarray, rounding: str | None) -> Tensor:
    """A whole multiple is a broadcast; everything else is a gather. rounding: None is that before opset 11."""
    match rounding:
        case "round_prefer_floor":
            index = np.ceil(at - np.float32(0.5))
        case "round_prefer_ceil":
            index = np.floor(at + np.float32(0.5))
        case "floor":
            index = np.floor(at)
        case "ceil":
            index = np.ceil(at)
        case None:
            index = np.ceil(at) if axis.scale < 1.0 else np.floor(at)
        case _:
            call.refuse(f"nearest_mode {rounding} is not known")
    index = np.clip(index, 0, axis.extent - 1).astype(np.int64)
    times, rest = divmod(axis.size, axis.extent)
    if not rest and times and (index == np.repeat(np.arange(axis.extent), times)).all():
        spread = x.unsqueeze(axis.axis + 1)
        shape = [*x.shape[: axis.axis + 1], times, *x.shape[axis.axis + 1 :]]
        return spread.broadcast(shape).reshape([*x.shape[: axis.axis], axis.size, *x.shape[axis.axis + 1 :]])
    return x.take(index, axis.axis)


def taps(call: Call, axis: Axis, at: np.ndarray, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Positions and weights, [size, taps]. Positions outside are clamped, or weigh nothing with exclude_outside;
    with antialias the filter is stretched where the axis shrinks."""
    stretch = min(axis.scale, 1.0) if call.get("antialias", 0) else 1.0
    radius = {"linear": 1, "cubic": 2}.get(mode)
    if radius is None:
        call.refuse(f"Resize mode {mode} is not known", why="ONNX has nearest, linear and cubic")
    reach = math.ceil(radius / stretch)
    at = at.astype(np.float64)
    position = np.floor(at)[:, None] + np.arange(1 - reach, reach + 1)
    distance = np.abs(position - at[:, None]) * stretch
    weight = np.maximum(1 - distance, 0) if mode == "linear" else cubic(distance, call.get("cubic_coeff_a", -0.75))
    if call.get("exclude_outside", 0):
        weight = np.where((position < 0) | (position >= axis.extent), 0.0, weight)
    weight = weight / weight.sum(axis=1, keepdims=True)
    return np.clip(position, 0, axis.extent - 1).astype(np.int64), weight


def cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' convolution kernel."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def weighted(x: Tensor, axis: Axis, position: np.ndarray, weight: np.ndarray) -> Tensor:
    """Few taps are gathered and added up; many are a product with a matrix."""
    if position.shape[1] <= MOST_TAPS_TO_GATHER:
        terms = [
            x.take(position[:, tap], axis.axis) * x.like(weight[:, tap]).along(axis.axis, x.rank)
            for tap in range(position.shape[1])
            if weight[:, tap].any()
        ]
        return functools.reduce(Tensor.__add__, terms)
    matrix = np.zeros((axis.size, axis.extent))
    np.add.at(matrix, (np.arange(axis.size)[:, None], position), weight)
    shape = [axis.size if i == axis.axis else extent for i, extent in enumerate(x.shape)]
    data = tuple(AffineDim(((x.rank if i == axis.axis else i, 1),)) for i in range(x.rank))
    table = (AffineDim(((axis.axis, 1),)), AffineDim(((x.rank, 1),)))
    return x.of(x.builder.contract(x.value, x.like(matrix).value, shape, (axis.extent,), data, table))
