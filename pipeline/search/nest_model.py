"""An analytic model of a sketch: the seconds of thousands of candidates at once, from loop extents and footprints.

One pass over the program notes, for each block, its loops and the affine index of each access. All the rest is
arithmetic on arrays with one entry per candidate: issue slots, dependence latency, bytes that cross each cache level,
balance of threads. A footprint at a depth is the region that an access covers while the loops inside run; the outermost
depth whose footprints fit into a cache is where data is reloaded (as in Low et al., Analytical Modeling Is Enough for
High-Performance BLIS, 2016).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.ir.expr import Affine, Expr, Load, Op, affine, loads, substitute, walk
from pipeline.ir.graph import ITEM_BYTES
from pipeline.ir.poly import Poly
from pipeline.ir.program import Alloc, Axis, Block, Buffer, Loop, Program, Seq, Stmt
from pipeline.ir.target import Target

Array = NDArray[np.float64]
Values = Mapping[str, Array]
Steps = dict[str, Any]
Shares = list[tuple[frozenset[str], Array]]

# vector issue slots of one operation; divisions and approximated functions take many
SLOTS = {
    "div": 4.0, "sqrt": 5.0, "rsqrt": 8.0, "reciprocal": 4.0, "exp": 10.0, "log": 14.0, "tanh": 20.0, "erf": 24.0,
    "sigmoid": 15.0, "pow": 60.0, "sin": 30.0, "cos": 30.0, "tan": 45.0, "mod": 20.0, "fmod": 20.0, "floordiv": 10.0,
    "cast": 1.0, "guard": 2.0,
}  # fmt: skip
# Fitted to 2,800 candidates of 28 products on a core with 256-bit vectors, drawn at random among the better half: the
# rank correlation of predicted and measured times within one product is 0.70. What is predicted is a time by which
# candidates of one task compare: all in all twice of what is measured, which the learned correction takes out.
L2_BYTES_PER_CYCLE, L3_BYTES_PER_CYCLE = 40.0, 8.0
BARRIER_SECONDS, CALL_SECONDS = 0.6e-6, 0.3e-6
PARTIAL_VECTORS = 4  # of a sum along lanes
LOOP_CYCLES = 0.5  # taken branch and counter of one iteration that is not unrolled
PORTS = 0.7  # of the cycles of arithmetic and of loads, what is waited for beside the longer of the two
OVERLAP = 0.1  # of arithmetic and transfers that run beside the longest of them, what is waited for
TURNED = 4  # rows and lanes from which on a copy is turned in registers
STREAM = 64.0  # bytes: a shorter run of contiguous elements still moves a whole line
ROOM = 0.65  # of a cache, the share that regions can count on
SIZES = (1 << 15, 1 << 18, 1 << 22)  # bytes of the caches of a core of which the system tells nothing
WAYS = 8  # of a cache, about: more of them are larger ones, so that a way is not
HASHED = 3  # the first level of cache whose sets are not chosen by the low bits of an address
CLASH_ROWS, CLASH_CYCLES = 8, 0.4  # rows in one set of the first cache, and what each costs from then on
LEAP = 1024.0  # bytes from which on a step is out of sight of a prefetcher
STREAMS = 12.0  # pages in which prefetchers follow at once
LEAP_CYCLES, LEAP_L3, LEAP_MEMORY = 2.0, 2.0, 1.0  # of a line that none brings; and how much longer it is on its way
FEATURES = (
    "seconds", "compute", "level2", "level3", "memory", "latency_share", "load_share", "tasks", "balance", "cover",
    "accumulators", "unrolled", "chunks", "inner_trips", "code", "regions", "gathers", "store_bytes", "footprint1",
    "footprint2", "rows",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store: per dimension the affine index over the loops, or None where it depends on data."""

    buffer: Buffer
    dims: tuple[Affine | None, ...]
    store: bool
    size: int

    def varies(self, var: str) -> bool:
        return any(dim is None or any(name == var for name, _ in dim.terms) for dim in self.dims)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A block with its loops, outermost first, and what one execution costs."""

    name: str
    axes: tuple[tuple[Axis, str], ...]  # with the kind of the loop
    accesses: tuple[Access, ...]
    slots: float
    chain: bool  # it accumulates into a register tile
    memory_chain: bool  # it accumulates into memory
    reduce_vars: frozenset[str]
    covers: tuple[tuple[Poly, Affine], ...]  # extent of an iteration variable, and what is bound to it
    size: int


class NestModel:
    """The analytic model of one program with parameters.

    fed   names of the buffers that begin anywhere, not at a line: a run of n lines in them touches n + 1
    """

    features = FEATURES

    def __init__(self, program: Program, target: Target, fed: Collection[str] = ()) -> None:
        self.target = target
        self.fed = frozenset(fed)
        self.regions: list[list[Leaf]] = []
        buffers = {buffer.name: buffer for buffer in program.all_buffers()}
        for region in program.body.body:
            found: list[Leaf] = []
            _collect(region, (), buffers, found)
            self.regions.append(found)

    def evaluate(self, values: Values, count: int) -> tuple[Array, Array]:
        """Seconds (count,) and features (count, len(FEATURES)); values: one array per symbol."""
        total = np.zeros(count)
        features = np.zeros((count, len(FEATURES)))
        column = {name: i for i, name in enumerate(FEATURES)}
        heaviest = np.zeros(count)
        for leaves in self.regions:
            seconds, parts = self._region(leaves, values, count)
            total = total + seconds
            for name in ("compute", "level2", "level3", "memory", "store_bytes"):
                features[:, column[name]] += parts[name]
            heavier = seconds >= heaviest
            for name, array in parts.items():
                if name not in ("compute", "level2", "level3", "memory", "store_bytes"):
                    features[:, column[name]] = np.where(heavier, array, features[:, column[name]])
            heaviest = np.maximum(heaviest, seconds)
        total = total + CALL_SECONDS + BARRIER_SECONDS * len(self.regions)
        features[:, column["seconds"]] = total
        features[:, column["regions"]] = len(self.regions)
        shares = ("latency_share", "load_share", "balance", "cover", "regions", "gathers")
        for name, i in column.items():
            if name not in shares:
                features[:, i] = np.log2(np.maximum(features[:, i], 1e-12))
        return total, features

    def _way(self, level: int) -> int:
        """Bytes of a way of the cache of that level."""
        return max(int(STREAM), (self.target.cache(level) or SIZES[level - 1]) // WAYS)

    def _region(self, leaves: list[Leaf], values: Values, count: int) -> tuple[Array, dict[str, Array]]:
        ones = np.ones(count)
        cycles, tasks = np.zeros(count), ones
        sums = {name: np.zeros(count) for name in ("compute", "level2", "level3", "memory", "store_bytes")}
        notes: dict[str, Array] = {}
        heaviest = np.full(count, -1.0)
        frequency = self.target.clock_ghz * 1e9
        for leaf in leaves:
            extents = [(axis, kind, ones * axis.extent.evaluate(values)) for axis, kind in leaf.axes]
            parallel = ones
            for _, kind, extent in extents:
                if kind == "parallel":
                    parallel = parallel * extent
            tasks = np.maximum(tasks, parallel)
            shares = self._shares(leaf, extents, values, ones)
            cover = ones
            for _, share in shares:
                cover = cover * share
            steps = [_steps(access, extents, values) for access in leaf.accesses]
            leaps = [
                self._leaps(access, extents, step, ones) for access, step in zip(leaf.accesses, steps, strict=True)
            ]
            jumps = self._jumps(leaf, extents, steps, leaps, ones)
            compute, detail = self._compute(leaf, extents, values, jumps, ones)
            compute = compute * cover
            level2, level3, memory, stores, footprints = self._traffic(leaf, extents, values, leaps, shares, ones)
            cores = np.minimum(parallel, self.target.cores)
            per_byte = self.target.cores / (self.target.bandwidth_gbs * 1e9) * frequency
            transfer2, transfer3 = level2 / L2_BYTES_PER_CYCLE, level3 / L3_BYTES_PER_CYCLE
            transfer = memory * per_byte * np.minimum(1.0, cores / self.target.cores + 0.3)
            longest = np.maximum(np.maximum(compute, transfer2), np.maximum(transfer3, transfer))
            mine = longest + OVERLAP * (compute + transfer2 + transfer3 + transfer - longest)
            cycles = cycles + mine
            for name, array in (("compute", compute), ("level2", level2), ("level3", level3), ("memory", memory),
                                ("store_bytes", stores)):  # fmt: skip
                sums[name] = sums[name] + array
            detail |= {"cover": cover, "footprint1": footprints[0], "footprint2": footprints[1]}
            heavier = mine > heaviest
            for name, array in detail.items():
                notes[name] = np.where(heavier, array, notes.get(name, array))
            heaviest = np.maximum(heaviest, mine)
        rounds = np.ceil(tasks / self.target.cores)
        balance = tasks / (rounds * np.minimum(self.target.cores, np.maximum(tasks, 1)))
        seconds = cycles / np.maximum(tasks, 1) * rounds / frequency
        return seconds, {**sums, **notes, "tasks": tasks, "balance": balance}

    def _shares(self, leaf: Leaf, extents: list[tuple[Axis, str, Array]], values: Values, ones: Array) -> Shares:
        """For each axis in tiles its loops, and the share of their iterations that do something. The last register tile
        of an axis may be a part of one only, which is not as cheap as its part: it has too few accumulators to hide the
        latency of an addition."""
        lanes = self.target.lanes(max(leaf.size, 1))
        tiles = ones
        for axis, kind, length in extents:
            if kind == "unrolled" and axis.var not in leaf.reduce_vars:
                tiles = tiles * length
            elif kind == "vectorized" and axis.var not in leaf.reduce_vars:
                tiles = tiles * np.ceil(length / lanes)
        needed = self.target.fma_per_cycle * self.target.fma_latency
        floor = np.minimum(1.0, needed / tiles) if leaf.chain else np.zeros_like(ones)
        shares: Shares = []
        by_name = {axis.var: (kind, length) for axis, kind, length in extents}
        # the first axis that threads share out decides when the last of them is done: that one has whole tiles only
        leading: dict[str, Array] = {}
        found = np.zeros_like(ones, dtype=bool)
        for axis, kind, length in extents:
            if kind == "parallel":
                leading[axis.var] = (length > 1) & ~found
                found = found | (length > 1)
        for extent, form in leaf.covers:
            whole = ones * extent.evaluate(values)
            reach, tile, vector = ones, ones, False
            for name, coefficient in form.terms:
                kind, length = by_name[name]
                reach = reach + np.abs(coefficient.evaluate(values)) * (length - 1)
                if kind in ("unrolled", "vectorized") and coefficient == Poly.of(1):
                    tile, vector = length, kind == "vectorized"
            full = np.floor(whole / tile)
            rest = whole - full * tile
            part = np.ceil(rest / lanes) / np.ceil(tile / lanes) if vector else rest / tile
            used = full + np.where(rest > 0, np.maximum(part, floor), 0.0)
            share = np.minimum(1.0, used * tile / np.maximum(reach, 1.0))
            for name, _ in form.terms:
                if name in leading:
                    share = np.where(leading[name], 1.0, share)
            shares.append((frozenset(name for name, _ in form.terms), share))
        return shares

    def _compute(
        self, leaf: Leaf, extents: list[tuple[Axis, str, Array]], values: Values, jumps: Array, ones: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Cycles of one core for all executions, and what explains them."""
        target = self.target
        lanes = target.lanes(max(leaf.size, 1))
        serial, unrolled, chunks, chain, inner = ones, ones, ones, ones, ones
        vector, inner_sum = None, True
        for axis, kind, extent in extents:
            if kind == "vectorized":
                vector, chunks = axis.var, chunks * np.ceil(extent / lanes)
            elif kind == "unrolled":
                unrolled = unrolled * extent
                chain = chain * extent if axis.var in leaf.reduce_vars else chain
            else:
                serial = serial * extent
                inner = extent
                inner_sum = axis.var in leaf.reduce_vars
        across = np.zeros_like(ones)
        if vector is not None and vector in leaf.reduce_vars:
            # several partial vectors are filled in turn, and added across the lanes at the end
            chain = chain * np.ceil(chunks / PARTIAL_VECTORS)
            across = ones * target.fma_latency * np.log2(2.0 * lanes)
        slots, fetches, gathers = unrolled * chunks * leaf.slots, np.zeros_like(ones), np.zeros_like(ones)
        for access in leaf.accesses:
            if access.buffer.scope == "local":
                continue
            times = ones
            for axis, kind, extent in extents:
                if kind == "unrolled" and access.varies(axis.var):
                    times = times * extent
            if vector is not None and access.varies(vector):
                if not _unit_stride(access, vector):
                    turned = self._square(leaf, access, extents, vector, ones) >= TURNED
                    times = times * np.where(turned, 1.0 + np.log2(lanes), lanes * 0.8)
                    gathers = gathers + np.where(turned, 0.0, 1.0)
                elif access.buffer.name in self.fed:
                    times = times * (1.0 + lanes * access.size / STREAM)  # of the vectors that lie across two lines
                times = times * chunks
            fetches = fetches + times * (1.0 if not access.store else 2.0)
        issue = slots / target.fma_per_cycle
        load = fetches / 2.0
        latency = np.zeros_like(ones)
        if leaf.chain:
            latency = target.fma_latency * chain + across
        elif leaf.memory_chain and inner_sum:
            latency = (target.fma_latency + 5.0) * chain + across
        longest = np.maximum(np.maximum(issue, load), latency)
        code = unrolled * chunks
        cycles = serial * (
            longest + PORTS * (issue + load) + LOOP_CYCLES + jumps + np.maximum(0.0, code - 600.0) * 0.02
        )
        accumulators = ones
        for axis, kind, extent in extents:
            if kind == "unrolled" and axis.var not in leaf.reduce_vars:
                accumulators = accumulators * extent
        rows = accumulators
        if vector is not None and vector not in leaf.reduce_vars:
            accumulators = accumulators * chunks
        return cycles, {
            "latency_share": latency / np.maximum(longest, 1e-9), "load_share": load / np.maximum(issue, 1e-9),
            "accumulators": accumulators, "unrolled": unrolled, "chunks": chunks, "inner_trips": inner, "code": code,
            "gathers": gathers, "rows": rows,
        }  # fmt: skip

    def _square(
        self, leaf: Leaf, access: Access, extents: list[tuple[Axis, str, Array]], vector: str, ones: Array
    ) -> Array:
        """The shorter side of what the code generator loads row by row and turns in registers, by log2(lanes) shuffles
        for each vector: the load steps by one element along the serial loops right around the lanes, and the store
        along the lanes. Less than TURNED where it gathers."""
        if access.store or leaf.chain or leaf.memory_chain or extents[-1][0].var != vector:
            return np.zeros_like(ones)
        if not all(_unit_stride(other, vector) for other in leaf.accesses if other.store):
            return np.zeros_like(ones)
        step, rows = Poly.of(1), ones
        for axis, kind, length in reversed(extents[:-1]):
            if kind != "serial":
                break
            if _moves_last_by(access, axis.var, step):
                step, rows = step * axis.extent, rows * length
        side: Array = np.minimum(rows, extents[-1][2])
        return side

    def _leaps(self, access: Access, extents: list[tuple[Axis, str, Array]], steps: Steps, ones: Array) -> Array:
        """Lines of a run that an access leaps to where no prefetcher follows: 0 where one does.

        Steps of about a page or more are followed as long as each of the few pages that they lead to is soon come back
        to, one line on. Where a nest visits many pages before it does, each run begins with a miss."""
        pages, run, near, far = ones, ones * access.size, ones < 0, ones < 0
        for axis, kind, length in extents:
            if kind in ("unrolled", "vectorized") and axis.var in steps:
                step = steps[axis.var]
                pages = np.where(step >= LEAP, pages * length, pages)
                run = np.where(step < LEAP, run + step * (length - 1), run)
        for axis, kind, length in reversed(extents):
            if kind not in ("unrolled", "vectorized") and axis.var in steps:
                large, moves = steps[axis.var] >= LEAP, length > 1
                leaps = moves & large & ~near
                pages, far = np.where(leaps, pages * length, pages), far | leaps
                near = near | (moves & ~large)
        lines = np.ceil(run / STREAM) + (1.0 if access.buffer.name in self.fed else 0.0)
        found: Array = np.where(far & (pages > STREAMS), lines, 0.0)
        return found

    def _jumps(
        self, leaf: Leaf, extents: list[tuple[Axis, str, Array]], steps: list[Steps], leaps: list[Array], ones: Array
    ) -> Array:
        """Extra cycles of an iteration of the innermost serial loop: lines that no prefetcher brings, and rows that
        push each other out of the first cache."""
        total = np.zeros_like(ones)
        chain = ones
        for axis, kind, length in extents:
            if kind == "unrolled" and axis.var in leaf.reduce_vars:
                chain = chain * length
        for access, own, leap in zip(leaf.accesses, steps, leaps, strict=True):
            if access.buffer.scope == "local" or any(dim is None for dim in access.dims):
                continue
            rows = ones
            for axis, kind, length in extents:
                if kind != "unrolled" or axis.var not in own:
                    continue
                step = own[axis.var]
                rows = np.where(step >= LEAP, rows * length, rows)
                if axis.var not in leaf.reduce_vars:
                    # rows a multiple of a page apart share one set of the first cache, and push each other out of it
                    clash = (step % 4096 == 0) & (step > 0) & (length > CLASH_ROWS)
                    total = total + np.where(clash, CLASH_CYCLES * length, 0.0) * chain
            total = total + LEAP_CYCLES * np.minimum(leap * rows, 16.0)
        return total

    def _traffic(
        self, leaf: Leaf, extents: list[tuple[Axis, str, Array]], values: Values, leaps: list[Array], shares: Shares,
        ones: Array,
    ) -> tuple[Array, Array, Array, Array, tuple[Array, Array]]:  # fmt: skip
        """Bytes of one core into L1, into L2, and from memory; bytes stored; innermost footprints.

        Of an axis that ends within a tile, a share of the iterations does nothing, and moves nothing of what the axis
        moves; but what is read at all is moved once."""
        leaps = [leap for a, leap in zip(leaf.accesses, leaps, strict=True) if a.buffer.scope != "local"]
        accesses = [a for a in leaf.accesses if a.buffer.scope != "local"]
        depth = len(extents)
        widths = [[ones for _ in a.dims] for a in accesses]
        limits = [[extent.evaluate(values) for extent in a.buffer.shape] for a in accesses]
        footprints: list[list[Array]] = [[]] * (depth + 1)
        ways = [self._way(level) for level in range(1, HASHED)]
        places = [[_places(access, limit, way) for access, limit in zip(accesses, limits, strict=True)] for way in ways]
        kept: list[list[list[NDArray[np.bool_]]]] = []
        for level in range(depth, -1, -1):
            if level < depth:
                axis, _, length = extents[level]
                for width, access in zip(widths, accesses, strict=True):
                    for d, dim in enumerate(access.dims):
                        if dim is None:
                            continue
                        coefficient = dim.coefficient(axis.var)
                        if coefficient.terms:
                            width[d] = width[d] + np.abs(coefficient.evaluate(values)) * (length - 1)
            footprints[level] = [
                _bytes(access, width, limit, ones, access.buffer.name in self.fed)
                for access, width, limit in zip(accesses, widths, limits, strict=True)
            ]
            regions = list(zip(footprints[level], widths, limits, strict=True))
            kept.append(
                [
                    [_survives(*region, most, way) for region, most in zip(regions, found, strict=True)]
                    for found, way in zip(places, ways, strict=True)
                ]
            )
        times: list[list[Array]] = [[ones for _ in accesses]]
        product = ones
        for axis, _, length in extents:
            product = product * length
            times.append(
                [product if a.varies(axis.var) else before for a, before in zip(accesses, times[-1], strict=True)]
            )
        sums = [sum(level, np.zeros_like(ones)) for level in footprints]
        results = []
        sizes = [self.target.cache(level) or size for level, size in enumerate(SIZES, 1)]
        for number, (size, slow) in enumerate(zip(sizes, (0.0, LEAP_L3, LEAP_MEMORY), strict=True)):
            moved = [f * t for f, t in zip(footprints[depth], times[depth], strict=True)]
            for level in range(depth, -1, -1):
                fits = sums[level] <= ROOM * size
                alone = kept[depth - level][number] if number < len(ways) else [fits] * len(moved)
                moved = [
                    np.where(fits & own, f * t, m)
                    for f, t, m, own in zip(footprints[level], times[level], moved, alone, strict=True)
                ]
            total = np.zeros_like(ones)
            for access, m, least, leap in zip(accesses, moved, footprints[0], leaps, strict=True):
                for names, share in shares:
                    m = m * share if any(access.varies(name) for name in names) else m
                m = np.maximum(m, least)
                missed = np.where(leap > 0, 1.0 + slow / np.maximum(leap, 1.0), 1.0)
                total = total + m * missed * (2.0 if access.store else 1.0)
            results.append(total)
        stores = np.zeros_like(ones)
        for access, f in zip(accesses, footprints[0], strict=True):
            if access.store:
                stores = stores + f
        first = next((k for k, (_, kind, _) in enumerate(extents) if kind != "parallel"), 0)
        whole = sums[min(first, depth)]
        middle = sums[min(first + 2, depth)]
        return results[0], results[1], results[2], stores, (whole, middle)


