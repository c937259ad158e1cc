"""An analytic model of a sketch on a GPU: the seconds of thousands of candidates at once.

What a block of the grid does is counted per unit of a multiprocessor, in cycles of that unit:

tensor      products of a warp, at the rate of the tensor cores for the dtype (`Gpu.mma_share` of it)
fma         float32 instructions; double, integer (with conversions and addresses), special likewise
issue       instructions of all kinds: four warps start one each per cycle
shared      wavefronts of shared memory and of the first-level cache, whose data path is the same: one per cycle, more
            where lanes meet in a bank or touch many lines
l2          bytes from and to L2. What is read again stays in the first-level cache if it fits
path        how long one warp takes if it is alone: latencies of loads that nothing overlaps, chains of sums, barriers

Assumptions.
- A multiprocessor works on its resident blocks at once. The longest unit decides, and the others add to it as in a norm
  of order p, (sum of time^p)^(1/p): the more warps there are, the higher is p, and the less of the others shows.
- Residency follows from threads, blocks, estimated registers, and shared memory with all the stages of a pipeline.
- A round of resident blocks takes no less than the path of one block. This is Little's law: what is in flight is what
  the resident blocks have asked for.
- The blocks of the grid are shared out evenly; the last round may be a part of one.
- A pipeline of S stages hides the latency of its copies, and the time of moving them, behind S-1 iterations.
- Memory delivers MEMORY_SHARE of its bandwidth. Blocks that run at a time read in common once, and others find in L2
  what was read before if all that is touched in between fits into it.
- Tensor cores reach TENSOR_SHARE of their rate and ordinary units FMA_SHARE: the rest goes to dependences and to
  conflicts of register banks.
- What an earlier region wrote is in L2 if it fits into half of it.
- Every launch costs `Gpu.launch_us`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.ir.graph import ITEM_BYTES
from pipeline.ir.program import Program
from pipeline.ir.target import Gpu, Target
from pipeline.search.gpu.access import LANES, Array, Number
from pipeline.search.gpu.extents import Extents, Numbers, extents_of
from pipeline.search.gpu.memory import AccessCost, access_costs
from pipeline.search.gpu.nest import Region, Span, regions_of
from pipeline.search.gpu.occupancy import resident, with_registers
from pipeline.search.gpu.overlap import DEVICE_ORDER, exposed, rounds, together, waits
from pipeline.search.gpu.traffic import from_memory, moved
from pipeline.search.gpu.units import SCHEDULERS, UNITS, busy

MEMORY_SHARE = 0.92
LOADED = 1.3  # latency under load, of that of a single access
BARRIER_CYCLES, BLOCK_CYCLES = 30.0, 250.0
ORDERS = (2.0, 8.0)  # of the norm by which the times of units add up: 2 + warps per scheduler, and at most
IMPOSSIBLE = 1e3  # seconds of a block that no multiprocessor can hold
NEAR = 0.5  # of L2, for what an earlier region wrote

FEATURES = (
    "seconds", *UNITS, "path", "memory", "barriers", "launches", "grid", "threads", "resident", "occupancy", "rounds",
    "tail", "registers", "spilled", "shared_bytes", "conflicts", "coalescing", "chunk", "stages", "bytes", "work",
)  # fmt: skip
LINEAR = ("occupancy", "tail", "coalescing", "rounds")  # the others are logarithms
SUMMED = (*UNITS, "path", "memory", "barriers", "bytes", "work")  # over regions; of the others the longest region's


@dataclass(frozen=True, slots=True)
class RegionReport:
    """What one launch of one candidate is predicted to do.

    bound          the unit, "memory", "latency" or "launch" that decides
    seconds        of the launch
    units          seconds that each unit is busy, "memory" and "path" among them
    occupancy      resident warps of those that there may be
    tensor_share   of the peak of the tensor cores for the dtype that is multiplied; fma_share of float32's,
                   memory_share of the bandwidth
    """

    bound: str
    seconds: float
    units: Mapping[str, float]
    grid: int
    threads: int
    resident: int
    occupancy: float
    registers: float
    spilled: float
    shared_bytes: int
    tensor_share: float
    fma_share: float
    memory_share: float


@dataclass(frozen=True, slots=True)
class AccessTotal:
    """What all blocks of a launch do to one buffer.

    requests     instructions of warps
    sectors      of 32 bytes that they touch in global memory
    wavefronts   turns that shared memory takes for them
    """

    buffer: str
    store: bool
    requests: float
    sectors: float
    wavefronts: float


@dataclass(frozen=True, slots=True)
class _Timed:
    """A region's time.

    units     seconds of each unit of the busiest multiprocessor, with "path" and "memory"
    notes     of the other features
    products, multiplications   multiply-adds of tensor cores and ordinary units, of all blocks
    peak      multiply-adds per clock that the tensor cores of a multiprocessor could do
    """

    seconds: Number
    units: Mapping[str, Number]
    notes: Mapping[str, Number]
    products: Number
    multiplications: Number
    peak: float


class GpuModel:
    """The analytic model of one program with parameters, on one GPU."""

    features = FEATURES

    def __init__(self, program: Program, target: Target) -> None:
        assert target.gpu is not None, f"{target.name} is no GPU"
        self.target, self.gpu = target, target.gpu
        self.hertz = target.clock_ghz * 1e9
        self.regions = regions_of(program)
        self._near = _left_behind(program, self.regions, self.gpu)

    def evaluate(self, values: Mapping[str, Array], count: int) -> tuple[Array, Array]:
        """Seconds (count,) and features (count, len(FEATURES)); values: one array per symbol."""
        numbers = Numbers(values)
        table: dict[str, Array] = {name: np.zeros(count) for name in FEATURES}
        total, heaviest = np.zeros(count), np.zeros(count)
        for number in range(len(self.regions)):
            part = self._region(number, numbers, count)
            seconds = np.broadcast_to(part.seconds, count)
            total = total + seconds
            heavier = seconds >= heaviest
            work = part.products + part.multiplications
            for name, value in {**part.units, **part.notes, "work": work}.items():
                table[name] = table[name] + value if name in SUMMED else np.where(heavier, value, table[name])
            heaviest = np.maximum(heaviest, seconds)
        table["launches"], table["seconds"] = np.full(count, float(len(self.regions))), total
        features = np.empty((count, len(FEATURES)))
        for i, name in enumerate(FEATURES):
            features[:, i] = table[name] if name in LINEAR else np.log2(np.maximum(table[name], 1e-12))
        return total, features

    def explain(
        self, values: Mapping[str, int] | None = None, compiled: Sequence[tuple[int, int]] | None = None
    ) -> tuple[RegionReport, ...]:
        """What bounds each launch of one candidate.

        values     one number per symbol, derived ones included
        compiled   what the compiler says of each launch, as in `refined`, in the place of the estimates
        """
        numbers = _single(values)
        known = compiled if compiled is not None else [None] * len(self.regions)
        parts = [self._region(number, numbers, 1, found) for number, found in enumerate(known)]
        return tuple(self._report(part) for part in parts)

    def accesses(self, values: Mapping[str, int] | None = None) -> tuple[tuple[AccessTotal, ...], ...]:
        """What each launch of one candidate does to memory, as an execution on the CPU counts it."""
        numbers = _single(values)
        found = []
        for region in self.regions:
            width = _width(region, numbers)
            blocks = _blocks(_grid(region, numbers))
            totals: dict[tuple[str, bool], tuple[float, float, float]] = {}
            for leaf in region.leaves:
                extents = extents_of(leaf, numbers, width)
                for cost in access_costs(leaf, extents, numbers, width, 1):
                    times = _one(cost.instructions * extents.warps * blocks)
                    key = (cost.access.buffer.name, cost.access.store)
                    before = totals.get(key, (0.0, 0.0, 0.0))
                    turns = 0.0 if cost.is_global else _one(cost.wavefronts)
                    totals[key] = (
                        before[0] + times, before[1] + times * _one(cost.sectors if cost.is_global else 0.0),
                        before[2] + times * turns,
                    )  # fmt: skip
            found.append(tuple(AccessTotal(*key, *total) for key, total in totals.items()))
        return tuple(found)

    def refined(self, compiled: Sequence[tuple[int, int]], values: Mapping[str, int] | None = None) -> float:
        """Seconds of one candidate, given what the compiler says of each launch, in order: registers of a thread, and
        bytes that it stores and loads because of spills."""
        numbers = _single(values)
        parts = [self._region(i, numbers, 1, known) for i, known in enumerate(compiled)]
        return sum(_one(part.seconds) for part in parts)

    def _report(self, part: _Timed) -> RegionReport:
        units = {name: _one(value) for name, value in part.units.items()}
        note = {name: _one(value) for name, value in part.notes.items()}
        seconds = _one(part.seconds)
        bound = max(units, key=lambda name: units[name])
        if units[bound] < self.gpu.launch_us * 1e-6:
            bound = "launch"
        of_all = self.hertz * self.target.cores * seconds
        return RegionReport(
            "latency" if bound == "path" else bound, seconds, units, int(note["grid"]), int(note["threads"]),
            int(note["resident"]), note["occupancy"], note["registers"], note["spilled"], int(note["shared_bytes"]),
            _one(part.products) / (part.peak * of_all) if part.peak else 0.0,
            _one(part.multiplications) / (self.gpu.fma["float32"] * of_all),
            note["bytes"] / (self.target.bandwidth_gbs * 1e9 * seconds),
        )  # fmt: skip

    def _region(self, number: int, numbers: Numbers, count: int, compiled: tuple[int, int] | None = None) -> _Timed:
        region, gpu = self.regions[number], self.gpu
        width = _width(region, numbers)
        extents = [extents_of(leaf, numbers, width) for leaf in region.leaves]
        held = resident(region, extents, width, numbers, gpu)
        if compiled is not None:
            held = with_registers(held, compiled[0], compiled[1], gpu)
        axes = _grid(region, numbers)
        grid = _blocks(axes)
        busiest = np.ceil(grid / gpu.multiprocessors)
        at_once = np.minimum(held.blocks, busiest)
        concurrent = np.minimum(grid, held.blocks * gpu.multiprocessors)
        first_level = np.maximum(0.0, gpu.shared_bytes - at_once * held.shared) / at_once

        costs = [access_costs(leaf, each, numbers, width, count)
                 for leaf, each in zip(region.leaves, extents, strict=True)]  # fmt: skip
        moves = [[moved(leaf, c, each, numbers, first_level) for c in own if c.is_global]
                 for leaf, each, own in zip(region.leaves, extents, costs, strict=True)]  # fmt: skip
        every = [move for own in moves for move in own]
        memory, fresh = from_memory(every, axes, concurrent, gpu, self._near[number])
        parts = [
            busy(leaf, each, own, sum((m.to_multiprocessor for m in own_moves), 0.0), numbers, gpu)
            for leaf, each, own, own_moves in zip(region.leaves, extents, costs, moves, strict=True)
        ]
        units = {name: sum((part.units[name] for part in parts), 0.0) for name in UNITS}
        spills = held.spilled * held.warps * _hottest(extents)
        units["shared"] = units["shared"] + spills
        units["issue"] = units["issue"] + spills / SCHEDULERS
        warps = held.warps * at_once / SCHEDULERS
        block = together([units[name] for name in UNITS], np.minimum(ORDERS[0] + warps, ORDERS[1]))

        latency = LOADED * (gpu.l2_latency + fresh * (gpu.memory_latency - gpu.l2_latency))
        barriers = _times(region.barriers, numbers)
        path: Number = barriers * BARRIER_CYCLES + BLOCK_CYCLES
        for leaf, each, own, part in zip(region.leaves, extents, costs, parts, strict=True):
            path = path + part.path
            if not (leaf.copy and leaf.pipeline is not None):
                path = path + latency * waits(own, each)
        path = path + exposed(region, parts, latency, path, block * at_once, at_once, numbers, gpu)
        cycles = rounds(block, path, busiest, held.blocks)
        memory_seconds = memory / (self.target.bandwidth_gbs * 1e9 * MEMORY_SHARE)
        seconds = together([cycles / self.hertz, memory_seconds], DEVICE_ORDER) + gpu.launch_us * 1e-6
        waves = grid / concurrent
        notes: dict[str, Number] = {
            "barriers": barriers * BARRIER_CYCLES * waves / self.hertz, "grid": grid, "threads": held.threads,
            "resident": held.blocks, "occupancy": held.warps * at_once * LANES / gpu.threads,
            "rounds": np.minimum(waves, 64.0), "tail": grid / (busiest * gpu.multiprocessors),
            "registers": held.registers, "spilled": held.spilled, "shared_bytes": held.shared, "bytes": memory,
            **_manner(region, costs, extents, numbers),
        }  # fmt: skip
        busiest_seconds = {name: value * busiest / self.hertz for name, value in units.items()}
        return _Timed(
            np.where(held.legal, seconds, IMPOSSIBLE),
            {**busiest_seconds, "path": path * np.ceil(busiest / held.blocks) / self.hertz, "memory": memory_seconds},
            notes, sum((part.products for part in parts), 0.0) * grid,
            sum((part.multiplications for part in parts), 0.0) * grid, max((part.peak for part in parts), default=0.0),
        )  # fmt: skip


def _single(values: Mapping[str, int] | None) -> Numbers:
    return Numbers({name: np.array([float(value)]) for name, value in (values or {}).items()})


def _one(value: Number) -> float:
    return float(np.ravel(np.asarray(value))[0])


def _manner(
    region: Region, costs: list[list[AccessCost]], extents: list[Extents], numbers: Numbers
) -> dict[str, Number]:
    """How memory is touched: conflicts of banks (1: none), share of the sectors that is used, widest access, stages."""
    served: Number = 0.0
    free: Number = 0.0
    asked: Number = 0.0
    used: Number = 0.0
    chunk: Number = 0.0
    stages: Number = 1.0
    for leaf, each, own in zip(region.leaves, extents, costs, strict=True):
        if leaf.pipeline is not None:
            stages = np.maximum(stages, numbers(leaf.pipeline))
        for cost in own:
            times = cost.instructions * each.warps
            if cost.is_global:
                asked, used = asked + times * cost.sectors, used + times * np.minimum(cost.sectors, cost.best * 4.0)
                chunk = np.maximum(chunk, cost.chunk)
            else:
                served, free = served + times * cost.wavefronts, free + times * cost.best
    return {
        "conflicts": np.where(free > 0, served / np.maximum(free, 1e-9), 1.0),
        "coalescing": np.where(asked > 0, used / np.maximum(asked, 1e-9), 1.0), "chunk": chunk, "stages": stages,
    }  # fmt: skip


def _grid(region: Region, numbers: Numbers) -> list[Number]:
    """The extents of the grid's axes, the last one fastest; all leaves of a region have the same."""
    deepest: list[Number] = []
    for leaf in region.leaves:
        axes = [numbers(span.extent) for span in leaf.spans if span.level == "grid"]
        deepest = axes if len(axes) > len(deepest) else deepest
    return deepest


