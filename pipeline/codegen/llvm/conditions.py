"""The conditions of blocks as linear inequalities, and where a loop can be split so that they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.ir.expr import Affine, Const, Expr, Op, affine, walk
from pipeline.ir.program import Block, Stmt
from pipeline.ir.program import walk as walk_statements
from pipeline.schedule.nest import over_loops


@dataclass(frozen=True, slots=True)
class Inequality:
    """sum of coefficient * loop variable < bound. `guard`: it protects a value only, the block runs without it too."""

    terms: tuple[tuple[str, int], ...]
    bound: int
    guard: bool


Ranges = dict[str, tuple[int, int]]


def inequalities(block: Block) -> tuple[Inequality, ...]:
    """Those of its iteration domain, of `where`, and of the guards in its value, as far as they are affine."""
    found: list[Inequality] = []
    for it in block.iters:
        form = affine(it.binding)
        if form is not None:
            found.append(_upper(form, it.extent.value, False))
            found.append(_lower(form, 0, False))
    for condition in block.where:
        found.extend(_from_condition(condition, False))
    for node in walk(block.value):
        if isinstance(node, Op) and node.fn == "guard":
            found.extend(_from_condition(over_loops(block, node.args[0]), True))
    return tuple(dict.fromkeys(inequality for inequality in found if inequality.terms))


def _upper(form: Affine, bound: int, guard: bool) -> Inequality:
    return Inequality(tuple((n, c.value) for n, c in form.terms), bound - form.constant.value, guard)


def _lower(form: Affine, bound: int, guard: bool) -> Inequality:
    """form >= bound, as -form < 1 - bound."""
    return Inequality(tuple((n, -c.value) for n, c in form.terms), 1 - bound + form.constant.value, guard)


def _from_condition(condition: Expr, guard: bool) -> Iterator[Inequality]:
    match condition:
        case Op("and", (a, b)):
            yield from _from_condition(a, guard)
            yield from _from_condition(b, guard)
        case Op("lt" | "le" | "gt" | "ge" as fn, (a, b)):
            form = affine(Op("sub", (a, b)))
            if form is None:
                return
            match fn:
                case "lt":
                    yield _upper(form, 0, guard)
                case "le":
                    yield _upper(form, 1, guard)
                case "ge":
                    yield _lower(form, 0, guard)
                case _:
                    yield _lower(form, 1, guard)
        case Const() | _:
            return


class ConditionTable:
    """The inequalities below each statement of one program, computed once."""

    def __init__(self) -> None:
        self._below: dict[int, tuple[tuple[Inequality, ...], ...]] = {}
        self._keep: list[Stmt] = []  # ids are only unique while the objects live

    def below(self, stmt: Stmt) -> tuple[tuple[Inequality, ...], ...]:
        """One tuple for each block in the statement."""
        if id(stmt) not in self._below:
            self._keep.append(stmt)
            self._below[id(stmt)] = tuple(inequalities(s) for s in walk_statements(stmt) if isinstance(s, Block))
        return self._below[id(stmt)]

    def interval(self, var: str, low: int, high: int, body: Stmt, ranges: Ranges) -> tuple[int, int, int, int]:
        """(start, true_start, true_end, end): outside start … end no block runs; between true_start and true_end every
        condition on `var` that can be decided here holds. `ranges` holds the bounds of every other loop variable."""
        start, end = high, low
        true_start, true_end = low, high
        for block in self.below(body):
            block_start, block_end = low, high
            for inequality in block:
                coefficient = dict(inequality.terms).get(var, 0)
                if not coefficient:
                    continue
                least, most = _rest(inequality, var, ranges)
                if coefficient > 0:
                    sure = (inequality.bound - 1 - most) // coefficient + 1
                    possible = (inequality.bound - 1 - least) // coefficient + 1
                    true_end = min(true_end, max(sure, low))
                    if not inequality.guard:
                        block_end = min(block_end, possible)
                else:
                    sure = -((inequality.bound - 1 - most) // -coefficient)
                    possible = -((inequality.bound - 1 - least) // -coefficient)
                    true_start = max(true_start, min(sure, high))
                    if not inequality.guard:
                        block_start = max(block_start, possible)
            start, end = min(start, block_start), max(end, block_end)
        if start >= end:
            return low, low, low, low
        true_start, true_end = max(true_start, start), min(true_end, end)
        if true_start >= true_end:
            return start, start, start, end
        return start, true_start, true_end, end


def _rest(inequality: Inequality, var: str, ranges: Ranges) -> tuple[int, int]:
    least = most = 0
    for name, coefficient in inequality.terms:
        if name != var:
            a, b = ranges[name]
            least += coefficient * (a if coefficient > 0 else b)
            most += coefficient * (b if coefficient > 0 else a)
    return least, most
