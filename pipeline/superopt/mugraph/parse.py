"""The parser of µGraph text: the inverse of `mugraph_text`; its errors name line, column and what was expected."""

from __future__ import annotations

import math
from typing import Literal, cast

from pipeline.ir.graph import ELEMENTWISE
from pipeline.ir.program_parse import Parser
from pipeline.ir.text_tokens import ParseError
from pipeline.superopt.mugraph.check import TOGETHER
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    Axis,
    BlockGraph,
    BlockInput,
    BlockNode,
    BlockOutput,
    Concat,
    Contract,
    Fold,
    KernelNode,
    Kind,
    Map,
    MuGraph,
    Op,
    RescaledSum,
    Running,
    Scalar,
    Squeeze,
    TileOp,
    Transpose,
    Unsqueeze,
)
from pipeline.superopt.mugraph.operator import ACCUMULATORS, KINDS

OPERATORS = ("scalar", "contract", "fold", "transpose", "unsqueeze", "squeeze", "concat", "accumulate", "running",
             "rescaled_sum")  # fmt: skip
ONLY_IN_A_BLOCK = ("accumulate", "running", "rescaled_sum")


def from_text(text: str) -> MuGraph:
    """The µGraph that `to_text` printed; ParseError where it is none. Whether it is valid is for `check` to say."""
    return _MuGraphParser(text).mugraph()


