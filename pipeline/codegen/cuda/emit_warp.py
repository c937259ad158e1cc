"""What a warp does together, as C++: products, fills, and elementwise blocks over what its lanes hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from pipeline.codegen.cuda.cpp import AND, MEMORY, VALUE, Cpp
from pipeline.codegen.cuda.emit import Emitter
from pipeline.codegen.cuda.emit_block import rounded_once
from pipeline.codegen.cuda.emit_fragment import neighbours
from pipeline.codegen.cuda.emit_state import Place
from pipeline.codegen.cuda.emit_warp_product import ProductEmitter
from pipeline.codegen.cuda.fragment_layout import GROUP, LANE, Layout, unit_of
from pipeline.codegen.cuda.scalar import stored
from pipeline.errors import CodegenError
from pipeline.ir.expr import Const, Expr, Load, Op, Var, add, affine, children, loads, substitute
from pipeline.ir.poly import Poly
from pipeline.ir.program import Alloc, Block, Loop, Stmt, walk
from pipeline.schedule.intrinsics import INTRINSICS
from pipeline.schedule.unit_match import UnitMatch

PAIR = 2  # neighbouring columns of an accumulator that a lane holds


@dataclass(slots=True)
class WarpEmitter(ProductEmitter):
    """Units.

    handed   arrays through which the lanes of a warp hand values to one another in the nest at hand
    """

    handed: frozenset[str] = frozenset()

    def leaf(self, stmt: Stmt) -> None:
        self.handed = handed_over(stmt)
        Emitter.leaf(self, stmt)

    def loop(self, loop: Loop) -> None:
        if is_unit(loop):
            name = loop.annotation("tensorize")
            raise CodegenError(f"the unit {name} is not run by whole warps", where="codegen.cuda",
                               todo="Put it into a nest over threadIdx.y without threadIdx.x")  # fmt: skip
        if not (self.by_warps() and loop.kind in ("serial", "unrolled") and self.units(loop)):
            Emitter.loop(self, loop)

    def unit(self, loop: Loop, name: str) -> None:
        """A tensorized nest. CodegenError where it is not what it is said to be."""
        unit, found = self.unit_of(loop)
        with self.lanes(), self.braced():
            self.meet_lanes(found.block)
            match INTRINSICS[unit].kind:
                case "product":
                    self.product(unit, found)
                case "load":
                    self.load_unit(unit, found)
                case "fill" | "map":
                    self.map_unit(found)
                case "row reduction":
                    self.row_reduction(found)
                case "row map":
                    self.map_rows(found)
                case "lane map":
                    self.single(self.at(found.block, found.variables, (Var(LANE),)))
                case "lane reduction":
                    self.lane_reduction(found)
                case None:
                    raise CodegenError(f"{unit} is no unit of a warp", where="codegen.cuda")
                case kind:
                    assert_never(kind)

    def units(self, loop: Loop) -> bool:
        """A loop around one unit, where several iterations are better than one after another: False where not."""
        inner = loop.body
        if not isinstance(inner, Loop) or not is_unit(inner) or len(loop.axes) != 1 or loop.axes[0].extent.value < 2:
            return False
        unit, found = self.unit_of(inner)
        if any(not self.places[name].private for name in self.handed & reads_of(found.block)):
            return False
        with self.lanes():
            match INTRINSICS[unit].kind:
                case "load":
                    return self.load_tiles(loop, unit, found)
                case "row reduction":
                    return self.row_reductions(loop, found)
                case _:
                    return False

    def whole_warp(self, block: Block) -> None:
        """A block of a warp that is in no unit: all lanes compute it where its element is in all of them, else one."""
        with self.lanes():
            self.meet_lanes(block)
            if self.is_fragment(block.buffer):
                self.single(block)
                return
            with self.braces("if (lane == 0)"):
                self.block(block)

    def unit_of(self, loop: Loop) -> tuple[str, UnitMatch]:
        return unit_of(loop, {name: place.buffer for name, place in self.places.items()})

    def meet_lanes(self, block: Block) -> None:
        """Lanes wait for one another where one may touch what another wrote into memory in the same nest."""
        if any(not self.places[name].private for name in (reads_of(block) | {block.buffer}) & self.handed):
            self.lines.add("ms::sync_warp();")

    # Elementwise

    def map_unit(self, found: UnitMatch) -> None:
        """At the four elements of an accumulator that a lane holds: neighbours in memory are stored together."""
        places = [place for _, place in Layout("accumulator", "float32").elements()]
        blocks = [self.at(found.block, found.variables, place) for place in places]
        target = self.layouts.get(found.block.buffer)
        for start in range(0, len(blocks), PAIR):
            pair = blocks[start : start + PAIR]
            if target is not None and target.per > 1:
                self.packed(pair)
            elif target is not None or not self.store_pair(pair):
                for block in pair:
                    self.single(block)

    def map_rows(self, found: UnitMatch) -> None:
        """At the two rows that a lane holds; what memory gets of a row, the first lane of its group stores."""
        for half in range(2):
            block = self.at(found.block, found.variables, (add(Var(GROUP), Const(8 * half)),))
            if self.is_fragment(block.buffer):
                self.single(block)
            else:
                with self.braces("if (lane % 4 == 0)"):
                    self.single(block)

    def store_pair(self, pair: Sequence[Block]) -> bool:
        """Two neighbouring elements of memory by one store; False where they are none, or one may be left out alone."""
        first, second = pair
        place = self.places[first.buffer]
        if first.combine is not None or not self.together(first, second):
            return False
        if not neighbours([self.indices_over_loops(block, block.indices) for block in pair], place):
            return False
        bindings = self.bindings
        with self.scope():
            tests = self.enter(first)
            if tests is None:
                return True
            if tests:
                with self.braces(f"if ({' && '.join(test.at(AND) for test in tests)})"):
                    self.store_neighbours(place, first, second)
            else:
                self.store_neighbours(place, first, second)
        self.bindings = bindings
        return True

    def store_neighbours(self, place: Place, first: Block, second: Block) -> None:
        self.hold_pairs(first, second)
        offset = self.offset(place, first.indices)
        values = [stored(self.value(rounded_once(first.value)), place.buffer.dtype)]
        self.enter(second)  # under the same tests
        values.append(stored(self.value(rounded_once(second.value)), place.buffer.dtype))
        self.held.clear()
        text = ", ".join(value.text for value in values)
        vector = f"ms::vec<{MEMORY[place.buffer.dtype]}, {PAIR}>"
        self.lines.add(f"ms::store<{PAIR}>({place.name}, {offset}, {vector}{{{{{text}}}}});")

    def indices_over_loops(self, block: Block, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        bindings = {it.var: it.binding for it in block.iters}
        return tuple(substitute(index, bindings) for index in indices)

    def together(self, first: Block, second: Block) -> bool:
        """Do two blocks at neighbouring columns run under the same conditions? An even bound of an even column is not
        between the two."""
        if first.where != second.where:
            return False
        for one, other in zip(first.iters, second.iters, strict=True):
            if one.binding == other.binding:
                continue
            low, high = self.bounds(other.binding)
            if low >= 1 and high < one.extent.value:
                continue
            a, b = affine(one.binding), affine(other.binding)
            if a is None or b is None or a.terms != b.terms or b.constant + -1 != a.constant:
                return False
            two = Poly.of(PAIR)
            steps = (a.constant, one.extent, *(step for _, step in a.terms))
            if any(step.quotient(two) is None for step in steps):
                return False
        return True

    def hold_pairs(self, first: Block, second: Block) -> None:
        """Loads of neighbours that the values make unconditionally, by one instruction each."""
        for one, other in zip(_unconditional(first.value), _unconditional(second.value), strict=True):
            place = self.places[one.buffer]
            if place.private or self.is_fragment(one.buffer) or loads_in(one):
                continue
            here = [self.indices_over_loops(block, load.indices) for block, load in ((first, one), (second, other))]
            if not neighbours(here, place):
                continue
            keys = [Load(load.buffer, indices, load.dtype) for load, indices in zip((one, other), here, strict=True)]
            if keys[0] in self.held:
                continue
            name = self.names.new(f"{place.name}_pair")
            type_ = MEMORY[place.buffer.dtype]
            self.lines.add(f"const ms::vec<{type_}, {PAIR}> {name} = "
                           f"ms::load<{PAIR}>({place.name}, {self.offset(place, one.indices)});")  # fmt: skip
            for number, key in enumerate(keys):
                self.held[key] = self.loaded(place, Cpp(f"{name}[{number}]", VALUE[place.buffer.dtype]))


def loads_in(load: Load) -> list[Load]:
    """Those in its indices."""
    return [inner for index in load.indices for inner in loads(index)]


def _unconditional(expr: Expr) -> list[Load]:
    """The loads of a value that are made whatever its conditions say, in order."""
    match expr:
        case Load():
            return [expr]
        case Op("guard", (condition, _, _), _):
            return _unconditional(condition)
        case _:
            return [load for child in children(expr) for load in _unconditional(child)]


def is_unit(stmt: Stmt) -> bool:
    """Is it a whole unit of a warp?"""
    if not isinstance(stmt, Loop):
        return False
    intrinsic = INTRINSICS.get(str(stmt.annotation("tensorize")))
    return intrinsic is not None and intrinsic.kind is not None


def reads_of(block: Block) -> frozenset[str]:
    exprs = (block.value, *block.indices, *block.where)
    return frozenset(load.buffer for expr in exprs for load in loads(expr))


def handed_over(nest: Stmt) -> frozenset[str]:
    """The arrays that one block of a nest writes and another one touches; what the nest allocates is none."""
    touched: dict[str, int] = {}
    written: set[str] = set()
    for block in (stmt for stmt in walk(nest) if isinstance(stmt, Block)):
        written.add(block.buffer)
        for name in (*reads_of(block), block.buffer):  # twice, where it reads what it writes
            touched[name] = touched.get(name, 0) + 1
    own = {stmt.buffer.name for stmt in walk(nest) if isinstance(stmt, Alloc)}
    return frozenset(name for name in written - own if touched[name] > 1)


__all__ = ["WarpEmitter", "handed_over", "is_unit"]
