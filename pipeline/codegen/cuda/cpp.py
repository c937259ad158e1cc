"""Pieces of C++: expressions that know their type and how tightly they bind, literals, names, and indented lines."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from pipeline.ir.expr import FLOATS
from pipeline.ir.graph import DType
from pipeline.ir.graph_types import numpy_dtype

MEMORY: Mapping[DType, str] = {
    "float64": "double", "float32": "float", "float16": "ms::f16", "bfloat16": "ms::bf16",
    "int64": "long long", "int32": "int", "int16": "short", "int8": "signed char",
    "uint64": "unsigned long long", "uint32": "unsigned", "uint16": "unsigned short", "uint8": "unsigned char",
    "bool": "bool",
}  # fmt: skip
HALVES: Mapping[DType, str] = {"float16": "ms::round_f16", "bfloat16": "ms::round_bf16"}
# What is computed with: halves are widened when they are read and rounded when they are written.
VALUE: Mapping[DType, str] = {**MEMORY, "float16": "float", "bfloat16": "float"}

ATOM, UNARY, PRODUCT, SUM, COMPARED, EQUAL, AND, OR, CHOICE = range(9, 0, -1)  # how tightly an expression binds
LEVELS: Mapping[str, int] = {
    "*": PRODUCT, "/": PRODUCT, "%": PRODUCT, "+": SUM, "-": SUM, "<": COMPARED, "<=": COMPARED, ">": COMPARED,
    ">=": COMPARED, "==": EQUAL, "!=": EQUAL, "&&": AND, "||": OR,
}  # fmt: skip
INT32 = (-(1 << 31), (1 << 31) - 1)
INT64 = (-(1 << 63), (1 << 63) - 1)
INDENT = "    "
WIDTH = 116  # characters of a line
TEMPLATE = re.compile(r"\w<[^<>()]*$")  # before a place between the brackets of a template

KEYWORDS = frozenset({
    "alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor", "bool", "break", "case", "catch",
    "char", "char8_t", "char16_t", "char32_t", "class", "compl", "concept", "const", "consteval", "constexpr",
    "constinit", "const_cast", "continue", "co_await", "co_return", "co_yield", "decltype", "default", "delete",
    "do", "double", "dynamic_cast", "else", "enum", "explicit", "export", "extern", "false", "float", "for",
    "friend", "goto", "if", "inline", "int", "long", "mutable", "namespace", "new", "noexcept", "not", "not_eq",
    "nullptr", "operator", "or", "or_eq", "private", "protected", "public", "register", "reinterpret_cast",
    "requires", "return", "short", "signed", "sizeof", "static", "static_assert", "static_cast", "struct", "switch",
    "template", "this", "thread_local", "throw", "true", "try", "typedef", "typeid", "typename", "union",
    "unsigned", "using", "virtual", "void", "volatile", "wchar_t", "while", "xor", "xor_eq", "main", "ms",
    "threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize", "thread", "warp", "lane",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cpp:
    """An expression: its text, the C++ type of its value, and its level, by which it is put in parentheses.

    half    of a half that was widened: its type in memory, and its text
    """

    text: str
    type: str
    level: int = ATOM
    half: tuple[str, str] | None = None

    def at(self, level: int) -> str:
        """The text as an operand that must bind at least as tightly."""
        return self.text if self.level >= level else f"({self.text})"

    def __str__(self) -> str:
        return self.text


def infix(sign: str, a: Cpp, b: Cpp, type_: str) -> Cpp:
    """Of operators on one level, the left operand needs no parentheses."""
    level = LEVELS[sign]
    own = level + 1 if sign in ("&&", "||") and sign in b.text and b.level > level else level
    left = a.at(level) if level > COMPARED or sign in ("&&", "||") else a.at(SUM)
    if sign == "||" and a.level == AND:
        left = f"({a.text})"  # compilers warn, and readers stop, where && stands bare in ||
    right = b.at(level + 1) if level > COMPARED or sign in ("&&", "||") else b.at(SUM)
    return Cpp(f"{left} {sign} {right}", type_, min(own, level))


def call(fn: str, args: Iterable[Cpp], type_: str) -> Cpp:
    return Cpp(f"{fn}({', '.join(arg.text for arg in args)})", type_)


def choice(test: Cpp, yes: Cpp, no: Cpp, type_: str) -> Cpp:
    return Cpp(f"{test.at(OR)} ? {yes.at(OR)} : {no.at(OR)}", type_, CHOICE)


def converted(a: Cpp, type_: str) -> Cpp:
    """The same number in another type."""
    if a.type == type_:
        return a
    if a.type == "int" and type_ == "long long" and re.fullmatch(r"\d+", a.text):
        return Cpp(f"{a.text}LL", type_)
    name = type_ if " " not in type_ else None
    return Cpp(f"{name}({a.text})", type_) if name else Cpp(f"({type_}){a.at(UNARY)}", type_, UNARY)


def integer(value: int, type_: str = "int") -> Cpp:
    if type_ == "int" and value == INT32[0]:
        return Cpp("(-2147483647 - 1)", type_)
    if type_ == "long long" and value == INT64[0]:
        return Cpp("(-9223372036854775807LL - 1)", type_)
    suffix = {"long long": "LL", "unsigned": "u", "unsigned long long": "ull"}.get(type_, "")
    plain = Cpp(f"{value}{suffix}", type_, ATOM if value >= 0 else UNARY)
    return plain if type_ in ("int", "long long", "unsigned", "unsigned long long") else _small(plain, type_)


def _small(plain: Cpp, type_: str) -> Cpp:
    return Cpp(f"({type_}){plain.at(UNARY)}", type_, UNARY)


def literal(value: int | float | bool, dtype: DType) -> Cpp:
    """The constant, rounded to its dtype."""
    type_ = VALUE[dtype]
    if dtype == "bool":
        return Cpp("true" if value else "false", type_)
    if dtype not in FLOATS:
        return integer(int(value), type_)
    suffix = "" if dtype == "float64" else "f"
    with np.errstate(all="ignore"):
        rounded = numpy_dtype(dtype).type(value)
    number = float(rounded)
    if math.isnan(number):
        return Cpp(f"ms::nan<{type_}>()", type_)
    if math.isinf(number):
        sign = "-" if number < 0 else ""
        return Cpp(f"{sign}ms::infinity<{type_}>()", type_, UNARY if sign else ATOM)
    text = repr(number) if dtype == "float64" else str(np.float32(number))
    text = text if any(mark in text for mark in ".en") else text + ".0"
    return Cpp(text + suffix, type_, UNARY if text.startswith("-") else ATOM)


@dataclass(slots=True)
class Names:
    """Identifiers of one scope: the names of the program as far as C++ allows, each used once.

    stem    what all names have in them and none needs: "product" turns "product_left" into "left"
    """

    taken: set[str] = field(default_factory=lambda: set(KEYWORDS))
    stem: str = ""

    def new(self, wanted: str) -> str:
        plain = identifier(wanted.replace(f"{self.stem}_", "") if self.stem else wanted)
        name, number = plain, 1
        while name in self.taken:
            name, number = f"{plain}_{number}", number + 1
        self.taken.add(name)
        return name


def identifier(wanted: str) -> str:
    """The nearest thing to the name that C++ reads as one; two underscores in a row are the compiler's."""
    plain = re.sub(r"_{2,}", "_", re.sub(r"[^A-Za-z0-9_]", "_", wanted))
    return plain if plain and not plain[0].isdigit() and plain != "_" else f"v{plain.rstrip('_') or '0'}"


