"""The sketch: a program with free parameters, the constraints on them, and the trace that built it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipeline.errors import StepError
from pipeline.ir.program import Program, instantiate
from pipeline.schedule.codec import encode
from pipeline.schedule.constraint import Constraint
from pipeline.schedule.nest import clash, unknown_symbols
from pipeline.schedule.steps import Step
from pipeline.schedule.variables import Variable

Entry = Step | Variable | Constraint


@dataclass(frozen=True, slots=True)
class Sketch:
    """One structure, many candidates: a value for each parameter makes one.

    trace   what built it from the program that the task was lowered to, in order
    """

    program: Program
    variables: tuple[Variable, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    trace: tuple[Entry, ...] = ()

    def apply(self, step: Step) -> Sketch:
        """The sketch after one step, or StepError with the reason why it is not legal."""
        reason = step.why_not(self.program)
        if reason is not None:
            raise StepError(f"{described(step)} is not legal", where=self.program.name, why=reason)
        return replace(self, program=step.apply(self.program), trace=(*self.trace, step))

    def attempt(self, step: Step) -> Sketch:
        """The sketch after one step where that is legal, else the sketch as it is."""
        return self if step.why_not(self.program) is not None else self.apply(step)

    def declare(self, variable: Variable) -> Sketch:
        """The sketch with a random variable, whose symbols are parameters of the program from now on."""
        reason = clash(self.program, variables=variable.symbols)
        if reason is not None:
            raise StepError(f"{described(variable)} cannot be declared", where=self.program.name, why=reason)
        program = replace(self.program, params=(*self.program.params, *variable.symbols))
        return replace(self, program=program, variables=(*self.variables, variable), trace=(*self.trace, variable))

    def require(self, constraint: Constraint) -> Sketch:
        """The sketch with one more constraint on its parameters."""
        reason = unknown_symbols(self.program, constraint.symbols())
        if reason is not None:
            raise StepError(f"{described(constraint)} cannot be required", where=self.program.name, why=reason)
        return replace(self, constraints=(*self.constraints, constraint), trace=(*self.trace, constraint))

    def candidate(self, values: Mapping[str, int]) -> Program:
        """The concrete program at one value for each parameter."""
        return instantiate(self.program, values)


def described(entry: Entry) -> str:
    """An entry of a trace on one line, for errors and reports."""
    fields = encode(entry)
    return f"{fields.pop('kind')}({', '.join(f'{name}={value}' for name, value in fields.items())})"