def _steps(access: Access, extents: list[tuple[Axis, str, Array]], values: Values) -> Steps:
    """Bytes by which an access moves where a loop takes its next iteration, for each loop that moves it."""
    found: Steps = {}
    if access.buffer.scope == "local":
        return found
    strides = _strides(access, [extent.evaluate(values) for extent in access.buffer.shape])
    for axis, _, _ in extents:
        moved = [
            stride * np.abs(dim.coefficient(axis.var).evaluate(values))
            for dim, stride in zip(access.dims, strides, strict=True)
            if dim is not None and dim.coefficient(axis.var).terms
        ]
        if moved:
            found[axis.var] = sum(moved)
    return found


def _strides(access: Access, limits: list[Any]) -> list[Any]:
    """Bytes from one place to the next along each dimension of a buffer, of which `limits` are the extents."""
    strides: list[Any] = []
    stride: Any = access.size
    for limit in reversed(limits):
        strides.append(stride)
        stride = stride * limit
    return strides[::-1]


def _places(access: Access, limits: list[Any], way: int) -> list[Any]:
    """For each dimension but the last, at how many places of a way of a cache, `way` bytes, its rows can begin."""
    return [way / np.gcd(np.asarray(stride).astype(np.int64), way) for stride in _strides(access, limits)[:-1]]


