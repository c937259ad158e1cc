"""What the accesses of a block cost the units for memory of a multiprocessor, per block of the grid."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.search.gpu.access import LANES, SECTOR, Array, Lanes, Number, sectors, wavefronts
from pipeline.search.gpu.extents import Extents, Numbers, lanes_of, moves, row_bytes, steps
from pipeline.search.gpu.nest import Access, Leaf, Span

WIDEST = 16.0  # bytes that one lane loads at once
LINE = 128.0  # bytes that the first-level cache serves per cycle
MATRIX, MATRICES = 128.0, 4.0  # bytes that ldmatrix loads per wavefront, and wavefronts of one instruction


@dataclass(frozen=True, slots=True)
class AccessCost:
    """Of one access, in one block of the grid.

    instructions   of one warp
    wavefronts     of one instruction in the data path that shared memory and the first-level cache share
    sectors        of one instruction, where it goes to global memory
    chunk          bytes of one lane
    conversions    of one warp
    best           wavefronts of one instruction if there were no conflicts
    """

    access: Access
    instructions: Number
    wavefronts: Number
    sectors: Number
    chunk: Number
    conversions: Number
    best: Number

    @property
    def is_global(self) -> bool:
        return self.access.buffer.scope == "global"


def access_costs(leaf: Leaf, extents: Extents, numbers: Numbers, width: Number, count: int) -> list[AccessCost]:
    """Of all accesses of a leaf to memory; what lies in registers costs nothing here."""
    found = []
    for access in leaf.accesses:
        if access.buffer.scope in ("local", "fragment"):
            continue
        if leaf.unit is None:
            found.append(_of_threads(leaf, access, extents, numbers, width, count))
        else:
            found.append(_of_unit(leaf, access, extents, numbers, count))
    return found


def _times(leaf: Leaf, access: Access, extents: Extents) -> Number:
    """How often one thread, or warp, makes the access, apart from vectors: what does not vary along an unrolled loop is
    loaded once for it."""
    times = extents.serial
    for span in leaf.spans:
        if span.level == "unrolled" and access.varies(span.var):
            times = times * extents.by_var[span.var]
    return times


def _of_threads(
    leaf: Leaf, access: Access, extents: Extents, numbers: Numbers, width: Number, count: int
) -> AccessCost:
    times = _times(leaf, access, extents)
    elements: Number = 1.0
    chunk: Number = float(access.size)
    instructions: Number = 1.0
    for span in leaf.spans:
        if span.level == "vectorized" and access.varies(span.var):
            extent = extents.by_var[span.var]
            rows, inside = steps(access, span.var, numbers)
            neighbours = (rows == 0) & (inside == access.size) & (span.var not in access.scattered)
            chunk = np.where(neighbours, _piece(leaf, access, span, extent, numbers), chunk)
            instructions = instructions * extent * access.size / chunk
            elements = elements * extent
    axes = []
    for span, extent in lanes_of(leaf, extents, width):
        rows, inside = steps(access, span.var, numbers)
        axes.append(Lanes(extent, rows, inside, span.var in access.scattered))
    cost = _cost(access, axes, chunk, times * instructions, times * elements, numbers, count)
    return replace(
        cost,
        wavefronts=np.maximum(1.0, cost.wavefronts * extents.active),
        sectors=np.maximum(np.minimum(1.0, cost.sectors), cost.sectors * extents.active),
    )


def _piece(leaf: Leaf, access: Access, vector: Span, extent: Number, numbers: Numbers) -> Number:
    """Bytes that are accessed at once: the most that all addresses are a multiple of, and the vector's length too."""
    row, pad = row_bytes(access, numbers)
    bits = _whole(extent * access.size)
    if len(access.dims) > 1:
        bits = bits | _whole(row + pad)
    for span in leaf.spans:
        if span is not vector and access.varies(span.var):
            bits = bits | _whole(moves(access, span.var, numbers))
    bits = bits | int(WIDEST)
    return np.maximum((bits & -bits).astype(np.float64), access.size)


def _whole(value: Number) -> NDArray[np.int64]:
    return np.asarray(np.abs(value), np.int64)


