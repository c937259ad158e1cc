"""Elementwise blocks over accumulators, which store into memory what neighbouring lanes hold together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.codegen.cuda.cpp import AND, HALVES, MEMORY, VALUE, Cpp
from pipeline.codegen.cuda.emit_block import rounded_once
from pipeline.codegen.cuda.emit_fragment import neighbours
from pipeline.codegen.cuda.emit_state import Place
from pipeline.codegen.cuda.emit_warp_product import ProductEmitter
from pipeline.codegen.cuda.fragment_layout import PLACE, Layout
from pipeline.codegen.cuda.scalar import stored
from pipeline.ir.expr import (
    ZERO,
    Affine,
    Const,
    Expr,
    Load,
    Op,
    Var,
    add,
    affine,
    children,
    from_affine,
    loads,
    mul,
    substitute,
)
from pipeline.ir.poly import Poly
from pipeline.ir.program import Block, Loop, map_block_exprs
from pipeline.ir.program_bounds import Facts
from pipeline.schedule.nest import indices_over_loops
from pipeline.schedule.unit_match import UnitMatch

PAIR = 2  # neighbouring columns of an accumulator that a lane holds
WIDTH = 8  # columns of an accumulator
QUARTER = 4  # columns that a lane stores of two tiles of halves


@dataclass(slots=True)
class StoreEmitter(ProductEmitter):
    """Maps."""

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
                    self.block(block)

    def store_pair(self, pair: Sequence[Block]) -> bool:
        """Two neighbouring elements of memory by one store; False where they are none, or one may be left out alone."""
        first, second = pair
        place = self.places[first.buffer]
        if first.combine is not None or not self.together(first, second):
            return False
        if not neighbours([indices_over_loops(block, block.indices) for block in pair], place):
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
        offset = self.offset(place, first.indices)
        values = [stored(value, place.buffer.dtype) for value in self.pair_of_values(first, second)]
        text = ", ".join(value.text for value in values)
        vector = f"ms::vec<{MEMORY[place.buffer.dtype]}, {PAIR}>"
        self.lines.add(f"ms::store<{PAIR}>({place.name}, {offset}, {vector}{{{{{text}}}}});")

    def pair_of_values(self, first: Block, second: Block) -> list[Cpp]:
        """What two blocks store, once `first` is entered, under whose tests `second` runs too."""
        self.hold_pairs(first, second)
        values = [self.value(rounded_once(first.value))]
        self.enter(second)
        values.append(self.value(rounded_once(second.value)))
        self.held.clear()
        return values

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
            if place.private or any(loads(index) for index in one.indices):
                continue
            here = [indices_over_loops(block, load.indices) for block, load in ((first, one), (second, other))]
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

    # Two tiles of halves at a time

    def store_tiles(self, loop: Loop, found: UnitMatch) -> bool:
        """An unrolled loop around one map that stores halves: lanes exchange what they hold of two tiles, so that each
        stores four neighbours, and four of them a whole sector. False where it is another map."""
        (axis,) = loop.axes
        place = self.places[found.block.buffer]
        extent = axis.extent.value
        if extent % 2 or place.buffer.dtype not in HALVES or found.block.combine is not None or place.private:
            return False
        with self.scope():
            self.facts = Facts({**self.facts.ranges, axis.var: (0, extent - 1)}, self.facts.sums)
            start: Expr = ZERO if extent == 2 else Var(axis.var)
            rows = self.two_tiles(found, axis.var, start)
            indices = [self.exchanged(tiles, place) for tiles in rows]
        if any(index is None for index in indices):
            return False
        with self.braces(), self.scope():
            if extent > 2:
                name = self.declare(axis)
                self.lines.add("#pragma unroll")
                with self.braces(f"for (int {name} = 0; {name} < {extent}; {name} += 2)"):
                    self.store_rows(place, rows, indices)
            else:
                self.store_rows(place, rows, indices)
        return True

    def two_tiles(self, found: UnitMatch, var: str, start: Expr) -> list[list[Block]]:
        """The blocks at what a lane holds: for each of its two rows those of one tile, then those of the next."""
        places = [place for _, place in Layout("accumulator", "float32").elements()]
        rows: list[list[Block]] = [[], []]
        for tile in range(2):
            there: dict[str, Expr] = {var: add(start, Const(tile))}
            block = map_block_exprs(found.block, lambda expr, at=there: substitute(expr, at))  # type: ignore[misc]
            for number, place in enumerate(places):
                rows[number // PAIR].append(self.at(block, found.variables, place))
        return rows

    def exchanged(self, tiles: list[Block], place: Place) -> tuple[Expr, ...] | None:
        """Where a lane stores, over loop variables; None where the 16 columns are not neighbours that are all there."""
        first = tiles[0]
        for block in tiles[1:]:
            if block.where != first.where:
                return None
            for one, other in zip(first.iters, block.iters, strict=True):
                for binding in (one.binding, other.binding):
                    low, high = self.bounds(binding)
                    if one.binding != other.binding and (low < 0 or high >= one.extent.value):
                        return None
        indices = [indices_over_loops(block, block.indices) for block in tiles]
        forms = [affine(index[-1]) if index else None for index in indices]
        if any(form is None for form in forms) or any(index[:-1] != indices[0][:-1] for index in indices):
            return None
        starts = [form + Affine((), Poly.of(-distance)) for form, distance in zip(forms, (0, 1, WIDTH, WIDTH + 1),
                                                                                  strict=True) if form]  # fmt: skip
        if any(start != starts[0] for start in starts):
            return None
        tile = starts[0] + Affine(((PLACE, Poly.of(-PAIR)),), Poly.of(0))
        aligned = (tile.constant, *(step for _, step in tile.terms))
        if tile.coefficient(PLACE).terms or any(step.quotient(Poly.of(QUARTER)) is None for step in aligned):
            return None
        if (len(indices[0]) > 1 and place.row % QUARTER) or (place.base and place.count % QUARTER):
            return None
        column = add(mul(Var("lane%2"), Const(WIDTH)), mul(Var("lane/2%2"), Const(QUARTER)))
        return (*indices[0][:-1], add(from_affine(tile), column))

    def store_rows(self, place: Place, rows: list[list[Block]], indices: Sequence[tuple[Expr, ...] | None]) -> None:
        for (a, b, c, d), index in zip(rows, indices, strict=True):
            assert index is not None
            with self.scope():
                bindings = self.bindings
                low, high = self.names.new("low"), self.names.new("high")
                tests = self.enter(a)
                if tests is not None:
                    self.lines.add(f"unsigned {low} = 0, {high} = 0;")
                    test = " && ".join(test.at(AND) for test in tests)
                    with self.braces(f"if ({test})" if test else ""):
                        self.pack_pair(low, a, b)
                        self.enter(c)
                        self.pack_pair(high, c, d)
                    self.bindings = {}
                    valid = f", {test}" if test else ""
                    self.lines.add(
                        f"ms::store_exchanged({place.name}, {self.offset(place, index)}, {low}, {high}{valid});"
                    )
                self.bindings = bindings

    def pack_pair(self, word: str, first: Block, second: Block) -> None:
        dtype = self.places[first.buffer].buffer.dtype
        self.lines.add(f"{word} = {self.word(self.pair_of_values(first, second), dtype)};")


def _unconditional(expr: Expr) -> list[Load]:
    """The loads of a value that are made whatever its conditions say, in order."""
    match expr:
        case Load():
            return [expr]
        case Op("guard", (condition, _, _), _):
            return _unconditional(condition)
        case _:
            return [load for child in children(expr) for load in _unconditional(child)]
