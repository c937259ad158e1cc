"""The step that changes the order of nested loops."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.ir.program import Loop, Program, Stmt
from pipeline.schedule.dependence import carried
from pipeline.schedule.nest import axes_of, extents, find_loop, loop_at, no_loop, put, settled


@dataclass(frozen=True, slots=True)
class Reorder:
    """Put perfectly nested loops in another order.

    order   names of the loops, outermost first; they take each other's places, other loops between them stay

    for i: for j: for k: s  ->  for k: for j: for i: s     with order (k, i)

    Legal when the loops are in one perfect nest, and loops whose iterations must run in order (a scan) keep their
    order. The loops of a unit stay where they are. Reductions may move: their combination is commutative, and a block
    sets its initial value where all its reduced iterations are 0.
    """

    order: tuple[str, ...]

    def why_not(self, program: Program) -> str | None:
        if len(set(self.order)) != len(self.order) or len(self.order) < 2:
            return "name two or more different loops"
        for name in self.order:
            if (reason := no_loop(program, name)) is not None:
                return reason
        chain = _chain(program, self.order)
        names = [loop.axes[0].var for loop in chain]
        if missing := [name for name in self.order if name not in names]:
            return f"loop {missing[0]} is not in one perfect nest with {names[0]}: other statements are between them"
        if any(loop.kind not in ("serial", "unrolled") for loop in chain if loop.axes[0].var in self.order):
            return "a parallel, bound or vectorized loop keeps its place: reorder before that"
        for loop in chain:
            if loop.axes[0].var in self.order and loop.annotation("blockize") is not None:
                return settled(loop, "reordered")
        everything = extents(axes_of(chain))
        ordered = []
        for loop in chain:
            for axis in loop.axes:
                others = {var: extent for var, extent in everything.items() if var != axis.var}
                found = carried(chain[-1].body, axis, others)
                if found.kind == "order":
                    ordered.append((loop.axes[0].var, found.why))
        new = [loop.axes[0].var for loop in _moved(chain, self.order)]
        for loop in chain:
            name, outer = loop.axes[0].var, loop.annotation("prefetch_next")
            if outer in new and new.index(str(outer)) > new.index(name):
                return f"loop {name} asks for the next iteration of loop {outer}, which has to stay around it"
        kept = [name for name, _ in ordered]
        if sorted(kept, key=new.index) != kept:
            return f"loops {', '.join(dict.fromkeys(kept))} must keep their order: {ordered[0][1]}"
        return None

    def apply(self, program: Program) -> Program:
        chain = _chain(program, self.order)
        body: Stmt = chain[-1].body
        for loop in reversed(_moved(chain, self.order)):
            body = replace(loop, body=body)
        return put(program, chain[0], body)


def _chain(program: Program, order: tuple[str, ...]) -> tuple[Loop, ...]:
    """The perfect nest from the outermost to the innermost of the named loops that are in it."""
    depths = {name: place for name in order if (place := find_loop(program, name)) is not None}
    top = min(order, key=lambda name: len(depths[name].path))
    chain = [loop_at(program, top)[0]]
    while isinstance(chain[-1].body, Loop):
        chain.append(chain[-1].body)
    last = max(i for i, loop in enumerate(chain) if loop.axes[0].var in order)
    return tuple(chain[: last + 1])


def _moved(chain: tuple[Loop, ...], order: tuple[str, ...]) -> tuple[Loop, ...]:
    by_name = {loop.axes[0].var: loop for loop in chain}
    named = iter([by_name[name] for name in order if name in by_name])
    return tuple(next(named) if loop.axes[0].var in order else loop for loop in chain)
