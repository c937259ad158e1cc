"""The state of a function while its LLVM IR is emitted: variables, ranges, the cache, and control flow."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.codegen.llvm.conditions import ConditionTable
from pipeline.codegen.llvm.ir_builder import (
    IrBuilder,
    Value,
)
from pipeline.codegen.llvm.linear import Linear
from pipeline.codegen.llvm.vector_math import MathLibrary
from pipeline.ir.program import Block, Buffer, Stmt, walk
from pipeline.ir.target import Target


@dataclass(slots=True)
class Place:
    """Where a buffer lives: its pointer, its strides in elements, and whether each thread has its own."""

    buffer: Buffer
    pointer: str
    strides: tuple[int, ...]
    align: int


@dataclass(slots=True)
class Lanes:
    """The vectorized loop that is being emitted: its variable, the number of lanes, and a mask of those that run."""

    var: str
    count: int
    mask: Value | None = None


@dataclass(slots=True)
class Sink:
    """Vector accumulators of a reduction along lanes, and which of them the next value goes into."""

    block: str
    accumulators: list[str]
    type: str
    current: int = 0


@dataclass(slots=True)
class EmitState:
    """What every part of the emitter shares. One object serves one function."""

    target: Target
    library: MathLibrary
    places: dict[str, Place]
    thread: str = "%thread"
    threads: str = "%threads"
    b: IrBuilder = field(default_factory=IrBuilder)
    env: dict[str, Linear] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)  # of loop variables
    ssa_ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    lanes: Lanes | None = None
    cache: list[dict[object, Value]] = field(default_factory=lambda: [{}])
    table: ConditionTable = field(default_factory=ConditionTable)
    sink: Sink | None = None
    copies: int = 1
    scratch_used: int = 0
    scratch_peak: int = 0

    def lane_count(self) -> int:
        return self.lanes.count if self.lanes else 1

    def counted(self, first: Value, last: Value, body: object, writes: frozenset[str]) -> None:
        """for index in first … last - 1. `body` is called with the index."""
        assert callable(body)
        b = self.b
        self.forget(writes)
        head, inside, done = b.new_label("head"), b.new_label("body"), b.new_label("done")
        before = b.block
        b.jump(head)
        b.label(head)
        index, following = b.fresh("i"), b.fresh("n")
        phi_line = len(b.lines)
        b.emit("")
        test = b.compare("icmp slt", Value(index, "i64"), last)
        b.branch(test, inside, done)
        b.label(inside)
        self.cache.append({})
        body(Value(index, "i64"))
        self.cache.pop()
        b.emit(f"{following} = add nuw nsw i64 {index}, 1")
        latch = b.block
        b.jump(head)
        b.lines[phi_line] = f"  {index} = phi i64 [ {first}, %{before} ], [ {following}, %{latch} ]"
        b.label(done)

    def when(self, condition: Value, then: object, otherwise: object = None) -> None:
        """if condition: then(), else: otherwise()."""
        assert callable(then)
        b = self.b
        yes, no, end = b.new_label("then"), b.new_label("else"), b.new_label("end")
        b.branch(condition, yes, no if otherwise else end)
        b.label(yes)
        self.cache.append({})
        then()
        self.cache.pop()
        b.jump(end)
        if callable(otherwise):
            b.label(no)
            self.cache.append({})
            otherwise()
            self.cache.pop()
            b.jump(end)
        b.label(end)

    def bind(self, var: str, index: Linear, bounds: tuple[int, int], then: object) -> None:
        """Runs `then` with the variable bound."""
        assert callable(then)
        old_index, old_range = self.env.get(var), self.ranges.get(var)
        self.env[var], self.ranges[var] = index, bounds
        then()
        if old_index is None:
            del self.env[var]
        else:
            self.env[var] = old_index
        if old_range is not None:
            self.ranges[var] = old_range

    def term(self, value: Value, bounds: tuple[int, int]) -> Linear:
        if value.literal:
            return Linear(int(value.name))
        self.ssa_ranges[value.name] = bounds
        return Linear(0, ((value.name, 1),))

    def restore(self, env: dict[str, Linear | None]) -> None:
        for var, index in env.items():
            if index is None:
                self.env.pop(var, None)
            else:
                self.env[var] = index

    def lookup(self, key: object) -> Value | None:
        for scope in reversed(self.cache):
            if key in scope:
                return scope[key]
        return None

    def remember(self, key: object, value: Value) -> None:
        self.cache[-1][key] = value

    def forget(self, buffers: set[str] | frozenset[str]) -> None:
        """Loads of buffers that are written to are no longer known."""
        for scope in self.cache:
            stale = [k for k in scope if isinstance(k, tuple) and k[0] == "load" and k[1] in buffers]
            for key in stale:
                del scope[key]


def written(stmt: Stmt) -> frozenset[str]:
    return frozenset(s.buffer for s in walk(stmt) if isinstance(s, Block))


def row_major(shape: list[int] | tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
