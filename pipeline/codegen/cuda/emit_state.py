"""What the emitter of one function knows: lines so far, names, where buffers lie, and the ranges of variables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pipeline.codegen.cuda.cpp import Cpp, Lines, Names
from pipeline.ir.expr import Expr, substitute
from pipeline.ir.graph import ITEM_BYTES
from pipeline.ir.program import Axis, Buffer
from pipeline.ir.program_bounds import Facts
from pipeline.ir.target import Gpu


@dataclass(frozen=True, slots=True)
class Place:
    """A buffer under its name in C++.

    base     elements before the first, as text (the stage of a pipeline); "" for none
    private  each thread has its own: registers where all indices are constants
    """

    buffer: Buffer
    name: str
    base: str = ""
    private: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(extent.value for extent in self.buffer.shape)

    @property
    def row(self) -> int:
        """Elements from one row to the next."""
        return (self.shape[-1] if self.shape else 1) + self.buffer.pad.value

    @property
    def count(self) -> int:
        """Elements, with those that padding leaves free."""
        return math.prod(self.shape[:-1]) * self.row

    @property
    def item(self) -> int:
        return ITEM_BYTES[self.buffer.dtype]

    @property
    def swizzled(self) -> bool:
        """Rows that are no power of two of at least 32 bytes stay as they are."""
        width = (self.shape[-1] if self.shape else 1) * self.item
        return self.buffer.swizzled and width >= 32 and width & (width - 1) == 0


@dataclass(frozen=True, slots=True)
class Threads:
    """How the threads of a block are numbered: thread = (z * y_extent + y) * x_extent + x."""

    x: int = 1
    y: int = 1
    z: int = 1

    @property
    def count(self) -> int:
        return self.x * self.y * self.z


@dataclass(slots=True)
class EmitState:
    """The state of one function while it is emitted.

    env       text of the loop variables, and of the iteration variables of the block at hand
    constants names for values, by the name that was wanted and the text
    known     variables of loops that run once, which are left out
    bindings  the iteration variables of the block at hand over loop variables
    facts     ranges of the variables, and what the conditions around say of them
    """

    gpu: Gpu
    threads: Threads
    places: dict[str, Place] = field(default_factory=dict)
    lines: Lines = field(default_factory=Lines)
    names: Names = field(default_factory=Names)
    env: dict[str, Cpp] = field(default_factory=dict)
    constants: dict[tuple[str, str], Cpp] = field(default_factory=dict)
    known: dict[str, Expr] = field(default_factory=dict)
    bindings: dict[str, Expr] = field(default_factory=dict)
    facts: Facts = field(default_factory=lambda: Facts({}))

    def over_loops(self, expr: Expr) -> Expr:
        """The expression over the variables of loops alone."""
        return substitute(expr, self.bindings) if self.bindings else expr

    def declare(self, axis: Axis) -> str:
        """A name for the variable of a loop, of which the range is known from here on."""
        extent = axis.extent.value
        name = self.names.new(axis.var)
        self.env[axis.var] = Cpp(name, "int" if extent < 1 << 31 else "long long")
        self.facts = Facts({**self.facts.ranges, axis.var: (0, extent - 1)}, self.facts.sums)
        return name

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is learned inside is forgotten after."""
        env, known, facts = dict(self.env), dict(self.known), self.facts
        yield
        self.env, self.known, self.facts = env, known, facts

    @contextmanager
    def braces(self, head: str = "") -> Iterator[None]:
        """A block of C++, with names of its own."""
        taken, constants = set(self.names.taken), dict(self.constants)
        with self.lines.block(head):
            yield
        self.names.taken, self.constants = taken, constants

    def constant(self, wanted: str, value: Cpp) -> Cpp:
        """A name for a value that is used again; one that has a name already keeps it."""
        found = self.constants.get((wanted, value.text))
        if found is None:
            found = Cpp(self.names.new(wanted), value.type)
            self.constants[wanted, value.text] = found
            self.lines.add(f"const {value.type} {found} = {value};")
        return found

    @contextmanager
    def placed(self, places: Mapping[str, Place]) -> Iterator[None]:
        """Buffers that are somewhere else inside."""
        before = dict(self.places)
        self.places.update(places)
        yield
        self.places = before

    @contextmanager
    def assuming(self, facts: Facts) -> Iterator[None]:
        before, self.facts = self.facts, facts
        yield
        self.facts = before


def moved(place: Place, base: str) -> Place:
    """The same buffer, so many elements on."""
    return replace(place, base=base)
