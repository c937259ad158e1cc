"""The loops over the tile of one operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from pipeline.ir.expr import ZERO, Affine, Const, Expr, Var, from_affine
from pipeline.ir.poly import Poly
from pipeline.ir.program import Alloc, Block, Buffer, Combine, Iter, Loop, Stmt, sequence
from pipeline.ir.program import Axis as LoopAxis
from pipeline.schedule.rewrite import neutral
from pipeline.superopt.lowering.tile import (
    DTYPE,
    Dim,
    Index,
    Tensor,
    cannot,
    in_tile,
    kept,
    rounded,
    scratch_value,
)


def nest(
    name: str, buffer: str, spatial: Sequence[Dim], reduced: Sequence[Dim],
    read: Callable[[tuple[Index, ...], tuple[Index, ...]], Expr],
    store: Callable[[tuple[Index, ...]], tuple[Expr, ...]],
    combine: Combine | None = None, start: Const | None = None, outer: tuple[Iter, ...] = (),
    lead: Sequence[Dim] = (), around: str = "", swap: bool = False, over: frozenset[str] = frozenset(),
) -> Stmt:  # fmt: skip
    """A block in loops over its tile. A dimension that is cut has two iteration variables: the place in the tile, and
    the place in the whole tensor, beyond whose end nothing is done.

    lead, around  dimensions whose loop is around the nest already, under the name `<around>_all`
    swap          the loops over the reduced dimensions stand outside those of the others
    over          loops around the nest that the combination runs over, too
    """
    iters: list[Iter] = list(outer)
    loops: list[tuple[LoopAxis, bool]] = []

    def index(dim: Dim, position: str, kind: Literal["spatial", "reduce"], var: str | None = None) -> Index:
        if dim.single:
            return Index(ZERO, ZERO)
        if dim.extent == Poly.of(1) and dim.base is not None:
            combined = any(name_ in over for name_, _ in dim.base.terms)
            iters.append(Iter(f"g{position}", dim.whole, "reduce" if combined else kind, from_affine(dim.base)))
            return Index(ZERO, Var(f"g{position}"))
        loop = var or f"{name}_{position}"
        if var is None:
            loops.append((LoopAxis(loop, dim.extent), kind == "reduce"))
        iters.append(Iter(f"l{position}", dim.extent, kind, Var(loop)))
        if dim.base is None:
            return Index(Var(f"l{position}"), Var(f"l{position}"))
        whole = from_affine(dim.base + Affine(((loop, Poly.of(1)),), Poly.of(0)))
        combined = any(name_ in over for name_, _ in dim.base.terms)
        iters.append(Iter(f"g{position}", dim.whole, "reduce" if combined else kind, whole))
        return Index(Var(f"l{position}"), Var(f"g{position}"))

    s = [index(dim, f"a{d}", "spatial", f"{around}_all") for d, dim in enumerate(lead)]
    s += [index(dim, f"s{d}", "spatial") for d, dim in enumerate(spatial)]
    r = [index(dim, f"r{d}", "reduce") for d, dim in enumerate(reduced)]
    if start is not None and all(it.kind != "reduce" for it in iters):
        combine = start = None  # one term: the combination is the term itself
    block = Block(name, tuple(iters), buffer, store(tuple(s)), read(tuple(s), tuple(r)), combine, start)
    body: Stmt = block
    order = sorted(loops, key=lambda pair: not pair[1]) if swap else loops
    for axis, _ in reversed(order):
        body = Loop((axis,), body)
    return body


def combine_parts(name: str, parts: Tensor, final: Tensor, kinds: tuple[Combine, ...]) -> Stmt:
    """The partial results of the grid, combined: threads share the first dimension, lanes run along the last."""
    if len(set(kinds)) != 1:
        raise cannot(name, "the partial results are combined in different ways")
    kind = kinds[0]
    spatial = tuple(Dim(extent, None, extent) for extent in final.dims)
    reduced = tuple(Dim(extent, None, extent) for extent in parts.dims[: len(kinds)])

    def read(s: tuple[Index, ...], r: tuple[Index, ...]) -> Expr:
        return parts.read(tuple(i.whole for i in (*r, *s)))

    def store(s: tuple[Index, ...]) -> tuple[Expr, ...]:
        return final.place(tuple(i.whole for i in s))

    start = neutral(kind, DTYPE)
    lead, rest = spatial[:1], spatial[1:]
    around = Loop((LoopAxis(f"{name}_all", spatial[0].extent if spatial else Poly.of(1)),), sequence([]), "parallel")
    if final.dtype == DTYPE:
        body = sequence([
            nest(f"{name}_start", final.buffer, rest, (), lambda s, _: start, store, lead=lead, around=name),
            nest(name, final.buffer, rest, reduced, read, store, kind, lead=lead, around=name, swap=True),
        ])  # fmt: skip
        return replace(around, body=body)
    # what is added up is wider than the result: it is added up in a row of its own
    row = Buffer(f"{name}_row", kept(rest), DTYPE, "shared")
    here, value = in_tile(rest), scratch_value(row.name, rest)

    def rounding(s: tuple[Index, ...], _: tuple[Index, ...]) -> Expr:
        return rounded(value.read(s[len(lead) :]), final.dtype)

    def own(s: tuple[Index, ...]) -> tuple[Expr, ...]:
        return here(s[len(lead) :])

    body = sequence([
        nest(f"{name}_start", row.name, rest, (), lambda s, _: start, own, lead=lead, around=name),
        nest(name, row.name, rest, reduced, read, own, kind, lead=lead, around=name, swap=True),
        nest(f"{name}_round", final.buffer, rest, (), rounding, store, lead=lead, around=name),
    ])  # fmt: skip
    return replace(around, body=Alloc(row, body))
