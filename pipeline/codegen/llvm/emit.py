"""A concrete program into LLVM IR: loops into branches, unrolled loops into copies, vectorized loops into explicit vectors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from pipeline.codegen.llvm.conditions import ConditionTable
from pipeline.codegen.llvm.elementwise import elementwise, extremum
from pipeline.codegen.llvm.ir_builder import (
    BYTES,
    FLOATS,
    MEMORY_TYPE,
    VALUE_TYPE,
    IrBuilder,
    Value,
    lane_mask,
    lane_numbers,
    literal,
    mangle,
    vector_type,
)
from pipeline.codegen.llvm.linear import UNKNOWN, Linear
from pipeline.codegen.llvm.vector_math import MathLibrary
from pipeline.errors import CodegenError
from pipeline.ir.expr import Const, Expr, Load, Op, Size, Var, affine, dtype_of, variables
from pipeline.ir.graph import DType
from pipeline.ir.program import Alloc, Axis, Block, Buffer, Loop, Seq, Stmt, walk
from pipeline.ir.target import Target

NEUTRAL = {"sum": 0, "prod": 1}
SMALL_SCRATCH = 4096  # bytes: a shared buffer up to this size lives on the stack of its thread
ACCUMULATORS = 4  # of a reduction along a row: enough to hide the latency of an addition
COPIES = 24  # how often one block may be copied by splitting loops at their ragged ends


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
class Emitter:
    """The state of one function: the values of variables, what is cached, and what was asked of the function library."""

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

    # ------------------------------------------------------------------ statements

    def region(self, stmt: Stmt) -> None:
        """One region of the top level: a parallel loop, or code for the first thread alone."""
        for inner in walk(stmt):
            if isinstance(inner, Loop):
                for axis in inner.axes:
                    self.ranges[axis.var] = (0, axis.extent.value - 1)
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
        lanes = self.target.lanes(BYTES[buffer.dtype])
        if buffer.scope == "local" and shape and shape[-1] > 1:
            # a whole vector may be written at the ragged end of a row
            shape[-1] = -(-shape[-1] // lanes) * lanes
        strides = row_major(shape)
        count = 1
        for extent in shape:
            count *= extent
        size = count * BYTES[buffer.dtype]
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
        """Threads take contiguous chunks of the iterations: neighbours share data, and chunks do not depend on timing."""
        b = self.b
        total = 1
        for axis in loop.axes:
            total *= axis.extent.value
        if total == 0:
            return
        thread, threads = Value(self.thread, "i64"), Value(self.threads, "i64")
        count = literal(total, "i64")
        begin = b.binary("udiv", b.binary("mul nuw nsw", thread, count), threads)
        following = b.binary("add nuw nsw", thread, literal(1, "i64"))
        end = b.binary("udiv", b.binary("mul nuw nsw", following, count), threads)

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

        self.counted(begin, end, body, written(loop))

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
                var, self.term(index, (first, last - 1)), (first, last - 1), lambda: self.statement(body)
            ),
            written(body),
        )

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
        widths = {BYTES[self.places[name].buffer.dtype] for name in written(loop) if name in self.places}
        lanes = self.target.lanes(min(max(widths, default=4), 8))
        if self.lanes is not None or extent == 1 or lanes == 1:
            self.unrolled([axis], loop.body)
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
        neutral = literal(neutral_value(block.combine, dtype), type_, lanes)
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
        loaded = [
            b.assign(f"load {vector_type(type_, lanes)}, ptr {name}, align 64", type_, lanes) for name in names
        ]
        while len(loaded) > 1:
            pairs = [self.combine(block.combine, x, y, dtype) for x, y in zip(loaded[::2], loaded[1::2], strict=False)]
            loaded = pairs + ([loaded[-1]] if len(loaded) % 2 else [])
        total = self.across(block.combine, loaded[0], dtype)
        self.bind(var, Linear(start), (start, start), lambda: self.add_to(block, total))

    def add_to(self, block: Block, total: Value) -> None:
        """Combines a value with the element that the block writes."""
        outer_env = {it.var: self.env.get(it.var) for it in block.iters}
        self.env.update({it.var: index for it in block.iters if (index := self.linear(it.binding)) is not None})
        place = self.places[block.buffer]
        offset = self.offset(place, block.indices)
        assert block.combine is not None
        old = self.read(place, offset, block.indices)
        self.write(place, offset, block, self.combine(block.combine, old, total, place.buffer.dtype))
        self.restore(outer_env)

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

    # ------------------------------------------------------------------ blocks

    def block(self, block: Block) -> None:
        """The conditions first: those that always hold cost nothing, those that never do drop the block."""
        outer_env = {it.var: self.env.get(it.var) for it in block.iters}
        masks: list[Value] = []
        scalars: list[Value] = []
        bound: dict[str, Linear] = {}
        for it in block.iters:
            index = self.linear(it.binding)
            if index is None:
                raise CodegenError(
                    f"the binding of {it.var} is not an index", where=block.name, why="it must be affine or folded"
                )
            bound[it.var] = index
            low, high = index.bounds(self.ssa_ranges, self.lane_count())
            extent = it.extent.value
            low, high = self.tighten(it.binding, low, high)
            if high < 0 or low >= extent:
                return
            if high >= extent:
                (masks if index.lane else scalars).append(
                    self.b.compare("icmp slt", self.materialise(index), literal(extent, "i64"))
                )
            if low < 0:
                (masks if index.lane else scalars).append(
                    self.b.compare("icmp sge", self.materialise(index), literal(0, "i64"))
                )
        for condition in block.where:
            known = self.decide(condition)
            if known is False:
                return
            if known is None:
                value = self.value(condition)
                (scalars if value.lanes == 1 else masks).append(value)
        self.env.update(bound)

        def body() -> None:
            assert self.lanes is None or not masks or self.lanes.count > 1
            old = self.lanes.mask if self.lanes else None
            if self.lanes:
                self.lanes.mask = self.conjunction([*([old] if old else []), *masks])
            self.store(block)
            if self.lanes:
                self.lanes.mask = old

        if scalars:
            condition_value = self.conjunction(scalars)
            assert condition_value is not None
            self.forget({block.buffer})
            self.when(condition_value, body)
            self.forget({block.buffer})
        else:
            body()
        self.restore(outer_env)

    def restore(self, env: dict[str, Linear | None]) -> None:
        for var, index in env.items():
            if index is None:
                self.env.pop(var, None)
            else:
                self.env[var] = index

    def tighten(self, binding: Expr, low: int, high: int) -> tuple[int, int]:
        """The bounds over loop variables, which know of the pieces of split loops, against those over SSA values."""
        form = affine(binding)
        if form is None:
            return low, high
        a = b = form.constant.value
        for name, coefficient in form.terms:
            c = coefficient.value
            if name not in self.ranges:
                return low, high
            first, last = self.ranges[name]
            if self.lanes is not None and name == self.lanes.var and self.lanes.mask is not None:
                last = max(last, first)  # lanes beyond the end are masked already
            a += c * (first if c > 0 else last)
            b += c * (last if c > 0 else first)
        return max(low, a), min(high, b)

    def conjunction(self, conditions: list[Value]) -> Value | None:
        total: Value | None = None
        for condition in conditions:
            total = condition if total is None else self.b.binary("and", total, condition)
        return total

    def decide(self, condition: Expr) -> bool | None:
        """The truth of a condition where the bounds of its operands tell it."""
        match condition:
            case Const(value, _):
                return bool(value)
            case Op("and", (a, b)):
                x, y = self.decide(a), self.decide(b)
                return False if x is False or y is False else (True if x and y else None)
            case Op("lt" | "le" | "gt" | "ge" as fn, (a, b)) if dtype_of(a) == "int64":
                difference = self.linear(Op("sub", (a, b)))
                if difference is None:
                    return None
                low, high = difference.bounds(self.ssa_ranges, self.lane_count())
                yes, no = {"lt": (high < 0, low >= 0), "le": (high <= 0, low > 0),
                           "gt": (low > 0, high <= 0), "ge": (low >= 0, high < 0)}[fn]  # fmt: skip
                return True if yes else (False if no else None)
            case _:
                return None

    def store(self, block: Block) -> None:
        b = self.b
        place = self.places[block.buffer]
        dtype = place.buffer.dtype
        if self.sink is not None and self.sink.block == block.name:
            self.accumulate(block, self.sink, dtype)
            return
        offset = self.offset(place, block.indices)
        if block.combine is None:
            self.write(place, offset, block, self.value(block.value))
            return
        if block.init is not None:
            raise CodegenError(
                "a reduction whose initialisation was not split off", where=block.name, todo="DecomposeReduction first"
            )
        spread = not isinstance(offset, Value) and offset.lane == 0 and self.lanes is not None
        if block.combine == "sum" and dtype in FLOATS and not spread:
            product = self.product(block.value)
            if product is not None:
                old = self.read(place, offset, block.indices)
                self.write(place, offset, block, b.intrinsic("fma", *product, old))
                return
        value = self.value(block.value)
        if spread and self.lanes is not None:
            value = self.b.splat(value, self.lanes.count)
            if self.lanes.mask is not None:
                value = self.b.select(self.lanes.mask, value, literal(neutral_value(block.combine, dtype), value.type))
            value = self.across(block.combine, value, dtype)
        old = self.read(place, offset, block.indices)
        self.write(place, offset, block, self.combine(block.combine, old, value, dtype))

    def accumulate(self, block: Block, sink: Sink, dtype: DType) -> None:
        """Combines a vector with the accumulator whose turn it is; lanes that are masked out change nothing."""
        assert self.lanes is not None and block.combine is not None
        b, lanes = self.b, self.lanes
        pointer = sink.accumulators[sink.current]
        type_ = vector_type(sink.type, lanes.count)
        old = b.assign(f"load {type_}, ptr {pointer}, align 64", sink.type, lanes.count)
        product = self.product(block.value) if block.combine == "sum" and dtype in FLOATS else None
        if product is not None and lanes.mask is None:
            new = b.intrinsic("fma", *product, old)
        else:
            value = b.binary("fmul", *product) if product is not None else self.value(block.value)
            value = b.splat(value, lanes.count)
            if lanes.mask is not None:
                value = b.select(lanes.mask, value, literal(neutral_value(block.combine, dtype), value.type))
            new = self.combine(block.combine, old, value, dtype)
        b.emit(f"store {type_} {new}, ptr {pointer}, align 64")

    def product(self, value: Expr) -> tuple[Value, Value] | None:
        """The factors where the value is a product of floats; a conversion around it or in it is seen through."""
        if isinstance(value, Op) and value.fn == "mul" and value.dtype in ("float32", "float64"):
            a, c = self.value(value.args[0]), self.value(value.args[1])
            lanes = max(a.lanes, c.lanes, 1)
            return self.b.splat(a, lanes), self.b.splat(c, lanes)
        return None

    def combine(self, how: str, a: Value, c: Value, dtype: DType) -> Value:
        if how in ("max", "min") and dtype in FLOATS:
            return extremum(self.b, how, a, c)
        fn = {"sum": "add", "prod": "mul"}.get(how, how)
        return elementwise(self.b, self.library, fn, (a, c), dtype, dtype)

    def across(self, how: str, value: Value, dtype: DType) -> Value:
        """All lanes of a vector combined into one: halves with halves, the same tree on every machine."""
        b = self.b
        while value.lanes > 1:
            count, half = value.lanes, value.lanes // 2
            type_ = vector_type(value.type, count)
            if count % 2:
                raise CodegenError("a reduction over an odd number of lanes", where="codegen.llvm")
            if half == 1:
                first, second = (b.assign(f"extractelement {type_} {value}, i64 {i}", value.type) for i in (0, 1))
                return self.combine(how, first, second, dtype)
            first, second = (
                b.assign(
                    f"shufflevector {type_} {value}, {type_} poison, <{half} x i32> "
                    f"<{', '.join(f'i32 {i + start}' for i in range(half))}>",
                    value.type, half,
                )
                for start in (0, half)
            )  # fmt: skip
            value = self.combine(how, first, second, dtype)
        return value

    # ------------------------------------------------------------------ indices

    def lane_count(self) -> int:
        return self.lanes.count if self.lanes else 1

    def linear(self, expr: Expr) -> Linear | None:
        """The index as a linear one; None where it differs from lane to lane in another way."""
        match expr:
            case Const(value, _):
                return Linear(int(value)) if isinstance(value, int) else None
            case Var(name):
                return self.env[name]
            case Size():
                raise CodegenError(f"the size {expr.poly} is not a number", where="codegen.llvm", why="not instantiated")
            case Op("add" | "sub", (a, b)) if expr.dtype == "int64":
                x, y = self.linear(a), self.linear(b)
                if x is None or y is None:
                    return None
                return x + (y if expr.fn == "add" else y.scale(-1))
            case Op("mul", (a, b)) if expr.dtype == "int64":
                x, y = self.linear(a), self.linear(b)
                if x is None or y is None:
                    return None
                if y.constant:
                    return x.scale(y.const)
                if x.constant:
                    return y.scale(x.const)
                return self.opaque(expr)
            case Op("floordiv" | "mod" as fn, (a, Const(number, _))) if expr.dtype == "int64":
                index = self.linear(a)
                if index is None:
                    return None
                return self.divided(fn, index, int(number))
            case Op() | Load():
                return self.opaque(expr) if dtype_of(expr) == "int64" else None
            case _:
                assert_never(expr)

    def divided(self, fn: str, index: Linear, number: int) -> Linear | None:
        low, high = index.bounds(self.ssa_ranges, self.lane_count())
        if low // number == high // number:
            quotient = low // number
            return Linear(quotient) if fn == "floordiv" else index + Linear(-quotient * number)
        if index.lane:
            # one row of the divided index holds whole vectors: the lanes stay in one piece
            width = self.lane_count()
            if index.lane == 1 and number % width == 0 and index.multiple_of(width, self.ssa_ranges):
                base = self.divided(fn, Linear(index.const, index.terms), number)
                return base if base is None or fn == "floordiv" else base + Linear(lane=1)
            return None
        value = self.materialise(index)
        key = (fn, value.name, number)
        found = self.lookup(key)
        if found is None:
            if low >= 0:
                found = self.b.binary("udiv" if fn == "floordiv" else "urem", value, literal(number, "i64"))
            else:
                found = elementwise(self.b, self.library, fn, (value, literal(number, "i64")), "int64", "int64")
            self.remember(key, found)
        bounds = (low // number, high // number) if fn == "floordiv" else (0, number - 1)
        return self.term(found, bounds)

    def opaque(self, expr: Expr) -> Linear | None:
        value = self.generic(expr)
        return self.term(value, UNKNOWN) if value.lanes == 1 else None

    def materialise(self, index: Linear) -> Value:
        """The index as an i64, in all lanes where it has a stride over them."""
        key = ("index", index, self.lane_count() if index.lane else 1)
        found = self.lookup(key)
        if found is not None:
            return found
        b = self.b
        total: Value | None = None
        for name, coefficient in index.terms:
            part = Value(name, "i64")
            if coefficient != 1:
                part = b.binary("mul nsw", part, literal(coefficient, "i64"))
            total = part if total is None else b.binary("add nsw", total, part)
        if total is None:
            total = literal(index.const, "i64")
        elif index.const:
            total = b.binary("add nsw", total, literal(index.const, "i64"))
        if index.lane:
            total = b.binary("add nsw", b.splat(total, self.lane_count()), lane_numbers(self.lane_count(), index.lane))
        self.remember(key, total)
        return total

    def offset(self, place: Place, indices: tuple[Expr, ...]) -> Linear | Value:
        """The offset in elements: linear, or one number for each lane."""
        total: Linear = Linear()
        odd: list[Value] = []
        for index, stride in zip(indices, place.strides, strict=True):
            form = self.linear(index)
            if form is not None:
                total = total + form.scale(stride)
            else:
                value = self.generic(index)
                odd.append(self.b.binary("mul nsw", value, literal(stride, "i64")) if stride != 1 else value)
        if not odd:
            return total
        value = self.materialise(total)
        for part in odd:
            value = self.b.binary("add nsw", value, part)
        return value

    def address(self, place: Place, offset: Linear) -> str:
        """A pointer; what does not change from lane to lane, without its constant part, is made once."""
        b = self.b
        bytes_ = BYTES[place.buffer.dtype]
        base = place.pointer
        if offset.terms:
            key = ("address", place.pointer, offset.terms)
            found = self.lookup(key)
            if found is None:
                index = self.materialise(Linear(0, offset.terms))
                found = b.assign(
                    f"getelementptr inbounds {MEMORY_TYPE[place.buffer.dtype]}, ptr {base}, i64 {index}", "ptr"
                )
                self.remember(key, found)
            base = found.name
        if not offset.const:
            return base
        return b.assign(f"getelementptr inbounds i8, ptr {base}, i64 {offset.const * bytes_}", "ptr").name

    # ------------------------------------------------------------------ memory

    def read(self, place: Place, offset: Linear | Value, indices: tuple[Expr, ...]) -> Value:
        """Loads one element, a vector, or gathers; from memory type to value type."""
        b, dtype = self.b, place.buffer.dtype
        memory = MEMORY_TYPE[dtype]
        count = self.lane_count()
        mask = self.lanes.mask if self.lanes else None
        if isinstance(offset, Value):
            if offset.lanes == 1:
                return self.loaded(b.assign(f"load {memory}, ptr {self.pointer(place, offset)}, align {BYTES[dtype]}",
                                            memory), dtype)  # fmt: skip
            return self.loaded(self.gather(place, offset, mask), dtype)
        key = ("load", place.buffer.name, place.pointer, offset, count if offset.lane else 1, mask if offset.lane else None)
        found = self.lookup(key)
        if found is not None:
            return found
        if offset.lane == 0:
            address = self.address(place, offset)
            value = b.assign(f"load {memory}, ptr {address}, align {BYTES[dtype]}", memory)
        elif offset.lane == 1:
            address = self.address(place, offset)
            type_ = vector_type(memory, count)
            if mask is None or self.inside(place, indices):
                align = self.alignment(place, offset, count)
                value = b.assign(f"load {type_}, ptr {address}, align {align}", memory, count)
            else:
                value = self.masked_load(address, memory, count, mask, BYTES[dtype])
        else:
            value = self.gather(place, self.materialise(offset), mask)
        value = self.loaded(value, dtype)
        self.remember(key, value)
        return value

    def inside(self, place: Place, indices: tuple[Expr, ...]) -> bool:
        """Do all lanes lie in the buffer, also those that are masked out?"""
        if place.buffer.scope == "local":
            return True
        for index, extent in zip(indices, place.buffer.shape, strict=True):
            form = self.linear(index)
            if form is None:
                return False
            low, high = form.bounds(self.ssa_ranges, self.lane_count())
            if low < 0 or high >= extent.value:
                return False
        return True

    def alignment(self, place: Place, offset: Linear, count: int) -> int:
        """In bytes, as far as it is known."""
        bytes_ = BYTES[place.buffer.dtype]
        whole = count * bytes_
        if place.align >= whole and offset.multiple_of(count, self.ssa_ranges):
            return whole
        return bytes_

    def masked_load(self, address: str, memory: str, count: int, mask: Value, align: int) -> Value:
        type_ = vector_type(memory, count)
        name = f"llvm.masked.load.{mangle(memory, count)}.p0"
        self.b.declare(name, f"declare {type_} @{name}(ptr, <{count} x i1>, {type_})")
        return self.b.assign(
            f"call {type_} @{name}(ptr align {align} {address}, <{count} x i1> {mask}, {type_} zeroinitializer)",
            memory, count,
        )  # fmt: skip

    def pointer(self, place: Place, offset: Value) -> str:
        return self.b.assign(
            f"getelementptr inbounds {MEMORY_TYPE[place.buffer.dtype]}, ptr {place.pointer}, i64 {offset}", "ptr"
        ).name

    def pointers(self, place: Place, offset: Value) -> Value:
        type_ = MEMORY_TYPE[place.buffer.dtype]
        return self.b.assign(
            f"getelementptr inbounds {type_}, ptr {place.pointer}, <{offset.lanes} x i64> {offset}", "ptr", offset.lanes
        )

    def gather(self, place: Place, offset: Value, mask: Value | None) -> Value:
        count, memory = offset.lanes, MEMORY_TYPE[place.buffer.dtype]
        type_ = vector_type(memory, count)
        pointers = self.pointers(place, offset)
        name = f"llvm.masked.gather.{mangle(memory, count)}.v{count}p0"
        self.b.declare(name, f"declare {type_} @{name}(<{count} x ptr>, <{count} x i1>, {type_})")
        every = mask or lane_mask(0, count, count)
        return self.b.assign(
            f"call {type_} @{name}(<{count} x ptr> align {BYTES[place.buffer.dtype]} {pointers}, <{count} x i1> {every}, "
            f"{type_} zeroinitializer)",
            memory, count,
        )  # fmt: skip

    def loaded(self, value: Value, dtype: DType) -> Value:
        """From the type in memory to the type that is computed with."""
        b = self.b
        match dtype:
            case "float16":
                return b.convert("fpext", value, "float")
            case "bfloat16":
                wide = b.convert("zext", value, "i32")
                return b.convert("bitcast", b.binary("shl", wide, literal(16, "i32")), "float")
            case "bool":
                return b.compare("icmp ne", value, literal(0, "i8"))
            case _:
                return value

    def storable(self, value: Value, dtype: DType) -> Value:
        b = self.b
        match dtype:
            case "float16":
                return b.convert("fptrunc", value, "half")
            case "bfloat16":
                return round_to_bfloat16(b, value)
            case "bool":
                return b.convert("zext", value, "i8")
            case _:
                return value

    def write(self, place: Place, offset: Linear | Value, block: Block, value: Value) -> None:
        b, dtype = self.b, place.buffer.dtype
        memory, bytes_ = MEMORY_TYPE[dtype], BYTES[dtype]
        count = self.lane_count()
        mask = self.lanes.mask if self.lanes else None
        if value.type != VALUE_TYPE[dtype]:
            raise CodegenError(f"a {value.type} stored into {dtype}", where=block.name)
        self.forget({block.buffer})
        uniform = offset.lanes == 1 if isinstance(offset, Value) else offset.lane == 0
        if uniform:
            if value.lanes != 1:
                raise CodegenError("one element written by several lanes", where=block.name, why="no combination")
            address = self.pointer(place, offset) if isinstance(offset, Value) else self.address(place, offset)
            b.emit(f"store {memory} {self.storable(value, dtype)}, ptr {address}, align {bytes_}")
            return
        value = self.storable(b.splat(value, count), dtype)
        type_ = vector_type(memory, count)
        if not isinstance(offset, Value) and offset.lane == 1:
            address = self.address(place, offset)
            if mask is None or place.buffer.scope == "local":
                b.emit(f"store {type_} {value}, ptr {address}, align {self.alignment(place, offset, count)}")
                return
            name = f"llvm.masked.store.{mangle(memory, count)}.p0"
            b.declare(name, f"declare void @{name}({type_}, ptr, <{count} x i1>)")
            b.emit(f"call void @{name}({type_} {value}, ptr align {bytes_} {address}, <{count} x i1> {mask})")
            return
        numbers = offset if isinstance(offset, Value) else self.materialise(offset)
        pointers = self.pointers(place, numbers)
        name = f"llvm.masked.scatter.{mangle(memory, count)}.v{count}p0"
        b.declare(name, f"declare void @{name}({type_}, <{count} x ptr>, <{count} x i1>)")
        every = mask or lane_mask(0, count, count)
        b.emit(f"call void @{name}({type_} {value}, <{count} x ptr> align {bytes_} {pointers}, <{count} x i1> {every})")

    # ------------------------------------------------------------------ values

    def value(self, expr: Expr) -> Value:
        match expr:
            case Const(value, dtype):
                return literal(value, VALUE_TYPE[dtype])
            case Var() | Size():
                return self.materialise(self.known(expr))
            case Load(buffer, indices, _):
                place = self.places[buffer]
                return self.read(place, self.offset(place, indices), indices)
            case Op():
                if expr.dtype == "int64" and expr.fn in ("add", "sub", "mul", "floordiv", "mod"):
                    form = self.linear(expr)
                    if form is not None:
                        return self.materialise(form)
                return self.generic(expr)
            case _:
                assert_never(expr)

    def known(self, expr: Expr) -> Linear:
        form = self.linear(expr)
        assert form is not None
        return form

    def generic(self, expr: Expr) -> Value:
        if not isinstance(expr, Op):
            return self.value(expr)
        if expr.fn == "guard":
            return self.guard(expr)
        if expr.fn in ("add", "sub") and expr.dtype in ("float32", "float64"):
            fused = self.fused(expr)
            if fused is not None:
                return fused
        args = tuple(self.value(arg) for arg in expr.args)
        return elementwise(self.b, self.library, expr.fn, args, dtype_of(expr.args[0]), expr.dtype)

    def fused(self, expr: Op) -> Value | None:
        """A product that is added to: one rounding instead of two."""
        a, c = expr.args
        for factor, other in ((a, c), (c, a)):
            if isinstance(factor, Op) and factor.fn == "mul" and expr.fn == "add":
                x, y = (self.value(arg) for arg in factor.args)
                return self.b.intrinsic("fma", x, y, self.value(other))
        return None

    def guard(self, expr: Op) -> Value:
        condition, value, otherwise = expr.args
        known = self.decide(condition)
        if known is not None:
            return self.value(value if known else otherwise)
        test = self.value(condition)
        b = self.b
        if test.lanes > 1:
            assert self.lanes is not None
            old = self.lanes.mask
            self.lanes.mask = test if old is None else b.binary("and", old, test)
            self.cache.append({})
            inside = self.value(value)
            self.cache.pop()
            self.lanes.mask = old
            return b.select(test, inside, self.value(otherwise))
        yes, no, end = b.new_label("some"), b.new_label("none"), b.new_label("joined")
        lanes = self.lane_count()
        b.branch(test, yes, no)
        b.label(yes)
        self.cache.append({})
        first = b.splat(self.value(value), lanes)
        self.cache.pop()
        from_yes = b.block
        b.jump(end)
        b.label(no)
        self.cache.append({})
        second = b.splat(self.value(otherwise), lanes)
        self.cache.pop()
        from_no = b.block
        b.jump(end)
        b.label(end)
        type_ = vector_type(first.type, lanes)
        return b.assign(f"phi {type_} [ {first}, %{from_yes} ], [ {second}, %{from_no} ]", first.type, lanes)

    # ------------------------------------------------------------------ the cache of what dominates here

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


def neutral_value(how: str, dtype: DType) -> int | float:
    """What changes nothing when it is combined."""
    if how in NEUTRAL:
        return NEUTRAL[how]
    if dtype in FLOATS:
        return float("-inf") if how == "max" else float("inf")
    bits = BYTES[dtype] * 8
    if dtype.startswith("uint") or dtype == "bool":
        return 0 if how == "max" else (1 if dtype == "bool" else 2**bits - 1)
    return -(1 << (bits - 1)) if how == "max" else (1 << (bits - 1)) - 1


def round_to_bfloat16(b: IrBuilder, value: Value) -> Value:
    """To nearest, ties to even; NaN stays NaN."""
    bits = b.convert("bitcast", value, "i32")
    odd = b.binary("and", b.binary("lshr", bits, literal(16, "i32")), literal(1, "i32"))
    rounded = b.binary("add", bits, b.binary("add", odd, literal(0x7FFF, "i32")))
    nan = b.compare("fcmp uno", value, value)
    quiet = b.binary("or", bits, literal(0x400000, "i32"))
    return b.convert("trunc", b.binary("lshr", b.select(nan, quiet, rounded), literal(16, "i32")), "i16")

