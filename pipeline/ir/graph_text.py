"""The text of a graph, one node a line; it is deterministic and parses back to an equal graph."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, NoReturn, cast, get_args

import numpy as np

from pipeline.errors import CheckError
from pipeline.ir import graph as g
from pipeline.ir.graph import AffineDim, Graph, Node, TensorType
from pipeline.ir.graph_types import DTYPES

TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|%?\w+|[-+*=<>()\[\],:])', re.ASCII)


def to_text(graph: Graph, *, names: bool = True) -> str:
    """A line for each node and one for the outputs; constants by the hash of their content.

    %2 = contract<spatial=[4, 8], reduced=[3], lhs=[d0, d2], rhs=[d2, d1]>(%0, %1) : float32[4, 8] "layer0/dense"

    names  False leaves out where the nodes came from, for graphs that are compared
    """
    lines = []
    for number, node in enumerate(graph.nodes):
        operands = ", ".join(f"%{v}" for v in node.inputs)
        kind = f"{node.type.dtype}{_list(node.type.shape)}"
        suffix = f" {json.dumps(node.name)}" if names and node.name else ""
        lines.append(f"%{number} = {_op(node.op)}({operands}) : {kind}{suffix}")
    results = ", ".join(f"{json.dumps(name)} = %{value}" for name, value in graph.outputs)
    return "\n".join([*lines, f"return {results}", ""])


def from_text(text: str, constants: Mapping[str, np.ndarray]) -> Graph:
    """The graph that `to_text` printed; `constants` holds at least the data that it names."""
    reader = _Reader(text)
    nodes: list[Node] = []
    while reader.peek() != "return":
        reader.expect(f"%{len(nodes)}", "=")
        nodes.append(reader.node())
    reader.expect("return")
    outputs: list[tuple[str, int]] = []
    while reader.peek():
        if outputs:
            reader.expect(",")
        name = json.loads(reader.next())
        reader.expect("=")
        outputs.append((name, int(reader.next().removeprefix("%"))))
    keys = [node.op.key for node in nodes if isinstance(node.op, g.Constant)]
    missing = [key for key in keys if key not in constants]
    if missing:
        raise CheckError("constants are missing", where="graph text", why=f"no data for {', '.join(missing)}")
    return Graph(tuple(nodes), tuple(outputs), {key: constants[key] for key in keys})


def op_name(kind: type[Any]) -> str:
    """GatherND -> gather_nd."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


OPS: dict[str, type[Any]] = {op_name(kind): kind for kind in get_args(g.Op) if kind is not g.Elementwise}


def _op(op: g.Op) -> str:
    if isinstance(op, g.Elementwise):
        return op.fn
    attributes = ", ".join(f"{f.name}={WRITE[cast(str, f.type)](getattr(op, f.name))}" for f in fields(op))
    return f"{op_name(type(op))}<{attributes}>" if attributes else op_name(type(op))


def _list(values: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, values))}]"


def _affine(dim: AffineDim) -> str:
    parts = [f"d{v}" if c == 1 else f"{c}*d{v}" for v, c in dim.terms]
    if dim.offset or not parts:
        parts.append(str(dim.offset))
    return " + ".join(parts)


class _Reader:
    """The tokens of a graph's text, with the line for messages."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, int]] = []
        for line, content in enumerate(text.splitlines(), 1):
            position = 0
            while content[position:].strip():
                match = TOKEN.match(content, position)
                if match is None:
                    raise CheckError("unreadable", where=f"graph text, line {line}", why=repr(content[position:]))
                self.tokens.append((match[1], line))
                position = match.end()
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def next(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1][0] if self.at <= len(self.tokens) else self.fail("something")

    def fail(self, wanted: str) -> NoReturn:
        token, line = self.tokens[min(self.at, len(self.tokens)) - 1] if self.tokens else ("", 0)
        raise CheckError("unreadable", where=f"graph text, line {line}", why=f"{token!r} where {wanted} belongs")

    def expect(self, *wanted: str) -> None:
        for token in wanted:
            if self.next() != token:
                self.fail(repr(token))

    def node(self) -> Node:
        op = self.op(self.next())
        self.expect("(")
        inputs = self.sequence(")", lambda: int(self.next().removeprefix("%")))
        self.expect(":")
        dtype = self.next()
        if dtype not in DTYPES:
            self.fail("a dtype")
        self.expect("[")
        kind = TensorType(self.sequence("]", self.integer), dtype)
        name = json.loads(self.next()) if self.peek().startswith('"') else ""
        return Node(op, inputs, kind, name)

    def op(self, name: str) -> g.Op:
        if name in g.ELEMENTWISE:
            return g.Elementwise(name)
        if name not in OPS:
            self.fail("an operation")
        kind = OPS[name]
        values = {}
        for number, attribute in enumerate(fields(kind)):
            self.expect("," if number else "<", attribute.name, "=")
            values[attribute.name] = READ[cast(str, attribute.type)](self)
        if values:
            self.expect(">")
        return cast(g.Op, kind(**values))

    def sequence(self, end: str, item: Callable[[], Any]) -> tuple[Any, ...]:
        items: list[Any] = []
        while self.peek() != end:
            if items:
                self.expect(",")
            items.append(item())
        self.expect(end)
        return tuple(items)

    def listed(self, item: Callable[[], Any]) -> tuple[Any, ...]:
        self.expect("[")
        return self.sequence("]", item)

    def number(self) -> str:
        return "-" + self.next() if self.peek() == "-" and self.next() else self.next()

    def integer(self) -> int:
        return int(self.number())

    def either(self) -> g.Number:
        text = self.number()
        return int(text) if text.removeprefix("-").isdecimal() else float(text)

    def affine(self) -> AffineDim:
        terms: list[tuple[int, int]] = []
        while True:
            part = self.number()
            if self.peek() == "*":
                self.expect("*")
                terms.append((int(self.next().removeprefix("d")), int(part)))
            elif part.startswith("d"):
                terms.append((int(part.removeprefix("d")), 1))
            else:
                return AffineDim(tuple(terms), int(part))
            if self.peek() != "+":
                return AffineDim(tuple(terms))
            self.expect("+")


# by the annotation of the field
WRITE: dict[str, Callable[[Any], str]] = {
    "int": str, "bool": lambda value: str(value).lower(), "str": json.dumps, "float": repr, "Number": repr,
    "Shape": _list, "tuple[int, ...]": _list, "AffineMap": lambda dims: f"[{', '.join(map(_affine, dims))}]",
}  # fmt: skip
READ: dict[str, Callable[[_Reader], Any]] = {
    "int": _Reader.integer, "bool": lambda reader: reader.next() == "true",
    "str": lambda reader: json.loads(reader.next()), "float": lambda reader: float(reader.number()),
    "Number": _Reader.either,
    "Shape": lambda reader: reader.listed(reader.integer), "tuple[int, ...]": lambda r: r.listed(r.integer),
    "AffineMap": lambda reader: reader.listed(reader.affine),
}  # fmt: skip
