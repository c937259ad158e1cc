"""Whether all accesses of a concrete program are in bounds: by intervals where they tell, else point by point."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np

from pipeline.errors import CheckError, listed
from pipeline.ir.evaluate_scalar import apply_scalar
from pipeline.ir.expr import Affine, Const, Expr, Load, Op, Size, Var, affine, loads, substitute
from pipeline.ir.graph_types import numpy_dtype
from pipeline.ir.program import Axis, Block, Loop, Program
from pipeline.ir.program_check import placed_blocks
from pipeline.ir.program_text import expr_text

POINTS = 1 << 22  # the most points of one nest that are tried one by one
CHUNK = 1 << 18

Interval = tuple[float, float]  # both ends belong to it; infinite where nothing is known
EVERYTHING: Interval = (-math.inf, math.inf)
DIFFERENCE: Mapping[str, Interval] = {  # of the two integers that are compared
    "lt": (-math.inf, -1), "le": (-math.inf, 0), "gt": (1, math.inf), "ge": (0, math.inf), "eq": (0, 0),
}  # fmt: skip
OPPOSITE = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}

Terms = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """What holds where an expression is evaluated: ranges of variables, and of sums of multiples of them."""

    ranges: Mapping[str, Interval]
    sums: Mapping[Terms, Interval] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store, its indices over loop variables, and the conditions under which it happens."""

    buffer: str
    indices: tuple[Expr, ...]
    conditions: tuple[Expr, ...]


def check_bounds(program: Program) -> None:
    """CheckError for an access that is out of bounds at some executed point, or cannot be shown not to be.

    Not shown are an index that is read from an input or a constant and not clipped, and a nest of more than `POINTS`
    points where intervals do not tell.

    An index that the program has computed itself into a buffer is trusted: only running it tells.
    """
    given = frozenset(buffer.name for buffer in program.buffers if buffer.role in ("input", "constant"))
    shapes = {b.name: tuple(extent.value for extent in b.shape) for b in program.all_buffers()}
    for block, around, _ in placed_blocks(program):
        axes = tuple(axis for stmt in around if isinstance(stmt, Loop) for axis in stmt.axes)
        if any(axis.extent.value <= 0 for axis in axes):
            continue
        for access in accesses(block):
            if _shown(access, shapes[access.buffer], axes):
                continue
            sources = {load.buffer for index in access.indices for load in loads(index)}
            if not sources:
                _try_points(block, access, shapes[access.buffer], axes)
            elif sources & given:
                text = f"{access.buffer}[{', '.join(expr_text(index) for index in access.indices)}]"
                raise CheckError(f"{text} cannot be shown to be in bounds", where=f"block {block.name}",
                                 why=f"An index is read from {listed(sources & given)}", todo="Clip it")  # fmt: skip


def accesses(block: Block) -> Iterator[Access]:
    """Over loop variables; the iteration domain and `where` are conditions like those of guards."""
    bindings: dict[str, Expr] = {it.var: it.binding for it in block.iters}
    domain: list[Expr] = []
    for it in block.iters:
        domain.append(Op("ge", (it.binding, Const(0)), "bool"))
        domain.append(Op("lt", (it.binding, Const(it.extent.value)), "bool"))
    for condition in block.where:
        yield from _loads(condition, tuple(domain))
        domain.append(condition)
    for expr in (*block.indices, block.value):
        yield from _loads(substitute(expr, bindings), tuple(domain))
    yield Access(block.buffer, tuple(substitute(index, bindings) for index in block.indices), tuple(domain))


def _loads(expr: Expr, conditions: tuple[Expr, ...]) -> Iterator[Access]:
    match expr:
        case Const() | Var() | Size():
            return
        case Load(buffer, indices, _):
            for index in indices:
                yield from _loads(index, conditions)
            yield Access(buffer, indices, conditions)
        case Op("guard", (condition, value, otherwise), _):
            yield from _loads(condition, conditions)
            yield from _loads(value, (*conditions, condition))
            yield from _loads(otherwise, (*conditions, Op("not", (condition,), "bool")))
        case Op(_, args, _):
            for arg in args:
                yield from _loads(arg, conditions)
        case _:
            assert_never(expr)


# Intervals


def _shown(access: Access, shape: tuple[int, ...], axes: tuple[Axis, ...]) -> bool:
    facts = Facts({axis.var: (0, axis.extent.value - 1) for axis in axes})
    for _ in range(2):  # what one condition says about a variable helps to read another
        for condition in access.conditions:
            facts = assume(condition, True, facts)
    if any(low > high for low, high in (*facts.ranges.values(), *facts.sums.values())):
        return True  # nowhere executed
    for index, extent in zip(access.indices, shape, strict=True):
        low, high = interval(index, facts)
        if low < 0 or high >= extent:
            return False
    return True


def assume(condition: Expr, holds: bool, facts: Facts) -> Facts:
    """The facts where the condition holds (or does not); conditions that are not affine say nothing."""
    match condition:
        case Op("not", (inner,), _):
            return assume(inner, not holds, facts)
        case Op("and", (a, b), _) if holds:
            return assume(b, True, assume(a, True, facts))
        case Op("or", (a, b), _) if not holds:
            return assume(b, False, assume(a, False, facts))
        case Op("lt" | "le" | "gt" | "ge" | "eq" as fn, (a, b), _):
            difference = affine(Op("sub", (a, b)))
            if difference is None or (fn == "eq" and not holds):
                return facts
            low, high = DIFFERENCE[fn if holds else OPPOSITE[fn]]
            return _bounded(difference, low, high, facts)
        case _:
            return facts


