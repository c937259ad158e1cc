"""Products of tensor cores: one instruction for a tile, and selections around it where conditions leave points out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.codegen.cuda.cpp import EQUAL, VALUE, Cpp, choice, literal
from pipeline.codegen.cuda.emit_warp_reduce import ReduceEmitter
from pipeline.codegen.cuda.fragment_layout import product_layout
from pipeline.errors import CodegenError
from pipeline.ir.expr import Const, Expr, Op, conjuncts, substitute, variables
from pipeline.ir.program_text import expr_text
from pipeline.schedule.intrinsics import INTRINSICS
from pipeline.schedule.nest import indices_over_loops, over_loops
from pipeline.schedule.unit_match import UnitMatch


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Conditions, over loop variables, under which points of a product are computed at all: those of the whole tile,
    of its elements, and of the terms of their sums."""

    tile: tuple[Expr, ...]
    elements: tuple[Expr, ...]
    terms: tuple[Expr, ...]

    def __bool__(self) -> bool:
        return bool(self.tile or self.elements or self.terms)


@dataclass(slots=True)
class ProductEmitter(ReduceEmitter):
    """Products."""

    def product(self, unit: str, found: UnitMatch) -> None:
        function = f"ms::{unit.replace('.', '_')}"
        tiles = {name: self.operand(found, name) for name in "CAB"}
        left_out = self.left_out(unit, found)
        if not left_out:
            self.lines.add(f"{function}({tiles['C']}, {tiles['A']}, {tiles['B']});")
            return
        if product_layout(unit, "C").per > 1 and left_out.elements:
            raise CodegenError(f"conditions leave out elements of {unit}", where=f"block {found.block.name}",
                               why="Its sums are packed", todo="Give it the indices of its tiles alone")  # fmt: skip
        with self.braces(f"if ({self.tests(left_out.tile)})" if left_out.tile else ""):
            for name, axes in (("A", (0, 2)), ("B", (2, 1))):
                if left_out.terms:
                    tiles[name] = self.masked(unit, name, tiles[name], found, axes, left_out.terms)
            if not left_out.elements:
                self.lines.add(f"{function}({tiles['C']}, {tiles['A']}, {tiles['B']});")
                return
            layout = product_layout(unit, "C")
            total = self.names.new("total")
            values = ", ".join(f"{tiles['C']}[{number}]" for number in range(layout.registers))
            self.lines.add(f"{layout.type} {total}[{layout.registers}] = {{{values}}};")
            self.lines.add(f"{function}({total}, {tiles['A']}, {tiles['B']});")
            for number, (_, place) in enumerate(layout.elements()):
                tests = self.tests(self.there(left_out.elements, found, (0, 1), place))
                self.lines.add(f"if ({tests}) {tiles['C']}[{number}] = {total}[{number}];")

    def operand(self, found: UnitMatch, name: str) -> str:
        """The registers of the tile that an operand is."""
        operand = found.operands[name]
        start: dict[str, Expr] = {**self.known, **{var: Const(0) for var in found.variables}}
        outer, self.bindings = self.bindings, {}
        settled = indices_over_loops(self.settled(found.block), operand.indices)
        indices = tuple(substitute(index, start) for index in settled)
        text = self.tile(self.places[operand.buffer], indices)
        self.bindings = outer
        return text

    def left_out(self, unit: str, found: UnitMatch) -> LeftOut:
        """What is not proven to hold. CodegenError where single terms of single elements may be left out."""
        if self.complete(found.block, found.variables, INTRINSICS[unit].extents):
            return LeftOut((), (), ())
        block = self.settled(found.block)
        conditions: list[Expr] = []
        for it in block.iters:
            conditions.append(Op("ge", (it.binding, Const(0)), "bool"))
            conditions.append(Op("lt", (it.binding, Const(it.extent.value)), "bool"))
        conditions += [over_loops(block, part) for whole in block.where for part in conjuncts(whole)]
        tile: list[Expr] = []
        elements: list[Expr] = []
        terms: list[Expr] = []
        side, across, depth = found.variables
        extents = dict(zip(found.variables, INTRINSICS[unit].extents, strict=True))
        for condition in conditions:
            if self.holds(condition, extents):
                continue
            used = variables(condition) & {side, across, depth}
            if depth in used and len(used) > 1:
                raise CodegenError(f"a condition leaves out single terms of {unit}", where=f"block {block.name}",
                                   why=expr_text(condition), todo="Fill what its factors are loaded from")  # fmt: skip
            (terms if depth in used else elements if used else tile).append(condition)
        return LeftOut(tuple(tile), tuple(elements), tuple(terms))

    def holds(self, condition: Expr, extents: dict[str, int]) -> bool:
        """Is it proven, wherever in the nest?"""
        with self.scope():
            ranges = {var: (0, extent - 1) for var, extent in extents.items()}
            self.facts = type(self.facts)({**self.facts.ranges, **ranges}, self.facts.sums)
            bindings, self.bindings = self.bindings, {}
            known = self.decide(condition) is True
            self.bindings = bindings
            return known

    def there(
        self, conditions: Iterable[Expr], found: UnitMatch, axes: tuple[int, int], place: tuple[Expr, ...]
    ) -> list[Expr]:
        """Conditions where a lane holds an element; `axes` are those of the nest that its place is along."""
        where = {found.variables[axis]: index for axis, index in zip(axes, place, strict=True)}
        return [substitute(condition, where) for condition in conditions]

    def tests(self, conditions: Iterable[Expr]) -> str:
        bindings, self.bindings = self.bindings, {}
        tests = [self.value(condition).at(EQUAL) for condition in conditions if self.decide(condition) is not True]
        self.bindings = bindings
        return " && ".join(tests) or "true"

    def masked(
        self, unit: str, name: str, tile: str, found: UnitMatch, axes: tuple[int, int], terms: tuple[Expr, ...]
    ) -> str:
        """A copy of a factor with zeros for the terms that are left out."""
        layout = product_layout(unit, name)
        place = self.places[found.operands[name].buffer]
        copy = self.names.new(f"{place.name}_kept")
        self.lines.add(f"unsigned {copy}[{layout.registers}];")
        parts: list[Cpp] = []
        for slot, at in layout.elements():
            assert isinstance(slot.register, Const)
            register = f"[{slot.register.value}]"
            element = self.loaded(place, self.part_of(place, tile + register, slot.part))
            test = Cpp(self.tests(self.there(terms, found, axes, at)), "bool", EQUAL)
            parts.append(choice(test, element, literal(0, layout.dtype), VALUE[layout.dtype]))
            if len(parts) == layout.per:
                self.lines.add(f"{copy}{register} = {self.word(parts, layout.dtype)};")
                parts = []
        return copy