def _blocks(grid: list[Number]) -> Number:
    """Blocks of a grid."""
    total: Number = 1.0
    for extent in grid:
        total = total * extent
    return total


def _width(region: Region, numbers: Numbers) -> Number:
    """Threads along x: 32 lanes where warps work together."""
    width: Number = float(LANES) if region.warps else 1.0
    for leaf in region.leaves:
        own: Number = 1.0
        for span in leaf.spans:
            if span.level == "thread" and span.axis == "x":
                own = own * numbers(span.extent)
        width = np.maximum(width, own)
    return width


def _hottest(extents: list[Extents]) -> Number:
    """How often the innermost loop runs: what is spilled is stored and loaded there."""
    most: Number = 1.0
    for each in extents:
        most = np.maximum(most, each.serial)
    return most


def _times(spans: list[tuple[Span, ...]], numbers: Numbers) -> Number:
    """How often all of them run."""
    total: Number = 0.0
    for around in spans:
        times: Number = 1.0
        for span in around:
            times = times * numbers(span.extent)
        total = total + times
    return total


def _left_behind(program: Program, regions: tuple[Region, ...], gpu: Gpu) -> tuple[frozenset[str], ...]:
    """Per region, the buffers that an earlier one has written and L2 holds still."""
    small = set()
    for buffer in program.buffers:
        if all(extent.is_constant for extent in buffer.shape):
            size = float(np.prod([extent.value for extent in buffer.shape], dtype=float)) * ITEM_BYTES[buffer.dtype]
            if size <= NEAR * gpu.l2_bytes:
                small.add(buffer.name)
    written: set[str] = set()
    found = []
    for region in regions:
        found.append(frozenset(written & small))
        written |= region.written
    return tuple(found)
