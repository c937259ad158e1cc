"""Loads and stores: scalars, vectors, masked, gathered and scattered."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.codegen.llvm.elementwise import narrowed, widened
from pipeline.codegen.llvm.emit_index import IndexEmitter
from pipeline.codegen.llvm.emit_state import Place
from pipeline.codegen.llvm.ir_builder import (
    MEMORY_TYPE,
    VALUE_TYPE,
    Value,
    lane_mask,
    literal,
    mangle,
    vector_type,
)
from pipeline.codegen.llvm.linear import Linear
from pipeline.errors import CodegenError
from pipeline.ir.expr import Expr
from pipeline.ir.graph import ITEM_BYTES, DType
from pipeline.ir.program import Block


@dataclass(slots=True)
class MemoryEmitter(IndexEmitter):
    """Memory, from the type it holds to the type that is computed with."""

    def read(self, place: Place, offset: Linear | Value, indices: tuple[Expr, ...]) -> Value:
        """Loads one element, a vector, or gathers; from memory type to value type."""
        b, dtype = self.b, place.buffer.dtype
        memory = MEMORY_TYPE[dtype]
        count = self.lane_count()
        mask = self.lanes.mask if self.lanes else None
        if isinstance(offset, Value):
            if offset.lanes == 1:
                address = self.pointer(place, offset)
                return self.loaded(b.assign(f"load {memory}, ptr {address}, align {ITEM_BYTES[dtype]}", memory), dtype)
            return self.loaded(self.gather(place, offset, mask), dtype)
        key = self.load_key(place, offset)
        found = self.lookup(key)
        if found is not None:
            return found
        if offset.lane == 0:
            address = self.address(place, offset)
            value = b.assign(f"load {memory}, ptr {address}, align {ITEM_BYTES[dtype]}", memory)
        elif offset.lane == 1:
            address = self.address(place, offset)
            type_ = vector_type(memory, count)
            if mask is None or self.inside(place, indices):
                align = self.alignment(place, offset, count)
                value = b.assign(f"load {type_}, ptr {address}, align {align}", memory, count)
            else:
                value = self.masked_load(address, memory, count, mask, ITEM_BYTES[dtype])
        else:
            value = self.gather(place, self.materialise(offset), mask)
        value = self.loaded(value, dtype)
        self.remember(key, value)
        return value

    def load_key(self, place: Place, offset: Linear) -> tuple[object, ...]:
        """What a load is remembered by, in its value type."""
        lanes = (self.lane_count(), self.lanes.mask if self.lanes else None) if offset.lane else (1, None)
        return ("load", place.buffer.name, place.pointer, offset, *lanes)

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
        bytes_ = ITEM_BYTES[place.buffer.dtype]
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
            f"call {type_} @{name}(<{count} x ptr> align {ITEM_BYTES[place.buffer.dtype]} {pointers}, "
            f"<{count} x i1> {every}, {type_} zeroinitializer)",
            memory, count,
        )  # fmt: skip

    def loaded(self, value: Value, dtype: DType) -> Value:
        """From the type in memory to the type that is computed with."""
        b = self.b
        match dtype:
            case "float16" | "bfloat16":
                return widened(b, value, dtype)
            case "bool":
                return b.compare("icmp ne", value, literal(0, "i8"))
            case _:
                return value

    def storable(self, value: Value, dtype: DType) -> Value:
        b = self.b
        match dtype:
            case "float16" | "bfloat16":
                return narrowed(b, value, dtype)
            case "bool":
                return b.convert("zext", value, "i8")
            case _:
                return value

    def write(self, place: Place, offset: Linear | Value, block: Block, value: Value) -> None:
        b, dtype = self.b, place.buffer.dtype
        memory, bytes_ = MEMORY_TYPE[dtype], ITEM_BYTES[dtype]
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
                align = self.alignment(place, offset, count)
                if mask is not None:  # a masked store would keep the tile from becoming registers
                    old = b.assign(f"load {type_}, ptr {address}, align {align}", memory, count)
                    value = b.select(mask, value, old)
                b.emit(f"store {type_} {value}, ptr {address}, align {align}")
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
