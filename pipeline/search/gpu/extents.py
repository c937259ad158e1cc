"""The sizes of a block's loops and the steps of its accesses, as numbers of each candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.ir.poly import Poly
from pipeline.search.gpu.access import LANES, Number
from pipeline.search.gpu.nest import Access, Leaf, Span


class Numbers:
    """Polynomials at the values of the candidates, each worked out once."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._known: dict[Poly, Number] = {}

    def __call__(self, poly: Poly) -> Number:
        if poly.is_constant:
            return float(poly.value)
        known = self._known.get(poly)
        if known is None:
            known = self._known[poly] = np.asarray(poly.evaluate(self._values), np.float64)
        return known


@dataclass(frozen=True, slots=True)
class Extents:
    """Of the loops around a block: how often it runs, by the kind of loop.

    serial, unrolled, vector   of one thread, or of one warp where the warp computes a unit
    unit                       points of the unit; 1 without one
    x, y                       threads along x, and along y and z together
    warps                      that run it in each block of the grid, and `active` the share of their lanes: less than
                               there are where points of the loops lie outside of the statement's domain
    """

    by_var: Mapping[str, Number]
    grid: Number
    serial: Number
    unrolled: Number
    vector: Number
    unit: Number
    x: Number
    y: Number
    warps: Number
    active: Number


def extents_of(leaf: Leaf, numbers: Numbers, width: Number) -> Extents:
    """Those of a leaf. width: threads along x in its region, which is what tells where a warp ends."""
    by_var = {span.var: numbers(span.extent) for span in leaf.spans}
    products: dict[str, Number] = dict.fromkeys(("grid", "serial", "unrolled", "vectorized", "unit", "x", "y"), 1.0)
    for span in leaf.spans:
        key: str = span.level
        if span.level == "thread":
            key = "x" if span.axis == "x" else "y"
        products[key] = products[key] * by_var[span.var]
    x, y = products["x"], products["y"]
    across = np.where(width >= LANES, y * np.ceil(x / LANES), np.ceil(y * width / LANES))
    outer, active = _inside(leaf, by_var, numbers)
    return Extents(
        by_var, products["grid"], products["serial"], products["unrolled"], products["vectorized"], products["unit"],
        x, y, (y if leaf.unit is not None else across) * outer, active,
    )  # fmt: skip


def steps(access: Access, var: str, numbers: Numbers) -> tuple[Number, Number]:
    """The step of an access along a loop: whole rows of the last dimension, and bytes within a row."""
    rows: Number = 0.0
    below: Number = 1.0
    *leading, _ = access.dims or (None,)
    for dim, extent in zip(reversed(leading), reversed(access.buffer.shape[:-1]), strict=True):
        if dim is not None:
            coefficient = dim.coefficient(var)
            if coefficient.terms:
                rows = rows + numbers(coefficient) * below
        below = below * numbers(extent)
    inside: Number = 0.0
    last = access.dims[-1] if access.dims else None
    if last is not None:
        coefficient = last.coefficient(var)
        if coefficient.terms:
            inside = numbers(coefficient) * access.size
    return rows, inside


def _inside(leaf: Leaf, by_var: Mapping[str, Number], numbers: Numbers) -> tuple[Number, Number]:
    """The shares of the warps and of their lanes that are in the domain of the statements, in a whole block."""
    around = {span.var for span in leaf.spans if span.level == "grid"}
    lanes = {span.var for span in leaf.spans if span.level in ("vectorized", "unit") or span.axis == "x"}
    every: dict[frozenset[str], Number] = {}
    within: dict[frozenset[str], Number] = {}
    for extent, form in leaf.domains:
        own = [(var, coefficient) for var, coefficient in form.terms if var not in around]
        if not own:
            continue
        reach: Number = 1.0
        across: Number = 1.0
        for var, coefficient in own:
            length = np.abs(numbers(coefficient)) * (by_var[var] - 1.0)
            reach = reach + length
            if var in lanes:
                across = across + length
        key = frozenset(var for var, _ in own)
        limit = numbers(extent)
        every[key] = np.minimum(every.get(key, 1.0), limit / np.maximum(reach, 1.0))
        within[key] = np.minimum(within.get(key, 1.0), limit / np.maximum(across, 1.0))
    outer: Number = 1.0
    active: Number = 1.0
    for key, share in every.items():
        active = active * within[key]
        outer = outer * share / within[key]
    return outer, active


def moves(access: Access, var: str, numbers: Numbers) -> Number:
    """The step of an access along a loop in bytes, as its buffer lies in memory."""
    rows, inside = steps(access, var, numbers)
    row, pad = row_bytes(access, numbers)
    return rows * (row + pad) + inside


def row_bytes(access: Access, numbers: Numbers) -> tuple[Number, Number]:
    """Bytes of a row of the buffer, and of what is left free after it."""
    shape = access.buffer.shape
    return (numbers(shape[-1]) * access.size if shape else access.size), numbers(access.buffer.pad) * access.size


def lanes_of(leaf: Leaf, extents: Extents, width: Number) -> list[tuple[Span, Number]]:
    """The thread axes along the lanes of a warp, fastest first, each with what of its extent lies in one warp."""
    found: list[tuple[Span, Number]] = []
    left: Number = float(LANES)
    by_axis = {axis: [span for span in leaf.spans if span.level == "thread" and span.axis == axis] for axis in "xyz"}
    for axis in "xyz":
        if axis == "y":
            left = np.where(width >= LANES, 1.0, left)
        for span in reversed(by_axis[axis]):
            extent = extents.by_var[span.var]
            found.append((span, np.minimum(extent, left)))
            left = np.maximum(1.0, np.ceil(left / np.maximum(extent, 1.0)))
    return found
