"""An analytic model of a sketch: the seconds of thousands of candidates at once, from loop extents and footprints.

One pass over the program notes, for each block, its loops and the affine index of each access. All the rest is
arithmetic on arrays with one entry per candidate: issue slots, dependence latency, bytes that cross each cache level,
balance of threads. A footprint at a depth is the region that an access covers while the loops inside run; the outermost
depth whose footprints fit into a cache is where data is reloaded (as in Low et al., Analytical Modeling Is Enough for
High-Performance BLIS, 2016).
"""

from __future__ import annotations

from collections.abc import Mapping
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

# vector issue slots of one operation; divisions and approximated functions take many
SLOTS = {
    "div": 4.0, "sqrt": 5.0, "rsqrt": 8.0, "reciprocal": 4.0, "exp": 10.0, "log": 14.0, "tanh": 20.0, "erf": 24.0,
    "sigmoid": 15.0, "pow": 60.0, "sin": 30.0, "cos": 30.0, "tan": 45.0, "mod": 20.0, "fmod": 20.0, "floordiv": 10.0,
    "cast": 1.0, "guard": 2.0,
}  # fmt: skip
L1_BYTES_PER_CYCLE, L2_BYTES_PER_CYCLE, L3_BYTES_PER_CYCLE = 64.0, 40.0, 14.0
BARRIER_SECONDS, CALL_SECONDS = 0.6e-6, 0.3e-6
PARTIAL_VECTORS = 4  # of a sum along lanes
LOOP_CYCLES = 1.0  # taken branch and counter of one iteration that is not unrolled
TURNED = 4  # rows and lanes from which on a copy is turned in registers
STREAM = 64.0  # bytes: a shorter run of contiguous elements still moves a whole line
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
    """The analytic model of one program with parameters."""

    features = FEATURES

    def __init__(self, program: Program, target: Target) -> None:
        self.target = target
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
            cover = self._cover(leaf, extents, values, ones)
            compute, detail = self._compute(leaf, extents, values, ones)
            level2, level3, memory, stores, footprints = self._traffic(leaf, extents, values, ones)
            compute, level2, level3, memory = (x * cover for x in (compute, level2, level3, memory))
            cores = np.minimum(parallel, self.target.cores)
            per_byte = self.target.cores / (self.target.bandwidth_gbs * 1e9) * frequency
            transfer2, transfer3 = level2 / L2_BYTES_PER_CYCLE, level3 / L3_BYTES_PER_CYCLE
            transfer = memory * per_byte * np.minimum(1.0, cores / self.target.cores + 0.3)
            longest = np.maximum(np.maximum(compute, transfer2), np.maximum(transfer3, transfer))
            mine = longest + 0.25 * (compute + transfer2 + transfer3 + transfer - longest)
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

    def _cover(self, leaf: Leaf, extents: list[tuple[Axis, str, Array]], values: Values, ones: Array) -> Array:
        """The share of the iterations that do something. The last register tile of an axis may be a part of one only,
        which is not as cheap as its part: it has too few accumulators to hide the latency of an addition."""
        lanes = self.target.lanes(max(leaf.size, 1))
        tiles = ones
        for axis, kind, length in extents:
            if kind == "unrolled" and axis.var not in leaf.reduce_vars:
                tiles = tiles * length
            elif kind == "vectorized" and axis.var not in leaf.reduce_vars:
                tiles = tiles * np.ceil(length / lanes)
        needed = self.target.fma_per_cycle * self.target.fma_latency
        floor = np.minimum(1.0, needed / tiles) if leaf.chain else np.zeros_like(ones)
        cover = ones
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
            cover = cover * share
        return cover

    def _compute(
        self, leaf: Leaf, extents: list[tuple[Axis, str, Array]], values: Values, ones: Array
    ) -> tuple[Array, dict[str, Array]]:
        """Cycles of one core for all executions, and what explains them."""
        target = self.target
        lanes = target.lanes(max(leaf.size, 1))
        serial, unrolled, chunks, chain, inner = ones, ones, ones, ones, ones
        vector = None
        for axis, kind, extent in extents:
            if kind == "vectorized":
                vector, chunks = axis.var, chunks * np.ceil(extent / lanes)
            elif kind == "unrolled":
                unrolled = unrolled * extent
                chain = chain * extent if axis.var in leaf.reduce_vars else chain
            else:
                serial = serial * extent
                inner = extent
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
                times = times * chunks
            fetches = fetches + times * (1.0 if not access.store else 2.0)
        issue = slots / target.fma_per_cycle
        load = fetches / 2.0
        jumps = self._jumps(leaf, extents, values, ones)
        latency = np.zeros_like(ones)
        if leaf.chain:
            latency = target.fma_latency * chain + across
        elif leaf.memory_chain:
            latency = (target.fma_latency + 5.0) * chain + across
        longest = np.maximum(np.maximum(issue, load), latency)
        code = unrolled * chunks
        cycles = serial * (longest + 0.03 * (issue + load) + LOOP_CYCLES + jumps + np.maximum(0.0, code - 600.0) * 0.02)
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

    def _jumps(self, leaf: Leaf, extents: list[tuple[Axis, str, Array]], values: Values, ones: Array) -> Array:
        """Extra cycles of an iteration of the innermost serial loop: each line that lies about a page from the last
        misses the prefetcher and the first-level TLB, and pages in a row fall into the same sets of the cache."""
        inner = next((axis.var for axis, kind, _ in reversed(extents) if kind not in ("unrolled", "vectorized")), None)
        total = np.zeros_like(ones)
        if inner is None:
            return total
        chain = ones
        for axis, kind, length in extents:
            if kind == "unrolled" and axis.var in leaf.reduce_vars:
                chain = chain * length
        around = [axis.var for axis, kind, _ in extents if kind in ("unrolled", "vectorized")]
        for access in leaf.accesses:
            if access.buffer.scope == "local" or any(dim is None for dim in access.dims):
                continue
            step, stride = np.zeros_like(ones), ones * access.size
            apart = {axis.var: np.zeros_like(ones) for axis, kind, _ in extents if kind == "unrolled"}
            for dim, extent in zip(reversed(access.dims), reversed(access.buffer.shape), strict=True):
                assert dim is not None
                for var in apart:
                    apart[var] = apart[var] + stride * np.abs(dim.coefficient(var).evaluate(values))
                # an unrolled part of the same index is stepped over together with the loop
                step = step + stride * np.abs(dim.coefficient(inner).evaluate(values))
                stride = stride * extent.evaluate(values)
            lines = ones
            for axis, _, length in extents:
                if axis.var in around and access.varies(axis.var):
                    last = access.dims[-1]
                    unit = last is not None and last.coefficient(axis.var) == Poly.of(1)
                    lines = lines * (np.ceil(length * access.size / STREAM) if unit else length)
            for axis, _, length in extents:
                if axis.var in apart and axis.var not in leaf.reduce_vars:
                    # rows a multiple of a page apart share one set of the first cache, and push each other out of it
                    clash = (apart[axis.var] % 4096 == 0) & (apart[axis.var] > 0) & (length > 8)
                    total = total + np.where(clash, 0.1 * length, 0.0) * chain
            far = np.where(step % 4096 == 0, 8.0, 4.0 * np.minimum(1.0, step / 2048.0))
            total = total + np.where(step >= 1024.0, far * np.minimum(lines, 16.0), 0.0)
        return total

    def _traffic(
        self, leaf: Leaf, extents: list[tuple[Axis, str, Array]], values: Values, ones: Array
    ) -> tuple[Array, Array, Array, Array, tuple[Array, Array]]:
        """Bytes of one core into L1, into L2, and from memory; bytes stored; innermost footprints."""
        accesses = [a for a in leaf.accesses if a.buffer.scope != "local"]
        depth = len(extents)
        widths = [[ones for _ in a.dims] for a in accesses]
        limits = [[extent.evaluate(values) for extent in a.buffer.shape] for a in accesses]
        footprints: list[list[Array]] = [[]] * (depth + 1)
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
                _bytes(access, width, limit, ones)
                for access, width, limit in zip(accesses, widths, limits, strict=True)
            ]
        times: list[list[Array]] = [[ones for _ in accesses]]
        product = ones
        for axis, _, length in extents:
            product = product * length
            times.append(
                [product if a.varies(axis.var) else before for a, before in zip(accesses, times[-1], strict=True)]
            )
        sums = [sum(level, np.zeros_like(ones)) for level in footprints]
        results = []
        sizes = [self.target.cache(1) or 32768, self.target.cache(2) or 262144, (self.target.cache(3) or 1 << 22)]
        for size in sizes:
            moved = [f * t for f, t in zip(footprints[depth], times[depth], strict=True)]
            for level in range(depth, -1, -1):
                fits = sums[level] <= 0.8 * size
                moved = [
                    np.where(fits, f * t, m) for f, t, m in zip(footprints[level], times[level], moved, strict=True)
                ]
            total = np.zeros_like(ones)
            for access, m in zip(accesses, moved, strict=True):
                total = total + m * (2.0 if access.store else 1.0)
            results.append(total)
        stores = np.zeros_like(ones)
        for access, f in zip(accesses, footprints[0], strict=True):
            if access.store:
                stores = stores + f
        first = next((k for k, (_, kind, _) in enumerate(extents) if kind != "parallel"), 0)
        whole = sums[min(first, depth)]
        middle = sums[min(first + 2, depth)]
        return results[0], results[1], results[2], stores, (whole, middle)


def _bytes(access: Access, widths: list[Array], limits: list[Any], ones: Array) -> Array:
    """The bytes of a region, in whole lines along its last dimension."""
    if not widths:
        return ones * access.size
    total: Array = ones * access.size
    for width, limit, dim in zip(widths[:-1], limits[:-1], access.dims[:-1], strict=True):
        total = total * (1.0 if dim is None else np.minimum(width, limit))
    run = ones if access.dims[-1] is None else np.minimum(widths[-1], limits[-1])
    line: Array = np.maximum(run, np.minimum(STREAM / access.size, limits[-1]))
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