def _survives(size: Array, widths: list[Array], limits: list[Any], places: list[Any], way: int) -> NDArray[np.bool_]:
    """Do the rows of a region, `size` bytes in all, find room in the sets of a cache that their addresses choose?
    Those a large power of two apart share few of them."""
    rows = spread = np.ones_like(size)
    for width, limit, most in zip(widths[:-1], limits[:-1], places, strict=True):
        count = np.maximum(1.0, np.minimum(width, limit))
        rows, spread = rows * count, spread * np.minimum(count, most)
    found: NDArray[np.bool_] = size <= ROOM * WAYS * np.minimum(way, spread * size / rows)
    return found


def _bytes(access: Access, widths: list[Array], limits: list[Any], ones: Array, fed: bool) -> Array:
    """The bytes of a region, in whole lines along its last dimension."""
    if not widths:
        return ones * access.size
    total: Array = ones * access.size
    for width, limit, dim in zip(widths[:-1], limits[:-1], access.dims[:-1], strict=True):
        total = total * (1.0 if dim is None else np.minimum(width, limit))
    run = ones if access.dims[-1] is None else np.minimum(widths[-1], limits[-1])
    line: Array = np.maximum(run, np.minimum(STREAM / access.size, limits[-1]))
    if fed:
        line = line + np.where((run > 1) & (run < limits[-1]), np.minimum(run, STREAM / access.size), 0.0)
    return total * line


