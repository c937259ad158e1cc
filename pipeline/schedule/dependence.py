"""What a loop carries: whether its iterations may run in any order, and why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pipeline.ir.expr import Affine, Expr, variables
from pipeline.ir.poly import Poly
from pipeline.ir.program import Alloc, Axis, Block, Stmt, walk
from pipeline.ir.region import separates
from pipeline.schedule.nest import affine_over_loops, axes_in, blocks_in, extents, loads_of, over_loops


@dataclass(frozen=True, slots=True)
class Carried:
    """What the iterations of a loop have to do with each other.

    kind   none: they touch different elements · reduction: they combine into the same ones · order: they must stay in
           order
    why    for reduction and order: the block and buffer, in words
    """

    kind: Literal["none", "reduction", "order"]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Access:
    """One store or load of a buffer, its indices affine over the loops (None where they are not)."""

    block: Block
    write: bool
    indices: tuple[Affine | None, ...]


def accesses(stmt: Stmt) -> dict[str, list[Access]]:
    """Every access below a statement, by buffer."""
    found: dict[str, list[Access]] = {}

    def note(block: Block, write: bool, buffer: str, indices: tuple[Expr, ...]) -> None:
        forms = tuple(affine_over_loops(block, index) for index in indices)
        found.setdefault(buffer, []).append(Access(block, write, forms))

    for block in blocks_in(stmt):
        note(block, True, block.buffer, block.indices)
        for load in loads_of(block):
            note(block, False, load.buffer, load.indices)
    return found


def carried(body: Stmt, axis: Axis, others: Mapping[str, Poly]) -> Carried:
    """What the loop variable `axis` carries, when each of its values runs `body`.

    others   variables outside `body` that vary too (the other loops of a nest that is to be reordered); all variables
             that are neither these nor inside `body` are fixed
    """
    for block in blocks_in(body):
        for it in block.iters:
            if it.kind == "scan" and axis.var in variables(over_loops(block, it.binding)):
                return Carried("order", f"block {block.name} scans along {it.var}")
    ranges = {**others, **extents(axes_in(body)), axis.var: axis.extent}
    own = {found.buffer.name for found in walk(body) if isinstance(found, Alloc)}
    worst = Carried("none")
    for buffer, found in accesses(body).items():
        if buffer in own or not any(access.write for access in found) or _apart(found, axis.var, ranges):
            continue
        if _by_meaning(found, axis.var, ranges):
            continue
        if axis.extent == Poly.of(1):
            continue
        blocks = {access.block.name: access.block for access in found}
        combines = {access.block.combine if access.write else None for access in found}
        alone = len(blocks) == 1 or all(block.init is None for block in blocks.values())
        if combines != {None} and len(combines) == 1 and alone:
            worst = Carried("reduction", f"block {found[0].block.name} combines along it into {buffer}")
            continue
        return Carried("order", f"{' and '.join(sorted(blocks))} may meet in the same element of {buffer}")
    return worst


def _apart(found: list[Access], var: str, ranges: Mapping[str, Poly]) -> bool:
    """Whether accesses in iterations with different values of `var` never meet: some dimension tells them apart."""
    for dim in range(len(found[0].indices)):
        forms = [access.indices[dim] for access in found]
        fixed = {_fixed(form, var, ranges) if form is not None else None for form in forms}
        if len(fixed) == 1 and all(form is not None and separates(form, var, ranges) for form in forms):
            return True
    return False


def _by_meaning(found: list[Access], var: str, ranges: Mapping[str, Poly]) -> bool:
    """Whether one block stores all of it, at indices that nobody has to understand: every value of its spatial
    iterations writes another element, and one of those that say where it stores tells the values of `var` apart."""
    block = found[0].block
    if len(found) != 1 or not found[0].write or not all(it.kind != "scan" for it in block.iters):
        return False
    used = frozenset[str]().union(*(variables(index) for index in block.indices))
    forms = [affine_over_loops(block, it.binding) for it in block.iters if it.kind == "spatial" and it.var in used]
    return any(form is not None and separates(form, var, ranges) for form in forms)


def _fixed(form: Affine, var: str, ranges: Mapping[str, Poly]) -> tuple[Affine, Poly]:
    """The part of an index that does not vary, and the coefficient of `var`."""
    terms = tuple((name, coefficient) for name, coefficient in form.terms if name not in ranges)
    return Affine(terms, form.constant), form.coefficient(var)
