"""One operator of a µGraph by itself: how many operands it takes, and the rank and shape of what it gives.

Nothing here knows a graph. A rank that is not known is None, and then so is what follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import assert_never, get_args

from pipeline.errors import CheckError
from pipeline.ir.algebra import contraction_shape, split_subscripts
from pipeline.ir.graph import BINARY, ELEMENTWISE, UNARY, Shape
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    Concat,
    Contract,
    Fold,
    Kind,
    Map,
    Op,
    RescaledSum,
    Running,
    Scalar,
    Squeeze,
    Transpose,
    Unsqueeze,
)

Rank = int | None
KINDS = get_args(Kind)
ACCUMULATORS = (*KINDS, "last", "concat")


def wrong_attributes(op: Op) -> str:
    """Why the attributes of an operator mean nothing, whatever its operands are, or ""."""
    match op:
        case Scalar(value):
            return "NaN is no number: the µGraph would not equal itself" if math.isnan(value) else ""
        case Map("cast"):
            return "a µGraph has no dtypes, so there is nothing to cast to: leave it out"
        case Map(fn):
            return "" if fn in ELEMENTWISE else f"no such scalar function: {fn!r}"
        case Contract(subscripts):
            return _wrong_subscripts(subscripts)
        case Fold(kind, axes, keep):
            if kind not in KINDS:
                return f"kind {kind!r} is none of {', '.join(KINDS)}"
            if keep < 1:
                return f"{keep} elements cannot be kept"
            return _wrong_positions(axes)
        case Transpose(perm):
            return "" if sorted(perm) == list(range(len(perm))) else f"{perm} is no permutation"
        case Unsqueeze(axes) | Squeeze(axes):
            return _wrong_positions(axes)
        case Concat(axis):
            return "" if axis >= 0 else f"dimension {axis} is negative"
        case Accumulate(kind, level, axis):
            if kind not in ACCUMULATORS:
                return f"kind {kind!r} is none of {', '.join(ACCUMULATORS)}"
            if (axis is not None) != (kind == "concat"):
                return "concat needs an axis" if kind == "concat" else f"{kind} has no axis, {axis} is given"
            if axis is not None and axis < 0:
                return f"dimension {axis} is negative"
            return "" if level >= 0 else f"there is no loop {level}"
        case Running(kind, level):
            if kind not in ("max", "min"):
                return f"kind {kind!r} is none of max, min"
            return "" if level >= 0 else f"there is no loop {level}"
        case RescaledSum(level):
            return "" if level >= 0 else f"there is no loop {level}"
        case _:
            assert_never(op)


def _wrong_positions(axes: tuple[int, ...]) -> str:
    if not axes:
        return "it names no dimension"
    return "" if axes[0] >= 0 and sorted(set(axes)) == list(axes) else f"{axes} are not positions in ascending order"


def _wrong_subscripts(subscripts: str) -> str:
    try:
        split_subscripts(subscripts)
    except CheckError as error:
        return f'"{subscripts}" is not of the form "ab,bc->ac": {error.why}'
    return "" if subscripts.isascii() else f'"{subscripts}" has other letters than those from a to z and from A to Z'


def wrong_operands(op: Op, ranks: Sequence[Rank]) -> str:
    """Why an operator with good attributes cannot take operands of these ranks, or ""."""
    least, most = _arity(op)
    if not least <= len(ranks) <= most:
        return f"it takes {least if least == most else f'at least {least}'} operands, {len(ranks)} are given"
    match op:
        case Contract(subscripts):
            for letters, rank in zip(split_subscripts(subscripts), ranks, strict=False):
                if rank is not None and rank != len(letters):
                    return f'"{subscripts}" on an operand of rank {rank}'
        case Fold(axes=axes) | Squeeze(axes):
            if ranks[0] is not None and axes[-1] >= ranks[0]:
                return f"there is no dimension {axes[-1]} of an operand of rank {ranks[0]}"
        case Transpose(perm):
            if ranks[0] is not None and len(perm) != ranks[0]:
                return f"a permutation of {len(perm)} dimensions for an operand of rank {ranks[0]}"
        case Unsqueeze(axes):
            if ranks[0] is not None and axes[-1] >= ranks[0] + len(axes):
                return f"there is no dimension {axes[-1]} of a result of rank {ranks[0] + len(axes)}"
        case Concat(axis):
            known = {rank for rank in ranks if rank is not None}
            if len(known) > 1:
                return f"operands of different ranks, {', '.join(map(str, sorted(known)))}"
            if known and axis >= min(known):
                return f"there is no dimension {axis} of operands of rank {min(known)}"
        case Accumulate(axis=axis):
            if axis is not None and ranks[0] is not None and axis >= ranks[0]:
                return f"there is no dimension {axis} of an operand of rank {ranks[0]}"
        case RescaledSum():
            if ranks[0] is not None and ranks[1] is not None and ranks[1] > ranks[0]:
                return f"a maximum of rank {ranks[1]} for a sum of rank {ranks[0]}"
    return ""


def _arity(op: Op) -> tuple[int, float]:
    """The least and the greatest number of operands."""
    match op:
        case Scalar():
            return 0, 0
        case Map(fn):
            count = 1 if fn in UNARY else 2 if fn in BINARY else 3
            return count, count
        case Contract() | RescaledSum():
            return 2, 2
        case Concat():
            return 2, math.inf
        case _:
            return 1, 1


def result_rank(op: Op, ranks: Sequence[Rank]) -> Rank:
    """The rank of what an operator gives on operands that it can take."""
    match op:
        case Scalar():
            return 0
        case Map():
            known = [rank for rank in ranks if rank is not None]
            return max(known) if len(known) == len(ranks) else None
        case Contract(subscripts):
            return len(split_subscripts(subscripts)[2])
        case Transpose(perm):
            return len(perm)
        case Unsqueeze(axes):
            return None if ranks[0] is None else ranks[0] + len(axes)
        case Squeeze(axes):
            return None if ranks[0] is None else ranks[0] - len(axes)
        case Concat():
            return next((rank for rank in ranks if rank is not None), None)
        case Fold() | Accumulate() | Running() | RescaledSum():
            return ranks[0]
        case _:
            assert_never(op)


def result_shape(op: Op, operands: Sequence[Shape], trips: int = 1) -> Shape:
    """The shape of what an operator gives on operands of these shapes (in elements); CheckError where it has none.

    The ranks are those that `wrong_operands` accepts. `trips`: iterations that an accumulator combines.
    """
    match op:
        case Scalar():
            return ()
        case Map():
            return _broadcast(op, operands)
        case Contract(subscripts):
            return contraction_shape(subscripts, *operands)
        case Fold(_, axes, keep):
            for axis in axes:
                if operands[0][axis] % keep:
                    raise _refused(op, f"dimension {axis} of {operands[0]} does not divide into groups of {keep}")
            return tuple(keep if axis in axes else size for axis, size in enumerate(operands[0]))
        case Transpose(perm):
            return tuple(operands[0][axis] for axis in perm)
        case Unsqueeze(axes):
            sizes = iter(operands[0])
            return tuple(1 if axis in axes else next(sizes) for axis in range(len(operands[0]) + len(axes)))
        case Squeeze(axes):
            if any(operands[0][axis] != 1 for axis in axes):
                raise _refused(op, f"of {operands[0]}, the dimensions {axes} are not all of extent one")
            return tuple(size for axis, size in enumerate(operands[0]) if axis not in axes)
        case Concat(axis):
            rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in operands}
            if len(rest) > 1:
                raise _refused(op, f"{_shown(operands)} differ in a dimension other than {axis}")
            return _at(operands[0], axis, sum(shape[axis] for shape in operands))
        case Accumulate("concat", _, int(axis)):
            return _at(operands[0], axis, operands[0][axis] * trips)
        case Accumulate() | Running():
            return operands[0]
        case RescaledSum():
            if _broadcast(op, operands) != operands[0]:
                raise _refused(op, f"a maximum of shape {operands[1]} is larger than the sum of shape {operands[0]}")
            return operands[0]
        case _:
            assert_never(op)


def _at(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _broadcast(op: Op, operands: Sequence[Shape]) -> Shape:
    rank = max(map(len, operands), default=0)
    found = [1] * rank
    for shape in operands:
        for axis, size in enumerate(shape, rank - len(shape)):
            if size != 1 and found[axis] not in (1, size):
                raise _refused(op, f"{_shown(operands)} do not broadcast")
            found[axis] = size if found[axis] == 1 else found[axis]
    return tuple(found)


def _shown(shapes: Sequence[Shape]) -> str:
    return ", ".join(map(str, shapes))


def _refused(op: Op, why: str) -> CheckError:
    return CheckError("the operator has no result", where=type(op).__name__.lower(), why=why)
