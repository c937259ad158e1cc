"""The canonical form of a µGraph: what does not count is decided in one way, so that equal structures have equal text.

What does not count: the names of axes, the order of independent nodes, of block inputs and block outputs, of the
operands of commutative functions and products, the letters of a product, the order of grid axes where nothing hangs
on it, and whether the same thing is computed twice. What counts: the inputs and outputs of the µGraph, in their order,
the order of loops, fixed extents, and that two kernels share an axis.

Each value gets a hash of the structure below it, in which a grid axis is known by what it does (its colour), refined
until it tells apart all it can; grid axes that it cannot tell apart keep their order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.ir.algebra import split_subscripts
from pipeline.superopt.mugraph.graph import (
    Axis,
    BlockGraph,
    BlockInput,
    BlockNode,
    BlockOutput,
    Contract,
    KernelNode,
    Map,
    MuGraph,
    Op,
)
from pipeline.superopt.mugraph.text import to_text

COMMUTATIVE = frozenset({"add", "mul", "max", "min", "and", "or", "xor", "eq", "ne"})
ROUNDS = 3  # of refinement: the first sees inputs, the second outputs, the third how these hang together


@dataclass(frozen=True, slots=True)
class Canonical:
    """A µGraph in canonical form, and what the axes of the given one are called in it."""

    graph: MuGraph
    axes: Mapping[str, str]


def canonical(graph: MuGraph) -> MuGraph:
    """The canonical form of a valid µGraph: it computes the same, and needs no more nodes."""
    return canonicalized(graph).graph


def canonicalized(graph: MuGraph) -> Canonical:
    """The canonical form with the names of its axes, for extents that are known by the old names."""
    return _Rebuilt(graph).canonical()


def key(graph: MuGraph) -> str:
    """The SHA-256 of the text of the canonical form, in hexadecimal digits: what a store knows a µGraph by."""
    return hashlib.sha256(to_text(canonical(graph)).encode()).hexdigest()


def _hash(*parts: object) -> str:
    """Of strings, numbers, None and tuples of them; the same in every process."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _ordered(op: Op, operands: Sequence[str]) -> tuple[Op, tuple[int, ...]]:
    """The operator and the order of its operands, which are known by their hashes, where that is free."""
    order = tuple(range(len(operands)))
    if isinstance(op, Map) and op.fn in COMMUTATIVE:
        return op, tuple(sorted(order, key=lambda i: operands[i]))
    if isinstance(op, Contract):
        lhs, rhs, out = split_subscripts(op.subscripts)
        ways = [(operands[0], operands[1], _renamed(lhs, rhs, out), (0, 1)),
                (operands[1], operands[0], _renamed(rhs, lhs, out), (1, 0))]  # fmt: skip
        *_, subscripts, order = min(ways)
        return Contract(subscripts), order
    return op, order


def _renamed(lhs: str, rhs: str, out: str) -> str:
    """The subscripts with letters from a on, as they appear; from A on after z."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    names = {letter: letters[i] for i, letter in enumerate(dict.fromkeys(lhs + rhs))}
    return f"{''.join(map(names.__getitem__, lhs))},{''.join(map(names.__getitem__, rhs))}->" + "".join(
        map(names.__getitem__, out)
    )


@dataclass(frozen=True, slots=True)
class _BlockHashes:
    """Of a block graph: each value, each output; and its grid axes in canonical order."""

    values: tuple[str, ...]
    outputs: tuple[str, ...]
    order: tuple[int, ...]


def _block_hashes(block: BlockGraph, operands: Sequence[str]) -> _BlockHashes:
    colours = tuple(_hash("grid", axis.extent) for axis in block.grid)
    for _ in range(ROUNDS):
        values, outputs = _value_hashes(block, operands, colours)
        colours = tuple(
            _hash(
                colour,
                tuple(sorted((h, str(tile.imap[i])) for h, tile in zip(values, block.inputs, strict=False))),
                tuple(sorted((h, str(out.omap[i])) for h, out in zip(outputs, block.outputs, strict=True))),
            )
            for i, colour in enumerate(colours)
        )
    order = _axis_order(block, colours)
    return _BlockHashes(*_value_hashes(block, operands, _told_apart(block, order)), order)


def _told_apart(block: BlockGraph, order: Sequence[int]) -> tuple[str, ...]:
    """A colour of its own for each grid axis: two that the refinement cannot tell apart are still two."""
    return tuple(_hash("axis", order.index(i), axis.extent) for i, axis in enumerate(block.grid))


def _value_hashes(
    block: BlockGraph, operands: Sequence[str], colours: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Of the values and of the outputs, where the operands of the kernel and the grid axes are known by these."""
    loops = tuple(axis.extent for axis in block.loops)
    values = [
        _hash("tile", tensor, _by_place(tile.imap, colours), tile.fmap, loops)
        for tile, tensor in zip(block.inputs, operands, strict=True)
    ]
    for node in block.nodes:
        values.append(_op_hash(node.op, [values[i] for i in node.inputs]))
    return tuple(values), tuple(
        _hash("store", values[out.value], _by_place(out.omap, colours), loops) for out in block.outputs
    )