def broken(line: str, width: int) -> list[str]:
    """The line in parts of at most so many characters, where there are places to break it: after the commas and before
    the operators that are least deep in parentheses."""
    if len(line) <= width or line.startswith(("//", "#")):
        return [line]
    best: tuple[int, bool, int] | None = None  # depth, whether before an operator, place
    depth = 0
    for place, sign in enumerate(line[:width]):
        depth += (sign in "([{") - (sign in ")]}")
        after_comma = line.startswith(", ", place) and not TEMPLATE.search(line, 0, place)
        before_operator = line.startswith((" && ", " || ", " ? ", " : ", " + ", " - ", " * "), place)
        if (after_comma or before_operator) and place > 8 and (best is None or (depth, before_operator) <= best[:2]):
            best = depth, before_operator, place + after_comma
    if best is None:
        return [line]
    head, tail = line[: best[2]], line[best[2] :].lstrip()
    return [head, *broken(tail, width - 2 * len(INDENT))]


@dataclass(slots=True)
class Lines:
    """Source text that grows line by line at an indentation."""

    text: list[str] = field(default_factory=list)
    depth: int = 1

    def add(self, line: str) -> None:
        """One line, or several where it is too long for one."""
        if not line:
            self.text.append("")
            return
        first, *more = broken(line, WIDTH - len(INDENT) * self.depth)
        self.text.append(f"{INDENT * self.depth}{first}")
        self.text.extend(f"{INDENT * (self.depth + 2)}{part}" for part in more)

    def note(self, comment: str) -> None:
        self.add(f"// {comment}")

    @contextmanager
    def block(self, head: str, tail: str = "}") -> Iterator[None]:
        """Lines in braces after a head such as a `for`."""
        self.add(f"{head} {{" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.add(tail)
