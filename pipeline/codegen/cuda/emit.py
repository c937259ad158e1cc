"""Statements as C++: loops, nests of threads, allocations.

What warps do together is left to `FragmentEmitter` (`fragment`) and `WarpEmitter` (`unit` and `whole_warp`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import assert_never

from pipeline.codegen.cuda.barriers import Meeting, is_leaf
from pipeline.codegen.cuda.cpp import MEMORY, Cpp, infix, integer
from pipeline.codegen.cuda.emit_copy import CopyEmitter
from pipeline.codegen.cuda.emit_state import Place
from pipeline.errors import CodegenError
from pipeline.ir.expr import Const
from pipeline.ir.lockstep import THREADS
from pipeline.ir.program import PRIVATE, Alloc, Axis, Block, Buffer, Loop, Seq, Stmt, walk
from pipeline.schedule.fragment_check import REGISTER_LOOP
from pipeline.schedule.nest import affine_over_loops, loads_of

WARP = 32


@dataclass(slots=True)
class Emitter(CopyEmitter):
    """Statements of one function.

    nest       kinds of the thread loops around the statement at hand
    """

    nest: tuple[str, ...] = ()
    used: set[str] = field(default_factory=set)

    def statement(self, stmt: Stmt) -> None:
        """Anything: at the level of a block of the grid, or of one thread."""
        if not self.nest and is_leaf(stmt):
            self.meet(self.meetings.get(id(stmt), Meeting.NONE))
            self.leaf(stmt)
            return
        match stmt:
            case Seq(body):
                self.sequence(body)
            case Alloc(buffer, body):
                self.allocate(buffer, body)
            case Block():
                if self.nest and self.nest != ("",) and self.by_warps():
                    self.whole_warp(stmt)
                else:
                    self.block(stmt)
            case Loop():
                name = stmt.annotation("tensorize")
                if isinstance(name, str) and self.by_warps():
                    self.unit(stmt, name)
                else:
                    self.loop(stmt)
            case _:
                assert_never(stmt)

    def by_warps(self) -> bool:
        """Is this inside a nest of warps, whose lanes do the same?"""
        return self.threads.x == WARP and bool(self.nest) and self.nest != ("",) and "threadIdx.x" not in self.nest

    def unit(self, loop: Loop, name: str) -> None:
        """A nest that the lanes of a warp compute together by the intrinsic of that name: see `WarpEmitter`."""
        raise NotImplementedError

    def fragment(self, buffer: Buffer, body: Stmt) -> None:
        """Declares a buffer that is spread over the lanes of a warp, and emits what uses it: see `FragmentEmitter`."""
        raise NotImplementedError

    def whole_warp(self, block: Block) -> None:
        """A block that a warp runs once: see `WarpEmitter`."""
        raise NotImplementedError

    def leaf(self, stmt: Stmt) -> None:
        """A nest of threads, or what one thread does alone."""
        names = list(dict.fromkeys(s.name for s in walk(stmt) if isinstance(s, Block)))
        if names:
            self.lines.note(", ".join(names[:4]) + (" …" if len(names) > 4 else ""))
        if isinstance(stmt, Loop) and stmt.kind in THREADS:
            self.loop(stmt)
            return
        self.nest = ("",)
        if self.threads.count > 1:
            with self.scope(), self.braces(f"if ({self.thread()} == 0)"):
                self.statement(stmt)
        else:
            self.statement(stmt)
        self.nest = ()

    def sequence(self, body: tuple[Stmt, ...]) -> None:
        for number, child in enumerate(body):
            if number and self.nest and self.nest != ("",) and _has_threads(body):
                if self.threads.x != WARP:
                    raise CodegenError("lanes that meet inside a nest", where="codegen.cuda",
                                       why=f"There are {self.threads.x} of them, not {WARP}")  # fmt: skip
                self.lines.add("ms::sync_warp();")
            self.statement(child)

    def loop(self, loop: Loop) -> None:
        if any(axis.extent.value == 0 for axis in loop.axes):
            return
        match loop.kind:
            case "threadIdx.x" | "threadIdx.y" | "threadIdx.z":
                self.thread_loop(loop)
            case "serial" if id(loop) in self.pipelines:
                self.pipelined(self.pipelines[id(loop)])
            case "vectorized" if (
                len(loop.axes) == 1 and isinstance(loop.body, Block) and self.vectorized(loop.axes[0], loop.body)
            ):
                return
            case "serial" | "unrolled" | "vectorized":
                self.counted(list(loop.axes), loop.body, unrolled=loop.kind != "serial")
            case _:
                raise CodegenError(f"a loop over {loop.kind} inside a block", where="codegen.cuda",
                                   why="Those are the outermost of their region")  # fmt: skip

    def counted(self, axes: list[Axis], body: Stmt, *, unrolled: bool) -> None:
        """for loops, the last axis innermost; none for an axis of one."""
        if not axes:
            self.statement(body)
            return
        axis, *rest = axes
        with self.scope():
            if axis.extent.value == 1:
                self.known[axis.var] = Const(0)
                self.counted(rest, body, unrolled=unrolled)
                return
            if unrolled or self.picks_registers(axis, body):
                self.lines.add("#pragma unroll")
            taken = set(self.names.taken)
            name = self.declare(axis)
            type_ = self.env[axis.var].type
            with self.braces(f"for ({type_} {name} = 0; {name} < {axis.extent.value}; ++{name})"):
                self.counted(rest, body, unrolled=unrolled)
            self.names.taken = taken

    def picks_registers(self, axis: Axis, body: Stmt) -> bool:
        """Does the variable say which element of a thread's own buffer is meant? Registers have no index."""
        if axis.extent.value > REGISTER_LOOP:
            return False
        for block in (s for s in walk(body) if isinstance(s, Block)):
            uses = [(block.buffer, block.indices), *((load.buffer, load.indices) for load in loads_of(block))]
            for name, indices in uses:
                place = self.places.get(name)
                if place is None or not place.private:
                    continue
                for index in indices:
                    form = affine_over_loops(block, index)
                    if form is not None and form.coefficient(axis.var).terms:
                        return True
        return False

    # Threads

    def thread(self) -> str:
        """The number of the thread in its block."""
        self.used.add("thread")
        return "thread"

    def position(self, kind: str) -> tuple[Cpp, int]:
        """Where the thread is along x, y or z, and how many there are along it."""
        t = self.threads
        x, y, z = t.x, t.y, t.z
        if kind == "threadIdx.x":
            if y == z == 1:
                return Cpp(self.thread(), "int"), x
            if x == WARP:
                self.used.add("lane")
                return Cpp("lane", "int"), x
            return infix("%", Cpp(self.thread(), "int"), integer(x), "int"), x
        if kind == "threadIdx.y":
            if x == WARP:
                self.used.add("warp")
            row = Cpp("warp", "int") if x == WARP else Cpp(self.thread(), "int")
            row = row if x in (1, WARP) else infix("/", row, integer(x), "int")
            return (row if z == 1 else infix("%", row, integer(y), "int")), y
        return infix("/", Cpp(self.thread(), "int"), integer(x * y), "int"), z

    def thread_loop(self, loop: Loop) -> None:
        """Each thread takes its own iteration; those beyond the end take none."""
        place, available = self.position(loop.kind)
        extent = math.prod(axis.extent.value for axis in loop.axes)
        tests = [] if self.nest else self.absent(loop)
        if extent < available:
            tests.append(infix("<", place, integer(extent), "bool").text)
        elif extent > available:
            raise CodegenError(f"{extent} iterations over {loop.kind}", where="codegen.cuda", why=f"It has {available}")
        outer, self.nest = self.nest, (*self.nest, loop.kind)
        with self.scope():
            if outer and not tests:
                self.decode(loop.axes, place)
                self.statement(loop.body)
            else:
                with self.braces(f"if ({' && '.join(tests)})" if tests else ""):
                    self.decode(loop.axes, place)
                    self.statement(loop.body)
        self.nest = outer

    def absent(self, loop: Loop) -> list[str]:
        """The dimensions of the block that a nest does not use: its first threads along those run it. A nest over y
        alone is run by whole warps."""
        there = {inner.kind for inner in walk(loop) if isinstance(inner, Loop)}
        tests = []
        for kind in THREADS:
            place, extent = self.position(kind) if kind not in there and self.extent(kind) > 1 else (None, 1)
            if place is not None and extent > 1 and kind != "threadIdx.x":
                tests.append(f"{place} == 0")
        return tests

    def extent(self, kind: str) -> int:
        return {"threadIdx.x": self.threads.x, "threadIdx.y": self.threads.y, "threadIdx.z": self.threads.z}[kind]

    def decode(self, axes: tuple[Axis, ...], number: Cpp) -> None:
        """Declares the variables of a fused loop of which this is the iteration."""
        parts = []
        below = math.prod(axis.extent.value for axis in axes)
        above = True
        for axis in axes:
            extent = axis.extent.value
            below //= extent
            if extent == 1:
                self.known[axis.var] = Const(0)
                continue
            text = number if below == 1 else infix("/", number, integer(below), "int")
            text = text if above else infix("%", text, integer(extent), "int")
            above = False
            parts.append(f"{self.declare(axis)} = {text}")
        if parts:
            self.lines.add(f"const int {', '.join(parts)};")

    # Buffers

    def allocate(self, buffer: Buffer, body: Stmt) -> None:
        """Registers of a thread. Shared buffers have their places from the beginning of the function."""
        if buffer.name in self.places:
            self.statement(body)
            return
        if buffer.scope not in (*PRIVATE, "shared"):
            raise CodegenError(f"{buffer.name} is allocated in {buffer.scope}", where="codegen.cuda")
        if buffer.scope == "fragment":
            self.fragment(buffer, body)
            return
        with self.scope():
            place = Place(buffer, self.names.new(buffer.name), private=True)
            shape = " x ".join(str(extent) for extent in place.shape)
            self.lines.add(f"{MEMORY[buffer.dtype]} {place.name}[{max(1, place.count)}];"
                           + (f"  // {shape}" if len(place.shape) > 1 else ""))  # fmt: skip
            with self.placed({buffer.name: place}):
                self.statement(body)


def _has_threads(body: tuple[Stmt, ...]) -> bool:
    return any(isinstance(s, Loop) and s.kind in THREADS for child in body for s in walk(child))
