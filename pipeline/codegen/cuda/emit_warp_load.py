"""Factors of products out of memory into fragments: whole matrices at once from shared memory, else word by word."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.codegen.cuda.emit_fragment import FragmentEmitter, neighbours
from pipeline.codegen.cuda.fragment_layout import Layout, load_layout
from pipeline.ir.expr import ONE, ZERO, Const, Expr, Load, Var, add, affine, mul, substitute
from pipeline.ir.poly import Poly
from pipeline.ir.program import Axis, Block, Loop, map_block_exprs
from pipeline.ir.program_bounds import Facts
from pipeline.schedule.intrinsics import INTRINSICS
from pipeline.schedule.nest import indices_over_loops
from pipeline.schedule.unit_match import UnitMatch

BANK_ROW = 16  # bytes of a row of a matrix
MATRICES = 4  # that one instruction loads at most


@dataclass(frozen=True, slots=True)
class Matrices:
    """A load that is one of whole matrices.

    source       indices of the element at which the tile begins, over loop variables and those of the nest
    transposed   the rows in memory go along the sum, of which each lane needs neighbours
    """

    load: Load
    source: tuple[Expr, ...]
    transposed: bool


@dataclass(slots=True)
class LoadEmitter(FragmentEmitter):
    """Loads of factors."""

    def load_unit(self, unit: str, found: UnitMatch) -> None:
        layout = load_layout(unit)
        matrices = self.matrices(unit, found, layout)
        if matrices is not None:
            target = self.target(found.block, {})
            self.load_matrices(layout, found.variables, matrices, [target], {})
            return
        blocks = [(slot, self.at(found.block, found.variables, place)) for slot, place in layout.elements()]
        whole = self.complete(found.block, found.variables, INTRINSICS[unit].extents)
        for start in range(0, len(blocks), layout.per):
            parts = [block for _, block in blocks[start : start + layout.per]]
            if not (whole and layout.per > 1 and self.load_word(parts)):
                self.packed(parts)

    def load_tiles(self, loop: Loop, unit: str, found: UnitMatch) -> bool:
        """An unrolled loop around one load: as many tiles at once as one instruction can. False where that is none."""
        layout = load_layout(unit)
        (axis,) = loop.axes
        extent = axis.extent.value
        together = next((n for n in (4, 2) if n * layout.registers <= MATRICES and extent % n == 0), 1)
        if together == 1:
            return False
        with self.scope():
            self.facts = Facts({**self.facts.ranges, axis.var: (0, extent - 1)}, self.facts.sums)
            matrices = self.matrices(unit, found, layout)
        if matrices is None or self.target(found.block, {axis.var: ZERO}) == self.target(found.block, {axis.var: ONE}):
            return False
        if extent == together:
            targets = [self.target(found.block, {axis.var: Const(number)}) for number in range(together)]
            self.load_matrices(layout, found.variables, matrices, targets, {axis.var: ZERO}, axis)
            return True
        with self.scope():
            name = self.declare(axis)
            self.facts = Facts({**self.facts.ranges, axis.var: (0, extent - together)}, self.facts.sums)
            self.lines.add("#pragma unroll")
            with self.braces(f"for (int {name} = 0; {name} < {extent}; {name} += {together})"):
                targets = [self.target(found.block, {axis.var: add(Var(axis.var), Const(number))})
                           for number in range(together)]  # fmt: skip
                self.load_matrices(layout, found.variables, matrices, targets, {axis.var: Var(axis.var)}, axis)
        return True

    def target(self, block: Block, where: dict[str, Expr]) -> str:
        """The registers of the tile that a load writes."""
        bindings = {it.var: substitute(it.binding, {**self.known, **where}) for it in block.iters}
        outer, self.bindings = self.bindings, bindings
        text = self.tile(self.places[block.buffer], block.indices)
        self.bindings = outer
        return text

    def matrices(self, unit: str, found: UnitMatch, layout: Layout) -> Matrices | None:
        """How the load reads matrices; None where it does not: rows of them are 16 neighbouring, aligned bytes in
        shared memory."""
        block = map_block_exprs(found.block, lambda expr: substitute(expr, self.known))
        load = block.value
        if not isinstance(load, Load) or not self.complete(found.block, found.variables, INTRINSICS[unit].extents):
            return None
        place = self.places[load.buffer]
        if place.buffer.scope != "shared":
            return None
        source = indices_over_loops(block, load.indices)
        forms = [affine(index) for index in source]
        last = forms[-1] if forms else None
        if last is None or (len(forms) > 1 and place.row * place.item % BANK_ROW):
            return None
        side, depth = found.variables if layout.kind == "left" else found.variables[::-1]
        for along, across, transposed in ((depth, side, False), (side, depth, True)):
            inside = any(form is None or form.coefficient(along).terms for form in forms[:-1])
            if last.coefficient(along) != Poly.of(1) or last.coefficient(across).terms or inside:
                continue
            if transposed and place.item != 2:
                return None
            number = Poly.of(BANK_ROW // place.item)
            steps = [step for name, step in last.terms if name != along]
            if all(step.quotient(number) is not None for step in (*steps, last.constant)):
                return Matrices(load, source, transposed)
        return None

    def load_matrices(
        self,
        layout: Layout,
        variables: tuple[str, ...],
        matrices: Matrices,
        targets: list[str],
        where: dict[str, Expr],
        axis: Axis | None = None,
    ) -> None:
        """Lane l hands over where row l % 8 of matrix l / 8 begins."""
        place = self.places[matrices.load.buffer]
        count = layout.registers * len(targets)
        side, depth, tile = _row_of_lane(layout, len(targets), matrices.transposed, BANK_ROW // place.item)
        order = (side, depth) if layout.kind == "left" else (depth, side)
        lane: dict[str, Expr] = dict(zip(variables, order, strict=True))
        if axis is not None:
            lane[axis.var] = add(where[axis.var], tile)
        indices = tuple(substitute(index, lane) for index in matrices.source)
        bindings, self.bindings = self.bindings, {}
        offset = self.offset(place, indices)
        self.bindings = bindings
        name = f"ms::ldmatrix_x{count}{'_trans' if matrices.transposed else ''}"
        self.lines.add(f"{name}({', '.join(targets)}, {place.name}, {offset});")
        if layout.per == 1:
            for target in targets:
                self.lines.add(f"ms::round_tf32({target});")

    def load_word(self, blocks: list[Block]) -> bool:
        """All parts of a register by one load; False where they are not neighbours in memory."""
        found: list[tuple[Expr, ...]] = []
        for block in blocks:
            if not isinstance(block.value, Load) or self.places[block.value.buffer].private:
                return False
            found.append(indices_over_loops(block, block.value.indices))
        assert isinstance(blocks[0].value, Load)
        place = self.places[blocks[0].value.buffer]
        if not neighbours(found, place):
            return False
        bindings, self.bindings = self.bindings, {}
        offset = self.offset(place, found[0])
        self.bindings = {it.var: it.binding for it in blocks[0].iters}
        target, _ = self.register(self.places[blocks[0].buffer], blocks[0].indices)
        self.bindings = bindings
        self.lines.add(f"{target} = ms::load_word({place.name}, {offset});")
        return True


def _row_of_lane(layout: Layout, tiles: int, transposed: bool, width: int) -> tuple[Expr, Expr, Expr]:
    """Where the row begins that a lane hands over: along the side of the product, along the sum, and in which tile.

    Matrix m is register m of its tile. All lanes hand over a row, those beyond the last matrix one of the others again.
    """
    count = layout.registers * tiles

    def bits(low: int, number: int) -> Expr:
        """The number of the matrix, from the bit `low` on, `number` different values."""
        if number == 1:
            return ZERO
        return Var(f"lane/{8 << low}" if (8 << low) * number == 32 else f"lane/{8 << low}%{number}")

    per_tile = layout.registers.bit_length() - 1
    tile = bits(per_tile, count // layout.registers)
    halves = 2 if layout.kind == "left" else 1
    half, group = bits(0, halves), bits(halves - 1, layout.registers // halves)
    row = Var("lane%8")
    if transposed:
        depth = Var("lane%16") if halves == 1 and layout.groups == 2 else add(row, mul(group, Const(width)))
        return mul(half, Const(8)), depth, tile
    return Var("lane%16") if halves == 2 else row, mul(group, Const(width)), tile