class _MuGraphParser(Parser):
    """Recursive descent over the tokens of a µGraph; `%3` is the sign and a number, `v3` a name."""

    def mugraph(self) -> MuGraph:
        self.expect("mugraph")
        inputs: list[str] = []
        while self.token.kind != "newline":
            if inputs:
                self.expect(",")
            inputs.append(self.name("the name of an input"))
        self.newline()
        nodes: list[KernelNode] = []
        known = len(inputs)
        while not self.accept("return"):
            start, results = self.token, self.results(known)
            nodes.append(self.kernel())
            if nodes[-1].results != results:
                raise ParseError(start.line, start.column, f"{nodes[-1].results} results", f"{results}")
            known += results
        outputs = [self.tensor()]
        while self.accept(","):
            outputs.append(self.tensor())
        self.newline()
        self.kind("end", "the end of the text")
        return MuGraph(tuple(inputs), tuple(nodes), tuple(outputs))

    def results(self, known: int) -> int:
        """How many tensors there are before the "=", which are numbered from `known` on."""
        count = 0
        while count == 0 or self.accept(","):
            at = self.token
            if self.tensor() != known + count:
                raise ParseError(at.line, at.column, f"%{known + count}", "another number")
            count += 1
        self.expect("=")
        return count

    def kernel(self) -> KernelNode:
        if not self.accept("kernel"):
            if self.sees(*ONLY_IN_A_BLOCK):
                raise self.fail("an operator on whole tensors")
            op = self.operator()
            self.expect("(")
            operands = self.separated(")", self.tensor)
            self.newline()
            return KernelNode(cast(TileOp, op), operands)
        self.expect("grid", "[")
        grid = self.separated("]", self.axis)
        self.expect("loops", "[")
        loops = self.separated("]", self.axis)
        self.newline()
        self.kind("indent", "a block, indented")
        node = self.block_graph(grid, loops)
        self.kind("dedent", "less indentation after the return of a block")
        return node

    def axis(self) -> Axis:
        name = self.plain("the name of an axis")
        return Axis(name, self.integer() if self.accept("=") else None)

    def block_graph(self, grid: tuple[Axis, ...], loops: tuple[Axis, ...]) -> KernelNode:
        operands: list[int] = []
        inputs: list[BlockInput] = []
        nodes: list[BlockNode] = []
        while not self.accept("return"):
            at, wanted = self.token, len(inputs) + len(nodes)
            if self.value() != wanted:
                raise ParseError(at.line, at.column, f"v{wanted}", repr(at.text))
            self.expect("=")
            if self.sees("tile"):
                if nodes:
                    raise self.fail("an operator (tiles come first)")
                tensor, tile = self.tile(grid, loops)
                operands.append(tensor)
                inputs.append(tile)
            else:
                op = self.operator()
                self.expect("(")
                nodes.append(BlockNode(op, self.separated(")", self.value)))
            self.newline()
        outputs: list[BlockOutput] = []
        if self.token.kind != "newline":
            outputs.append(self.store(grid))
            while self.accept(","):
                outputs.append(self.store(grid))
        self.newline()
        return KernelNode(BlockGraph(grid, loops, tuple(inputs), tuple(nodes), tuple(outputs)), tuple(operands))

    def tile(self, grid: tuple[Axis, ...], loops: tuple[Axis, ...]) -> tuple[int, BlockInput]:
        self.expect("tile", "(")
        tensor = self.tensor()
        left = [axis.name for axis in (*grid, *loops)]
        found: dict[str, int] = {}
        while not self.accept(")"):
            self.expect(",")
            name = self.one_of(tuple(left), "an axis that is not named yet")
            left.remove(name)
            self.expect(":")
            found[name] = self.integer()
        return tensor, BlockInput(*(tuple(found.get(axis.name) for axis in axes) for axes in (grid, loops)))

    def store(self, grid: tuple[Axis, ...]) -> BlockOutput:
        value = self.value()
        self.expect("(")
        omap: list[int | Literal["sum", "max", "stack"]] = []
        for number, axis in enumerate(grid):
            if number:
                self.expect(",")
            self.expect(axis.name, ":")
            if self.token.kind == "name":
                omap.append(cast(Literal["sum", "max", "stack"], self.one_of(TOGETHER, "how tiles are put together")))
            else:
                omap.append(self.integer())
        self.expect(")")
        return BlockOutput(value, tuple(omap))

    def operator(self) -> Op:
        if self.token.kind == "name" and self.token.text in ELEMENTWISE:
            return Map(self.next().text)
        name = self.one_of(OPERATORS, "an operator")
        if name == "rescaled_sum" and not self.sees("<"):
            return RescaledSum()
        self.expect("<")
        op = self.attributes(name)
        self.expect(">")
        return op

    def attributes(self, name: str) -> Op:
        match name:
            case "scalar":
                return Scalar(self.real())
            case "contract":
                return Contract(self.name("subscripts as a string"))
            case "fold":
                kind = cast(Kind, self.one_of(KINDS, "a kind"))
                self.expect(",")
                return Fold(kind, self.positions(), self.option("keep", 1))
            case "transpose":
                return Transpose(self.positions())
            case "unsqueeze":
                return Unsqueeze(self.positions())
            case "squeeze":
                return Squeeze(self.positions())
            case "concat":
                return Concat(self.integer())
            case "accumulate":
                how = self.one_of(ACCUMULATORS, "a kind")
                level = self.option("level", 0)
                axis = self.option("axis", -1)
                return Accumulate(cast(Literal["sum"], how), level, None if axis < 0 else axis)
            case "running":
                return Running(cast(Literal["max"], self.one_of(("max", "min"), "a kind")), self.option("level", 0))
            case "rescaled_sum":
                self.expect("level")
                return RescaledSum(self.integer())
            case _:
                raise AssertionError("every name of an operator is handled")

    def option(self, name: str, default: int) -> int:
        """The integer of `, name 3`, where the text has it."""
        following = self.tokens[self.at + 1] if self.sees(",") else self.token
        if following.text != name:
            return default
        self.expect(",", name)
        return self.integer()

    def positions(self) -> tuple[int, ...]:
        self.expect("[")
        return self.separated("]", self.integer)

    def tensor(self) -> int:
        self.expect("%")
        return self.integer()

    def value(self) -> int:
        text = self.token.text
        if self.token.kind != "name" or text[0] != "v" or not text[1:].isdecimal():
            raise self.fail("a value of the block (v0, v1, …)")
        self.next()
        return int(text[1:])

    def plain(self, what: str) -> str:
        if self.token.kind != "name":
            raise self.fail(what)
        return self.next().text

    def integer(self) -> int:
        if self.token.kind != "number" or not self.token.text.isdecimal():
            raise self.fail("a whole number")
        return int(self.next().text)

    def real(self) -> float:
        sign = -1.0 if self.accept("-") else 1.0
        if self.accept("inf"):
            return sign * math.inf
        if self.token.kind != "number":
            raise self.fail("a number")
        return sign * float(self.next().text)
