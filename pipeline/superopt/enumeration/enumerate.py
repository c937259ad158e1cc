"""The enumeration of values: everything that a block with given roles of the axes can compute towards a goal.

Values are numbered as they are found, the inputs first. They are taken up one after another; with each, every operator
on it and on values taken up before is offered, in the order of (operand taken up last, operands, operator). An offer
that passes the prunings below and equals no known value becomes a new value; one that equals a known value becomes a
further way to make it. A program is then a choice of one way for each value that it needs (`derive`).

Every DAG is reached: number the nodes of a DAG in topological order. By induction over that order, both operands of a
node are equal to values of the table; whichever of them is taken up later is taken up at some time, and then the
node's operator on these two is offered. (A lexicographic order of operand lists has no such property: in X @ silu(W),
with inputs X = 0, W = 1, silu has the operands [1] and the product [0, 2], which is smaller, so it could not follow.)

Taken up next is the value that departs least from the specification: the fewest functions and products, one on another,
that are neither its own nor parts of its sums. So what is near is known first, and a budget cuts off what is far.
For the same reason steps that the specification does not take are put off, first all, then (from 0 departures on) all
but functions of one value and products, until FAR departures are allowed.

Pruned are, each with a counter: what the oracle says is in no program equal to the goal ("unknown" is put off, never
pruned); what equals a known value at a random point of the field in the same place of the block; tiles that do not fit
even at their least extents; and what has no model over the field (a second exponential on a path).
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from dataclasses import dataclass, field

from pipeline.ir.graph import BINARY, TERNARY, UNARY
from pipeline.ir.graph_types import TO_BOOL
from pipeline.superopt.enumeration.fingerprint import Point, Sample
from pipeline.superopt.enumeration.labelled import (
    NEVER,
    Collected,
    Final,
    Folded,
    Frame,
    Gathered,
    Handed,
    Literal,
    Maker,
    Operator,
    Pointwise,
    Read,
    Rescaled,
    RunningMost,
    Summed,
    Value,
)
from pipeline.superopt.enumeration.nearness import Near, Oracle, subsets
from pipeline.superopt.enumeration.nominal import Nominal
from pipeline.superopt.enumeration.roles import summed_labels
from pipeline.superopt.enumeration.statistics import Statistics
from pipeline.superopt.goal.term import NONE, Factor, Factors, ReduceKind
from pipeline.superopt.spec import Apply, Number, Reduction, Spec
from pipeline.verification.field import DrawAgain
from pipeline.verification.field_algebra import NotProvable

COMMUTATIVE = frozenset({"add", "mul", "max", "min", "and", "or", "xor", "eq", "ne"})
NOTHING: frozenset[int] = frozenset()
FOREIGN_SLOTS = 50.0  # between equals, what is as the specification has it is taken
FAR = 3  # steps from the specification
OWN, PRODUCTS, EVERYTHING = 0, 1, 2  # steps that are taken: the specification's own, also functions and products, all
MULTIPLICATIVE = frozenset({"mul", "div", "dot"})
WAYS = 12  # to make one value that are kept
Offer = tuple[Operator, tuple[int, ...], int, int, int, frozenset[int], int, bool]


class Unlucky(Exception):
    """A random point at which a division by zero happened to occur: take another one."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The scalar functions and reductions that are tried."""

    unary: tuple[str, ...]
    binary: tuple[str, ...]
    ternary: tuple[str, ...]
    kinds: tuple[ReduceKind, ...]

    @staticmethod
    def of(spec: Spec) -> Vocabulary:
        """Those of the specification, and what the axioms bring in: arithmetic, and sums."""
        fns = {node.op.fn for node in spec.nodes if isinstance(node.op, Apply)} - {"identity"}
        kinds: set[ReduceKind] = {node.op.kind for node in spec.nodes if isinstance(node.op, Reduction)}
        kinds.add("sum")
        fns |= {"add", "sub", "mul", "div"}
        return Vocabulary(tuple(sorted(fns & UNARY)), tuple(sorted(fns & BINARY)), tuple(sorted(fns & TERNARY)),
                          tuple(sorted(kinds)))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """When an enumeration stops before it is exhausted.

    foreign   steps away from the specification; below 0 only its own steps, from FAR on with all that was put off
    values    that are kept
    unknown   that the oracle does not know and that are taken up all the same
    deadline  by `time.monotonic`
    """

    foreign: int = 99
    values: int = 4000
    unknown: int = 400
    deadline: float = math.inf


