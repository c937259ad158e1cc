"""What one operator makes of tiles: a value that is read element by element, or a sum that needs a block."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.ir.expr import ZERO, Const, Expr, Op
from pipeline.ir.graph import DType
from pipeline.ir.poly import Poly
from pipeline.superopt.lowering.tile import (
    DTYPE,
    Dim,
    Index,
    Summed,
    Value,
    aligned,
    broadcast,
    cannot,
    one,
)
from pipeline.superopt.mugraph.graph import (
    Concat,
    Contract,
    Fold,
    Map,
    Scalar,
    Squeeze,
    Transpose,
    Unsqueeze,
)


def apply_tile_op(op: object, operands: Sequence[Value], name: str) -> Value | Summed:
    """What an operator on tiles makes of its operands."""
    match op:
        case Scalar(value):
            return Value((), lambda _: Const(value, DTYPE))
        case Map(fn):
            dims = broadcast([operand.dims for operand in operands], name)
            kind: DType = "bool" if fn in ("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not") else DTYPE
            return Value(dims, lambda at: Op(fn, tuple(o.read(aligned(at, o.dims)) for o in operands), kind))
        case Contract(subscripts):
            return _contract(subscripts, operands, name)
        case Fold(kind_, axes, keep):
            (operand,) = operands
            if keep != 1:
                raise cannot(name, "a fold that keeps groups is not lowered")
            rank = len(operand.dims)
            gone = sorted(axis % rank for axis in axes)
            spatial = tuple(one() if d in gone else dim for d, dim in enumerate(operand.dims))
            reduced = tuple(operand.dims[d] for d in gone)
            return Summed(
                spatial, reduced,
                lambda s, r: operand.read(tuple(r[gone.index(d)] if d in gone else s[d] for d in range(rank))),
                kind_,
            )  # fmt: skip
        case Transpose(perm):
            (operand,) = operands
            back = [perm.index(d) for d in range(len(perm))]
            return Value(
                tuple(operand.dims[p] for p in perm), lambda at: operand.read(tuple(at[b] for b in back)), None
            )
        case Unsqueeze(axes):
            (operand,) = operands
            rank = len(operand.dims) + len(axes)
            dims_ = iter(operand.dims)
            return Value(
                tuple(one() if d in axes else next(dims_) for d in range(rank)),
                lambda at: operand.read(tuple(i for d, i in enumerate(at) if d not in axes)),
            )
        case Squeeze(axes):
            (operand,) = operands
            if any(operand.dims[d].base is not None for d in axes):
                raise cannot(name, "a dimension that an axis cuts is taken out")
            kept = [d for d in range(len(operand.dims)) if d not in axes]
            zero = Index(ZERO, ZERO)
            return Value(
                tuple(operand.dims[d] for d in kept),
                lambda at: operand.read(
                    tuple(at[kept.index(d)] if d in kept else zero for d in range(len(operand.dims)))
                ),
            )
        case Concat():
            raise cannot(name, "a concatenation of tiles is not lowered")
        case _:
            raise cannot(name, f"{type(op).__name__} is no operator on tiles")


def _contract(subscripts: str, operands: Sequence[Value], name: str) -> Summed | Value:
    inputs, _, result = subscripts.partition("->")
    left, right = inputs.split(",")
    dims: dict[str, Dim] = {}
    for letters, operand in zip((left, right), operands, strict=True):
        for letter, dim in zip(letters, operand.dims, strict=True):
            known = dims.setdefault(letter, dim)
            if known.single and dim.extent == Poly.of(1):
                dims[letter] = dim
            elif (known.extent, known.cut) != (dim.extent, dim.cut) and not (dim.single and known.extent == Poly.of(1)):
                raise cannot(name, f"index {letter} of {subscripts} is cut in two ways")
    summed = [letter for letter in dims if letter not in result]

    def read(s: tuple[Index, ...], r: tuple[Index, ...]) -> Expr:
        at = dict(zip(result, s, strict=True)) | dict(zip(summed, r, strict=True))
        values = [
            operand.read(tuple(Index(ZERO, ZERO) if dim.single else at[letter]
                               for letter, dim in zip(letters, operand.dims, strict=True)))
            for letters, operand in zip((left, right), operands, strict=True)
        ]  # fmt: skip
        return Op("mul", tuple(values), DTYPE)

    spatial = tuple(dims[letter] for letter in result)
    if not summed:
        return Value(spatial, lambda at: read(at, ()))
    return Summed(spatial, tuple(dims[letter] for letter in summed), read, "sum")
