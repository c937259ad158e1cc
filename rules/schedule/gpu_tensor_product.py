"""A product as a tensor core sees it: which loops count rows, columns and terms, and how its operands lie in memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import Literal

from pipeline.ir.expr import Expr, Op, Var, affine, dtype_of, loads, variables
from pipeline.ir.graph import ITEM_BYTES, DType
from pipeline.ir.poly import Poly
from pipeline.ir.program import Block, Program
from pipeline.schedule.nest import block_at, find_buffer, over_loops
from rules.schedule.gpu_tensor_units import PIECE
from rules.schedule.scheduled import is_scheduled


@dataclass(frozen=True, slots=True)
class GpuTensorProduct:
    """The loops of a product by what they do, and the order in which its operands are read in a row.

    batch        loops that both operands depend on, or none
    left, right  the letter that comes last is the one along which neighbours lie side by side
    vector       elements of the left and of the right operand that may be fetched together
    turned       the left operand is fetched across the order in which it lies
    """

    block: str
    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    sums: tuple[str, ...]
    lengths: tuple[int, int, int]
    left: Literal["mk", "km"]
    right: Literal["kn", "nk"]
    vector: tuple[int, int]
    factors: DType
    total: DType
    turned: bool = False


def product_of(program: Program, name: str, *, vectors: bool = False) -> GpuTensorProduct | None:
    """The product that a block computes, untouched by other rules; None where it is none.

    vectors   a factor may be a vector, without loops of its own: the product has one row
    """
    block, place = block_at(program, name)
    alone = len(place.path) == len(place.loops) == len(block.iters)
    if block.combine != "sum" or block.init is None or place.prologue or is_scheduled(place) or not alone:
        return None
    if block.where or not all(isinstance(it.binding, Var) and it.kind != "scan" for it in block.iters):
        return None
    value = block.value
    if not isinstance(value, Op) or value.fn != "mul":
        return None
    first, second = value.args
    used = [variables(over_loops(block, factor)) for factor in (first, second)]
    kinds = {it.binding.name: it.kind for it in block.iters if isinstance(it.binding, Var)}
    chain = [axis.var for axis in place.axes]
    sums = tuple(loop for loop in chain if kinds[loop] == "reduce")
    mine = [
        [v for v in chain if kinds[v] == "spatial" and v in used[a] and v not in used[b]] for a, b in ((0, 1), (1, 0))
    ]
    batch = tuple(v for v in chain if kinds[v] == "spatial" and v not in mine[0] and v not in mine[1])
    empty = sum(not loops for loops in mine)
    if not sums or empty == 2 or (empty and not vectors) or any(not set(sums) & found for found in used):
        return None
    extents = {axis.var: axis.extent.value for axis in place.axes}
    stored = [index.name for index in block.indices if isinstance(index, Var)]
    by_iter = {it.var: it.binding.name for it in block.iters if isinstance(it.binding, Var)}
    order = [by_iter[name] for name in stored if name in by_iter]
    if not order:
        return None
    if _last(order, mine[0], extents) > _last(order, mine[1], extents):  # neighbours of a row lie side by side
        first, second, mine = second, first, [mine[1], mine[0]]
    rows, columns = tuple(mine[0]), tuple(mine[1])
    dtypes = [_dtype(factor) for factor in (first, second)]
    if dtypes[0] != dtypes[1] or block.init is None:
        return None
    row_last, row_vector = _side(program, block, first, rows, sums, extents)
    column_last, column_vector = _side(program, block, second, columns, sums, extents)
    return GpuTensorProduct(
        name, batch, rows, columns, sums,
        (prod(extents[loop] for loop in rows), prod(extents[loop] for loop in columns),
         prod(extents[loop] for loop in sums)),
        "km" if row_last else "mk", "kn" if column_last else "nk", (row_vector, column_vector),
        dtypes[0], block.init.dtype,
    )  # fmt: skip


def _last(order: list[str], loops: list[str], extents: dict[str, int]) -> int:
    """The last position of the result that one of the loops counts."""
    return max((order.index(loop) for loop in loops if loop in order and extents[loop] > 1), default=-1)


def _dtype(factor: Expr) -> DType:
    return dtype_of(factor.args[0] if isinstance(factor, Op) and factor.fn == "cast" else factor)


def _side(
    program: Program, block: Block, factor: Expr, mine: tuple[str, ...], sums: tuple[str, ...], extents: dict[str, int]
) -> tuple[bool, int]:
    """Whether neighbours of an operand along its own loops lie side by side, rather than along the sum; and how many of
    them a fetch may hold that begins where their number divides the index."""
    found = loads(factor)
    buffer = find_buffer(program, found[0].buffer) if len(found) == 1 else None
    if buffer is None:
        return False, 1
    strides: dict[str, int] = {}
    apart = 1
    for index, extent in zip(reversed(found[0].indices), reversed(buffer.shape), strict=True):
        form = affine(over_loops(block, index))
        if form is None:
            return False, 1
        for loop, coefficient in form.terms:
            if coefficient.is_constant:
                strides[loop] = strides.get(loop, 0) + coefficient.value * apart
        apart *= extent.value
    along = {loop: step for loop, step in strides.items() if extents.get(loop, 1) > 1}
    own = bool(mine) and _innermost(along, mine) == 1
    last = [loop for loop in (mine if own else sums) if extents[loop] > 1][-1:]
    if not last or along.get(last[0]) != 1:
        return own, 1
    width = extents[last[0]]
    for loop, step in along.items():
        if loop != last[0]:
            width = gcd(width, step)
    first = _offset(block, found[0].indices, buffer.shape)
    width = gcd(width, first) if first else width
    size = ITEM_BYTES[buffer.dtype]  # what is converted on the way may be read in more pieces than it is stored in
    return own, width if size <= ITEM_BYTES[_dtype(factor)] else gcd(width, PIECE // size)


def _innermost(strides: dict[str, int], loops: tuple[str, ...]) -> int | None:
    wide = [loop for loop in loops if loop in strides]
    return strides[wide[-1]] if wide else None


def _offset(block: Block, indices: tuple[Expr, ...], shape: tuple[Poly, ...]) -> int:
    """Where the operand begins, in elements."""
    total, apart = 0, 1
    for index, extent in zip(reversed(indices), reversed(shape), strict=True):
        form = affine(over_loops(block, index))
        total += apart * form.constant.value if form is not None else 0
        apart *= extent.value
    return abs(total)
