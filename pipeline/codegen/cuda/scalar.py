"""Every scalar function of the IR as a C++ expression; what needs more than an operator is a function of the header."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.codegen.cuda.cpp import HALVES, MEMORY, UNARY, VALUE, Cpp, call, choice, converted, infix, literal
from pipeline.errors import CodegenError
from pipeline.ir.expr import FLOATS
from pipeline.ir.graph import DType

COMPARE: Mapping[str, str] = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
ARITHMETIC: Mapping[str, str] = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
MATH = frozenset({
    "exp", "log", "tanh", "erf", "sigmoid", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh",
    "acosh", "atanh", "pow", "reciprocal", "rsqrt", "sqrt", "floor", "ceil", "round", "fmod", "mod", "max", "min",
    "abs", "sign", "isnan", "isinf",
})  # fmt: skip
OF_INTEGERS = frozenset({"add", "sub", "mul", "max", "min", "neg", "abs", "sign", "div", "mod", "fmod", "floordiv",
                         "pow"})  # fmt: skip
UNCHANGED = frozenset({"floor", "ceil", "round", "identity"})


def scalar(fn: str, args: tuple[Cpp, ...], source: DType, result: DType) -> Cpp:
    """fn of the operands. source: the dtype of the (first) operand, result: that of the outcome."""
    if fn == "cast":
        return cast(args[0], source, result)
    if fn == "identity":
        return args[0]
    if fn == "where":
        return choice(args[0], args[1], args[2], VALUE[result])
    if fn in COMPARE:
        return infix(COMPARE[fn], args[0], args[1], "bool")
    if source in FLOATS:
        return _float(fn, args, VALUE[source])
    return _bool(fn, args) if source == "bool" else _integer(fn, args, VALUE[source])


def _float(fn: str, args: tuple[Cpp, ...], type_: str) -> Cpp:
    if fn in ARITHMETIC:
        return infix(ARITHMETIC[fn], args[0], args[1], type_)
    if fn == "neg":
        return Cpp(f"-{args[0].at(UNARY + 1)}", type_, UNARY)
    if fn in MATH:
        return call(f"ms::{fn}", args, "bool" if fn in ("isnan", "isinf") else type_)
    raise CodegenError(f"no code for {fn} on floating point", where="codegen.cuda.scalar")


def _bool(fn: str, args: tuple[Cpp, ...]) -> Cpp:
    match fn:
        case "and" | "mul" | "min":
            return infix("&&", args[0], args[1], "bool")
        case "or" | "add" | "max":
            return infix("||", args[0], args[1], "bool")
        case "xor":
            return infix("!=", args[0], args[1], "bool")
        case "not":
            return Cpp(f"!{args[0].at(UNARY + 1)}", "bool", UNARY)
        case "abs" | "sign":
            return args[0]
        case _:
            raise CodegenError(f"no code for {fn} on bool", where="codegen.cuda.scalar")


def _integer(fn: str, args: tuple[Cpp, ...], type_: str) -> Cpp:
    if fn in UNCHANGED:
        return args[0]
    if fn in ("isnan", "isinf"):
        return Cpp("false", "bool")
    if fn in OF_INTEGERS:
        return call(f"ms::{fn}", (converted(arg, type_) for arg in args), type_)
    raise CodegenError(f"no code for {fn} on {type_}", where="codegen.cuda.scalar")


def cast(a: Cpp, source: DType, to: DType) -> Cpp:
    """A conversion of dtype: floats to integers cut fractions off and saturate, anything to bool asks for unequal to
    zero, halves round."""
    if source == to:
        return a
    if to == "bool":
        return infix("!=", a, literal(0, source), "bool")
    if to in HALVES:
        return call(HALVES[to], (converted(a, "float"),), "float")
    if source in FLOATS and to not in FLOATS:
        return call(f"ms::saturate<{VALUE[to]}>", (a,), VALUE[to])
    return converted(a, VALUE[to])


def stored(a: Cpp, dtype: DType) -> Cpp:
    """The value in the type that memory holds."""
    if a.half is not None and a.half[0] == MEMORY[dtype]:
        return Cpp(a.half[1], MEMORY[dtype])  # as it was: no bit of it has changed
    if dtype in HALVES:
        return call(f"ms::to<{MEMORY[dtype]}>", (converted(a, "float"),), MEMORY[dtype])
    return converted(a, VALUE[dtype])
