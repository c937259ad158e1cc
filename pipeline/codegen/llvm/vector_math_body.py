"""A builder of elementwise functions in LLVM IR: Python arithmetic on `Value`s becomes instructions on vectors.

Every operation is the same for any number of lanes (one lane is a scalar), so a function's results do not depend on it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["float", "double", "i32", "i64", "i1"]
_SUFFIX = {"float": "f32", "double": "f64", "i32": "i32", "i64": "i64", "i1": "i1"}


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """One SSA value or constant of a body; a Python number beside it in an operation is a constant of its kind."""

    body: Body
    text: str
    kind: Kind

    def __add__(self, other: Value | float) -> Value:
        return self._binary("fadd" if self._floats else "add", other)

    def __sub__(self, other: Value | float) -> Value:
        return self._binary("fsub" if self._floats else "sub", other)

    def __mul__(self, other: Value | float) -> Value:
        return self._binary("fmul" if self._floats else "mul", other)

    def __truediv__(self, other: Value | float) -> Value:
        return self._binary("fdiv", other)

    def __radd__(self, other: float) -> Value:
        return self.like(other) + self

    def __rsub__(self, other: float) -> Value:
        return self.like(other) - self

    def __rmul__(self, other: float) -> Value:
        return self.like(other) * self

    def __rtruediv__(self, other: float) -> Value:
        return self.like(other) / self

    def __neg__(self) -> Value:
        return self.body.emit(f"fneg {self.typed}", self.kind)

    def __and__(self, other: Value | int) -> Value:
        return self._binary("and", other)

    def __or__(self, other: Value | int) -> Value:
        return self._binary("or", other)

    def __xor__(self, other: Value | int) -> Value:
        return self._binary("xor", other)

    def __lshift__(self, count: int) -> Value:
        return self._binary("shl", count)

    def __rshift__(self, count: int) -> Value:
        """The sign is shifted in."""
        return self._binary("ashr", count)

    def lt(self, other: Value | float) -> Value:
        return self._compare("olt" if self._floats else "slt", other)

    def gt(self, other: Value | float) -> Value:
        return self._compare("ogt" if self._floats else "sgt", other)

    def ge(self, other: Value | float) -> Value:
        return self._compare("oge" if self._floats else "sge", other)

    def eq(self, other: Value | float) -> Value:
        return self._compare("oeq" if self._floats else "eq", other)

    def ne(self, other: Value | float) -> Value:
        """True where either side is NaN."""
        return self._compare("une" if self._floats else "ne", other)

    def select(self, yes: Value | float, no: Value | float) -> Value:
        """`yes` where this i1 is set, else `no`; one of them has to be a Value."""
        one = yes if isinstance(yes, Value) else no
        assert isinstance(one, Value) and self.kind == "i1"
        return self.body.emit(f"select {self.typed}, {one.like(yes).typed}, {one.like(no).typed}", one.kind)

    def at_most(self, bound: float) -> Value:
        """The smaller of the two; NaN stays."""
        return self.gt(bound).select(bound, self)

    def at_least(self, bound: float) -> Value:
        return self.lt(bound).select(bound, self)

    def fma(self, factor: Value | float, addend: Value | float) -> Value:
        """self * factor + addend with one rounding."""
        return self.body.call("fma", self, self.like(factor), self.like(addend))

    def polynomial(self, coefficients: Sequence[float]) -> Value:
        """The polynomial in this value, lowest power first, by Horner's rule."""
        total = self.like(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            total = total.fma(self, coefficient)
        return total

    def absolute(self) -> Value:
        return self.body.call("fabs", self)

    def sqrt(self) -> Value:
        return self.body.call("sqrt", self)

    def trunc(self) -> Value:
        return self.body.call("trunc", self)

    def with_sign_of(self, other: Value) -> Value:
        return self.body.call("copysign", self, other)

    def bits(self) -> Value:
        return self._cast("bitcast", "i32" if self.kind == "float" else "i64")

    def from_bits(self) -> Value:
        return self._cast("bitcast", "float" if self.kind == "i32" else "double")

    def to_float(self) -> Value:
        """A signed integer as a number of the same width."""
        return self._cast("sitofp", "float" if self.kind == "i32" else "double")

    def widen(self) -> Value:
        return self._cast("fpext", "double")

    def narrow(self) -> Value:
        return self._cast("fptrunc", "float")

    def like(self, other: Value | float) -> Value:
        """The number as a constant of this value's kind."""
        return other if isinstance(other, Value) else self.body.constant(other, self.kind)

    @property
    def typed(self) -> str:
        return f"{self.body.type(self.kind)} {self.text}"

    @property
    def _floats(self) -> bool:
        return self.kind in ("float", "double")

    def _binary(self, operation: str, other: Value | float) -> Value:
        return self.body.emit(f"{operation} {self.typed}, {self.like(other).text}", self.kind)

    def _compare(self, how: str, other: Value | float) -> Value:
        operation = "fcmp" if self._floats else "icmp"
        return self.body.emit(f"{operation} {how} {self.typed}, {self.like(other).text}", "i1")

    def _cast(self, operation: str, kind: Kind) -> Value:
        return self.body.emit(f"{operation} {self.typed} to {self.body.type(kind)}", kind)


class Body:
    """The instructions of one function with that many lanes.

    scalef  whether sixteen float32 can be scaled by AVX-512's instruction
    """

    __slots__ = ("_count", "lanes", "lines", "parameters", "scalef")

    def __init__(self, lanes: int, parameters: Sequence[Kind], *, scalef: bool = False) -> None:
        self.lanes = lanes
        self.scalef = scalef
        self.lines: list[str] = []
        self.parameters = tuple(Value(self, f"%x{i}", kind) for i, kind in enumerate(parameters))
        self._count = 0

    def type(self, kind: Kind) -> str:
        return kind if self.lanes == 1 else f"<{self.lanes} x {kind}>"

    def name(self) -> str:
        """A fresh local name."""
        self._count += 1
        return f"%v{self._count}"

    def emit(self, instruction: str, kind: Kind) -> Value:
        name = self.name()
        self.lines.append(f"  {name} = {instruction}")
        return Value(self, name, kind)

    def call(self, intrinsic: str, *arguments: Value) -> Value:
        """LLVM's intrinsic of that name on floating-point arguments of one kind; LLVM declares it itself."""
        kind = arguments[0].kind
        suffix = _SUFFIX[kind] if self.lanes == 1 else f"v{self.lanes}{_SUFFIX[kind]}"
        listed = ", ".join(argument.typed for argument in arguments)
        return self.emit(f"call {self.type(kind)} @llvm.{intrinsic}.{suffix}({listed})", kind)

    def constant(self, value: float, kind: Kind) -> Value:
        match kind:
            case "float" | "double":
                # LLVM writes a float32 with the bits of the equal float64.
                number = struct.unpack("<f", struct.pack("<f", value))[0] if kind == "float" else float(value)
                text = f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
            case _:
                text = str(int(value))
        return Value(self, text if self.lanes == 1 else f"splat ({kind} {text})", kind)

    def define(self, symbol: str, result: Value) -> str:
        """The whole definition: internal, and inlined into whoever calls it."""
        listed = ", ".join(parameter.typed for parameter in self.parameters)
        head = f"define internal {self.type(result.kind)} @{symbol}({listed}) alwaysinline nounwind {{"
        return "\n".join([head, *self.lines, f"  ret {result.typed}", "}", ""])
