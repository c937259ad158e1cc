"""What a warp does together, as C++: products, fills, and elementwise blocks over what its lanes hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from pipeline.codegen.cuda.emit import Emitter
from pipeline.codegen.cuda.emit_warp_store import StoreEmitter
from pipeline.codegen.cuda.fragment_layout import GROUP, LANE, unit_of
from pipeline.errors import CodegenError
from pipeline.ir.expr import Const, Var, add, loads
from pipeline.ir.program import Alloc, Block, Loop, Stmt, walk
from pipeline.schedule.intrinsics import INTRINSICS
from pipeline.schedule.unit_match import UnitMatch


@dataclass(slots=True)
class WarpEmitter(StoreEmitter):
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
                    self.block(self.at(found.block, found.variables, (Var(LANE),)))
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
                case "map":
                    return self.store_tiles(loop, found)
                case _:
                    return False

    def whole_warp(self, block: Block) -> None:
        """A block of a warp that is in no unit: all lanes compute it where its element is in all of them, else one."""
        with self.lanes():
            self.meet_lanes(block)
            if self.is_fragment(block.buffer):
                self.block(block)
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

    def map_rows(self, found: UnitMatch) -> None:
        """At the two rows that a lane holds; what memory gets of a row, the first lane of its group stores."""
        for half in range(2):
            block = self.at(found.block, found.variables, (add(Var(GROUP), Const(8 * half)),))
            if self.is_fragment(block.buffer):
                self.block(block)
            else:
                with self.braces("if (lane % 4 == 0)"):
                    self.block(block)


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
