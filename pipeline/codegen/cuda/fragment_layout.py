"""How the elements of a fragment lie in the registers of the lanes, and which layout each fragment of a program has.

In the words of mma.cuh: lane l is in group g = l / 4 at place p = l % 4. Indices are affine in the two, which are
variables that no loop has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pipeline.codegen.cuda.cpp import MEMORY
from pipeline.errors import CodegenError
from pipeline.ir.expr import Affine, Const, Expr, Var, add, affine, from_affine, mul
from pipeline.ir.graph import ITEM_BYTES, DType
from pipeline.ir.poly import Poly
from pipeline.ir.program import Alloc, Buffer, Loop, Stmt, walk
from pipeline.schedule.intrinsics import INTRINSICS
from pipeline.schedule.unit_match import Form, UnitMatch, match_unit

LANE, GROUP, PLACE = "lane", "lane/4", "lane%4"
# Variables that no loop has: how they are written in C++, and how many values each takes
LANES: Mapping[str, tuple[str, int]] = {
    LANE: ("lane", 32), GROUP: ("lane / 4", 8), PLACE: ("lane % 4", 4), "lane%8": ("lane % 8", 8),
    "lane%16": ("lane % 16", 16), "lane/8": ("lane / 8", 4), "lane/16": ("lane / 16", 2),
    "lane/8%2": ("lane / 8 % 2", 2), "lane%2": ("lane % 2", 2), "lane/2%2": ("lane / 2 % 2", 2),
}  # fmt: skip
Kind = Literal["accumulator", "left", "right", "rows", "lanes", "one"]


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one element lies: the number of its register, and which part of that register it is."""

    register: Expr
    part: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Of a tile, the last dimensions of a fragment.

    accumulator   16 x 8 · left: 16 x k, a factor that is multiplied from the left · right: k x 8
    rows          16, each in the four lanes of a group and eight further ones · lanes: 32, one in each · one: in all
    groups        of columns of a left factor (rows of a right one), each four registers wide
    """

    kind: Kind
    dtype: DType
    groups: int = 1

    @property
    def per(self) -> int:
        """Elements in a register: those of factors and halves are packed."""
        packed = self.kind in ("left", "right") or (self.kind == "accumulator" and ITEM_BYTES[self.dtype] == 2)
        return 4 // ITEM_BYTES[self.dtype] if packed else 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tile."""
        k = 4 * self.per * self.groups
        shapes = {"accumulator": (16, 8), "left": (16, k), "right": (k, 8), "rows": (16,), "lanes": (32,), "one": ()}
        return shapes[self.kind]

    @property
    def registers(self) -> int:
        counts = {"accumulator": 4 // self.per, "left": 2 * self.groups, "right": self.groups, "rows": 2, "lanes": 1,
                  "one": 1}  # fmt: skip
        return counts[self.kind]

    @property
    def type(self) -> str:
        """Of a register, in C++."""
        return "unsigned" if self.kind in ("left", "right") or self.per > 1 else MEMORY[self.dtype]

    def elements(self) -> Iterator[tuple[Slot, tuple[Expr, ...]]]:
        """What a lane holds, register by register: where it lies, and which element of the tile it is."""
        width = 4 * self.per
        for register in range(self.registers):
            for part in range(self.per):
                slot = Slot(Const(register), part)
                match self.kind:
                    case "accumulator":
                        number = register * self.per + part
                        yield slot, (_at(GROUP, 1, 8 * (number // 2)), _at(PLACE, 2, number % 2))
                    case "left":
                        yield slot, (_at(GROUP, 1, 8 * (register % 2)),
                                     _at(PLACE, self.per, part + width * (register // 2)))  # fmt: skip
                    case "right":
                        yield slot, (_at(PLACE, self.per, part + width * register), Var(GROUP))
                    case "rows":
                        yield slot, (_at(GROUP, 1, 8 * register),)
                    case "lanes":
                        yield slot, (Var(LANE),)
                    case "one":
                        yield slot, ()

    def slot(self, indices: tuple[Expr, ...]) -> Slot | None:
        """Where this lane holds the element of the tile; None where it is not one that it holds."""
        forms = [affine(index) for index in indices]
        match self.kind, forms:
            case "one", []:
                return Slot(Const(0), 0)
            case "lanes", [Affine() as lane]:
                return Slot(Const(0), 0) if lane == affine(Var(LANE)) else None
            case "rows", [Affine() as row]:
                half = _eighths(row)
                return None if half is None else Slot(half, 0)
            case "accumulator", [Affine() as row, Affine() as column]:
                half, place = _eighths(row), _pieces(column, 2)
                if half is None or place is None or place[0] != Const(0):
                    return None
                return Slot(add(mul(half, Const(2)), Const(place[1])), 0) if self.per == 1 else Slot(half, place[1])
            case "left", [Affine() as row, Affine() as column]:
                half, place = _eighths(row), _pieces(column, self.per)
                return None if half is None or place is None else Slot(add(mul(place[0], Const(2)), half), place[1])
            case "right", [Affine() as row, Affine() as column]:
                place = _pieces(row, self.per)
                return Slot(*place) if place is not None and column == affine(Var(GROUP)) else None
            case _:
                return None

    def __str__(self) -> str:
        what = {"accumulator": "an accumulator", "left": "a left factor", "right": "a right factor", "rows": "rows",
                "lanes": "lanes", "one": "one element"}[self.kind]  # fmt: skip
        return f"{what} ({' x '.join(map(str, self.shape)) or '1'} {self.dtype})"


def _at(var: str, times: int, plus: int) -> Expr:
    return add(mul(Var(var), Const(times)), Const(plus))


def _eighths(form: Affine) -> Expr | None:
    """h of g + 8h."""
    rest = form + Affine(((GROUP, Poly.of(-1)),), Poly.of(0))
    return None if rest.coefficient(PLACE).terms else _divided(rest, 8)


def _pieces(form: Affine, per: int) -> tuple[Expr, int] | None:
    """(piece, part) of per * p + part + 4 * per * piece."""
    rest = form + Affine(((PLACE, Poly.of(-per)),), Poly.of(0))
    if rest.coefficient(PLACE).terms or not rest.constant.is_constant:
        return None
    part = rest.constant.value % per
    piece = _divided(Affine(rest.terms, Poly.of(rest.constant.value - part)), 4 * per)
    return None if piece is None else (piece, part)


def _divided(form: Affine, by: int) -> Expr | None:
    number = Poly.of(by)
    terms = [(name, step.quotient(number)) for name, step in form.terms]
    constant = form.constant.quotient(number)
    if constant is None or any(step is None or name in (GROUP, PLACE, LANE) for name, step in terms):
        return None
    return from_affine(Affine(tuple((name, step) for name, step in terms if step is not None), constant))


# Layouts of the fragments of a program


def unit_of(loop: Loop, buffers: Mapping[str, Buffer]) -> tuple[str, UnitMatch]:
    """The name of the unit that a tensorized nest is, and how. CodegenError where it is not what it is said to be."""
    where, name = f"loop {loop.axes[0].var}", loop.annotation("tensorize")
    intrinsic = INTRINSICS.get(str(name))
    if intrinsic is None or intrinsic.kind is None:
        raise CodegenError(f"a warp has no unit {name}", where=where,
                           todo=f"Its units are {', '.join(n for n, i in INTRINSICS.items() if i.kind)}")  # fmt: skip
    found = match_unit(loop, intrinsic, lambda buffer: buffers[buffer])
    if isinstance(found, str):
        raise CodegenError(f"{where} is not what {name} computes", where=where, why=found,
                           todo="Tensorize after all steps that change the block")  # fmt: skip
    return intrinsic.name, found


def fragment_layouts(region: Stmt, others: Mapping[str, Buffer]) -> dict[str, Layout]:
    """The layout of each fragment that the region allocates, as the units want it that use it. `others` are the buffers
    that it does not allocate. CodegenError where two of them want different ones."""
    buffers = {**others, **{stmt.buffer.name: stmt.buffer for stmt in walk(region) if isinstance(stmt, Alloc)}}
    fragments = {name: buffer for name, buffer in buffers.items() if buffer.scope == "fragment"}
    found: dict[str, tuple[Layout, str]] = {}
    tiles: list[tuple[str, str]] = []  # what maps use as tiles, and where
    for loop in walk(region):
        if not isinstance(loop, Loop) or loop.annotation("tensorize") is None:
            continue
        if loop.annotation("blockize") != loop.axes[0].var:
            continue
        unit, match = unit_of(loop, buffers)
        for name, layout in _wanted(unit, match, fragments):
            if layout is None:
                tiles.append((name, unit))
                continue
            before = found.setdefault(name, (layout, unit))
            if before[0] != layout:
                where = f"block {match.block.name}"
                raise CodegenError(f"the fragment {name} cannot lie as two units want it", where=where,
                                   why=f"{before[1]} takes it as {before[0]}, {unit} as {layout}",
                                   todo="Give each of them a fragment of its own")  # fmt: skip
    for name, unit in tiles:
        found.setdefault(name, (Layout("accumulator", fragments[name].dtype), unit))
    for name in fragments.keys() - found.keys():
        found[name] = Layout("one", fragments[name].dtype), "codegen.cuda"  # what no unit spreads over lanes
    for name, (layout, unit) in found.items():
        shape = tuple(extent.value for extent in fragments[name].shape)
        if shape[len(shape) - len(layout.shape) :] != layout.shape:
            raise CodegenError(f"the fragment {name} is not made of tiles", where=unit,
                               why=f"Its shape {shape} does not end in that of {layout}")  # fmt: skip
    return {name: layout for name, (layout, _) in found.items()}


def _wanted(unit: str, match: UnitMatch, fragments: Mapping[str, Buffer]) -> Iterator[tuple[str, Layout | None]]:
    """The layout in which the unit takes each of its fragments; None: that of an accumulator, or of a factor whose
    elements are in the same lanes."""
    intrinsic = INTRINSICS[unit]
    if intrinsic.kind == "product":
        for operand, place in match.operands.items():
            yield place.buffer, product_layout(unit, operand)
        return
    for name, form in match.forms.items():
        dtype = fragments[name].dtype
        if form == "tile":
            target = name == match.block.buffer
            if intrinsic.kind == "load" and target:
                yield name, load_layout(unit)
            else:
                yield name, Layout("accumulator", dtype) if intrinsic.kind == "fill" else None
        else:
            yield name, Layout(form, dtype)


def product_layout(unit: str, operand: str) -> Layout:
    """Of the operand A, B or C of a product."""
    buffer = INTRINSICS[unit].description.buffer(operand)
    if operand == "C":
        return Layout("accumulator", buffer.dtype)
    k = buffer.shape[1 if operand == "A" else 0].value
    return Layout("left" if operand == "A" else "right", buffer.dtype, k * ITEM_BYTES[buffer.dtype] // 16)


def load_layout(unit: str) -> Layout:
    """Of what a load writes: named A or B in its description."""
    return product_layout(unit, INTRINSICS[unit].block.buffer)


__all__ = ["GROUP", "LANE", "PLACE", "Form", "Layout", "Slot", "fragment_layouts", "load_layout", "product_layout",
           "unit_of"]  # fmt: skip
