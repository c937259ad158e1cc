"""How the 32 lanes of a warp touch memory: the sectors of a global access and the wavefronts of a shared one.

A sector is 32 bytes, the least that crosses from L2. Shared memory has 32 banks of 4 bytes and serves one word of each
per cycle and wavefront; lanes that ask for 8 or 16 bytes each are served in halves or quarters of a warp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Number = Any  # an array with one entry per candidate, or a number that is the same for all

SECTOR = 32.0
LANES, BANKS, WORD = 32, 32, 4
SCATTERED = 4.0  # wavefronts of 32 lanes that read anywhere: about the fullest of 32 banks


@dataclass(frozen=True, slots=True)
class Lanes:
    """One axis along the lanes of a warp: its extent, and the step of an access along it.

    rows, bytes   the step in whole rows (of the buffer's last dimension), and within a row in bytes
    """

    extent: Number
    rows: Number
    bytes: Number
    scattered: bool = False


def sectors(axes: Sequence[tuple[Number, Number, bool]], chunk: Number) -> Number:
    """Sectors that one access of a warp touches.

    axes    fastest first: the extent along the lanes, the step in bytes, and whether the step depends on data
    chunk   bytes that one lane reads in a row
    """
    run: Number = chunk + 0.0
    pieces: Number = 1.0
    for extent, step, scattered in axes:
        if scattered:
            pieces = pieces * extent
            continue
        step = np.abs(step)
        near = (step <= run) | (step < SECTOR)
        run = np.where(near & (step > 0), run + step * (extent - 1.0), run)
        pieces = np.where(near, pieces, pieces * extent)
    return pieces * np.maximum(1.0, np.ceil(run / SECTOR))


def wavefronts(axes: Sequence[Lanes], chunk: Number, row: Number, pad: Number, swizzled: bool, count: int) -> Array:
    """Cycles in which one access of a warp to shared memory is served.

    axes    fastest first; more than 32 lanes of them are not looked at
    chunk   bytes of one lane
    row     bytes of a row without what is left free after it, which is `pad`
    """
    if any(axis.scattered for axis in axes):
        return np.full(count, SCATTERED)
    columns = [chunk, row, pad]
    for axis in axes:
        columns += [np.minimum(axis.extent, LANES), axis.rows, axis.bytes]
    if all(np.ndim(column) == 0 for column in columns):
        table = np.array([[float(column) for column in columns]]).astype(np.int64)
        return np.full(count, _served(table, swizzled)[0])
    table = np.stack([np.broadcast_to(column, count) for column in columns], axis=1).astype(np.int64)
    keys = (table * _MIX[: table.shape[1]]).sum(axis=1)  # wraps around; equal rows have equal keys
    _, first, back = np.unique(keys, return_index=True, return_inverse=True)
    result: Array = _served(table[first], swizzled)[back.reshape(-1)]
    return result


_MIX = np.random.default_rng(7).integers(1 << 40, 1 << 62, size=64) | 1


def _served(table: NDArray[np.int64], swizzled: bool) -> Array:
    """The wavefronts of each row of (chunk, row, pad, and extent, rows, bytes of each axis)."""
    result = np.ones(len(table))
    for chunk in (4, 8, 16):
        low = 0 if chunk == WORD else chunk // 2
        where = np.flatnonzero((table[:, 0] > low) & (table[:, 0] <= chunk) | ((chunk == 16) & (table[:, 0] > 16)))
        if len(where):
            result[where] = _conflicts(table[where], chunk, swizzled)
    return result


def _conflicts(table: NDArray[np.int64], chunk: int, swizzled: bool) -> Array:
    lane = np.arange(LANES)[None, :]
    rows, inside = np.zeros((len(table), LANES), np.int64), np.zeros((len(table), LANES), np.int64)
    below = np.ones((len(table), 1), np.int64)
    for column in range(3, table.shape[1], 3):
        extent, row_step, byte_step = (table[:, column + i, None] for i in range(3))
        extent = np.maximum(extent, 1)
        place = lane // below % extent
        rows, inside = rows + place * row_step, inside + place * byte_step
        below = below * extent
    width, pad = np.maximum(table[:, 1, None], 1), table[:, 2, None]
    rows, inside = rows + inside // width, inside % width  # a step along a row may leave it
    if swizzled:
        turns = np.minimum(8, np.maximum(width // 16, 1))
        per_line = np.maximum(1, 128 // width)
        piece = inside // 16
        inside = ((piece ^ (rows // per_line % turns)) * 16) + inside % 16
    word = (rows * (width + pad) + inside) // WORD
    active = lane < below
    served = LANES * WORD // chunk  # lanes at a time
    total = np.zeros(len(table))
    for start in range(0, LANES, served):
        group = word[:, start : start + served, None] + np.arange(chunk // WORD)
        there = np.broadcast_to(active[:, start : start + served, None], group.shape)
        flat = np.where(there, group, -1).reshape(len(table), -1)
        flat.sort(axis=1)
        new = np.ones_like(flat, dtype=bool)
        new[:, 1:] = flat[:, 1:] != flat[:, :-1]
        new &= flat >= 0
        counts = np.zeros((len(table), BANKS))
        np.add.at(
            counts, (np.repeat(np.arange(len(table)), flat.shape[1]), (flat % BANKS).reshape(-1)), new.reshape(-1)
        )
        total += counts.max(axis=1)
    return np.maximum(total, 1.0)
