"""Blocks as C++: the conditions that are not proven, the iteration variables that are used again, and the store."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from pipeline.codegen.cuda.cpp import EQUAL, HALVES, VALUE, Cpp, converted, infix, integer, literal
from pipeline.codegen.cuda.emit_index import same
from pipeline.codegen.cuda.emit_state import Place
from pipeline.codegen.cuda.emit_value import ValueEmitter
from pipeline.codegen.cuda.scalar import scalar, stored
from pipeline.ir.expr import Const, Expr, Op, Var, substitute, walk
from pipeline.ir.program import Block, map_block_exprs
from pipeline.ir.program_bounds import Facts

FUNCTIONS = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
OPERATORS = {"sum": "+=", "prod": "*="}


@dataclass(slots=True)
class BlockEmitter(ValueEmitter):
    """Blocks."""

    def block(self, block: Block) -> None:
        """A store under its conditions. Nothing where they never hold."""
        with self.scope():
            bindings = self.bindings
            tests = self.enter(block)
            if tests is not None:
                block = self.settled(block)
                if tests:
                    head = " && ".join(test.at(EQUAL) for test in tests) if len(tests) > 1 else tests[0].text
                    with self.braces(f"if ({head})"):
                        self.store(block)
                else:
                    self.store(block)
            self.bindings = bindings

    def settled(self, block: Block) -> Block:
        """The block without the variables of loops that run once, and without iterations that are a number."""
        if self.known:
            block = map_block_exprs(block, lambda e: substitute(e, self.known))
        fixed = {it.var: it.binding for it in block.iters if isinstance(it.binding, Const)}
        if not fixed:
            return block
        indices = tuple(substitute(index, fixed) for index in block.indices)
        return replace(block, indices=indices, value=substitute(block.value, fixed))

    def enter(self, block: Block) -> list[Cpp] | None:
        """Declares the iteration variables and returns the tests that are not proven; None where one never holds."""
        block = self.settled(block)
        self.bindings = {it.var: it.binding for it in block.iters}
        over_loops: list[Expr] = []
        own: list[Expr] = []
        for it in block.iters:
            low, high = self.bounds(it.binding)
            extent = it.extent.value
            if high < 0 or low >= extent:
                return None
            ranges = {**self.facts.ranges, it.var: (max(low, 0), min(high, extent - 1))}
            self.facts = Facts(ranges, self.facts.sums)
            if low < 0:
                over_loops.append(Op("ge", (it.binding, Const(0)), "bool"))
                own.append(Op("ge", (Var(it.var), Const(0)), "bool"))
            if high >= extent:
                over_loops.append(Op("lt", (it.binding, Const(extent)), "bool"))
                own.append(Op("lt", (Var(it.var), Const(extent)), "bool"))
        kept = {id(condition) for condition in self.needed(over_loops)}
        open_ = [mine for over, mine in zip(over_loops, own, strict=True) if id(over) in kept]
        uses = Counter(node.name for expr in (*block.indices, block.value, *open_) for node in walk(expr)
                       if isinstance(node, Var))  # fmt: skip
        tests: list[Cpp] = []
        for it in block.iters:
            text = self.index(it.binding)
            if uses[it.var] > 1 and not isinstance(it.binding, Const | Var):
                text = self.constant(it.var, text)
            self.env[it.var] = text
        for condition in open_:
            assert isinstance(condition, Op) and isinstance(condition.args[0], Var)
            x = self.env[condition.args[0].name]
            assert isinstance(condition.args[1], Const)
            x, y = same(x, integer(int(condition.args[1].value)))
            tests.append(infix(">=" if condition.fn == "ge" else "<", x, y, "bool"))
            self.learn(condition)
        for condition in block.where:
            known = self.decide(condition)
            if known is False:
                return None
            if known is None:
                tests.append(self.value(condition))
            self.learn(condition)
        return tests

    def needed(self, conditions: list[Expr]) -> list[Expr]:
        """Without those that the others imply."""
        kept = list(conditions)
        for condition in conditions:
            others = [other for other in kept if other is not condition]
            if others and len(others) < len(kept):
                with self.assuming(self.facts):
                    for other in others:
                        self.learn(other)
                    if self.decide(condition):
                        kept = others
        return kept

    def store(self, block: Block) -> None:
        """buffer[indices] = value, or combine."""
        place = self.places[block.buffer]
        element = self.element(place, block.indices)
        self.write(place, element, block)

    def write(self, place: Place, element: Cpp, block: Block) -> None:
        dtype = place.buffer.dtype
        if block.combine is None:
            self.lines.add(f"{element} = {stored(self.value(rounded_once(block.value)), dtype)};")
            return
        if block.init is not None:
            first = [Op("eq", (Var(it.var), Const(0)), "bool") for it in block.iters if it.kind == "reduce"]
            tests = [test for test in first if self.decide(test) is not True]
            if not any(self.decide(test) is False for test in tests):
                start = f"{element} = {stored(literal(block.init.value, dtype), dtype)};"
                condition = " && ".join(self.value(test).text for test in tests)
                self.lines.add(f"if ({condition}) {start}" if condition else start)
        if place.private and dtype in ("float32", "float64") and block.combine in OPERATORS:
            value = converted(self.value(block.value), VALUE[dtype])
            self.lines.add(f"{element} {OPERATORS[block.combine]} {value};")
        else:
            self.lines.add(f"{element} = {self.combined(block, place, element)};")

    def combined(self, block: Block, place: Place, element: Cpp) -> Cpp:
        """The element combined with the value, as memory holds it."""
        assert block.combine is not None
        dtype = place.buffer.dtype
        value = converted(self.value(block.value), VALUE[dtype])
        new = scalar(FUNCTIONS[block.combine], (self.loaded(place, element), value), dtype, dtype)
        return stored(new, dtype)


def rounded_once(value: Expr) -> Expr:
    """Without the conversion to a half that the store does too."""
    return value.args[0] if isinstance(value, Op) and value.fn == "cast" and value.dtype in HALVES else value
