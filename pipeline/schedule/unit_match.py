"""The match of a nest with a unit that a warp computes together: what it does to which elements of its fragments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pipeline.ir.expr import Const, Expr, loads
from pipeline.ir.poly import Poly
from pipeline.ir.program import Block, Buffer, Loop
from pipeline.schedule.intrinsic import Intrinsic, Kind
from pipeline.schedule.nest import affine_over_loops, loads_of, reads
from pipeline.schedule.tensor_match import Operand, match_intrinsic, row_major, unit_nest

Form = Literal["tile", "rows", "lanes", "one"]
BufferOf = Callable[[str], Buffer]

READS: Mapping[Kind, tuple[Form, ...]] = {
    "map": ("tile", "rows", "one"), "row reduction": ("tile", "rows", "one"), "row map": ("rows", "one"),
    "lane map": ("lanes", "one"), "lane reduction": ("lanes", "one"), "load": ("one",), "fill": (),
}  # fmt: skip
WRITES: Mapping[Kind, Form] = {
    "map": "tile", "row reduction": "rows", "row map": "rows", "lane map": "lanes", "lane reduction": "one",
    "load": "tile", "fill": "tile",
}  # fmt: skip
NAMES: Mapping[Form, str] = {"tile": "a tile", "rows": "the rows", "lanes": "the lanes", "one": "one element"}
OF_LANES = frozenset[Kind]({"lane map", "lane reduction"})  # these reach an element of each lane, not of each row
TO_MEMORY = frozenset[Kind]({"map", "row map", "lane map", "lane reduction"})  # these may write what is no fragment


@dataclass(frozen=True, slots=True)
class UnitMatch:
    """The block of the unit, the loop variables of its nest (outermost first), and how it reaches each fragment.

    forms     by fragment. tile: element (row, column) at the place (i, j) of the nest · rows: the element of row i,
              which all columns share · lanes: the element of lane i · one: an element that all places share
    operands  of a product, by the names that they have in its description
    """

    block: Block
    variables: tuple[str, ...]
    forms: Mapping[str, Form]
    operands: Mapping[str, Operand] = field(default_factory=dict)


def match_unit(loop: Loop, intrinsic: Intrinsic, buffer_of: BufferOf) -> UnitMatch | str:
    """The match, or why the nest is not what the unit computes."""
    variables, extents, stmt = unit_nest(loop)
    if not isinstance(stmt, Block):
        return f"loop {variables[0]} is not a perfect nest around one block"
    wanted = tuple(Poly.of(extent) for extent in intrinsic.extents)
    if extents != wanted:
        shape, needed = (" x ".join(map(str, sizes)) for sizes in (extents, wanted))
        return f"the loops from {variables[0]} on are {shape}; {intrinsic.name} takes {needed}"
    if stmt.init is not None:
        return f"block {stmt.name} has an initial value: decompose the reduction first"
    if intrinsic.kind == "product":
        return _product(loop, intrinsic, buffer_of)
    forms: dict[str, Form] = {}
    for name, indices in fragment_uses(stmt, buffer_of):
        form = form_of(stmt, indices, variables, "lanes" if intrinsic.kind in OF_LANES else "rows")
        if form is None:
            return f"block {stmt.name} reaches {name} in a way in which {intrinsic.name} reaches no fragment"
        if forms.setdefault(name, form) != form:
            return f"block {stmt.name} reaches {NAMES[forms[name]]} of {name} and {NAMES[form]} of it"
    reason = _why_not(stmt, variables, intrinsic, forms, buffer_of)
    return UnitMatch(stmt, variables, forms) if reason is None else reason


def fragment_uses(block: Block, buffer_of: BufferOf) -> Iterator[tuple[str, tuple[Expr, ...]]]:
    """Every fragment that a block stores into or loads from, with the indices."""
    uses = [(block.buffer, block.indices), *((load.buffer, load.indices) for load in loads_of(block))]
    yield from ((name, indices) for name, indices in uses if buffer_of(name).scope == "fragment")


def form_of(block: Block, indices: tuple[Expr, ...], variables: tuple[str, ...], single: Form) -> Form | None:
    """How the places of a nest reach a fragment; None: in no way in which a lane has what it needs. `single` is what
    the last index is where it goes with the first loop alone."""
    steps: list[dict[str, int]] = []
    for index in indices:
        form = affine_over_loops(block, index)
        if form is None:
            return None
        found = {var: form.coefficient(var) for var in variables if form.coefficient(var).terms}
        if not all(step.is_constant for step in found.values()):
            return None
        steps.append({var: step.value for var, step in found.items()})
    if not any(steps):
        return "one"
    one = {variables[0]: 1}
    if len(variables) == 2 and not any(steps[:-2]) and steps[-2:] == [one, {variables[1]: 1}]:
        return "tile"
    return None if any(steps[:-1]) or steps[-1] != one else single


def _product(loop: Loop, intrinsic: Intrinsic, buffer_of: BufferOf) -> UnitMatch | str:
    found = match_intrinsic(loop, intrinsic, lambda name: row_major(buffer_of(name)))
    if isinstance(found, str):
        return found
    for operand in found.operands.values():
        if buffer_of(operand.buffer).scope != "fragment":
            return f"{operand.buffer} is no fragment, as the operands of {intrinsic.name} are"
        if (reason := _begins_no_tile(found.block, operand, found.variables)) is not None:
            return reason
    forms: dict[str, Form] = {operand.buffer: "tile" for operand in found.operands.values()}
    return UnitMatch(found.block, found.variables, forms, found.operands)


def _why_not(
    block: Block, variables: tuple[str, ...], intrinsic: Intrinsic, forms: Mapping[str, Form], buffer_of: BufferOf
) -> str | None:
    kind, name = intrinsic.kind, intrinsic.name
    assert kind is not None and kind != "product"
    for fragment in sorted({load.buffer for load in loads(block.value)} & set(forms)):
        if forms[fragment] not in READS[kind]:
            return f"block {block.name} reads {NAMES[forms[fragment]]} of {fragment}; {name} takes its values elsewhere"
    target = forms.get(block.buffer)
    if target != WRITES[kind] and not (target is None and kind in TO_MEMORY):
        return f"block {block.name} writes {block.buffer}, but {name} writes {NAMES[WRITES[kind]]} of a fragment"
    if kind in ("row reduction", "lane reduction"):
        combine = intrinsic.block.combine
        if block.buffer in reads(block):
            return f"block {block.name} reads {block.buffer}, into which it combines"
        return None if block.combine == combine else f"block {block.name} does not combine by {combine}, as {name} does"
    if kind not in ("fill", "load"):
        return None
    if block.combine is not None:
        return f"block {block.name} combines into {block.buffer}, which {name} writes over"
    if kind == "fill" and not isinstance(block.value, Const):
        return f"block {block.name} stores more than one number; {name} stores a constant"
    buffer, wanted = buffer_of(block.buffer), intrinsic.description.buffer(intrinsic.block.buffer)
    if buffer.dtype != wanted.dtype or buffer.shape[-2:] != wanted.shape:
        tile = " x ".join(map(str, wanted.shape))
        return f"{block.buffer} is not made of tiles of {tile} of {wanted.dtype}, as {name} writes them"
    return _begins_no_tile(block, Operand(block.buffer, block.indices), variables)


def _begins_no_tile(block: Block, operand: Operand, variables: tuple[str, ...]) -> str | None:
    """Why the operand is not one whole tile."""
    for index in operand.indices[-2:]:
        form = affine_over_loops(block, index)
        if form is None or form.constant.terms or any(var not in variables for var, _ in form.terms):
            return f"block {block.name} reaches into {operand.buffer} where no tile begins"
    return None
