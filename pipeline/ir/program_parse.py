"""The parser of program text: the inverse of `program_text`; its errors name line, column and what was expected."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Literal, TypeVar, cast, get_args

from pipeline.ir.annotation import Annotation
from pipeline.ir.expr import Const, Expr, Load, Op, Size, Var
from pipeline.ir.graph import DType
from pipeline.ir.poly import Poly
from pipeline.ir.program import (
    Alloc,
    Axis,
    Block,
    Buffer,
    Combine,
    Derived,
    Iter,
    Loop,
    LoopKind,
    Program,
    Role,
    Scope,
    Seq,
    Stmt,
)
from pipeline.ir.program_text import COMPARISON, INFIX, natural_dtype
from pipeline.ir.text_tokens import Kind, ParseError, Token, tokens

T = TypeVar("T")

BINARY = {sign: (fn, level) for fn, (sign, level) in INFIX.items()}
ITER_KINDS = ("spatial", "reduce", "scan")


class Parser:
    """Recursive descent over the tokens; `dtypes` are those of the buffers declared so far."""

    def __init__(self, text: str) -> None:
        self.tokens = tokens(text)
        self.at = 0
        self.dtypes: dict[str, DType] = {}

    # Tokens

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def next(self) -> Token:
        token = self.token
        self.at += token.kind != "end"
        return token

    def fail(self, expected: str) -> ParseError:
        return ParseError(self.token.line, self.token.column, expected, self.token.shown)

    def sees(self, *texts: str) -> bool:
        return self.token.kind in ("name", "sign") and self.token.text in texts

    def accept(self, text: str) -> bool:
        if not self.sees(text):
            return False
        self.at += 1
        return True

    def expect(self, *texts: str) -> None:
        for text in texts:
            if not self.accept(text):
                raise self.fail(f"'{text}'")

    def kind(self, kind: Kind, expected: str) -> None:
        if self.token.kind != kind:
            raise self.fail(expected)
        self.next()

    def newline(self) -> None:
        self.kind("newline", "the end of the line")

    def name(self, what: str) -> str:
        if self.token.kind == "name":
            return self.next().text
        if self.token.kind == "string":
            try:
                name = json.loads(self.token.text)
            except ValueError:
                raise self.fail("a string as in JSON") from None
            self.next()
            return str(name)
        raise self.fail(what)

    def one_of(self, options: tuple[str, ...], what: str) -> str:
        if self.token.kind != "name" or self.token.text not in options:
            raise self.fail(f"{what} ({', '.join(options)})")
        return self.next().text

    def dtype(self) -> DType:
        return cast(DType, self.one_of(get_args(DType), "a dtype"))

    def separated(self, close: str, item: Callable[[], T]) -> tuple[T, ...]:
        """Items between commas, up to and with the closing sign."""
        items: list[T] = []
        if not self.accept(close):
            items.append(item())
            while self.accept(","):
                items.append(item())
            if not self.accept(close):
                raise self.fail(f"',' or '{close}'")
        return tuple(items)

    def whole(self, item: Callable[[], T]) -> T:
        """One item that is all of the text."""
        found = item()
        if self.token.kind == "newline":
            self.next()
        self.kind("end", "the end of the text")
        return found

    # Polynomials and expressions

    def poly(self) -> Poly:
        total = self.product()
        while self.sees("+", "-"):
            total = total + self.product() if self.next().text == "+" else total - self.product()
        return total

    def product(self) -> Poly:
        total = self.factor()
        while self.accept("*"):
            total = total * self.factor()
        return total

    def factor(self) -> Poly:
        if self.accept("-"):
            return self.factor() * -1
        if self.accept("("):
            inner = self.poly()
            self.expect(")")
            return inner
        if self.token.kind == "number":
            if not self.token.text.isdigit():
                raise self.fail("a whole number")
            return Poly.of(int(self.next().text))
        return Poly.symbol(self.name("a number, a symbol or '('"))

    def expr(self, level: int = 1) -> Expr:
        left = self.primary()
        while self.token.text in BINARY and self.sees(self.token.text):
            fn, own = BINARY[self.token.text]
            if own < level:
                break
            self.next()
            right = self.expr(own + 1)
            dtype = natural_dtype(fn, (left, right))
            assert dtype is not None
            left = Op(fn, (left, right), dtype)
            if own == COMPARISON and self.token.text in BINARY and BINARY[self.token.text][1] == COMPARISON:
                raise self.fail("parentheses around one of two comparisons")
        return left

    def primary(self) -> Expr:
        if self.accept("("):
            inner = self.expr()
            self.expect(")")
            return inner
        if self.accept("{"):
            poly = self.poly()
            self.expect("}")
            return Size(poly)
        if self.token.kind == "number" or self.sees("-", "inf", "nan", "true", "false"):
            return self.constant()
        start = self.token
        name = self.name("an expression")
        if start.kind == "name" and name in ("and", "or", "in"):
            self.at -= 1
            raise self.fail("an expression")
        if self.accept("["):
            indices = self.separated("]", self.expr)
            if self.accept(":"):
                return Load(name, indices, self.dtype())
            if name not in self.dtypes:
                raise self.fail(f"':' and the dtype of {name}, which is not declared before")
            return Load(name, indices, self.dtypes[name])
        if self.accept("("):
            args = self.separated(")", self.expr)
            if self.accept(":"):
                return Op(name, args, self.dtype())
            natural = natural_dtype(name, args)
            if natural is None:
                raise self.fail(f"':' and the dtype of {name}")
            return Op(name, args, natural)
        return Var(name)

    def constant(self) -> Const:
        negative = self.accept("-")
        value: int | float | bool
        if self.token.kind == "number":
            text = self.next().text
            value = int(text) if text.isdigit() else float(text)
        else:
            options = ("inf", "nan") if negative else ("inf", "nan", "true", "false")
            value = {"inf": math.inf, "nan": math.nan, "true": True, "false": False}[self.one_of(options, "a number")]
        value = -value if negative else value
        if self.accept(":"):
            return Const(value, self.dtype())
        if isinstance(value, bool):
            return Const(value, "bool")
        if isinstance(value, float):
            raise self.fail("':' and the dtype of the number")
        return Const(value)

    # Statements

    def block_of(self, item: Callable[[], T]) -> list[T]:
        """':', a newline, and items deeper by one step of indentation."""
        self.expect(":")
        self.newline()
        self.kind("indent", "an indented line")
        items: list[T] = []
        while self.token.kind != "dedent":
            items.append(item())
        self.next()
        return items

    def sequence(self) -> tuple[Stmt, ...]:
        return tuple(stmt for stmt in self.block_of(self.statement) if stmt is not None)

    def inside(self) -> Stmt:
        at = self.token
        stmts = self.sequence()
        if not stmts:
            raise ParseError(at.line, at.column, "a statement in the body ('seq:' for an empty one)", "'pass'")
        return stmts[0] if len(stmts) == 1 else Seq(stmts)

    def statement(self) -> Stmt | None:
        if self.accept("for"):
            names: list[str] = []
            if not self.sees("in"):
                names.append(self.name("a loop variable"))
                while self.accept(","):
                    names.append(self.name("a loop variable"))
            self.expect("in")
            kind = self.loop_kind()
            self.expect("(")
            at = self.token
            extents = self.separated(")", self.poly)
            if len(extents) != len(names):
                raise ParseError(at.line, at.column, f"{len(names)} extents", f"{len(extents)}")
            axes = tuple(Axis(name, extent) for name, extent in zip(names, extents, strict=True))
            notes = self.annotations() if self.accept("with") else ()
            return Loop(axes, self.inside(), kind, notes)
        if self.accept("alloc"):
            buffer = self.allocated()
            return Alloc(buffer, self.inside())
        if self.accept("seq"):
            return Seq(self.sequence())
        if self.accept("block"):
            return self.block()
        if self.accept("pass"):
            self.newline()
            return None
        raise self.fail("a statement (for, alloc, block, seq, pass)")

    def annotations(self) -> tuple[Annotation, ...]:
        found: list[Annotation] = []
        while not found or self.accept(","):
            key = self.name("an annotation")
            self.expect("=")
            number = self.token.kind == "number" and self.token.text.isdigit()
            if not number and self.token.kind != "string":
                raise self.fail("a whole number or a string")
            found.append((key, int(self.next().text) if number else self.name("a string")))
        return tuple(found)

    def loop_kind(self) -> LoopKind:
        at = self.token
        kind = self.name("a kind of loop")
        if self.accept("."):
            kind = f"{kind}.{self.name('x, y or z')}"
        if kind not in get_args(LoopKind):
            raise ParseError(at.line, at.column, f"a kind of loop ({', '.join(get_args(LoopKind))})", repr(kind))
        return cast(LoopKind, kind)

    def declared(self) -> tuple[str, DType, tuple[Poly, ...]]:
        name = self.name("the name of a buffer")
        self.expect(":")
        dtype = self.dtype()
        self.expect("[")
        shape = self.separated("]", self.poly)
        self.dtypes[name] = dtype
        return name, dtype, shape

    def allocated(self) -> Buffer:
        name, dtype, shape = self.declared()
        self.expect("in")
        scope = cast(Scope, self.one_of(get_args(Scope), "a scope"))
        role: Role = "intermediate"
        if self.accept("as"):
            role = cast(Role, self.one_of(get_args(Role), "a role"))
        pad = Poly.of(0)
        if self.accept("padded"):
            self.expect("(")
            pad = self.poly()
            self.expect(")")
        return Buffer(name, shape, dtype, scope, role, pad, self.accept("swizzled"))

    def block(self) -> Block:
        name = self.name("the name of the block")
        self.expect(":")
        self.newline()
        self.kind("indent", "an indented line")
        iters: list[Iter] = []
        while self.sees(*ITER_KINDS):
            kind = cast(Literal["spatial", "reduce", "scan"], self.next().text)
            var = self.name("an iteration variable")
            self.expect("in", "range", "(")
            extent = self.poly()
            self.expect(")", "=")
            iters.append(Iter(var, extent, kind, self.expr()))
            self.newline()
        where: list[Expr] = []
        while self.accept("where"):
            where.append(self.expr())
            self.newline()
        init: Const | None = None
        if self.accept("init"):
            init = self.constant()
            self.newline()
        buffer = self.name(f"the store of the block{'' if where or init else ', an iteration variable, where or init'}")
        self.expect("[")
        indices = self.separated("]", self.expr)
        combine = self.combine()
        value = self.expr()
        self.newline()
        self.kind("dedent", "the end of the block")
        return Block(name, tuple(iters), buffer, indices, value, combine, init, tuple(where))

    def combine(self) -> Combine | None:
        for sign, combine in (("=", None), ("+=", "sum"), ("*=", "prod")):
            if self.accept(sign):
                return cast(Combine | None, combine)
        if not self.sees("max", "min"):
            raise self.fail("'=', '+=', '*=', 'max=' or 'min='")
        name = self.next().text
        self.expect("=")
        return cast(Combine, name)

    def program(self) -> Program:
        self.expect("program")
        name = self.name("the name of the program")
        self.expect("(")
        params = self.separated(")", lambda: self.name("a parameter"))
        self.expect(":")
        self.newline()
        self.kind("indent", "an indented line")
        derived: list[Derived] = []
        while self.accept("derived"):
            symbol = self.name("a symbol")
            self.expect("=", "ceildiv", "(")
            numerator = self.poly()
            self.expect(",")
            derived.append(Derived(symbol, numerator, self.poly()))
            self.expect(")")
            self.newline()
        buffers: list[Buffer] = []
        while self.sees(*get_args(Role)):
            role = cast(Role, self.next().text)
            buffer, dtype, shape = self.declared()
            scope: Scope = "global"
            if self.accept("in"):
                scope = cast(Scope, self.one_of(get_args(Scope), "a scope"))
            self.newline()
            buffers.append(Buffer(buffer, shape, dtype, scope, role))
        prologue = Seq(self.sequence()) if self.accept("prologue") else Seq(())
        if not self.accept("body"):
            raise self.fail("'body'" if prologue.body else "'body', 'prologue' or a buffer")
        body = Seq(self.sequence())
        self.kind("dedent", "the end of the program")
        return Program(name, tuple(buffers), body, prologue, params, tuple(derived))


def from_text(text: str) -> Program:
    """The program that `to_text` printed; ParseError for any other text."""
    parser = Parser(text)
    return parser.whole(parser.program)


def parse_poly(text: str) -> Poly:
    """The polynomial of `str(poly)`; parentheses and minus signs are read too."""
    parser = Parser(text)
    return parser.whole(parser.poly)


def parse_expr(text: str, dtypes: dict[str, DType] | None = None) -> Expr:
    """The expression of `expr_text` with the same dtypes of buffers."""
    parser = Parser(text)
    parser.dtypes.update(dtypes or {})
    return parser.whole(parser.expr)


__all__ = ["ParseError", "Parser", "from_text", "parse_expr", "parse_poly"]
