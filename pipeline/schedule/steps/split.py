"""The step that splits one loop into several."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.ir.expr import Affine, Expr, affine, from_affine, less, size, substitute
from pipeline.ir.poly import Poly, product
from pipeline.ir.program import Axis, Block, Derived, Loop, Program, map_block_exprs
from pipeline.ir.region import at_least, covers
from pipeline.schedule.nest import (
    awaited,
    clash,
    find_loop,
    loop_at,
    map_blocks,
    no_loop,
    put,
    settled,
    unknown_symbols,
)


@dataclass(frozen=True, slots=True)
class Split:
    """Split one loop into nested ones.

    loop      name of the loop
    factors   extents of the inner loops, outermost first: numbers or polynomials in parameters
    names     of the new loops, outermost first: one more than factors

    for i in range(n): s  ->  for i0 in range(ceil(n / (f1*f2))): for i1 in range(f1): for i2 in range(f2):
                                  s[i := (i0*f1 + i1)*f2 + i2]

    The outer extent is a number where it can be, a polynomial where the factors divide, else a derived symbol
    `n_<name of the outer loop>`. A block below gets the condition that the old index is below n, unless the factors
    divide or one of its iterations ends with the loop.

    Legal when the loop exists, is serial, not fused and not annotated, and the names are new.
    """

    loop: str
    factors: tuple[Poly | int, ...]
    names: tuple[str, ...]

    def why_not(self, program: Program) -> str | None:
        if len(self.names) != len(self.factors) + 1 or not self.factors:
            return f"{len(self.factors)} factors need one name more, but there are {len(self.names)}"
        polys = [Poly.of(factor) for factor in self.factors]
        for poly in polys:
            if not at_least(poly, Poly.of(1)):
                return f"the factor {poly} is not known to be at least 1: give a positive number or a parameter"
        place = find_loop(program, self.loop)
        if place is None:
            return no_loop(program, self.loop)
        loop, _ = loop_at(program, self.loop)
        if len(loop.axes) != 1:
            return f"loop {self.loop} is fused of {', '.join(a.var for a in loop.axes)}: split before fusing"
        if loop.kind != "serial":
            return f"loop {self.loop} is {loop.kind}: split it before that"
        if (reason := settled(loop, "split") or awaited(loop, "split")) is not None:
            return reason
        reason = unknown_symbols(program, {name for poly in polys for name in poly.symbols()})
        # A loop may hand its own name on to one of its parts.
        reason = reason or clash(program, variables=[name for name in self.names if name != self.loop])
        if reason is None and len(set(self.names)) != len(self.names):
            reason = f"the names {', '.join(self.names)} are not all different: choose others"
        new = _outer(loop.axes[0].extent, product(polys), self.names[0])[1]
        if reason is None and new is not None:
            reason = clash(program, variables=[new.name])
        return reason

    def apply(self, program: Program) -> Program:
        loop, _ = loop_at(program, self.loop)
        axis = loop.axes[0]
        polys = [Poly.of(factor) for factor in self.factors]
        extent, new = _outer(axis.extent, product(polys), self.names[0])
        derived = program.derived if new is None else (*program.derived, new)
        index = Affine(((self.names[0], Poly.of(1)),), Poly.of(0))
        for name, factor in zip(self.names[1:], polys, strict=True):
            index = index.scale(factor) + Affine(((name, Poly.of(1)),), Poly.of(0))
        whole = extent * product(polys) == axis.extent
        old = from_affine(index)

        def renamed(expr: Expr) -> Expr:
            return substitute(expr, {axis.var: old})

        def visit(block: Block) -> Block:
            guarded = not whole and not _ends_with(block, axis, derived)
            block = map_block_exprs(block, renamed)
            return replace(block, where=(*block.where, less(old, size(axis.extent)))) if guarded else block

        body = map_blocks(loop.body, visit)
        for name, size_ in reversed([*zip(self.names, (extent, *polys), strict=True)]):
            body = Loop((Axis(name, size_),), body)
        return put(replace(program, derived=derived), loop, body)


def _outer(extent: Poly, by: Poly, name: str) -> tuple[Poly, Derived | None]:
    """ceil(extent / by), and the symbol that it needs."""
    if extent.is_constant and by.is_constant:
        return Poly.of(-(-extent.value // by.value)), None
    if extent == Poly.of(1):
        return extent, None
    exact = extent.quotient(by)
    if exact is not None:
        return exact, None
    new = Derived(f"n_{name}", extent, by)
    return Poly.symbol(new.name), new


def _ends_with(block: Block, axis: Axis, derived: tuple[Derived, ...]) -> bool:
    """Whether the block does nothing anyway where the loop would run past its extent."""
    for it in block.iters:
        form = affine(it.binding)
        if form is not None and covers(form, axis.var, axis.extent, it.extent, derived):
            return True
    return False
