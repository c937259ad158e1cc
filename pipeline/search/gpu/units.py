"""Cycles that a block of statements keeps each unit of a multiprocessor busy, and those of a warp that is alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.ir.target import Gpu
from pipeline.search.gpu.access import LANES, Number
from pipeline.search.gpu.extents import Extents, Numbers
from pipeline.search.gpu.memory import AccessCost
from pipeline.search.gpu.nest import Leaf

UNITS = ("tensor", "fma", "double", "integer", "special", "issue", "shared", "l2")
TENSOR_SHARE, FMA_SHARE = 0.97, 0.94  # of their rates that tensor cores and ordinary units reach
SCHEDULERS = 4.0
FMA_LATENCY, DOUBLE_LATENCY, TENSOR_LATENCY = 4.0, 8.0, 18.0
UNROLLED_BY_COMPILER = 4.0
LOOP_INSTRUCTIONS = 2.0
ACCESS_CYCLES = 2.0  # from one access of a warp to the next
TENSOR_DTYPES = {"float32": "tfloat32", "uint8": "int8"}
PER_LANE = {"fill": 4.0, "load": 0.0, "row map": 2.0, "lane map": 1.0, "lane reduction": 6.0, "product": 0.0}
SHUFFLES = {"row reduction": 4.0, "lane reduction": 5.0}


@dataclass(frozen=True, slots=True)
class Busy:
    """Of one leaf in one block of the grid.

    units                       cycles of each of UNITS
    path                        cycles of a warp that is alone on its scheduler, without waits for global memory
    products, multiplications   multiply-adds of tensor cores and of ordinary units
    peak                        multiply-adds per clock that the tensor cores could do
    """

    units: Mapping[str, Number]
    path: Number
    products: Number
    peak: float
    multiplications: Number


def is_asynchronous(leaf: Leaf, gpu: Gpu) -> bool:
    """Whether it copies past the registers and the first-level cache, while other statements run."""
    return leaf.copy and leaf.pipeline is not None and gpu.capability >= 80


def busy(leaf: Leaf, extents: Extents, costs: list[AccessCost], moved: Number, numbers: Numbers, gpu: Gpu) -> Busy:
    """Of one leaf. moved: bytes between L2 and the multiprocessor."""
    warps, repeats, work, unit = extents.warps, extents.serial * extents.unrolled, leaf.work, leaf.unit
    products: Number = 0.0
    peak = tensor = 0.0
    control: Number = 0.0
    if unit is None:
        points = repeats * extents.vector
        control = extents.serial * LOOP_INSTRUCTIONS
    else:
        points = repeats * PER_LANE.get(unit.kind, 4.0)
        if unit.kind == "product":
            peak = gpu.tensor_fma.get(TENSOR_DTYPES.get(unit.dtype, unit.dtype), gpu.fma["float32"])
            tensor = peak * gpu.mma_share * TENSOR_SHARE
            products = extents.unit * repeats
            control = repeats
        elif unit.kind in SHUFFLES:
            control = repeats * SHUFFLES[unit.kind]
    accesses: Number = 0.0
    data: Number = 0.0
    converted: Number = 0.0
    for cost in costs:
        past = is_asynchronous(leaf, gpu) and cost.is_global
        accesses = accesses + (0.0 if past else cost.instructions)
        data = data + (0.0 if past else cost.instructions * cost.wavefronts)
        converted = converted + cost.conversions
    if leaf.copy:  # whether a piece is there at all is asked once, and not for each of its elements
        points = sum((cost.instructions for cost in costs if cost.is_global), 0.0)
    fma, double, special = points * work.fma, points * work.double, points * work.special
    # an address for each access
    integer = points * work.integer + converted + accesses + (control if unit is None else 0.0)
    rates = {
        "fma": gpu.fma["float32"] * FMA_SHARE, "double": gpu.fma.get("float64", 2.0),
        "integer": gpu.fma.get("int32", 64.0), "special": gpu.special_per_clock,
    }  # fmt: skip
    of_warp = {"fma": fma, "double": double, "integer": integer, "special": special}
    units: dict[str, Number] = {name: value * warps * LANES / rates[name] for name, value in of_warp.items()}
    issued = fma + double + integer + special + accesses + (control if unit is not None else 0.0)
    units["issue"] = issued * warps / SCHEDULERS
    shuffled = control if unit is not None and unit.kind in SHUFFLES else 0.0
    units["shared"] = (data + shuffled) * warps
    units["tensor"] = products * warps / tensor if tensor else 0.0
    units["l2"] = moved / gpu.l2_bytes_per_clock
    path: Number = 0.0
    for name, value in of_warp.items():
        path = path + value * LANES / (rates[name] / SCHEDULERS)
    if tensor:
        path = path + products / (tensor / SCHEDULERS)
    path = path + np.maximum(accesses * ACCESS_CYCLES, data)
    path = np.maximum(path, _chain(leaf, extents)) + _waits_for_shared(leaf, extents, costs, gpu)
    return Busy(units, path, products * warps, peak, fma * warps * LANES)


def _chain(leaf: Leaf, extents: Extents) -> Number:
    """Cycles of a sum whose every addition needs the one before."""
    if not leaf.chain:
        return 0.0
    ordinary = DOUBLE_LATENCY if leaf.work.double else FMA_LATENCY
    latency = ordinary if leaf.unit is None else TENSOR_LATENCY
    chain: Number = extents.serial * latency
    for span in leaf.spans:
        if span.level in ("unrolled", "vectorized") and span.var in leaf.reduces:
            chain = chain * extents.by_var[span.var]
    return chain


def _waits_for_shared(leaf: Leaf, extents: Extents, costs: list[AccessCost], gpu: Gpu) -> Number:
    """Cycles until what an iteration loads from shared memory is there; the compiler lets some iterations overlap."""
    if all(cost.is_global or cost.access.store for cost in costs):
        return 0.0
    inner = [span for span in leaf.spans if span.level == "serial"]
    together = np.minimum(UNROLLED_BY_COMPILER, extents.by_var[inner[-1].var]) if inner else 1.0
    return extents.serial / together * gpu.shared_latency
