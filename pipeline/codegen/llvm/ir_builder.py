"""A writer of LLVM IR text: typed values, fresh names, basic blocks, and the instructions that the emitter needs."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np

from pipeline.ir.graph import DType

MEMORY_TYPE: dict[DType, str] = {
    "float64": "double", "float32": "float", "float16": "half", "bfloat16": "i16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint64": "i64", "uint32": "i32", "uint16": "i16", "uint8": "i8", "bool": "i8",
}  # fmt: skip
# half precision is computed in float and rounded when it is stored
VALUE_TYPE: dict[DType, str] = MEMORY_TYPE | {"float16": "float", "bfloat16": "float", "bool": "i1"}
FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})
UNSIGNED = frozenset({"uint64", "uint32", "uint16", "uint8", "bool"})


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA name or a literal, its element type, and its lanes (1: a scalar)."""

    name: str
    type: str
    lanes: int = 1

    @property
    def literal(self) -> bool:
        return not self.name.startswith("%")

    @property
    def nan(self) -> bool:
        """Whether it is a literal that is not a number."""
        if not self.literal or self.type not in ("float", "double") or not self.name.startswith("0x"):
            return False
        (exact,) = struct.unpack(">d", bytes.fromhex(self.name[2:]))
        return math.isnan(exact)

    def __str__(self) -> str:
        """The operand without its type; a literal in several lanes is a splat."""
        if self.lanes > 1 and self.literal and not self.name.startswith(("<", "splat", "zeroinit", "poison")):
            return f"splat ({self.type} {self.name})"
        return self.name


def vector_type(type_: str, lanes: int) -> str:
    return type_ if lanes == 1 else f"<{lanes} x {type_}>"


def literal(value: int | float | bool, type_: str, lanes: int = 1) -> Value:
    """A constant. Floats are written as the bits of the double of the same value, so that nothing is rounded twice."""
    if type_ in ("float", "double"):
        with np.errstate(over="ignore"):
            exact = float(np.float32(value)) if type_ == "float" else float(value)
        return Value("0x" + struct.pack(">d", exact).hex().upper(), type_, lanes)
    if type_ == "i1":
        return Value("true" if value else "false", type_, lanes)
    return Value(str(int(value)), type_, lanes)


class IrBuilder:
    """Collects the lines of one function. Values of a function are numbered; blocks are named."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.entry: list[str] = []  # allocas: LLVM promotes only those of the entry block
        self.declarations: dict[str, str] = {}
        self._next = 0
        self.block = "entry"

    def fresh(self, stem: str = "v") -> str:
        self._next += 1
        return f"%{stem}{self._next}"

    def emit(self, line: str) -> None:
        self.lines.append("  " + line)

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def new_label(self, stem: str) -> str:
        self._next += 1
        return f"{stem}{self._next}"

    def assign(self, text: str, type_: str, lanes: int = 1) -> Value:
        name = self.fresh()
        self.emit(f"{name} = {text}")
        return Value(name, type_, lanes)

    def alloca(self, count: int, type_: str, align: int) -> str:
        name = self.fresh("buf")
        self.entry.append(f"  {name} = alloca [{count} x {type_}], align {align}")
        return name

    def binary(self, instruction: str, a: Value, b: Value) -> Value:
        lanes = max(a.lanes, b.lanes)
        a, b = self.splat(a, lanes), self.splat(b, lanes)
        return self.assign(f"{instruction} {vector_type(a.type, lanes)} {a}, {b}", a.type, lanes)

    def compare(self, instruction: str, a: Value, b: Value) -> Value:
        """`fcmp olt`, `icmp slt` …"""
        lanes = max(a.lanes, b.lanes)
        a, b = self.splat(a, lanes), self.splat(b, lanes)
        return self.assign(f"{instruction} {vector_type(a.type, lanes)} {a}, {b}", "i1", lanes)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        lanes = max(condition.lanes, a.lanes, b.lanes)
        condition, a, b = (self.splat(v, lanes) for v in (condition, a, b))
        type_ = vector_type(a.type, lanes)
        return self.assign(f"select {vector_type('i1', lanes)} {condition}, {type_} {a}, {type_} {b}", a.type, lanes)

    def convert(self, instruction: str, a: Value, to: str) -> Value:
        """`fpext`, `sitofp`, `bitcast` …"""
        return self.assign(
            f"{instruction} {vector_type(a.type, a.lanes)} {a} to {vector_type(to, a.lanes)}", to, a.lanes
        )

    def intrinsic(self, name: str, *args: Value, result: str | None = None, flags: str = "") -> Value:
        """llvm.<name> overloaded on the type of its operands, all of one type; `flags` of fast mathematics: "nsz "."""
        lanes = max(arg.lanes for arg in args)
        args = tuple(self.splat(arg, lanes) for arg in args)
        type_ = vector_type(args[0].type, lanes)
        symbol = f"llvm.{name}.{mangle(args[0].type, lanes)}"
        out = vector_type(result or args[0].type, lanes)
        self.declare(symbol, f"declare {out} @{symbol}({', '.join([type_] * len(args))})")
        operands = ", ".join(f"{type_} {arg}" for arg in args)
        return self.assign(f"call {flags}{out} @{symbol}({operands})", result or args[0].type, lanes)

    def call(self, symbol: str, result: str, lanes: int, *args: Value) -> Value:
        """A function whose definition is appended to the module by whoever asked for it."""
        args = tuple(self.splat(arg, lanes) for arg in args)
        operands = ", ".join(f"{vector_type(arg.type, lanes)} {arg}" for arg in args)
        return self.assign(f"call {vector_type(result, lanes)} @{symbol.lstrip('@')}({operands})", result, lanes)

    def declare(self, symbol: str, text: str) -> None:
        self.declarations.setdefault(symbol, text)

    def splat(self, value: Value, lanes: int) -> Value:
        """The value in every lane."""
        if value.lanes == lanes:
            return value
        if value.literal:
            return Value(value.name, value.type, lanes)
        assert value.lanes == 1, f"{value.lanes} lanes into {lanes}"
        type_ = vector_type(value.type, lanes)
        first = self.assign(f"insertelement {type_} poison, {value.type} {value}, i64 0", value.type, lanes)
        return self.assign(
            f"shufflevector {type_} {first}, {type_} poison, <{lanes} x i32> zeroinitializer", value.type, lanes
        )

    def branch(self, condition: Value, then: str, otherwise: str) -> None:
        self.emit(f"br i1 {condition}, label %{then}, label %{otherwise}")

    def jump(self, target: str) -> None:
        self.emit(f"br label %{target}")


def mangle(type_: str, lanes: int) -> str:
    """The suffix of an overloaded intrinsic."""
    short = {"float": "f32", "double": "f64", "half": "f16"}.get(type_, type_)
    return short if lanes == 1 else f"v{lanes}{short}"


def lane_mask(low: int, high: int, lanes: int) -> Value:
    """A constant mask that is true in lanes low … high - 1."""
    bits = ", ".join(f"i1 {'true' if low <= lane < high else 'false'}" for lane in range(lanes))
    return Value(f"<{bits}>", "i1", lanes)


def lane_numbers(lanes: int, step: int = 1) -> Value:
    """The constant vector 0, step, 2*step …"""
    return Value("<" + ", ".join(f"i64 {lane * step}" for lane in range(lanes)) + ">", "i64", lanes)