def _unit_stride(access: Access, var: str) -> bool:
    """Do neighbouring lanes read neighbouring elements?"""
    return _moves_last_by(access, var, Poly.of(1))


def _moves_last_by(access: Access, var: str, step: Poly) -> bool:
    """Does the index move so far along its last dimension, and along no other, where the variable grows by one?"""
    if any(dim is None for dim in access.dims):
        return False
    moving = [i for i, dim in enumerate(access.dims) if dim is not None and dim.coefficient(var).terms]
    last = access.dims[-1] if access.dims else None
    return moving == [len(access.dims) - 1] and last is not None and last.coefficient(var) == step


def _collect(stmt: Stmt, axes: tuple[tuple[Axis, str], ...], buffers: Mapping[str, Buffer], found: list[Leaf]) -> None:
    match stmt:
        case Seq(body):
            for child in body:
                _collect(child, axes, buffers, found)
        case Alloc(_, body):
            _collect(body, axes, buffers, found)
        case Loop(own, body, kind):
            _collect(body, (*axes, *((axis, kind) for axis in own)), buffers, found)
        case Block():
            found.append(_leaf(stmt, axes, buffers))


def _leaf(block: Block, axes: tuple[tuple[Axis, str], ...], buffers: Mapping[str, Buffer]) -> Leaf:
    bindings: dict[str, Expr] = {it.var: it.binding for it in block.iters}

    def dims(indices: tuple[Expr, ...]) -> tuple[Affine | None, ...]:
        return tuple(affine(substitute(index, bindings)) for index in indices)

    accesses = [Access(buffers[block.buffer], dims(block.indices), True, ITEM_BYTES[buffers[block.buffer].dtype])]
    seen: set[Load] = set()
    for load in loads(block.value):
        if load not in seen:
            seen.add(load)
            accesses.append(Access(buffers[load.buffer], dims(load.indices), False, ITEM_BYTES[load.dtype]))
    reduce_vars: set[str] = set()
    covers = []
    for it in block.iters:
        form = affine(it.binding)
        if form is None:
            continue
        if it.kind == "reduce":
            reduce_vars.update(name for name, _ in form.terms)
        if len(form.terms) > 1 or form.constant.terms:
            covers.append((it.extent, form))
    slots = 0.0
    index_nodes = {id(node) for load in loads(block.value) for index in load.indices for node in walk(index)}
    for node in walk(block.value):
        if isinstance(node, Op) and id(node) not in index_nodes:
            slots += SLOTS.get(node.fn, 1.0)
    fused = block.combine == "sum" and isinstance(block.value, Op) and block.value.fn == "mul"
    slots += 1.0 if block.combine and not fused else 0.0
    target = buffers[block.buffer]
    register = target.scope == "local"
    size = max([ITEM_BYTES[target.dtype], *(ITEM_BYTES[load.dtype] for load in loads(block.value))])
    return Leaf(
        block.name, axes, tuple(accesses), max(slots, 0.5), block.combine is not None and register,
        block.combine is not None and not register, frozenset(reduce_vars), tuple(covers), size,
    )  # fmt: skip
