"""The math library of generated code: elementwise functions on vectors of any length, as LLVM IR to append to a module.

In float32 every function is within 2 ulp over the whole range, special values included, and gives the same bits for any
number of lanes. In float64 the lanes go one by one through the C math library. Calls do not declare LLVM's intrinsics:
LLVM does that itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pipeline.codegen.llvm import vector_math_narrow as narrow
from pipeline.codegen.llvm import vector_math_wide as wide
from pipeline.codegen.llvm.vector_math_body import Body, Value
from pipeline.errors import CodegenError, listed
from pipeline.ir.target import Target

Element = Literal["float", "double"]

_FLOAT: dict[str, Callable[..., Value]] = {
    "acos": wide.acos,
    "acosh": wide.acosh,
    "asin": wide.asin,
    "asinh": wide.asinh,
    "atan": wide.atan,
    "atanh": wide.atanh,
    "cos": wide.cos,
    "cosh": wide.cosh,
    "erf": narrow.erf,
    "exp": narrow.exp,
    "log": narrow.log,
    "pow": wide.pow_,
    "reciprocal": narrow.reciprocal,
    "rsqrt": narrow.rsqrt,
    "sigmoid": narrow.sigmoid,
    "sin": wide.sin,
    "sinh": wide.sinh,
    "tan": wide.tan,
    "tanh": narrow.tanh,
}
_LARGE_ANGLES = ("sin", "cos", "tan")
# In float64 these are made of exact operations and of the C library's exp.
_COMPOSED = ("reciprocal", "rsqrt", "sigmoid")

FUNCTIONS: dict[str, int] = {name: 2 if name == "pow" else 1 for name in _FLOAT}
"""The names of the functions, and how many arguments each takes."""


class MathLibrary:
    """Collects the functions that a module calls, each definition once.

    library = MathLibrary(target)
    text += f"%y = call <16 x float> @{library.call_symbol('exp', 16, 'float')}(<16 x float> %x)"
    text += library.definitions()
    """

    __slots__ = ("_definitions", "target")

    def __init__(self, target: Target) -> None:
        self.target = target
        self._definitions: dict[str, str] = {}

    def call_symbol(self, fn: str, lanes: int, dtype: Element) -> str:
        """The symbol (without its @) of a function that takes and returns `<lanes x dtype>`, for one lane a scalar."""
        symbol, parts = _define(fn, lanes, dtype, self.target)
        self._definitions.update(parts)
        return symbol

    def definitions(self) -> str:
        """All that was asked for, with what it needs, in a fixed order."""
        return "\n".join(self._definitions[symbol] for symbol in sorted(self._definitions))


def vector_math(fn: str, lanes: int, dtype: Element, target: Target) -> tuple[str, str]:
    """The symbol of one function, and its definition with all that it needs."""
    symbol, parts = _define(fn, lanes, dtype, target)
    return symbol, "\n".join(parts[name] for name in sorted(parts))


def _define(fn: str, lanes: int, dtype: Element, target: Target) -> tuple[str, dict[str, str]]:
    if fn not in FUNCTIONS:
        raise CodegenError("unknown math function", where=fn, todo=f"Use one of {listed(FUNCTIONS)}")
    if lanes < 1:
        raise CodegenError("a vector needs a lane", where=fn, why=f"lanes is {lanes}", todo="Use 1 for a scalar")
    symbol = f"muschedule.{fn}.{'f32' if dtype == 'float' else 'f64'}" + (f"x{lanes}" if lanes > 1 else "")
    body = Body(lanes, [dtype] * FUNCTIONS[fn], scalef=lanes == 16 and "+avx512f" in target.features)
    parts: dict[str, str] = {}
    if dtype == "float":
        result = _FLOAT[fn](*body.parameters)
        if fn in _LARGE_ANGLES:
            parts[wide.LARGE_ANGLE_SYMBOL] = wide.large_angle_ir()
    elif fn in _COMPOSED:
        x = body.parameters[0]
        match fn:
            case "reciprocal":
                result = 1.0 / x
            case "rsqrt":
                result = 1.0 / x.sqrt()
            case _:
                e = _through_libm("exp", body, (-x.absolute(),), parts)
                result = x.lt(0.0).select(e, x.like(1.0)) / (e + 1.0)
    else:
        result = _through_libm(fn, body, body.parameters, parts)
    parts[symbol] = body.define(symbol, result)
    return symbol, parts


def _through_libm(fn: str, body: Body, arguments: tuple[Value, ...], parts: dict[str, str]) -> Value:
    """The C library's float64 function of that name, lane by lane."""
    parts[fn] = f"declare double @{fn}({', '.join(['double'] * len(arguments))})\n"
    if body.lanes == 1:
        return body.emit(f"call double @{fn}({', '.join(argument.typed for argument in arguments)})", "double")
    result = arguments[0].like(0.0)
    for lane in range(body.lanes):
        scalars = []
        for argument in arguments:
            scalars.append(body.name())
            body.lines.append(f"  {scalars[-1]} = extractelement {argument.typed}, i64 {lane}")
        called = body.name()
        body.lines.append(f"  {called} = call double @{fn}({', '.join(f'double {scalar}' for scalar in scalars)})")
        result = body.emit(f"insertelement {result.typed}, double {called}, i64 {lane}", "double")
    return result
