"""The text of a program: readable, deterministic, and parsed back to the equal object by `program_parse`.

    program scale(t):
        derived n = ceildiv(100, t)
        input x: float32[100]
        output y: float32[100]
        body:
            for i0 in parallel(n):
                for i1 in vectorized(t):
                    block scale:
                        spatial i in range(100) = i0*{t} + i1
                        y[i] = x[i] * 2.0:float32

An allocated buffer may be padded or swizzled: `alloc s: float16[64, 32] in shared padded(8):`.

The annotations of a loop follow it: `for i in serial(16) with prefetch=4:`.

A size is a polynomial in braces. A dtype follows a colon where it is not the natural one: int64 for an integer, bool
for true and false, the declared one for a load, that of the operands for a function. Names that are not plain are in
double quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import assert_never

from pipeline.ir.expr import Const, Expr, Load, Op, Size, Var, dtype_of
from pipeline.ir.graph import DType
from pipeline.ir.poly import Poly
from pipeline.ir.program import Alloc, Block, Buffer, Combine, Loop, Program, Seq, Stmt

INFIX: Mapping[str, tuple[str, int]] = {
    "or": ("or", 1), "and": ("and", 2),
    "lt": ("<", 3), "le": ("<=", 3), "gt": (">", 3), "ge": (">=", 3), "eq": ("==", 3), "ne": ("!=", 3),
    "add": ("+", 4), "sub": ("-", 4), "mul": ("*", 5), "div": ("/", 5), "floordiv": ("//", 5), "mod": ("%", 5),
}  # fmt: skip
COMPARISON = 3  # the precedence that does not chain
WORDS = frozenset({"and", "or", "true", "false", "inf", "nan", "in"})  # what a name in an expression cannot be
RESERVED = WORDS | {
    "for", "block", "alloc", "seq", "pass", "spatial", "reduce", "scan", "where", "init", "program", "prologue", "body",
    "derived", "buffer", "input", "constant", "output", "packed", "intermediate",
}  # fmt: skip
ASSIGN: Mapping[Combine | None, str] = {None: "=", "sum": "+=", "prod": "*=", "max": "max=", "min": "min="}
TO_BOOL = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor", "not", "isnan", "isinf"})
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
INDENT = "    "


def natural_dtype(fn: str, args: tuple[Expr, ...]) -> DType | None:
    """The dtype that a function has without saying; None where it must say."""
    if fn == "cast" or not args:
        return None
    if fn in TO_BOOL:
        return "bool"
    return dtype_of(args[1] if fn in ("where", "guard") and len(args) > 1 else args[0])


def name_text(name: str, reserved: frozenset[str] = RESERVED) -> str:
    return name if PLAIN.fullmatch(name) and name not in reserved else json.dumps(name)


def const_text(const: Const) -> str:
    if const.dtype == "bool" and isinstance(const.value, bool):
        return "true" if const.value else "false"
    number = repr(const.value).lower()
    return number if const.dtype == "int64" and type(const.value) is int else f"{number}:{const.dtype}"


def expr_text(expr: Expr, dtypes: Mapping[str, DType] | None = None) -> str:
    """The text of an expression; `dtypes` are those of the buffers that are declared before it."""
    return _expr(expr, 0, dtypes or {})


def _expr(expr: Expr, level: int, dtypes: Mapping[str, DType]) -> str:
    match expr:
        case Const():
            return const_text(expr)
        case Var(name):
            return name_text(name)
        case Size(poly):
            return "{" + str(poly) + "}"
        case Load(buffer, indices, dtype):
            suffix = "" if dtypes.get(buffer) == dtype else f":{dtype}"
            return f"{name_text(buffer)}[{_list(indices, dtypes)}]{suffix}"
        case Op(fn, args, dtype):
            natural = natural_dtype(fn, args) == dtype
            if fn in INFIX and natural and len(args) == 2:
                sign, own = INFIX[fn]
                left = _expr(args[0], own + (own == COMPARISON), dtypes)
                text = f"{left} {sign} {_expr(args[1], own + 1, dtypes)}"
                return f"({text})" if own < level else text
            return f"{name_text(fn, WORDS)}({_list(args, dtypes)}){'' if natural else f':{dtype}'}"
        case _:
            assert_never(expr)


def _list(exprs: tuple[Expr, ...], dtypes: Mapping[str, DType]) -> str:
    return ", ".join(_expr(expr, 0, dtypes) for expr in exprs)


def polys_text(polys: Iterable[Poly]) -> str:
    return ", ".join(str(poly) for poly in polys)


def buffer_text(buffer: Buffer) -> str:
    return f"{name_text(buffer.name)}: {buffer.dtype}[{polys_text(buffer.shape)}]"


def placing_text(buffer: Buffer) -> str:
    """How the elements of an allocated buffer lie, where that is not row by row without gaps."""
    pad = f" padded({buffer.pad})" if buffer.pad.terms else ""
    return pad + (" swizzled" if buffer.swizzled else "")


def to_text(program: Program) -> str:
    """The whole program; ends with a newline."""
    return "\n".join(_program(program)) + "\n"


def _program(program: Program) -> Iterator[str]:
    dtypes: dict[str, DType] = {}
    yield f"program {name_text(program.name)}({', '.join(map(name_text, program.params))}):"
    for derived in program.derived:
        yield f"{INDENT}derived {name_text(derived.name)} = ceildiv({derived.numerator}, {derived.denominator})"
    for buffer in program.buffers:
        dtypes[buffer.name] = buffer.dtype
        yield f"{INDENT}{buffer.role} {buffer_text(buffer)}{'' if buffer.scope == 'global' else f' in {buffer.scope}'}"
    if program.prologue.body:
        yield f"{INDENT}prologue:"
        yield from _sequence(program.prologue, INDENT * 2, dtypes)
    yield f"{INDENT}body:"
    yield from _sequence(program.body, INDENT * 2, dtypes)


def _sequence(seq: Seq, indent: str, dtypes: dict[str, DType]) -> Iterator[str]:
    if not seq.body:
        yield f"{indent}pass"
    for stmt in seq.body:
        yield from _statement(stmt, indent, dtypes)


def _inside(stmt: Stmt, indent: str, dtypes: dict[str, DType]) -> Iterator[str]:
    """A body: several lines are a sequence, so that a sequence of one, or of none, says so."""
    if isinstance(stmt, Seq) and len(stmt.body) > 1:
        yield from _sequence(stmt, indent, dtypes)
    else:
        yield from _statement(stmt, indent, dtypes)


def _statement(stmt: Stmt, indent: str, dtypes: dict[str, DType]) -> Iterator[str]:
    match stmt:
        case Seq():
            yield f"{indent}seq:"
            yield from _sequence(stmt, indent + INDENT, dtypes)
        case Loop(axes, body, kind):
            names = ", ".join(name_text(axis.var) for axis in axes)
            extents = polys_text(axis.extent for axis in axes)
            notes = ", ".join(f"{name_text(key)}={json.dumps(value)}" for key, value in stmt.annotations)
            yield f"{indent}for {names}{' ' if axes else ''}in {kind}({extents}){' with ' if notes else ''}{notes}:"
            yield from _inside(body, indent + INDENT, dtypes)
        case Alloc(buffer, body):
            dtypes[buffer.name] = buffer.dtype
            role = "" if buffer.role == "intermediate" else f" as {buffer.role}"
            yield f"{indent}alloc {buffer_text(buffer)} in {buffer.scope}{role}{placing_text(buffer)}:"
            yield from _inside(body, indent + INDENT, dtypes)
        case Block():
            yield f"{indent}block {name_text(stmt.name)}:"
            inner = indent + INDENT
            for it in stmt.iters:
                yield (f"{inner}{it.kind} {name_text(it.var)} in range({it.extent}) = "
                       f"{expr_text(it.binding, dtypes)}")  # fmt: skip
            for condition in stmt.where:
                yield f"{inner}where {expr_text(condition, dtypes)}"
            if stmt.init is not None:
                yield f"{inner}init {const_text(stmt.init)}"
            target = f"{name_text(stmt.buffer)}[{_list(stmt.indices, dtypes)}]"
            yield f"{inner}{target} {ASSIGN[stmt.combine]} {expr_text(stmt.value, dtypes)}"
        case _:
            assert_never(stmt)
