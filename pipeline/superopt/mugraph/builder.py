"""The builder of µGraphs by hand: handles with operators, maps by the names of axes, errors at the line that is wrong.

b = MuGraphBuilder()
x, w = b.input("x", rank=2), b.input("w", rank=2)
with b.kernel(grid={"n": None}, loops={"k": None}) as k:
    tx, tw = k.load(x, fmap={"k": 1}), k.load(w, imap={"n": 1}, fmap={"k": 0})
    ss = k.accumulate("sum", k.fold("sum", tx * tx, axis=1))
    acc = k.accumulate("sum", k.contract("mk,kn->mn", tx, tw))
    y = k.store(acc / k.sqrt(ss / 4096.0), omap={"n": 1})
graph = b.finish(y)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import Literal

from pipeline.errors import CheckError, listed
from pipeline.superopt.mugraph.check import (
    PLAIN,
    TOGETHER,
    VIEWS,
    accumulator_level,
    check,
    wrong_level,
    wrong_maximum,
)
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    Axis,
    BlockGraph,
    BlockInput,
    BlockNode,
    BlockOutput,
    Concat,
    Contract,
    Fold,
    KernelNode,
    Kind,
    Map,
    MuGraph,
    Op,
    RescaledSum,
    Running,
    Scalar,
    Squeeze,
    TileOp,
    Transpose,
    Unsqueeze,
)
from pipeline.superopt.mugraph.operator import result_rank, wrong_attributes, wrong_operands

Extents = Mapping[str, int | None]
Together = int | Literal["sum", "max", "stack"]


@dataclass(frozen=True, slots=True, eq=False)
class Handle:
    """A tensor of the µGraph or a value of one of its kernels; `+ - * /` with another handle or a number make a `Map`.

    place  where it was made: the builder, or the kernel, whose methods take it
    """

    place: Place
    number: int
    rank: int

    def __add__(self, other: Handle | float) -> Handle:
        return self.place.map("add", self, other)

    def __radd__(self, other: float) -> Handle:
        return self.place.map("add", other, self)

    def __sub__(self, other: Handle | float) -> Handle:
        return self.place.map("sub", self, other)

    def __rsub__(self, other: float) -> Handle:
        return self.place.map("sub", other, self)

    def __mul__(self, other: Handle | float) -> Handle:
        return self.place.map("mul", self, other)

    def __rmul__(self, other: float) -> Handle:
        return self.place.map("mul", other, self)

    def __truediv__(self, other: Handle | float) -> Handle:
        return self.place.map("div", self, other)

    def __rtruediv__(self, other: float) -> Handle:
        return self.place.map("div", other, self)

    def __neg__(self) -> Handle:
        return self.place.map("neg", self)


class Place:
    """What the operators on whole tensors and on tiles have in common: each method appends one and gives its handle."""

    def operator(self, op: TileOp, *operands: Handle | float) -> Handle:
        """Any operator; a number becomes a `Scalar`."""
        raise NotImplementedError

    def scalar(self, value: float) -> Handle:
        return self.operator(Scalar(float(value)))

    def map(self, fn: str, *operands: Handle | float) -> Handle:
        """A scalar function of `pipeline.ir.graph.ELEMENTWISE`."""
        return self.operator(Map(fn), *operands)

    def exp(self, x: Handle) -> Handle:
        return self.map("exp", x)

    def log(self, x: Handle) -> Handle:
        return self.map("log", x)

    def sqrt(self, x: Handle) -> Handle:
        return self.map("sqrt", x)

    def rsqrt(self, x: Handle) -> Handle:
        return self.map("rsqrt", x)

    def sigmoid(self, x: Handle) -> Handle:
        return self.map("sigmoid", x)

    def silu(self, x: Handle) -> Handle:
        """x * sigmoid(x): two operators."""
        return x * self.sigmoid(x)

    def maximum(self, x: Handle | float, y: Handle | float) -> Handle:
        return self.map("max", x, y)

    def contract(self, subscripts: str, x: Handle, y: Handle) -> Handle:
        return self.operator(Contract(subscripts), x, y)

    def fold(self, kind: Kind, x: Handle, axis: int | Sequence[int], keep: int = 1) -> Handle:
        axes = (axis,) if isinstance(axis, int) else tuple(axis)
        return self.operator(Fold(kind, tuple(sorted(i + x.rank if i < 0 else i for i in axes)), keep), x)

    def transpose(self, x: Handle, perm: Sequence[int]) -> Handle:
        return self.operator(Transpose(tuple(perm)), x)

    def unsqueeze(self, x: Handle, axes: Sequence[int]) -> Handle:
        return self.operator(Unsqueeze(tuple(axes)), x)

    def squeeze(self, x: Handle, axes: Sequence[int]) -> Handle:
        return self.operator(Squeeze(tuple(axes)), x)

    def concat(self, operands: Sequence[Handle], axis: int) -> Handle:
        return self.operator(Concat(axis), *operands)

    def _taken(self, op: Op, operands: Sequence[Handle | float], where: str) -> list[Handle]:
        """The operands as handles of this place, that the operator can take; else CheckError."""
        if reason := wrong_attributes(op):
            raise _refused("not an operator", f"{where}: {op}", reason)
        found = [i if isinstance(i, Handle) else self.scalar(i) for i in operands]
        for handle in found:
            self._own(handle, where)
        if reason := wrong_operands(op, [handle.rank for handle in found]):
            raise _refused("the operator cannot take its operands", f"{where}: {op}", reason)
        return found

    def _own(self, handle: Handle, where: str) -> None:
        if handle.place is not self:
            raise _refused(
                "an operand is of another place",
                where,
                f"It was made by {handle.place}",
                "Load a tensor into a kernel, and store what a kernel found, before it is used there",
            )


class MuGraphBuilder(Place):
    """Builds one µGraph: its inputs, operators on whole tensors, and custom kernels."""

    def __init__(self) -> None:
        self._inputs: list[str] = []
        self._ranks: dict[str, int] = {}
        # A tensor is ("input", number) or (number of the kernel, number of its result); the handle has its position.
        self._tensors: list[tuple[int, int]] = []
        self._nodes: list[tuple[TileOp | BlockGraph, tuple[int, ...]]] = []
        self._open: KernelBuilder | None = None

    def __str__(self) -> str:
        return "the µGraph"

    def input(self, name: str, rank: int) -> Handle:
        """A tensor that the caller gives; they are numbered in the order in which they are asked for."""
        if name in self._ranks:
            raise _refused("an input is there twice", "the µGraph", f"its name is {name!r}")
        if rank < 0:
            raise _refused("an input has no rank", f"input {name!r}", f"{rank} is negative")
        self._inputs.append(name)
        self._ranks[name] = rank
        return self._tensor(-1, len(self._inputs) - 1, rank)

    def operator(self, op: TileOp, *operands: Handle | float) -> Handle:
        if self._open is not None:
            raise _refused("a kernel is open", f"the µGraph: {op}", "operators on whole tensors are kernels themselves",
                           "Move it out of the `with`, or call the method of the kernel")  # fmt: skip
        found = self._taken(op, operands, "the µGraph")
        self._nodes.append((op, tuple(handle.number for handle in found)))
        return self._tensor(len(self._nodes) - 1, 0, _known(result_rank(op, [handle.rank for handle in found])))

    def kernel(self, grid: Extents | None = None, loops: Extents | None = None) -> KernelBuilder:
        """A custom kernel, to be opened by `with`; extents by the names of the axes, None for a parameter."""
        return KernelBuilder(self, _axes(grid or {}), _axes(loops or {}))

    def finish(self, *outputs: Handle) -> MuGraph:
        """The µGraph of these tensors, checked."""
        for handle in outputs:
            self._own(handle, "finish")
        starts = [len(self._inputs)]
        for op, _ in self._nodes:
            starts.append(starts[-1] + (len(op.outputs) if isinstance(op, BlockGraph) else 1))
        number = [result if kernel < 0 else starts[kernel] + result for kernel, result in self._tensors]
        graph = MuGraph(
            tuple(self._inputs),
            tuple(KernelNode(op, tuple(number[i] for i in inputs)) for op, inputs in self._nodes),
            tuple(number[handle.number] for handle in outputs),
        )
        check(graph, self._ranks)
        return graph

    def _tensor(self, kernel: int, result: int, rank: int) -> Handle:
        self._tensors.append((kernel, result))
        return Handle(self, len(self._tensors) - 1, rank)


class KernelBuilder(Place):
    """Builds one custom kernel: loads first, then operators on tiles and accumulators, then stores."""

    def __init__(self, graph: MuGraphBuilder, grid: tuple[Axis, ...], loops: tuple[Axis, ...]) -> None:
        names = [axis.name for axis in (*grid, *loops)]
        if len(set(names)) != len(names):
            raise _refused("an axis is there twice", "kernel", f"the grid and the loops are {', '.join(names)}")
        self._graph, self._grid, self._loops = graph, grid, loops
        self._operands: list[int] = []
        self._inputs: list[BlockInput] = []
        self._nodes: list[BlockNode] = []
        self._outputs: list[BlockOutput] = []
        # Of the values so far, by the number of the handle; loads come first only in the finished block.
        self._values: list[tuple[bool, int]] = []
        self._depths: list[int] = []
        self._ends: list[float] = []
        self._closed = False

    def __str__(self) -> str:
        names = ", ".join(axis.name for axis in (*self._grid, *self._loops))
        return f"the kernel of the axes {names or '(none)'}"

    def __enter__(self) -> KernelBuilder:
        if self._graph._open is not None or self._closed:
            raise _refused("kernels do not nest", str(self), "another one is open, or it was closed")
        self._graph._open = self
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._graph._open, self._closed = None, True
        if kind is not None:
            return
        if not self._outputs:
            raise _refused("the kernel writes nothing", str(self), "there is no store in it")
        count = len(self._inputs)
        number = [at if loaded else count + at for loaded, at in self._values]
        block = BlockGraph(
            self._grid,
            self._loops,
            tuple(self._inputs),
            tuple(BlockNode(node.op, tuple(number[i] for i in node.inputs)) for node in self._nodes),
            tuple(BlockOutput(number[out.value], out.omap) for out in self._outputs),
        )
        self._graph._nodes.append((block, tuple(self._operands)))

    def load(
        self, tensor: Handle, imap: Mapping[str, int] | None = None, fmap: Mapping[str, int] | None = None
    ) -> Handle:
        """A tile of a tensor: the dimension that each grid axis (imap) and each loop (fmap) partitions, by its name."""
        self._opened("load")
        self._graph._own(tensor, f"load in {self}")
        cuts = (
            self._dims("imap", self._grid, imap or {}, tensor.rank),
            self._dims("fmap", self._loops, fmap or {}, tensor.rank),
        )
        self._operands.append(tensor.number)
        self._inputs.append(BlockInput(*cuts))
        depth = max((loop + 1 for loop, dim in enumerate(cuts[1]) if dim is not None), default=0)
        return self._value((True, len(self._inputs) - 1), tensor.rank, depth, inf)

    def operator(self, op: Op, *operands: Handle | float) -> Handle:
        self._opened(str(op))
        found = self._taken(op, operands, str(self))
        where = f"{self}: {op}"
        depths = [self._depths[handle.number] for handle in found]
        if reason := wrong_level(op, depths):
            raise _refused("an accumulator without a loop", where, reason)
        if isinstance(op, RescaledSum):
            loaded, at = self._values[found[1].number]
            while not loaded and isinstance(self._nodes[at].op, VIEWS):
                loaded, at = self._values[self._nodes[at].inputs[0]]
            if reason := wrong_maximum(op, None if loaded else self._nodes[at].op):
                raise _refused("a rescaled sum without its maximum", where, reason)
        depth = max(depths, default=0)
        for handle in found:
            if depth > self._ends[handle.number]:
                ended, inside = self._loops[int(self._ends[handle.number])].name, self._loops[depth - 1].name
                raise _refused(
                    "an operand is not there yet",
                    where,
                    f"It depends on an accumulator over loop {ended}, which has not ended yet in loop {inside}",
                    "Use it after the loop, or in a kernel of its own",
                )
        node = BlockNode(op, tuple(handle.number for handle in found))
        self._nodes.append(node)
        depth = op.level if isinstance(op, Accumulate | RescaledSum) else depth
        rank = _known(result_rank(op, [handle.rank for handle in found]))
        return self._value((False, len(self._nodes) - 1), rank, depth, accumulator_level(node, self._ends))

    def accumulate(
        self,
        kind: Literal["sum", "max", "min", "prod", "last", "concat"],
        x: Handle,
        *,
        loop: str | None = None,
        axis: int | None = None,
    ) -> Handle:
        """Combined over the loops from `loop` on, all of them without it; `axis` for "concat" only."""
        return self.operator(Accumulate(kind, self._level(loop), axis), x)

    def running(self, x: Handle, kind: Literal["max", "min"] = "max", *, loop: str | None = None) -> Handle:
        """The maximum (or minimum) so far, over the loops from `loop` on."""
        return self.operator(Running(kind, self._level(loop)), x)

    def rescaled_sum(self, x: Handle, maximum: Handle, *, loop: str | None = None) -> Handle:
        """The sum of x_t * exp(m_t - m_last) over the loops from `loop` on, where m is `running` over the same ones."""
        return self.operator(RescaledSum(self._level(loop)), x, maximum)

    def store(self, value: Handle, omap: Mapping[str, Together] | None = None) -> Handle:
        """The tensor of the tiles of all grid points: for each grid axis a dimension, "sum", "max" or "stack"."""
        self._opened("store")
        self._own(value, "store")
        where, given = f"store in {self}", dict(omap or {})
        names = [axis.name for axis in self._grid]
        if set(given) != set(names):
            raise _refused("the omap names other axes", where, f"It has {listed(given) or 'none'}; the grid is "
                           f"{', '.join(names) or 'empty'}")  # fmt: skip
        for name, how in given.items():
            good = 0 <= how < value.rank if isinstance(how, int) else how in TOGETHER
            if not good:
                raise _refused(
                    "no such way to put tiles together",
                    where,
                    f"{name}: {how} for tiles of rank {value.rank}",
                    f"Give a dimension or one of {', '.join(TOGETHER)}",
                )
        if depth := self._depths[value.number]:
            raise _refused("a store inside a loop", where, f"The value has depth {depth}", "Accumulate it first")
        self._outputs.append(BlockOutput(value.number, tuple(given[name] for name in names)))
        rank = value.rank + sum(how == "stack" for how in given.values())
        return self._graph._tensor(len(self._graph._nodes), len(self._outputs) - 1, rank)

    def _opened(self, what: str) -> None:
        if self._graph._open is not self:
            raise _refused("the kernel is not open", f"{what} in {self}", "", "Call it inside its `with`")

    def _value(self, at: tuple[bool, int], rank: int, depth: int, end: float) -> Handle:
        self._values.append(at)
        self._depths.append(depth)
        self._ends.append(end)
        return Handle(self, len(self._values) - 1, rank)

    def _level(self, loop: str | None) -> int:
        names = [axis.name for axis in self._loops]
        if loop is not None and loop not in names:
            raise _refused("no such loop", str(self), f"{loop!r} is none of {', '.join(names) or 'no loops'}")
        return 0 if loop is None else names.index(loop)

    def _dims(self, what: str, axes: Sequence[Axis], given: Mapping[str, int], rank: int) -> tuple[int | None, ...]:
        names = [axis.name for axis in axes]
        for name, dim in given.items():
            if name not in names:
                raise _refused(f"the {what} names another axis", f"load in {self}",
                               f"{name!r} is none of {', '.join(names) or 'no axes'}")  # fmt: skip
            if not 0 <= dim < rank:
                raise _refused(f"the {what} cuts no dimension", f"load in {self}",
                               f"{name}: there is no dimension {dim} of a tensor of rank {rank}")  # fmt: skip
        return tuple(given.get(name) for name in names)


def _axes(extents: Extents) -> tuple[Axis, ...]:
    for name, extent in extents.items():
        if not PLAIN.fullmatch(name):
            raise _refused("the name of an axis is not plain", repr(name), "it is read as a word of the text")
        if extent is not None and extent < 1:
            raise _refused("an axis has no extent", name, f"{extent} is not positive")
    return tuple(Axis(name, extent) for name, extent in extents.items())


def _known(rank: int | None) -> int:
    assert rank is not None  # operands of known rank give a result of known rank
    return rank


def _refused(what: str, where: str, why: str, todo: str = "") -> CheckError:
    return CheckError(what, where=where, why=why, todo=todo)
