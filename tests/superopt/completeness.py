"""Brute force over small programs, and whether the pruned enumeration finds every class of equal ones that it finds.

python -m tests.superopt.completeness [--operators 4] [--sample 2000] [--workers 2]

All programs of up to so many operators over a(i, k), b(k) and c(i), with the operators add, mul, div, exp, the sum
over k and the sum over k of a product. Nothing is pruned: every operator on every choice of values so far, whether the
result needs it or not. Programs whose results agree at a random point of the field are one class. Each class is then
made the goal of the pruned enumeration, as the first of its programs specifies it, and has to be found.

Also: of classes with programs of up to three operators and different lengths a longer one is the goal. Where the axioms
make the shortest one equal to it (they cancel nothing: (a * b) / b is not a), and it exponentiates nothing that the
goal does not (which is not safe: exp(a) * exp(a) for exp(a + a)), one as short has to be found.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing as mp
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.superopt.enumeration.derive import derivations, needed
from pipeline.superopt.enumeration.enumerate import Limits, Table, Vocabulary
from pipeline.superopt.enumeration.fingerprint import Point, Sample
from pipeline.superopt.enumeration.labelled import Frame, Maker, Read
from pipeline.superopt.enumeration.nominal import Nominal
from pipeline.superopt.enumeration.search import ROUNDS
from pipeline.superopt.enumeration.statistics import Statistics
from pipeline.superopt.goal.goal import Goal
from pipeline.superopt.goal.term import Factor
from pipeline.superopt.spec import Labels, Spec
from pipeline.verification.field import DrawAgain
from pipeline.verification.field_algebra import NotProvable
from tests.superopt.specs import Writer

ROWS, KEYS = 0, 1
INPUTS: tuple[tuple[str, Labels], ...] = (("a", (ROWS, KEYS)), ("b", (KEYS,)), ("c", (ROWS,)))
EXTENTS = (4, 8)
FACTORED: dict[int, tuple[Factor, ...]] = {ROWS: ((ROWS, "t"),), KEYS: ((KEYS, "t"),)}
BINARY = ("add", "mul", "div", "dot")
UNARY = ("exp", "sum")
Step = tuple[str, tuple[int, ...]]  # an operator on values of the program: the inputs, then its steps
Program = tuple[Step, ...]


@dataclass(slots=True)
class Values:
    """Values by number, interned by what they are at a random point; what an operator gives is computed once."""

    point: Point
    samples: list[Sample] = field(default_factory=list)
    _numbers: dict[bytes, int] = field(default_factory=dict)
    _known: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)

    def number(self, sample: Sample) -> int:
        digest = self.point.digest(sample)
        if digest not in self._numbers:
            self._numbers[digest] = len(self.samples)
            self.samples.append(sample)
        return self._numbers[digest]

    def apply(self, op: str, operands: tuple[int, ...]) -> int:
        """-1 where there is no such value: no k to sum over, a division by zero, a second exponential."""
        key = (op, operands)
        if key not in self._known:
            self._known[key] = self._computed(op, [self.samples[i] for i in operands])
        return self._known[key]

    def _computed(self, op: str, x: list[Sample]) -> int:
        over = frozenset({(KEYS, "t")})
        if op in ("sum", "dot") and not all(over <= {*sample.factors} for sample in x):
            return -1
        try:
            match op:
                case "sum":
                    return self.number(self.point.reduce("sum", over, x[0]))
                case "dot":
                    return self.number(self.point.contract(over, x[0], x[1]))
                case _:
                    return self.number(self.point.apply(op, *x))
        except (NotProvable, DrawAgain):
            return -1


def empty_spec() -> Spec:
    writer = Writer(EXTENTS)
    inputs = [writer.input(name, labels) for name, labels in INPUTS]
    return writer.finish(writer.apply("mul", inputs[0], inputs[0]))


def operators(count: int) -> Iterator[Step]:
    """Every operator on values 0 to count - 1; operands of what commutes in one order."""
    for i in range(count):
        for op in UNARY:
            yield op, (i,)
        for j in range(count):
            for op in BINARY:
                if op == "div" or j <= i:
                    yield op, (j, i)


def brute_force(most: int, seed: int, longer: dict[int, Program] | None = None) -> dict[int, Program]:
    """For every class of results of programs of up to `most` operators, by number, its first program.

    longer  takes, where there is one, a program of the class that needs more operators
    """
    values = Values(Point(empty_spec(), FACTORED, seed))
    start = tuple(values.number(values.point.leaf(number)) for number in range(len(INPUTS)))
    first: dict[int, Program] = {}

    def extend(program: Program, known: tuple[int, ...]) -> None:
        for step in operators(len(known)):
            if step in program:
                continue
            value = values.apply(step[0], tuple(known[i] for i in step[1]))
            if value < 0:
                continue
            whole = (*program, step)
            before = first.get(value)
            if before is None or len(whole) < len(before):
                first[value] = whole
            elif longer is not None and value not in longer and len(without_waste(whole)) > len(before):
                longer[value] = without_waste(whole)
            if len(whole) < most:
                extend(whole, (*known, value))

    extend((), start)
    return {value: without_waste(program) for value, program in first.items() if value not in start}


def without_waste(program: Program) -> Program:
    """The steps that the last one needs, numbered anew."""
    count = len(INPUTS)
    wanted = {count + len(program) - 1}
    for number in range(len(program) - 1, -1, -1):
        if count + number in wanted:
            wanted.update(i for i in program[number][1] if i >= count)
    numbers = {i: i for i in range(count)} | {value: count + place for place, value in enumerate(sorted(wanted))}
    return tuple((program[v - count][0], tuple(numbers[i] for i in program[v - count][1])) for v in sorted(wanted))


def written(program: Program) -> Spec:
    """The program as a specification."""
    writer = Writer(EXTENTS)
    values = [writer.input(name, labels) for name, labels in INPUTS]
    for op, operands in program:
        x = [values[i] for i in operands]
        match op:
            case "sum":
                values.append(writer.reduce("sum", x[0], (KEYS,)))
            case "dot":
                values.append(writer.product(x[0], x[1], (KEYS,)))
            case _:
                values.append(writer.apply(op, *x))
    return writer.finish(values[-1])


def _setting(spec: Spec, seed: int) -> tuple[
    Spec, Point, tuple[Frame, ...], None, Nominal, Goal, Vocabulary, Statistics
]:  # fmt: skip
    """What a table of values without grid and loops is made of."""
    whole: Factor = (ROWS, "t")
    frame = Frame((), (), frozenset({whole, (KEYS, "t")}))
    sizes = Nominal({}, {}, {whole: EXTENTS[ROWS], (KEYS, "t"): EXTENTS[KEYS]})
    vocabulary = Vocabulary(("exp",), ("add", "div", "mul"), (), ("sum",))
    goal = Goal.of(spec, {ROWS: ("t",), KEYS: ("t",)})
    return spec, Point(spec, FACTORED, seed), (frame,), None, sizes, goal, vocabulary, Statistics()


def enumerated(spec: Spec, seed: int) -> Table:
    """The values that the pruned enumeration finds with this goal, up to the round in which it has it."""
    table = Table(*_setting(spec, seed))
    for foreign, values, _ in ROUNDS:
        table.fill(Limits(foreign, values, values // 10, math.inf))
        if table.goals:
            break
    return table


def is_found(program: Program, seed: int) -> bool:
    """Whether the class of the program is among the values, made from the inputs."""
    table = enumerated(written(program), seed)
    goals = [value for value, _ in table.goals]
    return bool(goals) and all(table.makers[value] for value in needed(table.makers, goals))


def leads_to(program: Program, other: Program) -> bool:
    """Whether the axioms make the other program equal to the goal that this one is, with no exponent of its own."""
    goal = Goal.of(written(program), {ROWS: ("t",), KEYS: ("t",)})
    mine, powers = classes(goal, program)
    found, others = classes(goal, other)
    return found is not None and mine is not None and goal.is_goal(found) is True and others <= powers


def classes(goal: Goal, program: Program) -> tuple[int | None, set[int]]:
    """The class of the result of a program, None where it cannot be part of the goal; and those of its exponents."""
    forms = [goal.leaf(number, [f for label in labels for f in FACTORED[label]])
             for number, (_, labels) in enumerate(INPUTS)]  # fmt: skip
    powers: set[int] = set()
    for op, operands in program:
        known = [form for i in operands if (form := forms[i]) is not None]
        if len(known) < len(operands):
            return None, powers
        if op in ("sum", "dot"):
            body = known[0] if op == "sum" else goal.apply("mul", known)
            forms.append(None if body is None else goal.reduce("sum", [(KEYS, "t")], body))
        else:
            forms.append(goal.apply(op, known))
        if op == "exp":
            powers.add(known[0])
    return forms[-1], powers


def shortest(program: Program, seed: int) -> int:
    """The fewest operators of a program that the enumeration finds for the goal that this one is."""
    table = Table(*_setting(written(program), seed))
    found = len(program)
    for foreign, values, _ in ROUNDS[:5]:
        table.fill(Limits(foreign, values, 0, math.inf))
        makers = [
            [Maker(way.op, way.inputs, float(not isinstance(way.op, Read))) for way in ways] for ways in table.makers
        ]
        goals = [value for value, _ in table.goals]
        best = next(derivations(makers, goals, Statistics()), None)
        found = found if best is None else min(found, round(best.cost))
    return found


def chosen(classes: dict[int, Program], sample: int | None, seed: int) -> list[Program]:
    programs = list(classes.values())
    if sample is None or sample >= len(programs):
        return programs
    picked = np.random.default_rng(seed).choice(len(programs), sample, replace=False)
    return [programs[i] for i in sorted(picked)]


def _missed(task: tuple[Sequence[Program], int]) -> list[Program]:
    programs, seed = task
    return [program for program in programs if not is_found(program, seed)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.superopt.completeness", description=__doc__)
    parser.add_argument("--operators", type=int, default=4)
    parser.add_argument("--sample", type=int, default=None, help="classes that are tried; all if not given")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    classes = brute_force(given.operators, given.seed)
    print(f"{len(classes)} classes of programs of up to {given.operators} operators", flush=True)
    programs = chosen(classes, given.sample, given.seed)
    parts = [(programs[i : i + 200], given.seed) for i in range(0, len(programs), 200)]
    missed: list[Program] = []
    with mp.get_context("spawn").Pool(given.workers) as pool:
        for done, some in enumerate(pool.imap_unordered(_missed, parts), 1):
            missed += some
            print(f"{min(200 * done, len(programs))} of {len(programs)} tried, {len(missed)} missed", flush=True)
    for program in missed[:20]:
        print("missed:", program)
    longer: dict[int, Program] = {}
    first = brute_force(min(3, given.operators), given.seed, longer)
    pairs = [(first[value], program) for value, program in sorted(longer.items()) if value in first]
    led = [(least, program) for least, program in pairs if leads_to(program, least)]
    late = [(least, program) for least, program in led if shortest(program, given.seed) > len(least)]
    print(
        f"{len(pairs)} classes have a longer program; the axioms lead to the shortest in {len(led)}; {len(late)} missed"
    )
    for least, program in late[:20]:
        print("missed:", least, "from", program)
    raise SystemExit(bool(missed or late))


if __name__ == "__main__":
    main()
