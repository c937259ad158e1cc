"""The step that makes one loop of several by dividing its variable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from pipeline.ir.expr import (
    Affine,
    Const,
    Expr,
    Load,
    Var,
    affine,
    floordiv,
    from_affine,
    map_children,
    mod,
    simplify,
    variables,
)
from pipeline.ir.poly import Poly
from pipeline.ir.program import Axis, Block, Iter, Loop, Program
from pipeline.schedule.nest import clash, loop_at, no_loop, put, settled


@dataclass(frozen=True, slots=True)
class Flatten:
    """Make one loop, of one variable, of nested ones around a block.

    loops   names of the loops, outermost first
    name    of the new one

    for h in range(3): for w in range(5): C[h, w] = T[h*5 + w]  ->  for m in range(15): C[m // 5, m % 5] = T[m]

    Unlike a fused loop it can be split, and rows of another matrix can be its iterations; where an index does not count
    through all of them in order, it is had by division.

    Legal when each loop is the whole body of the one before it, nothing but loops and one block is inside, the loops
    are serial, not fused, not annotated, of extents that are numbers, and each is a spatial iteration of the block.
    """

    loops: tuple[str, ...]
    name: str

    def why_not(self, program: Program) -> str | None:
        if len(self.loops) < 2:
            return "it takes two loops to flatten"
        for name in self.loops:
            if (reason := no_loop(program, name)) is not None:
                return reason
        found = [loop_at(program, name)[0] for name in self.loops]
        for loop in found:
            if loop.kind != "serial" or len(loop.axes) != 1 or not loop.axes[0].extent.is_constant:
                return f"loop {loop.axes[0].var} is not a serial loop of one axis whose extent is a number"
            if (reason := settled(loop, "flattened")) is not None:
                return reason
        for outer, below in pairwise(found):
            if outer.body is not below:
                return f"loop {below.axes[0].var} is not the whole body of loop {outer.axes[0].var}: reorder first"
        block = _block(found[-1])
        if block is None:
            return f"there is more than a block in loop {self.loops[-1]}"
        mine = {it.binding.name: it for it in block.iters if isinstance(it.binding, Var)}
        for loop in found:
            axis = loop.axes[0]
            it = mine.get(axis.var)
            if it is None or it.kind != "spatial" or it.extent != axis.extent:
                return f"loop {axis.var} is no spatial iteration of block {block.name}"
            uses = [other for other in block.iters if axis.var in variables(other.binding)]
            if len(uses) != 1 or any(axis.var in variables(condition) for condition in block.where):
                return f"block {block.name} uses loop {axis.var} in more than one iteration"
        return clash(program, variables=(self.name, f"v_{self.name}"))

    def apply(self, program: Program) -> Program:
        found = [loop_at(program, name)[0] for name in self.loops]
        block = _block(found[-1])
        assert block is not None
        mine = {it.binding.name: it.var for it in block.iters if isinstance(it.binding, Var)}
        radix: list[tuple[str, int, int]] = []  # iteration, how far apart its values are, its extent
        below = 1
        for loop in reversed(found):
            extent = loop.axes[0].extent.value
            radix.append((mine[loop.axes[0].var], below, extent))
            below *= extent
        var = f"v_{self.name}"
        parts: dict[str, Expr] = {}
        for number, (name, apart, extent) in enumerate(radix):
            part = floordiv(Var(var), apart)
            parts[name] = part if number == len(radix) - 1 else mod(part, extent)
            if extent == 1:
                parts[name] = Const(0)

        def flat(expr: Expr) -> Expr:
            if isinstance(expr, Var):
                return parts.get(expr.name, expr)
            if isinstance(expr, Load):
                return replace(expr, indices=tuple(counted(index) for index in expr.indices))
            new = map_children(expr, flat)
            return new if new is expr else simplify(new)

        def counted(index: Expr) -> Expr:
            form = affine(index)
            if form is None:
                return flat(index)
            steps = {name: form.coefficient(name) for name, _, _ in radix}
            step = next((steps[name] for name, apart, extent in radix if extent > 1 and apart == 1), Poly.of(0))
            if not step.terms:
                return flat(index)
            if any(extent > 1 and steps.get(name) != step * apart for name, apart, extent in radix):
                return flat(index)
            rest = tuple(term for term in form.terms if term[0] not in parts)
            return from_affine(Affine(rest, form.constant) + Affine(((var, step),), Poly.of(0)))

        first = mine[self.loops[0]]
        iters = tuple(
            Iter(var, Poly.of(below), "spatial", Var(self.name)) if it.var == first else it
            for it in block.iters
            if it.var == first or it.var not in parts
        )
        indices = tuple(counted(index) for index in block.indices)
        merged = replace(block, iters=iters, indices=indices, value=flat(block.value))
        body = found[-1].body
        new = Loop((Axis(self.name, Poly.of(below)),), merged)
        inner = []
        while isinstance(body, Loop):
            inner.append(body)
            body = body.body
        for loop in reversed(inner):
            new = replace(new, body=replace(loop, body=new.body))
        return put(program, found[0], new)


def _block(loop: Loop) -> Block | None:
    """The block of a perfect nest."""
    body = loop.body
    while isinstance(body, Loop):
        body = body.body
    return body if isinstance(body, Block) else None
