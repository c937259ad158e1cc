"""Every scalar function of the graph as LLVM instructions on values of any lane count."""

from __future__ import annotations

import math
from typing import Literal, Protocol

from pipeline.codegen.llvm.ir_builder import FLOATS, UNSIGNED, VALUE_TYPE, IrBuilder, Value, literal, vector_type
from pipeline.errors import CodegenError
from pipeline.ir.graph import DType

MATH = frozenset({
    "exp", "log", "tanh", "erf", "sigmoid", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh",
    "acosh", "atanh", "pow", "reciprocal", "rsqrt",
})  # fmt: skip
COMPARE = {"eq": ("oeq", "eq"), "ne": ("une", "ne"), "lt": ("olt", "lt"), "le": ("ole", "le"), "gt": ("ogt", "gt"),
           "ge": ("oge", "ge")}  # fmt: skip
ROUND = {"floor": "floor", "ceil": "ceil", "round": "roundeven"}
BITS = {"float": 32, "double": 64, "i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}


class MathFunctions(Protocol):
    """Where the approximations of exp, tanh … come from."""

    def call_symbol(self, fn: str, lanes: int, dtype: Literal["float", "double"]) -> str: ...


def elementwise(
    b: IrBuilder, library: MathFunctions, fn: str, args: tuple[Value, ...], source: DType, result: DType
) -> Value:
    """fn of the operands. source: the dtype of the (first) operand, result: that of the outcome."""
    if fn == "cast":
        return cast(b, args[0], source, result)
    if fn == "identity":
        return args[0]
    if fn == "where":
        return b.select(args[0], args[1], args[2])
    if fn in COMPARE:
        return _compare(b, fn, args, source)
    if fn in ("and", "or", "xor"):
        return b.binary(fn, *args)
    if fn == "not":
        ones = literal(True, "i1") if args[0].type == "i1" else literal(-1, args[0].type)
        return b.binary("xor", args[0], ones)
    if source in FLOATS:
        return _float(b, library, fn, args)
    if source == "bool":
        return _bool(b, fn, args)
    return _integer(b, fn, args, source)


def _compare(b: IrBuilder, fn: str, args: tuple[Value, ...], dtype: DType) -> Value:
    ordered, integer = COMPARE[fn]
    if dtype in FLOATS:
        return b.compare(f"fcmp {ordered}", *args)
    sign = "" if integer in ("eq", "ne") else ("u" if dtype in UNSIGNED else "s")
    return b.compare(f"icmp {sign}{integer}", *args)


def _float(b: IrBuilder, library: MathFunctions, fn: str, args: tuple[Value, ...]) -> Value:
    a = args[0]
    match fn:
        case "add" | "sub" | "mul" | "div":
            return b.binary("f" + fn, *args)
        case "max" | "min":
            return extremum(b, fn, *args)
        case "neg":
            return b.assign(f"fneg {_typed(a)}", a.type, a.lanes)
        case "abs":
            return b.intrinsic("fabs", a)
        case "sqrt":
            return b.intrinsic("sqrt", a)
        case "floor" | "ceil" | "round":
            return b.intrinsic(ROUND[fn], a)
        case "sign":
            zero = literal(0.0, a.type)
            still = b.binary("fadd", a, zero)  # NaN, and 0 without its sign
            up = b.select(b.compare("fcmp ogt", a, zero), literal(1.0, a.type), still)
            return b.select(b.compare("fcmp olt", a, zero), literal(-1.0, a.type), up)
        case "isnan":
            return b.compare("fcmp uno", a, a)
        case "isinf":
            return b.compare("fcmp oeq", b.intrinsic("fabs", a), literal(math.inf, a.type))
        case "fmod":
            return b.binary("frem", *args)
        case "mod":
            remainder = b.binary("frem", *args)
            zero = literal(0.0, a.type)
            unlike = b.compare("fcmp olt", b.binary("fmul", remainder, args[1]), zero)
            return b.select(unlike, b.binary("fadd", remainder, args[1]), remainder)
        case "reciprocal":
            return b.binary("fdiv", literal(1.0, a.type), a)
        case "rsqrt":
            return b.binary("fdiv", literal(1.0, a.type), b.intrinsic("sqrt", a))
        case _ if fn in MATH:
            lanes = max(arg.lanes for arg in args)
            symbol = library.call_symbol(fn, lanes, "float" if a.type == "float" else "double")
            return b.call(symbol, a.type, lanes, *args)
        case _:
            raise CodegenError(f"no code for {fn} on floating point", where="codegen.llvm.elementwise")


def extremum(b: IrBuilder, fn: str, x: Value, y: Value) -> Value:
    """max or min that hands NaN on, with one instruction where an operand is a number that is known."""
    if y.literal and not x.literal:
        x, y = y, x
    if x.literal and not x.nan:
        # x86 gives the second operand where either is NaN: with a constant first that is already right
        better = "fcmp ogt" if fn == "max" else "fcmp olt"
        return b.select(b.compare(better, x, y), x, y)
    # either zero where both are; two selections would be merged into masks, which take four instructions
    return b.intrinsic("maximum" if fn == "max" else "minimum", x, y, flags="nsz ")


def _bool(b: IrBuilder, fn: str, args: tuple[Value, ...]) -> Value:
    match fn:
        case "add" | "max":
            return b.binary("or", *args)
        case "mul" | "min":
            return b.binary("and", *args)
        case "abs" | "sign":
            return args[0]
        case _:
            raise CodegenError(f"no code for {fn} on bool", where="codegen.llvm.elementwise")


def _integer(b: IrBuilder, fn: str, args: tuple[Value, ...], dtype: DType) -> Value:
    a = args[0]
    unsigned = dtype in UNSIGNED
    sign = "u" if unsigned else "s"
    zero, one = literal(0, a.type), literal(1, a.type)
    match fn:
        case "add" | "sub" | "mul":
            return b.binary(fn, *args)
        case "max" | "min":
            return b.intrinsic(f"{sign}{fn}", *args)
        case "neg":
            return b.binary("sub", zero, a)
        case "abs":
            return a if unsigned else b.intrinsic("smax", a, b.binary("sub", zero, a))
        case "sign":
            if unsigned:
                return b.select(b.compare("icmp eq", a, zero), zero, one)
            up = b.select(b.compare("icmp sgt", a, zero), one, zero)
            return b.select(b.compare("icmp slt", a, zero), literal(-1, a.type), up)
        case "floor" | "ceil" | "round":
            return a
        case "isnan" | "isinf":
            return literal(False, "i1", a.lanes)
        case "div" | "mod" | "fmod" | "floordiv":
            return _divide(b, fn, a, args[1], sign)
        case "pow":
            return _power(b, a, args[1], unsigned)
        case _:
            raise CodegenError(f"no code for {fn} on {dtype}", where="codegen.llvm.elementwise")


def _power(b: IrBuilder, x: Value, y: Value, unsigned: bool) -> Value:
    """Squares and products, which wrap; a negative power is the reciprocal, truncated: not 0 only for 1 and -1."""
    zero, one = literal(0, x.type), literal(1, x.type)
    if y.literal and y.name.isdigit():
        return _known_power(b, x, int(y.name))
    lanes = max(x.lanes, y.lanes)
    type_ = vector_type(x.type, lanes)
    x, y = b.splat(x, lanes), b.splat(y, lanes)
    head, done, before = b.new_label("power"), b.new_label("raised"), b.block
    names = [b.fresh("p") for _ in range(4)]
    bit, raised, square, rest = (Value(name, x.type, lanes) for name in names)
    b.jump(head)
    b.label(head)
    position = len(b.lines)
    used = b.compare("icmp ne", b.binary("and", rest, one), zero)
    further = b.select(used, b.binary("mul", raised, square), raised)
    squared, shifted = b.binary("mul", square, square), b.binary("lshr", rest, one)
    following = b.assign(f"add i32 {bit}, 1", "i32")
    starts = (("i32", bit, "0", following), (type_, raised, str(b.splat(one, lanes)), further),
              (type_, square, str(x), squared), (type_, rest, str(y), shifted))  # fmt: skip
    b.lines[position:position] = [
        f"  {name} = phi {kind} [ {start}, %{before} ], [ {later}, %{head} ]" for kind, name, start, later in starts
    ]
    again = b.assign(f"icmp slt i32 {following}, {BITS[x.type] - (0 if unsigned else 1)}", "i1")
    b.branch(again, head, done)
    b.label(done)
    raised = further
    if unsigned:
        return raised
    minus = literal(-1, x.type)
    odd = b.compare("icmp ne", b.binary("and", y, one), zero)
    inverse = b.select(b.compare("icmp eq", x, minus), b.select(odd, minus, one), zero)
    inverse = b.select(b.compare("icmp eq", x, one), one, inverse)
    return b.select(b.compare("icmp slt", y, zero), inverse, raised)


def _known_power(b: IrBuilder, x: Value, exponent: int) -> Value:
    raised, square = literal(1, x.type, x.lanes), x
    while exponent:
        raised = b.binary("mul", raised, square) if exponent & 1 else raised
        exponent >>= 1
        square = b.binary("mul", square, square) if exponent else square
    return raised


def _divide(b: IrBuilder, fn: str, x: Value, y: Value, sign: str) -> Value:
    """Division is undefined in LLVM by zero, where ours is 0, and for INT_MIN / -1: the divisor is made 1 there."""
    zero, one = literal(0, x.type), literal(1, x.type)
    by_zero: Value | None = None
    if not (y.literal and y.name.lstrip("-").isdigit() and int(y.name) > 0):
        bad = by_zero = b.compare("icmp eq", y, zero)
        if sign == "s":
            least = literal(-(1 << (BITS[x.type] - 1)), x.type)
            overflow = b.binary("and", b.compare("icmp eq", x, least), b.compare("icmp eq", y, literal(-1, x.type)))
            bad = b.binary("or", bad, overflow)
        y = b.select(bad, one, y)

    def over(quotient: Value) -> Value:
        return quotient if by_zero is None else b.select(by_zero, zero, quotient)

    if fn == "div":
        return over(b.binary(f"{sign}div", x, y))
    remainder = b.binary(f"{sign}rem", x, y)
    if fn == "fmod" or (sign == "u" and fn == "mod"):
        return remainder
    quotient = b.binary(f"{sign}div", x, y) if fn == "floordiv" else None
    if sign == "u":
        assert quotient is not None
        return over(quotient)
    # the remainder of a floored division has the sign of the divisor
    unlike = b.compare("icmp slt", b.binary("xor", remainder, y), zero)
    wrong = b.binary("and", b.compare("icmp ne", remainder, zero), unlike)
    if quotient is not None:
        return over(b.select(wrong, b.binary("sub", quotient, one), quotient))
    return b.select(wrong, b.binary("add", remainder, y), remainder)


def saturate(b: IrBuilder, a: Value, to: str, unsigned: bool) -> Value:
    """A float as an integer: fptosi out of range is undefined, the saturating form is not."""
    lanes = a.lanes
    kind = "fptoui" if unsigned else "fptosi"
    name = f"llvm.{kind}.sat.{_suffix(to, lanes)}.{_suffix(a.type, lanes)}"
    wide = to if lanes == 1 else f"<{lanes} x {to}>"
    b.declare(name, f"declare {wide} @{name}({_type(a)})")
    return b.assign(f"call {wide} @{name}({_typed(a)})", to, lanes)


def cast(b: IrBuilder, a: Value, source: DType, to: DType) -> Value:
    """A conversion of dtype; floats to integers truncate, anything to bool asks for unequal to zero. Halves, which are
    computed with in float, are rounded."""
    old, new = VALUE_TYPE[source], VALUE_TYPE[to]
    if to == "bool":
        if old == "i1":
            return a
        zero = literal(0, old)
        return b.compare("fcmp une" if source in FLOATS else "icmp ne", a, zero)
    if source in FLOATS and to in FLOATS:
        return _rounded(b, a if old == new else b.convert("fpext" if new == "double" else "fptrunc", a, new), to)
    if source in FLOATS:
        return saturate(b, a, new, to in UNSIGNED)
    if to in FLOATS:
        return _rounded(b, b.convert("uitofp" if source in UNSIGNED else "sitofp", a, new), to)
    if BITS[old] < BITS[new]:
        return b.convert("zext" if source in UNSIGNED else "sext", a, new)
    return a if old == new else b.convert("trunc", a, new)


def _rounded(b: IrBuilder, a: Value, to: DType) -> Value:
    """What is left of a value that becomes a half and is then computed with."""
    return widened(b, narrowed(b, a, to), to) if to in ("float16", "bfloat16") else a


def widened(b: IrBuilder, a: Value, dtype: DType) -> Value:
    """A half out of memory as a float."""
    if dtype == "float16":
        return b.convert("fpext", a, "float")
    return b.convert("bitcast", b.binary("shl", b.convert("zext", a, "i32"), literal(16, "i32")), "float")


def narrowed(b: IrBuilder, a: Value, dtype: DType) -> Value:
    """A float as the half that is stored: to nearest, ties to even; NaN stays NaN."""
    if dtype == "float16":
        return b.convert("fptrunc", a, "half")
    bits = b.convert("bitcast", a, "i32")
    odd = b.binary("and", b.binary("lshr", bits, literal(16, "i32")), literal(1, "i32"))
    rounded = b.binary("add", bits, b.binary("add", odd, literal(0x7FFF, "i32")))
    nan = b.compare("fcmp uno", a, a)
    quiet = b.binary("or", bits, literal(0x400000, "i32"))
    return b.convert("trunc", b.binary("lshr", b.select(nan, quiet, rounded), literal(16, "i32")), "i16")


def _type(a: Value) -> str:
    return a.type if a.lanes == 1 else f"<{a.lanes} x {a.type}>"


def _typed(a: Value) -> str:
    return f"{_type(a)} {a}"


def _suffix(type_: str, lanes: int) -> str:
    short = {"float": "f32", "double": "f64"}.get(type_, type_)
    return short if lanes == 1 else f"v{lanes}{short}"
