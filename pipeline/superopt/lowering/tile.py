"""Tiles and tensors as the lowering sees them: their dimensions, and how an element is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipeline.errors import CodegenError
from pipeline.ir.expr import ZERO, Affine, Const, Expr, Load, Op, Var, add, affine, dtype_of, mul, size
from pipeline.ir.graph import AffineMap, DType
from pipeline.ir.graph_types import HALVES
from pipeline.ir.poly import Poly
from pipeline.ir.program import Combine

DTYPE: DType = "float32"
STORED: tuple[DType, ...] = ("float32", "float16", "bfloat16", "bool")  # what a tensor in memory may be of
Placing = Callable[[tuple[Expr, ...]], tuple[Expr, ...]]  # where an element lies, by its index in each dimension


def cannot(where: str, why: str) -> CodegenError:
    return CodegenError("a µGraph cannot be lowered", where=where, why=why, todo="Use another one that was found")


@dataclass(frozen=True, slots=True)
class Index:
    """Where an element lies along one dimension: in its tile, and in the whole tensor."""

    local: Expr
    whole: Expr


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension of a tile.

    extent   of the tile
    base     where the tile begins in the whole tensor, over the loops around it; None: it is not cut
    whole    extent of the tensor; elements beyond it do not exist
    cut      the axes that cut it, by name: dimensions that are cut alike have equal tiles
    """

    extent: Poly
    base: Affine | None = None
    whole: Poly = field(default_factory=lambda: Poly.of(0))
    cut: tuple[str, ...] = ()

    @property
    def single(self) -> bool:
        return self.extent == Poly.of(1) and self.base is None


Read = Callable[[tuple[Index, ...]], Expr]  # the element of a value at one index per dimension


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the kernel graph: its dimensions, and how an element is read and where it is stored."""

    dims: tuple[Poly, ...]
    buffer: str
    place: Callable[[tuple[Expr, ...]], tuple[Expr, ...]]
    dtype: DType = DTYPE

    def read(self, at: tuple[Expr, ...]) -> Expr:
        return widened(Load(self.buffer, self.place(at), self.dtype))


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a block: its dimensions and how an element is read; `buffer` where it lies in scratch."""

    dims: tuple[Dim, ...]
    read: Read
    buffer: str | None = None


@dataclass(frozen=True, slots=True)
class Summed:
    """A value that is a combination over dimensions of its own: it needs a block."""

    spatial: tuple[Dim, ...]
    reduced: tuple[Dim, ...]
    read: Callable[[tuple[Index, ...], tuple[Index, ...]], Expr]
    combine: Combine


def whole_value(tensor: Tensor) -> Value:
    dims = tuple(one() if extent == Poly.of(1) else Dim(extent, None, extent) for extent in tensor.dims)
    return Value(dims, lambda at: tensor.read(tuple(i.whole for i in at)))


def scratch_value(
    buffer: str, dims: tuple[Dim, ...], dtype: DType = DTYPE, order: Sequence[int] | None = None
) -> Value:
    """order: of the dimensions in scratch, outermost first"""
    place = in_tile(dims, order)
    return Value(dims, lambda at: widened(Load(buffer, place(at), dtype)), buffer)


def widened(load: Load) -> Expr:
    """What is computed with: a half as a float32."""
    return Op("cast", (load,), DTYPE) if load.dtype in HALVES else load


def rounded(value: Expr, dtype: DType) -> Expr:
    """What is stored in a buffer of that dtype."""
    return Op("cast", (value,), dtype) if dtype in HALVES and dtype_of(value) != dtype else value


def one() -> Dim:
    return Dim(Poly.of(1), None, Poly.of(1))


def origin(dims: Sequence[Dim]) -> tuple[Index, ...]:
    """The index of the first element: for asking a value what it reads, whatever the place."""
    return tuple(Index(ZERO, ZERO) for _ in dims)


def broadcast(shapes: Sequence[tuple[Dim, ...]], name: str) -> tuple[Dim, ...]:
    rank = max((len(dims) for dims in shapes), default=0)
    result = [one() for _ in range(rank)]
    for dims in shapes:
        for position, dim in enumerate(dims, rank - len(dims)):
            known = result[position]
            if known.single:
                result[position] = dim
            elif not dim.single and (known.extent, known.cut) != (dim.extent, dim.cut):
                raise cannot(name, f"dimension {position} of the operands is cut in two ways")
    return tuple(result)


def aligned(at: tuple[Index, ...], dims: tuple[Dim, ...]) -> tuple[Index, ...]:
    """The index of an operand, broadcast as in NumPy."""
    kept = at[len(at) - len(dims) :]
    return tuple(Index(ZERO, ZERO) if dim.single else i for i, dim in zip(kept, dims, strict=True))


def access(access: AffineMap, labels: tuple[int, ...]) -> Callable[[tuple[Expr, ...]], tuple[Expr, ...]]:
    """Where an element lies in memory, given an index for each label."""

    def place(at: tuple[Expr, ...]) -> tuple[Expr, ...]:
        found = []
        for dim in access:
            index: Expr = size(dim.offset)
            for label, coefficient in dim.terms:
                index = add(index, mul(at[labels.index(label)], Const(coefficient)))
            found.append(index)
        return tuple(found)

    return place


def contiguous(tensor: Tensor, dim: int) -> bool:
    """Do neighbours along the dimension lie side by side in memory?"""
    at = tensor.place(tuple(Var(f"d{d}") for d in range(len(tensor.dims))))
    last = affine(at[-1]) if at else None
    return last is not None and last.coefficient(f"d{dim}") == Poly.of(1)


def kept(dims: tuple[Dim, ...], order: Sequence[int] | None = None) -> tuple[Poly, ...]:
    """The shape of a tile in scratch: dimensions of one element are left out."""
    return tuple(dims[d].extent for d in order or range(len(dims)) if dims[d].extent != Poly.of(1))


def in_tile(
    dims: tuple[Dim, ...], order: Sequence[int] | None = None
) -> Callable[[tuple[Index, ...]], tuple[Expr, ...]]:
    """Where an element of a tile lies in scratch."""
    there = [d for d in order or range(len(dims)) if dims[d].extent != Poly.of(1)]
    return lambda at: tuple(at[d].local for d in there)


def same(at: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return at


def never(_: tuple[Index, ...]) -> Expr:
    raise AssertionError("a sum that an accumulator takes over is read by nobody else")