def _bounded(form: Affine, low: float, high: float, facts: Facts) -> Facts:
    """The facts where low <= form <= high."""
    terms, constant = tuple((name, poly.value) for name, poly in form.terms), form.constant.value
    if not terms:
        return facts if low <= constant <= high else Facts({**facts.ranges, "": (1, 0)}, facts.sums)
    low, high = low - constant, high - constant
    ranges = dict(facts.ranges)
    for name, coefficient in terms:
        rest_low, rest_high = _sum(tuple(t for t in terms if t[0] != name), ranges)
        least, most = low - rest_high, high - rest_low
        if coefficient < 0:
            coefficient, least, most = -coefficient, -most, -least
        before = ranges[name]
        ranges[name] = max(before[0], _ceil(least / coefficient)), min(before[1], _floor(most / coefficient))
    sums = dict(facts.sums)
    for key, ends in ((terms, (low, high)), (tuple((n, -c) for n, c in terms), (-high, -low))):
        before = sums.get(key, EVERYTHING)
        sums[key] = max(before[0], ends[0]), min(before[1], ends[1])
    return Facts(ranges, sums)


def _ceil(x: float) -> float:
    return math.ceil(x) if math.isfinite(x) else x


def _floor(x: float) -> float:
    return math.floor(x) if math.isfinite(x) else x


def _sum(terms: Terms, ranges: Mapping[str, Interval]) -> Interval:
    low = high = 0.0
    for name, coefficient in terms:
        ends = sorted(coefficient * end for end in ranges[name])
        low, high = low + ends[0], high + ends[1]
    return low, high


def interval(expr: Expr, facts: Facts) -> Interval:
    """Where the value of an integer expression lies."""
    form = affine(expr)
    if form is not None:
        terms, constant = tuple((name, poly.value) for name, poly in form.terms), form.constant.value
        plain, known = _sum(terms, facts.ranges), facts.sums.get(terms, EVERYTHING)
        return max(plain[0], known[0]) + constant, min(plain[1], known[1]) + constant
    match expr:
        case Op("floordiv", (a, Const(b)), _) if b > 0:
            low, high = interval(a, facts)
            return _floor(low / b), _floor(high / b)
        case Op("mod", (a, Const(b)), _) if b > 0:
            low, high = interval(a, facts)
            return (low, high) if low >= 0 and high < b else (0, b - 1)
        case Op("min" | "max" as fn, (a, b), _):
            x, y = interval(a, facts), interval(b, facts)
            pick = min if fn == "min" else max
            return pick(x[0], y[0]), pick(x[1], y[1])
        case Op("where" | "guard", (condition, a, b), _):
            x, y = interval(a, assume(condition, True, facts)), interval(b, assume(condition, False, facts))
            return min(x[0], y[0]), max(x[1], y[1])
        case Op("add", (a, b), _):
            x, y = interval(a, facts), interval(b, facts)
            return x[0] + y[0], x[1] + y[1]
        case Op("sub", (a, b), _):
            x, y = interval(a, facts), interval(b, facts)
            return x[0] - y[1], x[1] - y[0]
        case Op("mul", (a, Const(b)), _) | Op("mul", (Const(b), a), _) if b != 0:
            ends = sorted(end * b for end in interval(a, facts))
            return ends[0], ends[1]
        case _:
            return EVERYTHING


# Points


def _try_points(block: Block, access: Access, shape: tuple[int, ...], axes: tuple[Axis, ...]) -> None:
    text = f"{access.buffer}[{', '.join(expr_text(index) for index in access.indices)}]"
    where = f"block {block.name}"
    total = math.prod(axis.extent.value for axis in axes)
    if total > POINTS:
        raise CheckError(f"{text} cannot be shown to be in bounds", where=where,
                         why=f"Intervals do not tell, and {total} points are too many to try",
                         todo="Check the program at smaller sizes")  # fmt: skip
    for begin in range(0, total, CHUNK):
        flat = np.arange(begin, min(begin + CHUNK, total))
        values: dict[str, np.ndarray] = {}
        for axis in reversed(axes):
            values[axis.var], flat = flat % axis.extent.value, flat // axis.extent.value
        count = min(CHUNK, total - begin)
        # A condition that reads a buffer may be true anywhere.
        for condition in (c for c in access.conditions if not loads(c)):
            kept = np.flatnonzero(np.broadcast_to(evaluate(condition, values), count))
            values, count = {name: array[kept] for name, array in values.items()}, kept.size
        for index, extent in zip(access.indices, shape, strict=True):
            found = np.broadcast_to(evaluate(index, values), count)
            bad = np.flatnonzero((found < 0) | (found >= extent))
            if bad.size:
                point = ", ".join(f"{axis.var}={int(values[axis.var][bad[0]])}" for axis in axes)
                why = f"The index {expr_text(index)} is {int(found[bad[0]])}, the extent {extent}"
                raise CheckError(f"{text} is out of bounds at {point}", where=where, why=why)


def evaluate(expr: Expr, values: Mapping[str, np.ndarray]) -> np.ndarray:
    """An expression without loads, at many points."""
    match expr:
        case Const(value, dtype):
            return np.asarray(value, numpy_dtype(dtype))
        case Var(name):
            return values[name]
        case Op("floordiv", (a, b), _):
            return np.asarray(np.floor_divide(evaluate(a, values), evaluate(b, values)))
        case Op("guard", (condition, value, otherwise), _):
            return np.where(evaluate(condition, values), evaluate(value, values), evaluate(otherwise, values))
        case Op(fn, args, dtype):
            return apply_scalar(fn, [evaluate(arg, values) for arg in args], dtype)
        case Size() | Load():
            raise CheckError(f"{expr_text(expr)} has no value here", todo="Instantiate the program first")
        case _:
            assert_never(expr)
