"""Scalar expressions as C++."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from pipeline.codegen.cuda.cpp import HALVES, MEMORY, VALUE, Cpp, choice, converted, literal
from pipeline.codegen.cuda.emit_index import IndexEmitter, same
from pipeline.codegen.cuda.emit_state import Place
from pipeline.codegen.cuda.scalar import COMPARE, scalar
from pipeline.ir.expr import Const, Expr, Load, Op, Size, Var, dtype_of


@dataclass(slots=True)
class ValueEmitter(IndexEmitter):
    """Values; halves are floats."""

    def value(self, expr: Expr) -> Cpp:
        match expr:
            case Const(value, dtype) if dtype != "int64":
                return literal(value, dtype)
            case Load() if expr.dtype != "int64":
                return self.read(expr)
            case Const() | Load() | Var() | Size():
                return self.index(expr)
            case Op("and" | "or" as fn, (a, b), "bool"):
                return self.both(fn, a, b)
            case Op("guard", (condition, value, otherwise), dtype) if dtype != "int64":
                return self.guard(condition, value, otherwise, VALUE[dtype])
            case Op(fn, (a, b), "bool") if fn in COMPARE and dtype_of(a) == "int64":
                x, y = same(self.index(a), self.index(b))
                return scalar(fn, (x, y), "int64", "bool")
            case Op(fn, args, dtype):
                if dtype == "int64":
                    return self.index(expr)
                if fn == "cast" and dtype_of(args[0]) == "int64":
                    return scalar(fn, (self.index(args[0]),), "int64", dtype)  # from 32 bits where it is no more
                if fn == "where" and (known := self.decide(args[0])) is not None:
                    return self.value(args[1] if known else args[2])
                given = tuple(self.wide(arg) for arg in args)
                return scalar(fn, given, dtype_of(args[0]), dtype)
            case _:
                assert_never(expr)

    def both(self, fn: str, a: Expr, b: Expr) -> Cpp:
        """Of two conditions, what is not known."""
        for known, other in ((self.decide(a), b), (self.decide(b), a)):
            if known is not None:
                absorbed = known is (fn == "or")
                return Cpp("true" if known else "false", "bool") if absorbed else self.value(other)
        return scalar(fn, (self.value(a), self.value(b)), "bool", "bool")

    def guard(self, condition: Expr, value: Expr, otherwise: Expr, type_: str) -> Cpp:
        """Only one of the two is evaluated, as C++ does too."""
        known = self.decide(condition)
        if known is not None:
            return self.value(value if known else otherwise)
        test = self.value(condition)
        with self.assuming(self.facts):
            self.learn(condition)
            yes = self.value(value)
        with self.assuming(self.facts):
            self.learn(condition, False)
            no = self.value(otherwise)
        return choice(test, converted(yes, type_), converted(no, type_), type_)

    def read(self, load: Load) -> Cpp:
        place = self.places[load.buffer]
        return self.loaded(place, self.element(place, load.indices))

    def element(self, place: Place, indices: tuple[Expr, ...]) -> Cpp:
        """The element itself, as it is in memory."""
        return Cpp(f"{place.name}[{self.offset(place, indices)}]", VALUE[place.buffer.dtype])

    def loaded(self, place: Place, element: Cpp) -> Cpp:
        """From what memory holds to what is computed with."""
        if place.buffer.dtype in HALVES:
            return Cpp(f"ms::to_float({element})", "float", half=(MEMORY[place.buffer.dtype], element.text))
        return element