@dataclass(slots=True)
class Table:
    """The values of one assignment of roles, with all the ways to make them.

    frames   of the kernel, and of the one that combines its results where a sum is split
    split    the factor of the summed axis that the grid cuts, if any
    scratch  bytes that the tiles of a block may take
    """

    spec: Spec
    point: Point
    frames: tuple[Frame, ...]
    split: Factor | None
    nominal: Nominal
    oracle: Oracle
    vocabulary: Vocabulary
    statistics: Statistics
    scratch: float = math.inf
    values: list[Value] = field(default_factory=list)
    makers: list[list[Maker]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    goals: list[tuple[int, str]] = field(default_factory=list)  # value, how the split factor leaves the block
    exhausted: bool = False
    _queue: list[tuple[int, int]] = field(default_factory=list)  # steps away and number of what is not taken up yet
    _taken: list[int] = field(default_factory=list)
    _away: list[int] = field(default_factory=list)  # steps away from the specification, of each value
    _near: Near = field(default_factory=Near)
    _put_off: list[tuple[str, tuple[int, ...], Factors]] = field(default_factory=list)
    _reach: int = OWN
    _numbers: dict[tuple[object, ...], int] = field(default_factory=dict)
    _waiting: deque[Offer] = field(default_factory=deque)
    _goal: Sample = field(init=False)
    _powers: set[bytes] = field(default_factory=set)
    _output: Factors = frozenset()
    _sums: Factors = frozenset()
    _forms: dict[tuple[object, ...], bytes] = field(default_factory=dict)

    def fill(self, limits: Limits) -> None:
        """Enumerate until nothing is left or a limit is met; again with wider limits goes on from there."""
        if not self.values:
            self._begin()
        reach = OWN if limits.foreign < 0 else PRODUCTS if limits.foreign < FAR else EVERYTHING
        if reach > self._reach:
            self._reach = reach
            put_off, self._put_off = self._put_off, []
            for fn, operands, over in put_off:
                if fn == "dot":
                    self._summed(operands[0], operands[1], over)
                else:
                    self._pointwise(fn, operands)
        taken_up = 0
        while True:
            while self._queue and self._queue[0][0] <= max(0, limits.foreign):
                if len(self.values) > limits.values or time.monotonic() > limits.deadline:
                    return
                self._take_up(heapq.heappop(self._queue)[1])
            if not self._waiting or limits.unknown <= taken_up:
                break
            taken_up += 1
            self._accept(*self._waiting.popleft())
        self.statistics.taken_up += taken_up
        self.exhausted = not self._waiting and not self._queue and not self._put_off

    def _begin(self) -> None:
        samples = self.point.run()
        count = len(self.spec.inputs)
        self._goal = samples[self.spec.output]
        self._output = frozenset(self._goal.factors)
        summed = summed_labels(self.spec)
        self._sums = frozenset(f for label in summed for f in self.point.factored[label])
        for node in self.spec.nodes:
            if node.op == Apply("exp"):
                self._powers.add(self.point.digest(samples[node.inputs[0]]))
        self._near = Near.to(self.spec, self.point.factored, self.oracle, self.split)
        for number in range(count):
            factors = frozenset(self.point.leaf(number).factors)
            for kernel, frame in enumerate(self.frames):
                if kernel == 0 or factors <= frame.tiles:
                    self._offer(
                        Read(number), (), self.oracle.leaf(number, factors), frame.depth(factors), NEVER, kernel=kernel
                    )
        for value in sorted({node.op.value for node in self.spec.nodes if isinstance(node.op, Number)}):
            for kernel in range(len(self.frames)):
                self._offer(Literal(value), (), self.oracle.number(value), 0, NEVER, kernel=kernel)

    # ---- what is offered

    def _take_up(self, i: int) -> None:
        """Offer every operator whose largest operand is value i."""
        value = self.values[i]
        self._taken.append(i)
        if not self._is_number(i):
            self._on_one(i)
        for j in self._taken:
            if self.values[j].kernel == value.kernel:
                self._on_two(j, i)
        if self.vocabulary.ternary:
            self._on_three(i)

    def _on_one(self, i: int) -> None:
        v = self.values[i]
        frame = self.frames[v.kernel]
        for fn in self.vocabulary.unary:
            if fn != "exp" or self._may_be_exponent(i):
                self._pointwise(fn, (i,))
        for over in subsets(self._folded(v)):
            for kind in self.vocabulary.kinds:
                form = self.oracle.reduce(kind, over, v.form)
                self._offer(Folded(kind, over), (i,), form, v.depth, v.after, v.stale, v.kernel, v.whole)
        for level in range(v.depth):
            over = frozenset(frame.loops[level : v.depth])
            if over <= v.free & self._sums and not v.stale:
                self._leave(i, level, over)
        if v.stale == {i}:
            level = self._level(i)
            self._offer(Final(level), (i,), v.form, level, min(v.after, level), kernel=v.kernel)
        tiled = frame.loops[:1] if v.depth == 1 and not v.stale else ()
        if {*tiled} & self._output & v.free and self._reaches(v, self.samples[i]) is not None:
            self._offer(Collected(frame.loops[0]), (i,), v.form, 0, 0, kernel=v.kernel, whole=True)
        if v.kernel == 0 and v.depth == 0 and not v.stale and self._can_be_handed(v.free):
            self._offer(Handed(), (i,), v.form, 0, NEVER, kernel=1)

    def _can_be_handed(self, free: Factors) -> bool:
        """Only what is another one at each point of the grid, and is cut along nothing else that was summed."""
        return self.split is not None and free >= {*self.frames[0].grid} and free <= self.frames[1].tiles

    def _leave(self, i: int, level: int, over: Factors) -> None:
        """Out of the loops from `level` on."""
        v = self.values[i]
        for kind in self.vocabulary.kinds:
            form = self.oracle.reduce(kind, over, v.form)
            self._offer(Gathered(kind, level), (i,), form, level, min(v.after, level), kernel=v.kernel)
            if kind in ("max", "min") and "exp" in self.vocabulary.unary:
                itself = frozenset({-1})  # its number is not known yet
                self._offer(RunningMost(kind, level), (i,), form, v.depth, v.after, itself, v.kernel, v.whole)

    def _on_two(self, j: int, i: int) -> None:
        v, w = self.values[j], self.values[i]
        depth, after, stale = max(v.depth, w.depth), min(v.after, w.after), v.stale | w.stale
        if depth > after or len(stale) > 1:
            return
        numbers = self._is_number(j) and self._is_number(i)
        for fn in self.vocabulary.binary if not numbers else ():
            self._pointwise(fn, (j, i))
            if fn not in COMMUTATIVE and i != j:
                self._pointwise(fn, (i, j))
        for over in subsets(self._folded(v) & self._folded(w)):
            self._summed(j, i, over)
        for x, most in {(j, i), (i, j)}:
            if x != most and self.values[most].stale == {most} == self.values[x].stale:
                self._rescaled(x, most)

    def _summed(self, j: int, i: int, over: Factors) -> None:
        v, w = self.values[j], self.values[i]
        forms = (v.form, w.form)
        if not self._is_in_reach("dot", (j, i), forms):
            self._put_off.append(("dot", (j, i), over))
            return
        product = self.oracle.apply("mul", forms)
        form = None if product is None else self.oracle.reduce("sum", over, product)
        depth, after = max(v.depth, w.depth), min(v.after, w.after)
        self._offer(Summed(over), (j, i), form, depth, after, v.stale | w.stale, v.kernel, v.whole or w.whole)

    def _rescaled(self, x: int, most: int) -> None:
        v, m = self.values[x], self.values[most]
        level = self._level(most)
        over = frozenset(self.frames[v.kernel].loops[level : v.depth])
        if v.depth == m.depth and over <= v.free and m.free <= v.free:
            after = min(v.after, m.after, level)
            form = self.oracle.reduce("sum", over, v.form)
            self._offer(Rescaled(level), (x, most), form, level, after, kernel=v.kernel)

    def _on_three(self, i: int) -> None:
        """where(c, a, b); conditions are few."""
        for c in [c for c in self._taken if self._is_condition(c)]:
            for j in self._taken:
                for triple in sorted({(c, i, j), (c, j, i)} if c != i else {(i, j, k) for k in self._taken}):
                    if c not in triple[1:]:
                        self._pointwise("where", triple)

    def _is_condition(self, number: int) -> bool:
        match self.makers[number][0].op:
            case Read(number=tensor):
                return self.spec.inputs[tensor].dtype == "bool"
            case Pointwise(fn=fn):
                return fn in TO_BOOL
            case _:
                return False

    def _is_number(self, number: int) -> bool:
        return isinstance(self.makers[number][0].op, Literal)

    def _pointwise(self, fn: str, operands: tuple[int, ...]) -> None:
        values = [self.values[i] for i in operands]
        depth, after = max(v.depth for v in values), min(v.after for v in values)
        stale = frozenset[int]().union(*(v.stale for v in values))
        if depth > after or len(stale) > 1 or len({v.kernel for v in values}) > 1:
            return
        forms = tuple(v.form for v in values)
        if not self._is_in_reach(fn, operands, forms):
            self._put_off.append((fn, operands, NONE))
            return
        form = self.oracle.apply(fn, forms)
        whole = any(v.whole for v in values)
        self._offer(Pointwise(fn), operands, form, depth, after, stale, values[0].kernel, whole)

    def _is_in_reach(self, fn: str, operands: tuple[int, ...], forms: tuple[int, ...]) -> bool:
        """Whether a step is not put off: at first only the specification's own ones are taken, then products too."""
        if self._reach == EVERYTHING or (fn, *forms) in self._near.steps:
            return True
        if fn in COMMUTATIVE | {"dot"} and (fn, *reversed(forms)) in self._near.steps:
            return True
        if fn == "sub" and operands[0] in self._maximised(operands[1]):
            return True
        return self._reach == PRODUCTS and (len(operands) == 1 or fn in MULTIPLICATIVE)

    def _may_be_exponent(self, i: int) -> bool:
        """Only what the specification exponentiates, and what is not above 0: a value less a maximum over it.

        Also where the result is a value of the specification: exp(x + y) for exp(x) * exp(y).
        """
        if (
            self.values[i].digest in self._powers
            or self.oracle.apply("exp", (self.values[i].form,)) in self._near.classes
        ):
            return True
        below = (maker.inputs for maker in self.makers[i] if maker.op == Pointwise("sub"))
        return any(x in self._maximised(most) for x, most in below)

    def _maximised(self, most: int) -> set[int]:
        """The values that one is the maximum of, one after another."""
        found: set[int] = set()
        while True:
            maker = self.makers[most][0]
            match maker.op:
                case Folded("max") | Gathered("max") | RunningMost("max") | Final():
                    most = maker.inputs[0]
                    found.add(most)
                case _:
                    return found

    def _folded(self, v: Value) -> Factors:
        """Factors that are dimensions of the tile, and that some sum of the specification goes over."""
        return v.free & self.frames[v.kernel].tiles & self._sums

    def _level(self, most: int) -> int:
        op = self.makers[most][0].op
        assert isinstance(op, RunningMost)
        return op.level

    # ---- what becomes of it

    def _offer(self, op: Operator, operands: tuple[int, ...], form: int | None, depth: int, after: int,
               stale: frozenset[int] = NOTHING, kernel: int = 0, whole: bool = False) -> None:  # fmt: skip
        self.statistics.offered += 1
        if form is None:
            self.statistics.pruned_expression += 1
        elif self.oracle.contributes(form) is None:
            self.statistics.unknown += 1
            self._waiting.append((op, operands, form, depth, after, stale, kernel, whole))
        else:
            self._accept(op, operands, form, depth, after, stale, kernel, whole)

    def _accept(self, op: Operator, operands: tuple[int, ...], form: int, depth: int, after: int,
                stale: frozenset[int], kernel: int, whole: bool) -> None:  # fmt: skip
        running = op if isinstance(op, RunningMost) else None
        place = (depth, after, stale, kernel, whole, running)
        sample = self._sample(op, operands)
        if sample is None:
            self.statistics.not_provable += 1
            return
        free = frozenset(sample.factors)
        if self._least_bytes(free, kernel) > self.scratch:
            self.statistics.pruned_memory += 1
            return
        digest = self.point.digest(sample)
        number = self._numbers.get((digest, *place))
        if number is not None:
            self._another_way(number, op, operands)
            return
        if form >= 0 and getattr(op, "kind", "sum") != "sum":
            same = self._forms.setdefault((form, free, *place), digest)
            if same != digest:  # equal, but not for every order: max(x - m) and max(x) - m
                self.statistics.not_provable += 1
                return
        number = len(self.values)
        self._numbers[(digest, *place)] = number
        self._forms.setdefault((form, free, *place), digest)
        stale = frozenset({number}) if running is not None else stale
        value = Value(form, free, depth, after, stale, kernel, whole, digest)
        self.values.append(value)
        self.samples.append(sample)
        self.makers.append([])
        self.makers[number].append(self._maker(op, operands, value))
        away = max((self._away[i] for i in operands), default=0)
        away += form not in self._near.classes and isinstance(op, Pointwise | Summed)
        self._away.append(away)
        heapq.heappush(self._queue, (away, number))
        self.statistics.values += 1
        if depth == 0 and not stale:
            how = self._reaches(value, sample)
            if how is not None:
                self.goals.append((number, how))

    def _maker(self, op: Operator, operands: tuple[int, ...], value: Value) -> Maker:
        price = self.nominal.price(op, self.frames[value.kernel], [self.values[i] for i in operands], value)
        return Maker(op, operands, price + (0.0 if value.form in self._near.classes else FOREIGN_SLOTS))

    def _another_way(self, number: int, op: Operator, operands: tuple[int, ...]) -> None:
        self.statistics.pruned_equal += 1
        ways = self.makers[number]
        if len(ways) < WAYS and number not in operands:
            maker = self._maker(op, operands, self.values[number])
            if maker not in ways:
                ways.append(maker)

    def _sample(self, op: Operator, operands: tuple[int, ...]) -> Sample | None:
        """What the value is at the random point; None where it has no model over the field."""
        try:
            return self._evaluate(op, operands)
        except NotProvable:
            return None
        except DrawAgain:
            if not self.point.is_anywhere(self.samples[operands[-1]]):
                return None  # a division by what is zero everywhere: no other point would do
            raise Unlucky from None

    def _evaluate(self, op: Operator, operands: tuple[int, ...]) -> Sample:
        x = [self.samples[i] for i in operands]
        match op:
            case Read(number):
                return self.point.leaf(number)
            case Literal(value):
                return self.point.number(value)
            case Pointwise(fn):
                return self.point.apply(fn, *x)
            case Summed(over):
                return self.point.contract(over, x[0], x[1])
            case Folded(kind, over):
                return self.point.reduce(kind, over, x[0])
            case Gathered(kind, level) | RunningMost(kind, level):
                v = self.values[operands[0]]
                return self.point.reduce(kind, frozenset(self.frames[v.kernel].loops[level : v.depth]), x[0])
            case Rescaled(level):
                v = self.values[operands[0]]
                return self.point.reduce("sum", frozenset(self.frames[v.kernel].loops[level : v.depth]), x[0])
            case Final() | Collected() | Handed():
                return x[0]

    def _reaches(self, value: Value, sample: Sample) -> str | None:
        """How a value leaves the block as the goal, if it does: "" or the combination over the split factor."""
        if self.split is None or value.kernel == 1:
            return "" if self.point.agrees(sample, self._goal) else None
        if value.free - {self.split} != self._output or self.split not in value.free:
            return None
        for kind in ("sum", "max"):
            combined = self.point.reduce(kind, frozenset({self.split}), sample)
            if self.point.agrees(combined, self._goal):
                return kind
        return None

    # ---- sizes

    def _least_bytes(self, free: Factors, kernel: int) -> float:
        """Of a tile of which everything is cut as far as it may be."""
        frame = self.frames[kernel]
        uncut = [f for f in free & frame.tiles if f not in frame.grid and f not in frame.loops and self._is_alone(f)]
        return 4.0 * math.prod(self.spec.extents[label] for label, _ in uncut)

    def _is_alone(self, factor: Factor) -> bool:
        return len(self.point.factored[factor[0]]) == 1
