"""Windows: the box of a buffer that accesses touch while some loops run, as a base and a shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipeline.ir.expr import Affine, Const, Expr, Load, from_affine
from pipeline.ir.poly import Poly
from pipeline.ir.program import Block, Buffer, Derived
from pipeline.ir.region import at_least, interval
from pipeline.schedule.nest import affine_over_loops, loads_of
from pipeline.schedule.rewrite import over_iters, with_loads


@dataclass(frozen=True, slots=True)
class Span:
    """One dimension of a window: base to base + extent - 1; `whole` where it is the whole dimension."""

    base: Affine
    extent: Poly
    whole: bool = False

    def rebased(self, block: Block, index: Expr) -> Expr:
        """The index inside the window."""
        if self.whole:
            return index
        form = affine_over_loops(block, index)
        assert form is not None, "a window that is not whole has affine indices"
        return from_affine(form + self.base.scale(Poly.of(-1)))


ORIGIN = Affine((), Poly.of(0))


def shifted(span: Span, var: str) -> Expr:
    """base + var."""
    return from_affine(span.base + Affine(((var, Poly.of(1)),), Poly.of(0)))


def window(
    accesses: Iterable[tuple[Block, tuple[Expr, ...]]],
    ranges: Mapping[str, Poly],
    shape: tuple[Poly, ...],
    derived: tuple[Derived, ...] = (),
) -> tuple[Span, ...]:
    """The box around all accesses (block, indices) while the loops of `ranges` run, whole where it is not known."""
    accesses = tuple(accesses)
    spans = []
    for dim, limit in enumerate(shape):
        span: Span | None = None
        for number, (block, indices) in enumerate(accesses):
            new = _span(affine_over_loops(block, indices[dim]), ranges)
            span = new if number == 0 else _union(span, new)
            if span is None:
                break
        whole = Span(ORIGIN, limit, True)
        if span is None or (not span.base.terms and at_least(span.extent, limit, derived)):
            span = whole
        spans.append(span)
    return tuple(spans)


def _span(form: Affine | None, ranges: Mapping[str, Poly]) -> Span | None:
    found = None if form is None else interval(form, ranges)
    return None if found is None else Span(*found)


def _union(a: Span | None, b: Span | None) -> Span | None:
    """The span around both, where they move together and their ends can be compared."""
    if a is None or b is None or a.base.terms != b.base.terms:
        return None
    low, high = a.base.constant, b.base.constant
    first, second = (a, b) if at_least(high, low) else (b, a)
    shift = second.base.constant - first.base.constant
    if not at_least(shift, Poly.of(0)):
        return None
    end = shift + second.extent
    if at_least(end, first.extent):
        return Span(first.base, end)
    return first if at_least(first.extent, end) else None


def from_window(
    block: Block, target: Buffer, buffer: str, spans: tuple[Span, ...], around: Mapping[str, Poly]
) -> Block:
    """The block with its loads of a buffer redirected to a window of it."""
    loads = [load for load in loads_of(block) if load.buffer == buffer]
    wanted: list[Expr] = []
    for load in loads:
        for span, index in zip(spans, load.indices, strict=True):
            wanted.append(Const(0) if span.whole else span.rebased(block, index))
    reader, found = over_iters(block, wanted, around)
    rank = len(spans)
    new: dict[Load, tuple[Expr, ...]] = {}
    for number, load in enumerate(loads):
        at = found[number * rank : (number + 1) * rank]
        new[load] = tuple(
            index if span.whole else moved for span, index, moved in zip(spans, load.indices, at, strict=True)
        )
    return with_loads(reader, buffer, lambda load: Load(target.name, new[load], target.dtype))
