"""Rewriting blocks: their loads, the loops that they depend on, and their iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from pipeline.ir.expr import (
    Const,
    Expr,
    Load,
    Op,
    Var,
    affine,
    both,
    dtype_of,
    less,
    map_children,
    simplify,
    size,
    substitute,
    variables,
)
from pipeline.ir.graph import DType
from pipeline.ir.poly import Poly
from pipeline.ir.program import Axis, Block, Combine, Derived, Iter, Loop, Stmt, map_block_exprs
from pipeline.ir.region import at_least, interval
from pipeline.ir.scalar_limits import neutral_number
from pipeline.schedule.nest import nest, over_loops

WHOLE: frozenset[DType] = frozenset({"int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"})


def constant(number: int, dtype: DType) -> Const:
    """A whole number in a dtype."""
    if dtype == "bool":
        return Const(bool(number), dtype)
    return Const(number, dtype) if dtype in WHOLE else Const(float(number), dtype)


def neutral(combine: Combine, dtype: DType) -> Const:
    """The value that changes nothing when it is combined."""
    return Const(neutral_number(combine, dtype), dtype)


def cast(expr: Expr, dtype: DType) -> Expr:
    """What storing an expression in a buffer of that dtype and loading it again gives."""
    return expr if dtype_of(expr) == dtype else Op("cast", (expr,), dtype)


def map_loads(expr: Expr, buffer: str, fn: Callable[[Load], Expr]) -> Expr:
    """The expression with its loads of a buffer replaced; the indices that `fn` sees are replaced already."""
    new = map_children(expr, lambda child: map_loads(child, buffer, fn))
    if isinstance(new, Load) and new.buffer == buffer:
        return fn(new)
    return expr if new is expr else simplify(new)


def with_loads(block: Block, buffer: str, fn: Callable[[Load], Expr]) -> Block:
    """The block with all its loads of a buffer replaced."""
    return map_block_exprs(block, lambda expr: map_loads(expr, buffer, fn))


def loop_variables(block: Block, exprs: Iterable[Expr]) -> frozenset[str]:
    """The loop variables that expressions of a block depend on."""
    return frozenset(name for expr in exprs for name in variables(over_loops(block, expr)))


def spatial_variables(block: Block) -> frozenset[str]:
    """The loop variables that say where a block stores."""
    return loop_variables(block, (it.binding for it in block.iters if it.kind == "spatial"))


def reduce_variables(block: Block) -> frozenset[str]:
    """The loop variables that a block reduces over."""
    return loop_variables(block, (it.binding for it in block.iters if it.kind == "reduce"))


def constant_store(block: Block, loops: Iterable[Loop], prefix: str, name: str, value: Const) -> Stmt:
    """A nest that stores `value` in each element that a reduction block stores in while the loops run.

    Its loops are the spatial ones of `loops`, with `prefix_` before their names, vectorized and unrolled where those
    are.
    """
    spatial, reduced = spatial_variables(block), reduce_variables(block)
    names: dict[str, Expr] = {}
    kept = []
    for loop in loops:
        axes = tuple(axis for axis in loop.axes if axis.var in spatial)
        names |= {axis.var: Var(f"{prefix}_{axis.var}") for axis in axes}
        if axes:
            renamed = tuple(Axis(f"{prefix}_{axis.var}", axis.extent) for axis in axes)
            kind = loop.kind if loop.kind in ("vectorized", "unrolled") else "serial"
            kept.append(Loop(renamed, loop.body, kind))
    start: dict[str, Expr] = {name: Const(0) for name in reduced}

    def moved(expr: Expr) -> Expr:
        return substitute(expr, {**start, **names})

    iters = tuple(replace(it, binding=moved(it.binding)) for it in block.iters if it.kind != "reduce")
    where = tuple(moved(condition) for condition in block.where if not variables(condition) <= reduced)
    return nest(kept, Block(name, iters, block.buffer, block.indices, value, where=where))


def constant_store_names(loops: Iterable[Loop], block: Block, prefix: str) -> list[str]:
    """The names of the variables that `constant_store` makes."""
    spatial = spatial_variables(block)
    return [f"{prefix}_{axis.var}" for loop in loops for axis in loop.axes if axis.var in spatial]


def over_iters(block: Block, exprs: Iterable[Expr], ranges: Mapping[str, Poly]) -> tuple[Block, tuple[Expr, ...]]:
    """Expressions over loop variables (with extents `ranges`) as ones over iterations, and the block that has those.

    A loop variable that is no iteration by itself becomes one more: `v_<name>`.
    """
    exprs = tuple(exprs)
    reduced = reduce_variables(block) - spatial_variables(block)
    names = {it.binding.name: it.var for it in block.iters if isinstance(it.binding, Var)}
    new = []
    for var in sorted({name for expr in exprs for name in variables(expr)} - set(names)):
        name = f"v_{var}"
        while name in ranges or any(it.var == name for it in block.iters):
            name += "_"
        names[var] = name
        new.append(Iter(name, ranges[var], "reduce" if var in reduced else "spatial", Var(var)))
    values: dict[str, Expr] = {var: Var(name) for var, name in names.items()}
    return replace(block, iters=(*block.iters, *new)), tuple(substitute(expr, values) for expr in exprs)


def stored_iters(block: Block) -> tuple[Iter, ...]:
    """The spatial iterations that say where a block stores, in the order of its indices where those are plain."""
    used = frozenset(name for index in block.indices for name in variables(index))
    found = {it.var: it for it in block.iters if it.kind == "spatial" and it.var in used}
    order = [index.name for index in block.indices if isinstance(index, Var)]
    if sorted(order) == sorted(found):
        return tuple(found[name] for name in order)
    return tuple(found.values())


def clips(it: Iter, ranges: Mapping[str, Poly], derived: Iterable[Derived] = ()) -> bool:
    """Whether an iteration may leave out some of the points of the loops, with extents `ranges`."""
    form = affine(it.binding)
    found = None if form is None else interval(form, ranges)
    if found is None or found[0].terms or not at_least(found[0].constant, Poly.of(0)):
        return True
    return not at_least(it.extent, found[0].constant + found[1], derived)


def clipping(block: Block, ranges: Mapping[str, Poly]) -> tuple[Iter, ...]:
    """The spatial iterations, other than those that say where the block stores, that may leave out points."""
    stored = {it.var for it in stored_iters(block)}
    return tuple(it for it in block.iters if it.kind == "spatial" and it.var not in stored and clips(it, ranges))


def plain_store(block: Block) -> tuple[Iter | None, ...] | None:
    """For each dimension the spatial iteration that is its index (None for a constant 0); None if the store is not so.

    Every spatial iteration must be an index once, unless it only repeats loops of those that are.
    """
    by_name = {it.var: it for it in block.iters if it.kind == "spatial"}
    found: list[Iter | None] = []
    for index in block.indices:
        if isinstance(index, Var) and index.name in by_name:
            found.append(by_name.pop(index.name))
        elif isinstance(index, Const) and index.value == 0:
            found.append(None)
        else:
            return None
    known = loop_variables(block, (it.binding for it in found if it is not None))
    return tuple(found) if all(variables(it.binding) <= known for it in by_name.values()) else None


def whole_store(block: Block, shape: tuple[object, ...]) -> str | None:
    """Why a block does not simply fill its whole buffer, one element for each point of its iteration space."""
    stored = plain_store(block)
    if stored is None:
        return f"block {block.name} does not store in {block.buffer} at its iterations, each of them one index"
    for it, extent in zip(stored, shape, strict=True):
        if it is not None and it.extent != extent:
            return f"block {block.name} fills only {it.extent} of {extent} elements along {it.var}"
    return None


def bounded(condition: Expr | None, index: Expr, extent: Poly, ranges: Mapping[str, Poly]) -> Expr | None:
    """The condition, and that an index over loops is in [0, extent), as far as that is not certain."""
    form = affine(index)
    found = interval(form, ranges) if form is not None else None
    known = found is not None and not found[0].terms
    if found is None or not known or not at_least(found[0].constant, Poly.of(0)):
        condition = both(condition, Op("ge", (index, size(0)), "bool"))
    if found is None or not known or not at_least(extent, found[0].constant + found[1]):
        condition = both(condition, less(index, size(extent)))
    return condition


def without_idle(block: Block, ranges: Mapping[str, Poly], derived: Iterable[Derived] = ()) -> Block:
    """The block without spatial iterations that neither leave out a point of the loops (extents `ranges`) nor are used
    by anything in it."""
    used = {name for expr in (block.value, *block.indices) for name in variables(expr)}
    iters = tuple(
        it for it in block.iters if it.kind != "spatial" or it.var in used or clips(it, ranges, tuple(derived))
    )
    return block if len(iters) == len(block.iters) else replace(block, iters=iters)