def _by_place(where: Sequence[int | str | None], colours: Sequence[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """For each dimension (or way to put together) the colours of its axes; the order of a reduction is free."""
    found: dict[str, list[str]] = {}
    for place, colour in zip(where, colours, strict=True):
        found.setdefault(str(place), []).append(colour)
    return tuple(
        (place, tuple(sorted(axes) if place in ("None", "sum", "max") else axes))
        for place, axes in sorted(found.items())
    )


def _op_hash(op: Op, operands: Sequence[str]) -> str:
    shown, order = _ordered(op, operands)
    return _hash(repr(shown), tuple(operands[i] for i in order))


def _axis_order(block: BlockGraph, colours: Sequence[str]) -> tuple[int, ...]:
    """The grid axes by their colours; two that share a dimension, or are both stacked, keep their order."""
    places = [tile.imap for tile in block.inputs] + [out.omap for out in block.outputs]
    free = (None, "sum", "max")
    left, order = list(range(len(colours))), list[int]()
    while left:
        ready = [i for i in left if not any(p[i] == p[j] and p[i] not in free for p in places for j in left if j < i)]
        order.append(min(ready, key=lambda i: colours[i]))
        left.remove(order[-1])
    return tuple(order)


class _Rebuilt:
    """A µGraph built again from its outputs: depth first, every value once.

    hashes  of each tensor, by which things are ordered: names of axes do not count
    same    of each tensor, by which two are merged: the extents of two kernels are equal only by the names of the axes
    """

    def __init__(self, graph: MuGraph) -> None:
        self.graph = graph
        self.owner: list[tuple[int, int]] = [(-1, i) for i in range(len(graph.inputs))]  # (kernel, result) by tensor
        self.hashes = [_hash("input", i) for i in range(len(graph.inputs))]
        self.same = list(self.hashes)
        self.blocks: list[_BlockHashes | None] = []
        for number, node in enumerate(graph.nodes):
            operands, same = [self.hashes[i] for i in node.inputs], [self.same[i] for i in node.inputs]
            if isinstance(node.op, BlockGraph):
                block = _block_hashes(node.op, operands)
                whole = tuple(sorted(set(block.outputs)))
                names = tuple(axis.name for axis in (*(node.op.grid[i] for i in block.order), *node.op.loops))
                _, outputs = _value_hashes(node.op, same, _told_apart(node.op, block.order))
                self.hashes.extend(_hash(whole, out) for out in block.outputs)
                self.same.extend(_hash(names, tuple(sorted(set(outputs))), out) for out in outputs)
                self.blocks.append(block)
            else:
                self.hashes.append(_op_hash(node.op, operands))
                self.same.append(_op_hash(node.op, same))
                self.blocks.append(None)
            self.owner.extend((number, result) for result in range(node.results))
        self.nodes: list[KernelNode] = []
        self.results = len(graph.inputs)  # tensors so far
        self.number = {self.same[i]: i for i in range(len(graph.inputs))}
        self.axes: dict[str, str] = {}

    def canonical(self) -> Canonical:
        outputs = tuple(self.tensor(i) for i in self.graph.outputs)
        return Canonical(MuGraph(self.graph.inputs, tuple(self.nodes), outputs), self.axes)

    def tensor(self, old: int) -> int:
        """The number in the new µGraph of a tensor of the given one."""
        if (known := self.number.get(self.same[old])) is not None:
            return known
        kernel, result = self.owner[old]
        node, block = self.graph.nodes[kernel], self.blocks[kernel]
        if isinstance(node.op, BlockGraph):
            assert block is not None
            made, place = self.block(node.op, node.inputs, block)
            for i, position in enumerate(place):
                self.number[self.same[old - result + i]] = self.results + position
        else:
            op, order = _ordered(node.op, [self.hashes[i] for i in node.inputs])
            made = KernelNode(op, tuple(self.tensor(node.inputs[i]) for i in order))  # type: ignore[arg-type]  # the kind of an operator stays
            self.number[self.same[old]] = self.results
        self.nodes.append(made)
        self.results += made.results
        return self.number[self.same[old]]

    def block(
        self, block: BlockGraph, tensors: Sequence[int], hashes: _BlockHashes
    ) -> tuple[KernelNode, tuple[int, ...]]:
        """The kernel in canonical form, and for each old output its position among the new ones."""
        count, order = len(block.inputs), hashes.order
        values, same = _value_hashes(block, [self.same[i] for i in tensors], _told_apart(block, order))
        loads: list[int] = []
        nodes: list[tuple[Op, tuple[int, ...]]] = []
        place: dict[str, int] = {}  # by what makes values equal: a node, or ~ a load

        def visit(value: int) -> int:
            if values[value] in place:
                return place[values[value]]
            if value < count:
                loads.append(value)
                return place.setdefault(values[value], ~(len(loads) - 1))
            node = block.nodes[value - count]
            op, operands = _ordered(node.op, [hashes.values[i] for i in node.inputs])
            nodes.append((op, tuple(visit(node.inputs[i]) for i in operands)))
            return place.setdefault(values[value], len(nodes) - 1)

        stores: dict[str, int] = {}
        for i in sorted(range(len(block.outputs)), key=lambda i: hashes.outputs[i]):
            stores.setdefault(same[i], i)
        roots = [visit(block.outputs[i].value) for i in stores.values()]
        operands = tuple(self.tensor(tensors[i]) for i in loads)

        def number(at: int) -> int:
            return ~at if at < 0 else len(loads) + at

        made = BlockGraph(
            tuple(self.axis(block.grid[i]) for i in order),
            tuple(map(self.axis, block.loops)),
            tuple(BlockInput(tuple(block.inputs[i].imap[a] for a in order), block.inputs[i].fmap) for i in loads),
            tuple(BlockNode(op, tuple(map(number, below))) for op, below in nodes),
            tuple(
                BlockOutput(number(root), tuple(block.outputs[i].omap[a] for a in order))
                for root, i in zip(roots, stores.values(), strict=True)
            ),
        )
        return KernelNode(made, operands), tuple(list(stores).index(found) for found in same)

    def axis(self, axis: Axis) -> Axis:
        return Axis(self.axes.setdefault(axis.name, f"a{len(self.axes)}"), axis.extent)
