"""A concrete program into LLVM IR: loops into branches, unrolled ones into copies, vectorized ones into vectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from pipeline.codegen.llvm.emit_state import Lanes, Place, Sink, row_major, written
from pipeline.codegen.llvm.emit_transpose import TransposeEmitter
from pipeline.codegen.llvm.ir_builder import (
    MEMORY_TYPE,
    VALUE_TYPE,
    Value,
    lane_mask,
    literal,
    vector_type,
)
from pipeline.codegen.llvm.linear import Linear
from pipeline.codegen.llvm.team_ir import MINE_BYTES
from pipeline.errors import CodegenError
from pipeline.ir.expr import variables
from pipeline.ir.graph import ITEM_BYTES
from pipeline.ir.program import Alloc, Axis, Block, Buffer, Loop, Seq, Stmt, walk
from pipeline.ir.scalar_limits import neutral_number

SMALL_SCRATCH = 4096  # bytes: a shared buffer up to this size lives on the stack of its thread
ACCUMULATORS = 4  # of a reduction along a row: enough to hide the latency of an addition
PIECES = 4  # iterations for each core from which on they may change hands
SHARED_WORK = 1 << 20  # executions of blocks: some ten microseconds. Below, handing over costs more than waiting
COPIES = 24  # how often one block may be copied by splitting loops at their ragged ends


def executions(stmt: Stmt) -> int:
    """How often its blocks are executed, all together."""
    match stmt:
        case Block():
            return 1
        case Loop(axes, body, _):
            return math.prod(axis.extent.value for axis in axes) * executions(body)
        case Seq(body):
            return sum(executions(each) for each in body)
        case Alloc(_, body):
            return executions(body)
        case _:
            assert_never(stmt)


@dataclass(slots=True)
class Emitter(TransposeEmitter):
    """Statements: loops, allocations, regions."""

    def region(self, stmt: Stmt) -> None:
        """One region of the top level: a parallel loop, or code for the first thread alone."""
        for inner in walk(stmt):
            if isinstance(inner, Loop):
                for axis in inner.axes:
                    self.ranges[axis.var] = (0, axis.extent.value - 1)
                    self.extents[axis.var] = axis.extent.value
        if isinstance(stmt, Loop) and stmt.kind == "parallel":
            self.parallel(stmt)
            return
        alone = self.b.compare("icmp eq", Value(self.thread, "i64"), literal(0, "i64"))
        self.when(alone, lambda: self.statement(stmt))

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case Seq(body):
                for child in body:
                    self.statement(child)
            case Alloc(buffer, body):
                self.allocate(buffer, body)
            case Block():
                self.block(stmt)
            case Loop(axes, body, kind):
                if any(axis.extent.value == 0 for axis in axes):
                    return
                name = stmt.annotation("tensorize")
                if isinstance(name, str) and self.tensorized(stmt, name):
                    return
                if kind == "serial" and self.transposed(stmt):
                    return
                if isinstance(distance := stmt.annotation("prefetch"), int):
                    self.ahead[axes[0].var] = axes[0].var, distance, 1
                if isinstance(of := stmt.annotation("prefetch_next"), str):
                    self.ahead[axes[0].var] = of, 1, 2  # a whole tile ahead: more than the first level keeps
                if kind == "vectorized":
                    self.vectorized(stmt)
                elif kind == "unrolled":
                    self.unrolled(list(axes), body)
                elif kind in ("serial", "parallel"):
                    self.serial(list(axes), body)
                else:
                    raise CodegenError(f"a loop bound to {kind}", where="codegen.llvm", why="CPUs have no such index")
            case _:
                assert_never(stmt)

    def allocate(self, buffer: Buffer, body: Stmt) -> None:
        shape = [extent.value for extent in buffer.shape]
        lanes = self.target.lanes(ITEM_BYTES[buffer.dtype])
        if buffer.scope == "local" and shape and shape[-1] > 1:
            # a whole vector may be written at the ragged end of a row
            shape[-1] = -(-shape[-1] // lanes) * lanes
        strides = row_major(shape)
        count = 1
        for extent in shape:
            count *= extent
        size = count * ITEM_BYTES[buffer.dtype]
        before = self.scratch_used
        if buffer.scope == "local" or size <= SMALL_SCRATCH:
            pointer = self.b.alloca(max(count, 1), MEMORY_TYPE[buffer.dtype], 64)
        else:
            self.scratch_used = -(-self.scratch_used // 64) * 64
            pointer = self.b.fresh("scratch")
            self.b.emit(f"{pointer} = getelementptr inbounds i8, ptr %scratch_own, i64 {self.scratch_used}")
            self.scratch_used += size
            self.scratch_peak = max(self.scratch_peak, self.scratch_used)
        self.places[buffer.name] = Place(buffer, pointer, strides, 64)
        self.forget({buffer.name})  # an earlier tile under the same name is another one
        self.statement(body)
        self.scratch_used = before

    def parallel(self, loop: Loop) -> None:
        """Threads begin with contiguous shares of the iterations, in which neighbours share data; where there are many
        iterations and much to do, whoever is done takes from the shares of others."""
        b = self.b
        total = math.prod(axis.extent.value for axis in loop.axes)
        if total == 0:
            return
        thread, threads = Value(self.thread, "i64"), Value(self.threads, "i64")
        count = literal(total, "i64")

        def body(index: Value) -> None:
            rest, decoded = index, []
            for axis in reversed(loop.axes):
                extent = literal(axis.extent.value, "i64")
                if axis is loop.axes[0]:
                    decoded.append((axis, rest))
                else:
                    decoded.append((axis, b.binary("urem", rest, extent)))
                    rest = b.binary("udiv", rest, extent)
            self.decoded(list(reversed(decoded)), loop.body)

        if PIECES * self.target.cores <= total < 1 << 31 and executions(loop) >= SHARED_WORK:
            self.taken(count, body, written(loop))
            return
        begin = b.binary("udiv", b.binary("mul nuw nsw", thread, count), threads)
        following = b.binary("add nuw nsw", thread, literal(1, "i64"))
        end = b.binary("udiv", b.binary("mul nuw nsw", following, count), threads)
        self.counted(begin, end, body, written(loop))

    def taken(self, count: Value, body: Callable[[Value], None], writes: frozenset[str]) -> None:
        """Piece by piece, as `muschedule_take` shares them out."""
        b = self.b
        b.declare("muschedule_enter", "declare void @muschedule_enter(ptr, i64, i64, i64, ptr)")
        b.declare("muschedule_take", "declare i64 @muschedule_take(ptr, i64, i64, i64, ptr)")
        mine = b.alloca(MINE_BYTES // 8, "i64", 8)
        arguments = f"ptr %barrier, i64 {self.thread}, i64 {self.threads}, i64 {count}, ptr {mine}"
        look, some, done = b.new_label("take"), b.new_label("piece"), b.new_label("taken")
        b.emit(f"call void @muschedule_enter({arguments})")
        b.jump(look)
        b.label(look)
        first = b.assign(f"call i64 @muschedule_take({arguments})", "i64")
        b.branch(b.compare("icmp slt", first, literal(0, "i64")), done, some)
        b.label(some)
        end_at = b.assign(f"getelementptr inbounds i64, ptr {mine}, i64 2", "ptr")
        self.counted(first, b.assign(f"load i64, ptr {end_at.name}", "i64"), body, writes)
        b.jump(look)
        b.label(done)

    def decoded(self, axes: list[tuple[Axis, Value]], body: Stmt) -> None:
        """Binds variables that have a value already, and takes another copy of the body at the ragged end of each."""
        if not axes:
            self.statement(body)
            return
        (axis, value), rest = axes[0], axes[1:]
        extent = axis.extent.value
        if extent == 1:
            self.bind(axis.var, Linear(0), (0, 0), lambda: self.decoded(rest, body))
            return
        _, low, high, _ = self.table.interval(axis.var, 0, extent, body, self.ranges)
        if (low, high) == (0, extent) or low >= high or self.copies >= COPIES:
            self.bind(axis.var, self.term(value, (0, extent - 1)), (0, extent - 1), lambda: self.decoded(rest, body))
            return
        self.copies *= 2

        def piece(first: int, last: int) -> None:
            if first >= last:
                return
            index = Linear(first) if last - first == 1 else self.term(value, (first, last - 1))
            self.bind(axis.var, index, (first, last - 1), lambda: self.decoded(rest, body))

        below = self.b.compare("icmp slt", value, literal(high, "i64"))
        if low == 0:
            self.when(below, lambda: piece(0, high), lambda: piece(high, extent))
        else:
            above = self.b.compare("icmp sge", value, literal(low, "i64"))
            self.when(
                self.b.binary("and", below, above),
                lambda: piece(low, high),
                lambda: self.bind(
                    axis.var,
                    self.term(value, (0, extent - 1)),
                    (0, extent - 1),
                    lambda: self.decoded(rest, body),
                ),
            )
        self.copies //= 2

    def serial(self, axes: list[Axis], body: Stmt) -> None:
        if not axes:
            self.statement(body)
            return
        axis, rest = axes[0], axes[1:]
        inner: Stmt = Loop(tuple(rest), body) if rest else body
        start, low, high, end = self.table.interval(axis.var, 0, axis.extent.value, inner, self.ranges)
        if low >= high or self.copies >= COPIES:
            self.span(axis.var, start, end, inner)
            return
        split = (start, end) != (low, high)
        self.copies *= 2 if split else 1
        self.span(axis.var, start, low, inner)
        self.span(axis.var, low, high, inner)
        self.span(axis.var, high, end, inner)
        self.copies //= 2 if split else 1

    def span(self, var: str, first: int, last: int, body: Stmt) -> None:
        """Iterations first … last - 1; a single one is emitted with its number as a constant."""
        if first >= last:
            return
        if last - first == 1:
            self.bind(var, Linear(first), (first, first), lambda: self.statement(body))
            return
        self.counted(
            literal(first, "i64"),
            literal(last, "i64"),
            lambda index: self.bind(
                var, self.term(index, (first, last - 1)), (first, last - 1), lambda: self.iteration(var, body)
            ),
            written(body),
        )

    def iteration(self, var: str, body: Stmt) -> None:
        if var in self.ahead:
            self.prefetch(var, body)
        self.statement(body)

    def unrolled(self, axes: list[Axis], body: Stmt) -> None:
        if not axes:
            self.statement(body)
            return
        for number in range(axes[0].extent.value):
            self.bind(axes[0].var, Linear(number), (number, number), lambda: self.unrolled(axes[1:], body))

    def vectorized(self, loop: Loop) -> None:
        """Chunks of whole vectors, then one with a mask; a loop inside another vectorized one is unrolled."""
        *outer, axis = loop.axes
        if outer:
            self.serial(outer, Loop((axis,), loop.body, "vectorized"))
            return
        extent = axis.extent.value
        widths = {ITEM_BYTES[self.places[name].buffer.dtype] for name in written(loop) if name in self.places}
        lanes = self.target.lanes(min(max(widths, default=4), 8))
        if self.lanes is not None or extent == 1 or lanes == 1:
            self.unrolled([axis], loop.body)
            return
        if any(isinstance(inner, Alloc) for inner in walk(loop.body)):
            self.serial([axis], loop.body)  # each lane would need a buffer of its own
            return
        start, _, _, end = self.table.interval(axis.var, 0, extent, loop.body, self.ranges)
        whole = (end - start) // lanes
        if isinstance(loop.body, Block) and whole and self.reduces_lanes(loop.body, axis.var):
            self.reduced_row(axis.var, start, end, lanes, loop.body)
            return
        if whole > 16:  # long rows are a loop over vectors
            self.vector_row(axis.var, start, start + whole * lanes, lanes, loop.body)
            start += whole * lanes
        while start < end:
            count = min(lanes, end - start)
            if count == 1:
                self.bind(axis.var, Linear(start), (start, start), lambda: self.statement(loop.body))
            else:
                # few lanes left: a narrower vector where that is a power of two, else a mask
                exact = count & (count - 1) == 0
                self.chunk(axis.var, Linear(start), (start, start + count - 1), count if exact else lanes,
                           None if exact or count == lanes else lane_mask(0, count, lanes), loop.body)  # fmt: skip
            start += count

    def reduces_lanes(self, block: Block, var: str) -> bool:
        """Does the block combine all iterations of the loop into one element?"""
        if block.combine is None or block.init is not None:
            return False
        moved = {it.var for it in block.iters if var in variables(it.binding)}
        return not any(moved & variables(index) for index in block.indices)

    def reduced_row(self, var: str, start: int, end: int, lanes: int, block: Block) -> None:
        """Several vector accumulators along the row, combined at its end, and only then lane with lane."""
        assert block.combine is not None
        b, place = self.b, self.places[block.buffer]
        dtype = place.buffer.dtype
        type_ = VALUE_TYPE[dtype]
        neutral = literal(neutral_number(block.combine, dtype), type_, lanes)
        whole = (end - start) // lanes
        count = max(1, min(ACCUMULATORS, whole))
        names = [b.alloca(lanes, type_, 64) for _ in range(count)]
        for name in names:
            b.emit(f"store {vector_type(type_, lanes)} {neutral}, ptr {name}, align 64")
        self.sink = Sink(block.name, names, type_)
        groups = whole // count
        step = count * lanes

        def group(base: Linear, bounds: tuple[int, int]) -> None:
            assert self.sink is not None
            for number in range(count):
                self.sink.current = number
                self.chunk(var, base + Linear(number * lanes), bounds, lanes, None, block)

        if groups > 2:
            self.counted(
                literal(0, "i64"), literal(groups, "i64"),
                lambda index: group(
                    self.term(index, (0, groups - 1)).scale(step) + Linear(start), (start, start + groups * step - 1)
                ),
                frozenset(),
            )  # fmt: skip
        else:
            for number in range(groups):
                first = start + number * step
                group(Linear(first), (first, first + step - 1))
        place_of_rest = start + groups * step
        number = 0
        while place_of_rest < end:
            width = min(lanes, end - place_of_rest)
            self.sink.current = number % count
            mask = None if width == lanes else lane_mask(0, width, lanes)
            self.chunk(var, Linear(place_of_rest), (place_of_rest, place_of_rest + width - 1), lanes, mask, block)
            place_of_rest += width
            number += 1
        self.sink = None
        loaded = [b.assign(f"load {vector_type(type_, lanes)}, ptr {name}, align 64", type_, lanes) for name in names]
        while len(loaded) > 1:
            pairs = [self.combine(block.combine, x, y, dtype) for x, y in zip(loaded[::2], loaded[1::2], strict=False)]
            loaded = pairs + ([loaded[-1]] if len(loaded) % 2 else [])
        total = self.across(block.combine, loaded[0], dtype)
        self.bind(var, Linear(start), (start, start), lambda: self.add_to(block, total))

    def vector_row(self, var: str, first: int, last: int, lanes: int, body: Stmt) -> None:
        def step(index: Value) -> None:
            # the number of the vector is what is counted, so that the index is known to be a multiple of the lanes
            number = self.term(index, (0, (last - first) // lanes - 1)).scale(lanes)
            self.chunk(var, number + Linear(first), (first, last - 1), lanes, None, body)

        self.counted(literal(0, "i64"), literal((last - first) // lanes, "i64"), step, written(body))

    def chunk(
        self, var: str, base: Linear, bounds: tuple[int, int], lanes: int, mask: Value | None, body: Stmt
    ) -> None:
        self.lanes = Lanes(var, lanes, mask)
        self.bind(var, base + Linear(lane=1), bounds, lambda: self.statement(body))
        self.lanes = None
