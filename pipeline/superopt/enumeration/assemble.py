"""A program over labelled values as a µGraph: dimensions numbered, maps written down, operands aligned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from pipeline.superopt.enumeration.derive import Derivation
from pipeline.superopt.enumeration.labelled import (
    Collected,
    Final,
    Folded,
    Frame,
    Gathered,
    Handed,
    Maker,
    Pointwise,
    Read,
    Rescaled,
    RunningMost,
    Summed,
    Value,
)
from pipeline.superopt.enumeration.labelled import (
    Literal as Constant,
)
from pipeline.superopt.goal.term import Factor, Factors
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    Axis,
    BlockGraph,
    BlockInput,
    BlockNode,
    BlockOutput,
    Contract,
    Fold,
    KernelNode,
    Map,
    MuGraph,
    Op,
    RescaledSum,
    Running,
    Scalar,
    Squeeze,
    Unsqueeze,
)
from pipeline.superopt.spec import Spec

Dims = tuple[Factor | None, ...]  # what each dimension runs over; None: extent one
Omap = Literal["sum", "max", "stack"]


@dataclass(slots=True)
class _Block:
    """One kernel while it is written."""

    frame: Frame
    split: Factor | None
    tensors: list[int] = field(default_factory=list)  # operands of the kernel
    cuts: list[Dims] = field(default_factory=list)  # of each of them
    nodes: list[tuple[Op, tuple[int, ...]]] = field(default_factory=list)  # operands below 0 are inputs
    dims: dict[int, Dims] = field(default_factory=dict)
    known: dict[tuple[Op, tuple[int, ...]], int] = field(default_factory=dict)

    def input(self, tensor: int, dims: Dims) -> int:
        self.tensors.append(tensor)
        self.cuts.append(dims)
        number = -len(self.tensors)
        self.dims[number] = tuple(f if f in self.frame.tiles else None for f in dims)
        return number

    def node(self, op: Op, operands: tuple[int, ...], dims: Dims) -> int:
        """The number of the node; the one that is there already if it is the same."""
        key = (op, operands)
        if key not in self.known:
            self.nodes.append(key)
            self.known[key] = len(self.nodes) - 1
            self.dims[self.known[key]] = dims
        return self.known[key]

    def squeezed(self, x: int) -> int:
        dims = self.dims[x]
        gone = tuple(i for i, factor in enumerate(dims) if factor is None)
        return self.node(Squeeze(gone), (x,), tuple(f for f in dims if f is not None)) if gone else x

    def aligned(self, operands: Sequence[int]) -> tuple[list[int], Dims]:
        """Operands that broadcast against each other, and the dimensions of the result."""
        direct = _broadcast([self.dims[x] for x in operands])
        if direct is not None:
            return list(operands), direct
        bare = [self.squeezed(x) for x in operands]
        whole = self.sort(f for x in bare for f in self.dims[x])
        made = []
        for x in bare:
            own = self.dims[x]
            first = min((whole.index(f) for f in own if f is not None), default=len(whole))
            new = tuple(i - first for i in range(first, len(whole)) if whole[i] not in own)
            dims = tuple(f if f in own else None for f in whole[first:])
            made.append(self.node(Unsqueeze(new), (x,), dims) if new else x)
        return made, whole

    def sort(self, factors: Iterable[Factor | None]) -> tuple[Factor, ...]:
        """Dimensions are in the order of the axes; the split one of the second kernel comes first."""
        return tuple(sorted({f for f in factors if f is not None}, key=lambda f: (f != self.split, f)))


def assemble(spec: Spec, frames: Sequence[Frame], split: Factor | None, values: Sequence[Value],
             derivation: Derivation, how: str) -> MuGraph | None:  # fmt: skip
    """The µGraph of a program, or None where its ways go round in a circle.

    how  the combination over the split factor with which the goal leaves its kernel, or ""
    """
    order = derivation.order()
    if order is None:
        return None
    goal = derivation.goal
    last = values[goal].kernel
    kernels: list[KernelNode] = []
    tensors = {~i: i for i in range(len(spec.inputs))}  # of the µGraph: inputs, then what is handed over
    count = len(spec.inputs)
    for kernel in range(last + 1):
        own = [v for v in order if values[v].kernel == kernel]
        handed = [derivation.ways[v].inputs[0] for v in order if isinstance(derivation.ways[v].op, Handed)]
        results = [goal] if kernel == last else list(dict.fromkeys(handed))
        block = _Block(frames[kernel], split if kernel else None)
        numbers = _write(block, spec, own, values, derivation.ways, tensors)
        leave: Omap = cast(Omap, how or "sum") if kernel == last else "stack"
        inside = _finish(block, [numbers[v] for v in results], leave, frames[kernel], kernel)
        for position, value in enumerate(results):
            tensors[value] = count + position
        count += len(results)
        kernels.append(KernelNode(inside, tuple(block.tensors)))
    return MuGraph(tuple(tensor.name for tensor in spec.inputs), tuple(kernels), (count - 1,))


def _name(part: str, factor: Factor, kernel: int) -> str:
    """Of a grid axis or a loop; no two of a µGraph have the same."""
    return f"{part}{factor[0]}" + (f"_{kernel}" if kernel else "")


def _write(block: _Block, spec: Spec, own: Sequence[int], values: Sequence[Value], ways: Mapping[int, Maker],
           tensors: Mapping[int, int]) -> dict[int, int]:  # fmt: skip
    """The nodes of the values of one kernel; their numbers in the block."""
    numbers: dict[int, int] = {}
    for value in own:
        op, inputs = ways[value].op, ways[value].inputs
        match op:
            case Read(number):
                dims = tuple((label, "t") for label in spec.inputs[number].labels)
                numbers[value] = block.input(tensors[~number], dims)
            case Handed():
                free = values[inputs[0]].free
                numbers[value] = block.input(tensors[inputs[0]], block.sort(free))
            case _:
                numbers[value] = _node(block, op, [numbers[i] for i in inputs], values[inputs[0]] if inputs else None)
    return numbers


def _node(block: _Block, op: object, x: list[int], first: Value | None) -> int:
    dims = [block.dims[i] for i in x]
    match op:
        case Constant(value):
            return block.node(Scalar(value), (), ())
        case Pointwise(fn):
            operands, whole = block.aligned(x)
            return block.node(Map(fn), tuple(operands), whole)
        case Summed(over):
            return _contract(block, over, x)
        case Folded(kind, over):
            axes = tuple(i for i, factor in enumerate(dims[0]) if factor in over)
            return block.node(Fold(kind, axes), (x[0],), tuple(None if f in over else f for f in dims[0]))
        case Gathered(kind, level):
            return block.node(Accumulate(kind, level), (x[0],), dims[0])
        case RunningMost(kind, level):
            return block.node(Running(cast(Literal["max", "min"], kind), level), (x[0],), dims[0])
        case Rescaled(level):
            operands, whole = block.aligned(x)
            if block.dims[operands[0]] != whole:
                raise AssertionError("a running maximum varies with more than the sum that it rescales")
            return block.node(RescaledSum(level), tuple(operands), whole)
        case Final(level):
            return block.node(Accumulate("last", level), (x[0],), dims[0])
        case Collected(factor):
            return block.node(Accumulate("concat", 0, dims[0].index(factor)), (x[0],), dims[0])
        case _:
            raise AssertionError(op)


def _contract(block: _Block, over: Factors, x: list[int]) -> int:
    """The einsum; dimensions of extent one are taken out first."""
    operands = tuple(block.squeezed(i) for i in x)
    both = [block.dims[i] for i in operands]
    factors = block.sort(f for dims in both for f in dims)
    letter = {f: "abcdefghijklmnopqrstuvwxyz"[i] for i, f in enumerate(factors)}
    out = tuple(f for f in factors if f not in over)
    texts = ["".join(letter[f] for f in dims if f is not None) for dims in (*both, out)]
    return block.node(Contract(f"{texts[0]},{texts[1]}->{texts[2]}"), operands, out)


def _broadcast(dims: Sequence[Dims]) -> Dims | None:
    """The dimensions of operands that broadcast as they are, or None."""
    rank = max(map(len, dims))
    found: list[Factor | None] = [None] * rank
    for own in dims:
        for i, factor in enumerate(own, rank - len(own)):
            if factor is not None and found[i] not in (None, factor):
                return None
            found[i] = factor if found[i] is None else found[i]
    real = [f for f in found if f is not None]
    return tuple(found) if len(set(real)) == len(real) else None


def _finish(block: _Block, results: Sequence[int], leave: Omap, frame: Frame, kernel: int) -> BlockGraph:
    """The block graph: axes that nothing is cut by are left out, results have no dimension of extent one."""
    out = [block.squeezed(x) for x in results]
    used = {factor for dims in block.cuts for factor in dims if factor is not None}
    grid = [f for f in frame.grid if _cuts(f, used)]
    loops = [f for f in frame.loops if _cuts(f, used)]
    levels = {level: sum(_cuts(f, used) for f in frame.loops[:level]) for level in range(len(frame.loops) + 1)}
    inputs = []
    for dims in block.cuts:
        imap = tuple(_dimension(f, dims) for f in grid)
        fmap = tuple(_dimension(f, dims) for f in loops)
        inputs.append(BlockInput(imap, fmap))
    count = len(inputs)
    nodes = tuple(
        BlockNode(_levelled(op, levels), tuple(_absolute(i, count) for i in operands)) for op, operands in block.nodes
    )
    outputs = []
    for x in out:
        dims = block.dims[x]
        omap = tuple(dims.index(f) if f in dims else leave for f in grid)
        outputs.append(BlockOutput(_absolute(x, count), omap))
    return BlockGraph(
        tuple(Axis(_name("g", f, kernel)) for f in grid),
        tuple(Axis(_name("l", f, kernel)) for f in loops),
        tuple(inputs), nodes, tuple(outputs),
    )  # fmt: skip


def _cuts(factor: Factor, used: set[Factor]) -> bool:
    """Whether a factor of the grid or a loop cuts one of the dimensions, which are known by their tile factors."""
    return factor in used or (factor[0], "t") in used


def _dimension(factor: Factor, dims: Dims) -> int | None:
    for i, own in enumerate(dims):
        if own is not None and (own == factor or own == (factor[0], "t")):
            return i
    return None


def _absolute(number: int, inputs: int) -> int:
    return ~number if number < 0 else inputs + number


def _levelled(op: Op, levels: Mapping[int, int]) -> Op:
    """The operator, its level counted among the loops that are left."""
    match op:
        case Accumulate(kind, level, axis):
            return Accumulate(kind, levels[level], axis)
        case Running(kind, level):
            return Running(kind, levels[level])
        case RescaledSum(level):
            return RescaledSum(levels[level])
        case _:
            return op