def _of_unit(leaf: Leaf, access: Access, extents: Extents, numbers: Numbers, count: int) -> AccessCost:
    unit = leaf.unit
    assert unit is not None
    times = _times(leaf, access, extents)
    if unit.kind == "load":
        return _of_load(leaf, access, times, extents.unrolled, numbers, count)
    along = [steps(access, span.var, numbers) for span in unit.spans]
    scattered = [span.var in access.scattered for span in unit.spans]
    match unit.kind:
        case "lane map" | "lane reduction":
            (rows, inside), *_ = along
            axes = [Lanes(numbers(unit.spans[0].extent), rows, inside, scattered[0])]
            return _cost(access, axes, access.size + 0.0, times, times, numbers, count)
        case "row map":
            (rows, inside), *_ = along
            axes = [Lanes(4.0, 0.0, 0.0), Lanes(8.0, rows, inside, scattered[0])]
            return _cost(access, axes, access.size + 0.0, times * 2.0, times * 2.0, numbers, count)
        case _:
            (rows, inside), (rows_j, inside_j) = along[0], along[-1]
            paired = (rows_j == 0) & ((inside_j == access.size) | (inside_j == 0))
            chunk = np.where(paired & (inside_j != 0), 2.0, 1.0) * access.size
            axes = [Lanes(4.0, rows_j * 2.0, inside_j * 2.0, scattered[-1]), Lanes(8.0, rows, inside, scattered[0])]
            return _cost(access, axes, chunk, times * np.where(paired, 2.0, 4.0), times * 4.0, numbers, count)


def _of_load(leaf: Leaf, access: Access, times: Number, unrolled: Number, numbers: Numbers, count: int) -> AccessCost:
    """A fragment's tile: rows of 16 bytes by ldmatrix where its rows, or of 16-bit elements its columns, lie in one
    piece; element by element else."""
    unit = leaf.unit
    assert unit is not None
    spans: tuple[Span, ...] = unit.spans
    (rows0, inside0), (rows1, inside1) = (steps(access, span.var, numbers) for span in (spans[0], spans[-1]))
    extents = [numbers(span.extent) for span in spans]
    elements = extents[0] * extents[-1]
    inner = (rows1 == 0) & (inside1 == access.size)  # the last axis lies in one piece
    outer = (rows0 == 0) & (inside0 == access.size)
    along_k = outer if ".load_b" in unit.name else inner
    by_matrix = (inner | outer) if access.size == 2 else along_k
    rows, inside = np.where(inner, rows0, rows1), np.where(inner, inside0, inside1)
    row, pad = row_bytes(access, numbers)
    matrices = elements * access.size / MATRIX
    fast = wavefronts([Lanes(8.0, rows, inside)], 16.0, row, pad, access.buffer.swizzled, count)
    slow_axes = [Lanes(4.0, rows1, inside1), Lanes(8.0, rows0, inside0)]
    slow = wavefronts(slow_axes, float(access.size), row, pad, access.buffer.swizzled, count)
    several = np.ceil(unrolled * matrices / MATRICES) / unrolled  # tiles of two neighbours are loaded together
    instructions = np.where(by_matrix, several, elements / LANES)
    cycles = np.where(by_matrix, matrices * fast / instructions, slow)
    best = np.where(by_matrix, matrices / instructions, 1.0)
    packing = np.where(by_matrix, 0.0, elements / LANES)
    touched = np.where(by_matrix, elements * access.size / SECTOR / instructions, SECTOR)
    chunk = np.where(by_matrix, 16.0, access.size)
    return AccessCost(access, times * instructions, cycles, touched, chunk, times * packing, best)


def _cost(
    access: Access,
    axes: list[Lanes],
    chunk: Number,
    instructions: Number,
    elements: Number,
    numbers: Numbers,
    count: int,
) -> AccessCost:
    row, pad = row_bytes(access, numbers)
    converted = elements * access.converts
    if access.buffer.scope == "shared":
        served: Array = wavefronts(axes, chunk, row, pad, access.buffer.swizzled, count)
        free = (
            wavefronts([Lanes(LANES, 0.0, chunk)], chunk, 1e9, 0.0, False, 1)[0]
            if np.ndim(chunk) == 0
            else np.maximum(1.0, chunk / 4.0)
        )
        return AccessCost(access, instructions, served, 0.0, chunk, converted, np.minimum(free, served))
    touched = sectors(
        [(axis.extent, np.abs(axis.rows * (row + pad) + axis.bytes), axis.scattered) for axis in axes], chunk
    )
    lanes: Number = 1.0
    for axis in axes:
        lanes = lanes * axis.extent
    # a line of 128 bytes is looked up per cycle; neighbouring sectors are in one
    best = np.maximum(1.0, lanes * chunk / LINE)
    lines = np.maximum(np.ceil(touched / 4.0), np.minimum(touched, lanes) * 0.5)
    return AccessCost(
        access, instructions, np.where(touched <= best * 4.0, best, lines), touched, chunk, converted, best
    )
