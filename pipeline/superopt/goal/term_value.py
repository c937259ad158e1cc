"""The value of a term: a tensor with one dimension for each factor, in any algebra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, assert_never

from pipeline.ir.algebra import Algebra
from pipeline.superopt.goal.term import App, Factor, Leaf, Num, Reduced, Term

V = TypeVar("V")


def evaluate_term(term: Term, leaves: Mapping[int, V], extents: Mapping[Factor, int], algebra: Algebra[V]) -> V:
    """One dimension for each factor in `extents`, in its order, of extent one where the term does not vary with it.

    leaves   the inputs by number, in that same form
    """
    order = list(extents)
    known: dict[int, V] = {}

    def full(value: V, axes: list[int]) -> V:
        """With its whole extent along these axes: the sum of what does not vary is a multiple of it."""
        shape = list(algebra.shape(value))
        for axis in axes:
            shape[axis] = extents[order[axis]]
        return algebra.broadcast_to(value, tuple(shape))

    def visit(term: Term) -> V:
        if id(term) not in known:
            known[id(term)] = made(term)
        return known[id(term)]

    def made(term: Term) -> V:
        match term:
            case Leaf(number=number):
                return leaves[number]
            case Num(value=value):
                return algebra.reshape(algebra.scalar(value), (1,) * len(order))
            case App(fn=fn, args=args):
                return algebra.elementwise(fn, *(visit(arg) for arg in args))
            case Reduced(kind=kind, over=over, body=body):
                axes = [axis for axis, factor in enumerate(order) if factor in over]
                return algebra.fold(kind, full(visit(body), axes), axes)
            case _:
                assert_never(term)

    return visit(term)
