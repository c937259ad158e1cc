"""The µGraph: a tensor program over kernel, block and thread level, with grid and loop extents that may be parameters.

A kernel graph is a list of operators on whole tensors; a custom one holds a block graph. A block graph runs once for
each point of its grid: it cuts tiles out of its inputs, runs its body in a nest of sequential loops, carries
accumulators over them, and writes tiles of its outputs. Thread graphs are not written down: every chain of elementwise
operators in a block is fused into the register tile of its producer when the block is lowered.

Dimensions are numbered, shapes are not part of the structure: the same µGraph runs at full and at shrunken shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["sum", "max", "min", "prod"]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number, of rank 0. No operands."""

    value: float


@dataclass(frozen=True, slots=True)
class Map:
    """One scalar function (of `pipeline.ir.graph.ELEMENTWISE`) on each element; operands broadcast as in NumPy."""

    fn: str


@dataclass(frozen=True, slots=True)
class Contract:
    """Two operands multiplied and summed, in the notation of einsum: "bik,bkj->bij". No letter twice in an operand.

    An index of the result is in an operand; one that is in no result is summed (also where one operand alone has it).
    """

    subscripts: str


@dataclass(frozen=True, slots=True)
class Fold:
    """Reduces each of `axes` to `keep` elements (the dimensions stay): out[j] = combine over g of x[g * keep + j]."""

    kind: Kind
    axes: tuple[int, ...]
    keep: int = 1


@dataclass(frozen=True, slots=True)
class Transpose:
    """Dimension i of the result is dimension perm[i] of the operand."""

    perm: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unsqueeze:
    """New dimensions of extent one, at these positions of the result, in ascending order."""

    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Squeeze:
    """Dimensions of extent one taken out; positions in the operand, in ascending order."""

    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Concat:
    """Operands one after another along `axis`."""

    axis: int


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Combines the values that its operand takes in the loops from number `level` on; the result leaves those loops.

    kind    sum, max, min, prod, last (the value of the last iteration), concat (tiles side by side along `axis`, the
            innermost loop fastest)
    level   0: over all loops of the block; the result has this depth
    """

    kind: Literal["sum", "max", "min", "prod", "last", "concat"]
    level: int = 0
    axis: int | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """The combination of what the operand was in this and all earlier iterations of the loops from number `level` on.

    Unlike an accumulator it is read inside the loop; `Accumulate("last")` of it is its final value.
    """

    kind: Literal["max", "min"] = "max"
    level: int = 0


@dataclass(frozen=True, slots=True)
class RescaledSum:
    """Operands x and m, a `Running` maximum of the same level: acc = acc * exp(m before - m now) + x.

    At the first iteration acc = x. Over all iterations t it is the sum of x_t * exp(m_t - m_last), which for
    x_t = exp(s_t - m_t) * y_t is the sum of exp(s_t - m_last) * y_t: online softmax (Milakov and Gimelshein, 2018).
    """

    level: int = 0


TileOp = Scalar | Map | Contract | Fold | Transpose | Unsqueeze | Squeeze | Concat
LoopOp = Accumulate | Running | RescaledSum
Op = TileOp | LoopOp


@dataclass(frozen=True, slots=True)
class Axis:
    """A grid axis or a loop; the extent None is a parameter that tuning decides."""

    name: str
    extent: int | None = None


@dataclass(frozen=True, slots=True)
class BlockInput:
    """How one operand of the kernel is cut: for each grid axis and each loop the dimension that it partitions, or None.

    Equal consecutive pieces. A dimension that several axes partition is cut by the grid axes first, then by the loops,
    in their order. The tile has the rank of the tensor. None for all loops: it is loaded once, before them.
    """

    imap: tuple[int | None, ...]
    fmap: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class BlockNode:
    """One operator on tiles. Operands are values of the block: its inputs first, then its nodes, in order."""

    op: Op
    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BlockOutput:
    """A value of depth 0 that leaves the block.

    omap   for each grid axis: the dimension along which the tiles of its points are put side by side; or "sum", "max":
           the tiles are combined; or "stack": the axis becomes a new leading dimension (several: in their order)
    """

    value: int
    omap: tuple[int | Literal["sum", "max", "stack"], ...]


@dataclass(frozen=True, slots=True)
class BlockGraph:
    """The body of a custom kernel. `loops` is a nest, the outermost first; it may be empty.

    The depth of a value is the number of loops it lives in: of an input, up to the innermost loop that partitions it;
    of an operator, the greatest of its operands; of an accumulator, its level. What has the depth 0 is computed once
    per grid point: before the loops, or after them where it depends on an accumulator. One traversal: what depends on
    an accumulator of level L is not read inside a loop of number L or higher.
    """

    grid: tuple[Axis, ...]
    loops: tuple[Axis, ...]
    inputs: tuple[BlockInput, ...]
    nodes: tuple[BlockNode, ...]
    outputs: tuple[BlockOutput, ...]


@dataclass(frozen=True, slots=True)
class KernelNode:
    """One kernel: a predefined operator with one result, or a block graph with one result for each of its outputs.

    Operands are tensors of the µGraph: its inputs first, then the results of its nodes, in order.
    """

    op: TileOp | BlockGraph
    inputs: tuple[int, ...]

    @property
    def results(self) -> int:
        return len(self.op.outputs) if isinstance(self.op, BlockGraph) else 1


@dataclass(frozen=True, slots=True)
class MuGraph:
    """Tensors in static single assignment form: named inputs, kernels in order, and the tensors that are the result."""

    inputs: tuple[str, ...]
    nodes: tuple[KernelNode, ...]
    outputs: tuple[int, ...]


def depths(block: BlockGraph) -> tuple[int, ...]:
    """The depth of every value of a block, as `BlockGraph` defines it."""
    found: list[int] = []
    for tile in block.inputs:
        found.append(max((number + 1 for number, dim in enumerate(tile.fmap) if dim is not None), default=0))
    for node in block.nodes:
        match node.op:
            case Accumulate(level=level) | RescaledSum(level=level):
                found.append(level)
            case _:
                found.append(max((found[i] for i in node.inputs), default=0))
    return tuple(found)


def block_graphs(graph: MuGraph) -> Iterator[BlockGraph]:
    """The block graphs of the custom kernels, in order."""
    for node in graph.nodes:
        if isinstance(node.op, BlockGraph):
            yield node.op
