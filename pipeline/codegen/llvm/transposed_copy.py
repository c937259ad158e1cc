"""Nests that read along one loop and store along another: a vectorized loop over rows that lie apart in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipeline.ir.expr import ZERO, Affine, Const, Expr, Load, Op, Var, affine, conjuncts, less, loads, size, substitute
from pipeline.ir.poly import Poly
from pipeline.ir.program import Axis, Block, Loop, Stmt
from pipeline.schedule.nest import over_loops

Ranges = dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class TransposedCopy:
    """for row: for lane in vectorized: S[row, lane] = f(B[lane, row]), in any layout with those steps.

    row      the serial loop: the loads step by one element along it; several loops that are as one are one here
    lane     the vectorized loop: the store steps by one element along it
    block    over loop variables, without iteration variables: what they have left out is in `where`
    loads    those of its value that step by one element along `row`, but not along `lane`
    outer    loops of the nest that lie inside the row loop or around it, and have to be around both
    results  there are several loads, and none that steps otherwise along `row`: it is their result that is turned
    """

    row: Axis
    lane: Axis
    block: Block
    loads: tuple[Load, ...]
    outer: tuple[Axis, ...] = ()
    results: bool = False


def transposed_copy(loop: Loop, strides: Callable[[str], tuple[int, ...]], ranges: Ranges) -> TransposedCopy | None:
    """The nest as a transposed copy, if it is one whose elements can be written in any order.

    strides  of a buffer, in elements
    ranges   first and last value of each loop variable
    """
    nest = _perfect(loop)
    if nest is None:
        return None
    axes, lane, block = nest
    if block.combine is not None or any(it.kind != "spatial" for it in block.iters):
        return None
    flat = _over_loops(block, ranges)
    if flat is None or any(loads(expr) for expr in (*flat.indices, *flat.where)):
        return None
    if any(load.buffer == block.buffer for load in loads(flat.value)):
        return None
    forms = {load: _offset(load.indices, strides(load.buffer)) for load in loads(flat.value)}
    stored = _offset(flat.indices, strides(flat.buffer))
    tested = [_difference(condition) for condition in (*flat.where, *_guards(flat.value))]
    if stored is None or None in tested or stored.coefficient(lane.var) != Poly.of(1):
        return None
    long = [axis for axis in axes if axis.extent.value != 1]
    apart = [load for load in dict.fromkeys(_certain(flat.value)) if _apart(forms[load], lane)]
    rows = [axis for axis in long if stored.coefficient(axis.var).terms and _read_along(axis, apart, forms)]
    if not rows:
        return None
    found = _read_along(rows[-1], apart, forms)
    number = long.index(rows[-1])
    row, merged, others = _as_one(long[number], long[:number], _bare(flat.value), [stored, *forms.values(), *tested])
    others = (*others, *long[number + 1 :])
    if others and others == tuple(long[: len(others)]):
        return None  # the nest is found again inside them
    zero: dict[str, Expr] = {axis.var: ZERO for axis in (*merged, *(a for a in axes if a.extent.value == 1))}
    turned = tuple(load for load in (substitute(load, zero) for load in found) if isinstance(load, Load))
    straight = all(_coefficient(form, row) in (Poly.of(0), Poly.of(1)) for form in forms.values())
    return TransposedCopy(row, lane, _substituted(flat, zero), turned, others, straight and len(turned) > 1)


def moved(copy: TransposedCopy, row: int, lane: int) -> Block:
    """The block where the loops begin so much later."""
    offsets: dict[str, Expr] = {}
    for axis, first in ((copy.row, row), (copy.lane, lane)):
        if first:
            offsets[axis.var] = Op("add", (Var(axis.var), Const(first)))
    return _substituted(copy.block, offsets) if offsets else copy.block


def unconditional(block: Block) -> Block:
    """The block where all of its conditions and guards are known to hold."""

    def visit(expr: Expr) -> Expr:
        match expr:
            case Op("guard", (_, value, _)):
                return visit(value)
            case Op(fn, args, dtype):
                return Op(fn, tuple(visit(arg) for arg in args), dtype)
            case _:
                return expr

    return Block(block.name, (), block.buffer, block.indices, visit(block.value))


def _perfect(loop: Loop) -> tuple[list[Axis], Axis, Block] | None:
    """The axes of serial loops, the axis of the vectorized one inside, and the block that is all there is in it."""
    axes: list[Axis] = []
    stmt: Stmt = loop
    while isinstance(stmt, Loop) and stmt.kind == "serial" and not stmt.annotations:
        axes.extend(stmt.axes)
        stmt = stmt.body
    if not axes or not isinstance(stmt, Loop) or stmt.kind != "vectorized" or stmt.annotations:
        return None
    if len(stmt.axes) != 1 or not isinstance(stmt.body, Block):
        return None
    return axes, stmt.axes[0], stmt.body


def _over_loops(block: Block, ranges: Ranges) -> Block | None:
    """The block without iteration variables; None where a condition is no affine one, or never holds."""
    where: list[Expr] = [over_loops(block, condition) for condition in block.where]
    for it in block.iters:
        where.append(Op("ge", (it.binding, ZERO), "bool"))
        where.append(less(it.binding, size(it.extent)))
    kept = []
    for condition in where:
        for part in conjuncts(condition):
            form = _difference(part)
            if form is None:
                return None
            low, high = _bounds(form, ranges)
            if not _holds(part, low, high):
                if not form.terms:
                    return None
                kept.append(part)
    indices = tuple(over_loops(block, index) for index in block.indices)
    return Block(block.name, (), block.buffer, indices, over_loops(block, block.value), where=tuple(kept))


def _as_one(
    row: Axis, around: list[Axis], bare: frozenset[str], forms: list[Affine | None]
) -> tuple[Axis, list[Axis], tuple[Axis, ...]]:
    """The row loop with those around it that go on where it ends; these, which are 0 then; the others."""
    merged: list[Axis] = []
    others: list[Axis] = []
    for axis in reversed(around):
        steps = [(_coefficient(form, axis), _coefficient(form, row)) for form in forms]
        on = all(outer is not None and inner is not None and outer == inner * row.extent for outer, inner in steps)
        if on and not {axis.var, row.var} & bare:
            row = Axis(row.var, row.extent * axis.extent)
            merged.append(axis)
        else:
            others.insert(0, axis)
    return row, merged, tuple(others)


def _read_along(axis: Axis, reading: list[Load], forms: dict[Load, Affine | None]) -> list[Load]:
    """The loads that step by one element along a loop."""
    return [load for load in reading if _coefficient(forms[load], axis) == Poly.of(1)]


def _coefficient(form: Affine | None, axis: Axis) -> Poly | None:
    return None if form is None else form.coefficient(axis.var)


def _apart(form: Affine | None, lane: Axis) -> bool:
    """Do neighbouring lanes read elements that are no neighbours?"""
    return _coefficient(form, lane) not in (None, Poly.of(0), Poly.of(1))


def _substituted(block: Block, values: dict[str, Expr]) -> Block:
    def visit(expr: Expr) -> Expr:
        return substitute(expr, values)

    return Block(
        block.name, (), block.buffer, tuple(visit(index) for index in block.indices), visit(block.value),
        where=tuple(visit(condition) for condition in block.where),
    )  # fmt: skip


def _offset(indices: tuple[Expr, ...], strides: tuple[int, ...]) -> Affine | None:
    """How far into the buffer an access is, in elements; None where that is not affine."""
    total = Affine((), Poly.of(0))
    for index, stride in zip(indices, strides, strict=True):
        form = affine(index)
        if form is None:
            return None
        total = total + form.scale(Poly.of(stride))
    return total


def _guards(expr: Expr) -> Iterator[Expr]:
    """The parts of the conditions of all guards in a value."""
    match expr:
        case Op("guard", (condition, value, otherwise)):
            yield from conjuncts(condition)
            yield from _guards(value)
            yield from _guards(otherwise)
        case Op(_, args):
            for arg in args:
                yield from _guards(arg)
        case _:
            return


def _certain(expr: Expr) -> Iterator[Load]:
    """The loads that happen where all guards hold."""
    match expr:
        case Load():
            yield expr
        case Op("guard", (_, value, _)):
            yield from _certain(value)
        case Op(_, args):
            for arg in args:
                yield from _certain(arg)
        case _:
            return


def _bare(expr: Expr) -> frozenset[str]:
    """Variables that a value is computed from, other than in indices and conditions."""
    match expr:
        case Var(name):
            return frozenset({name})
        case Op("guard", (_, value, otherwise)):
            return _bare(value) | _bare(otherwise)
        case Op(_, args):
            return frozenset().union(*(_bare(arg) for arg in args))
        case _:
            return frozenset()


def _difference(condition: Expr) -> Affine | None:
    """left - right of a comparison of indices."""
    match condition:
        case Op("lt" | "le" | "gt" | "ge", (a, b)):
            return affine(Op("sub", (a, b)))
        case _:
            return None


def _bounds(form: Affine, ranges: Ranges) -> tuple[int, int]:
    low = high = form.constant.value
    for name, coefficient in form.terms:
        ends = [coefficient.value * end for end in ranges[name]]
        low, high = low + min(ends), high + max(ends)
    return low, high


def _holds(condition: Expr, low: int, high: int) -> bool:
    """Is the comparison true of every difference from low to high?"""
    assert isinstance(condition, Op)
    return {"lt": high < 0, "le": high <= 0, "gt": low > 0, "ge": low >= 0}[condition.fn]
