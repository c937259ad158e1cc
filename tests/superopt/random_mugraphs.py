"""Random valid µGraphs for property tests: every kind of node, with shapes and extents at which they run."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from pipeline.errors import CheckError
from pipeline.ir.graph import Shape
from pipeline.superopt.mugraph.builder import Handle, KernelBuilder, MuGraphBuilder, Place
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    BlockGraph,
    Concat,
    Contract,
    Fold,
    Kind,
    Map,
    MuGraph,
    Op,
    RescaledSum,
    Running,
    Scalar,
    Squeeze,
    Transpose,
    Unsqueeze,
)
from pipeline.superopt.mugraph.operator import result_shape, wrong_operands

UNARY = ("neg", "abs", "tanh", "sigmoid")
BINARY = ("add", "sub", "mul", "max", "min")
KINDS: tuple[Kind, ...] = ("sum", "max", "min")
SIZES = (1, 2, 3, 4, 6, 12)
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class RandomMuGraph:
    """A µGraph with the shapes of its inputs and the extents of all its axes, by name."""

    graph: MuGraph
    inputs: dict[str, Shape]
    extents: dict[str, int]


def random_mugraph(
    rng: random.Random,
    *,
    kernels: int = 3,
    steps: int = 6,
    unary: Sequence[str] = UNARY,
    binary: Sequence[str] = BINARY,
) -> RandomMuGraph:
    """One of at most `kernels` kernels before the last, of at most `steps` operators each, and some to join them.

    With the default functions every value is finite on inputs of moderate size.
    """
    maker = _Maker(rng, unary, binary)
    tensors = [maker.input() for _ in range(rng.randint(1, 3))]
    for number in range(rng.randint(1, kernels)):
        if rng.random() < 0.25:
            tensors.append(maker.step(maker.b, tensors))
        else:
            tensors.extend(maker.kernel(number, rng.sample(tensors, rng.randint(1, min(3, len(tensors)))), steps))
    outputs = [t for t in tensors if t.number not in maker.read and t.number >= len(maker.inputs)]
    return RandomMuGraph(maker.b.finish(*outputs), maker.inputs, maker.extents)


def mugraphs(**options: int) -> st.SearchStrategy[RandomMuGraph]:
    """A hypothesis strategy of `random_mugraph`, with its keyword arguments."""
    return st.randoms(use_true_random=False).map(lambda rng: random_mugraph(rng, **options))  # type: ignore[arg-type]


def mutated(graph: MuGraph, rng: random.Random) -> MuGraph:
    """The µGraph with one part replaced by another of its kind: it may or may not be valid."""
    places = [number for number, node in enumerate(graph.nodes) if isinstance(node.op, BlockGraph)]
    if not places or rng.random() < 0.1:
        number = rng.randrange(len(graph.nodes))
        node = graph.nodes[number]
        known = len(graph.inputs) + sum(before.results for before in graph.nodes[:number])
        changed = replace(node, inputs=tuple(rng.randrange(known) for _ in node.inputs))
    else:
        number = rng.choice(places)
        block = graph.nodes[number].op
        assert isinstance(block, BlockGraph)
        changed = replace(graph.nodes[number], op=_mutated_block(block, rng))
    return replace(graph, nodes=(*graph.nodes[:number], changed, *graph.nodes[number + 1 :]))


def _mutated_block(block: BlockGraph, rng: random.Random) -> BlockGraph:
    def one(items: tuple[Any, ...], change: Callable[[Any], Any]) -> tuple[Any, ...]:
        at = rng.randrange(len(items)) if items else 0
        return (*items[:at], *(change(item) for item in items[at : at + 1]), *items[at + 1 :])

    dim = rng.choice((None, 0, 0, 1, 2))
    match rng.choice(("imap", "fmap", "omap", "operands", "operator", "output")):
        case "imap":
            return replace(block, inputs=one(block.inputs, lambda t: replace(t, imap=one(t.imap, lambda _: dim))))
        case "fmap":
            return replace(block, inputs=one(block.inputs, lambda t: replace(t, fmap=one(t.fmap, lambda _: dim))))
        case "omap":
            how = rng.choice((0, 1, "sum", "max", "stack"))
            return replace(block, outputs=one(block.outputs, lambda o: replace(o, omap=one(o.omap, lambda _: how))))
        case "output":
            value = rng.randrange(len(block.inputs) + len(block.nodes))
            return replace(block, outputs=one(block.outputs, lambda o: replace(o, value=value)))
    if not block.nodes:
        return block
    at = rng.randrange(len(block.nodes))
    node = block.nodes[at]
    if rng.random() < 0.5:
        below = len(block.inputs) + at
        node = replace(node, inputs=tuple(rng.randrange(below) if below else 0 for _ in node.inputs))
    else:
        node = replace(node, op=_mutated_operator(node.op, rng))
    return replace(block, nodes=(*block.nodes[:at], node, *block.nodes[at + 1 :]))


def _mutated_operator(op: Op, rng: random.Random) -> Op:
    match op:
        case Map(fn):
            return Map(rng.choice(UNARY if fn in UNARY else BINARY))
        case Contract(subscripts):
            letters = list(subscripts)
            places = [i for i, letter in enumerate(letters) if letter.isalpha()]
            if places:
                letters[rng.choice(places)] = rng.choice("abcd")
            return Contract("".join(letters))
        case Fold(kind, axes, keep):
            return rng.choice((Fold(kind, (axes[0] + 1,), keep), Fold(kind, axes, keep + 1), Fold("max", axes, keep)))
        case Accumulate(kind, level, axis):
            return rng.choice(
                (Accumulate(kind, 1 - min(level, 1), axis), Accumulate("max", level), Running("max", level))
            )
        case Running(_, level):
            return rng.choice((Running("max", 1 - min(level, 1)), Accumulate("last", level)))
        case RescaledSum(level):
            return RescaledSum(1 - min(level, 1))
        case Transpose(perm):
            return Transpose(perm[::-1])
        case Unsqueeze(axes) | Squeeze(axes):
            return type(op)((axes[0] + 1,))
        case Concat(axis):
            return Concat(axis + 1)
        case Scalar(value):
            return Scalar(value + 1.0)


@dataclass
class _Maker:
    rng: random.Random
    unary: Sequence[str]
    binary: Sequence[str]
    b: MuGraphBuilder = field(default_factory=MuGraphBuilder)
    inputs: dict[str, Shape] = field(default_factory=dict)
    extents: dict[str, int] = field(default_factory=dict)
    shapes: dict[Handle, Shape] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)  # numbers of tensors
    used: set[Handle] = field(default_factory=set)  # in the kernel that is open

    def input(self) -> Handle:
        name = "xyzw"[len(self.inputs)]
        shape = tuple(self.rng.choice(SIZES) for _ in range(self.rng.randint(1, 3)))
        self.inputs[name] = shape
        handle = self.b.input(name, len(shape))
        self.shapes[handle] = shape
        return handle

    def apply(self, place: Place, op: Op, *operands: Handle, trips: int = 1) -> Handle:
        """The operator where it has a result; CheckError where it has none, and then nothing is made."""
        if reason := wrong_operands(op, [handle.rank for handle in operands]):
            raise CheckError(reason)
        shape = result_shape(op, [self.shapes[i] for i in operands], trips)
        made = place.operator(op, *operands)  # type: ignore[arg-type]  # an accumulator in a kernel only
        self.shapes[made] = shape
        self.used.update(operands)
        if place is self.b:
            self.read.update(i.number for i in operands)
        return made

    def step(self, place: Place, values: Sequence[Handle]) -> Handle:
        """Some operator on some of the values: the first that fits."""
        while True:
            try:
                return self.proposed(place, values)
            except CheckError:
                continue

    def proposed(self, place: Place, values: Sequence[Handle]) -> Handle:
        rng = self.rng
        x, y = rng.choice(values), rng.choice(values)
        rank = x.rank
        axes = tuple(sorted(rng.sample(range(rank), rng.randint(1, rank)))) if rank else ()
        match rng.choice(
            ("map", "map2", "scaled", "contract", "contract", "fold", "transpose", "unsqueeze", "squeeze", "concat")
        ):
            case "map":
                return self.apply(place, Map(rng.choice(self.unary)), x)
            case "map2":
                return self.apply(place, Map(rng.choice(self.binary)), x, y)
            case "scaled":
                number = self.apply(place, Scalar(rng.choice((0.5, -2.0, 3.0))))
                return self.apply(place, Map(rng.choice(self.binary)), *rng.sample([x, number], 2))
            case "contract":
                return self.apply(place, self.contraction(x, y), x, y)
            case "fold" if axes:
                return self.apply(place, Fold(rng.choice(KINDS), axes, rng.choice((1, 1, 2))), x)
            case "transpose" if rank > 1:
                return self.apply(place, Transpose(tuple(rng.sample(range(rank), rank))), x)
            case "unsqueeze" if rank < 4:
                return self.apply(place, Unsqueeze((rng.randint(0, rank),)), x)
            case "squeeze" if axes:
                return self.apply(place, Squeeze(axes), x)
            case "concat" if rank:
                return self.apply(place, Concat(rng.randrange(rank)), x, y)
        return self.apply(place, Map(rng.choice(self.unary)), x)

    def contraction(self, x: Handle, y: Handle) -> Contract:
        """Letters for which equal extents may be shared."""
        rng = self.rng
        lhs, free, rhs = LETTERS[: x.rank], iter(LETTERS[x.rank :]), ""
        for size in self.shapes[y]:
            same = [a for a, s in zip(lhs, self.shapes[x], strict=True) if s == size and a not in rhs]
            rhs += rng.choice(same) if same and rng.random() < 0.8 else next(free)
        letters = sorted(set(lhs + rhs))
        out = rng.sample(letters, rng.randint(0, min(3, len(letters))))
        return Contract(f"{lhs},{rhs}->{''.join(out)}")

    def kernel(self, number: int, operands: Sequence[Handle], steps: int) -> list[Handle]:
        rng = self.rng
        left = {handle: list(self.shapes[handle]) for handle in operands}
        maps: dict[str, list[dict[str, int]]] = {"g": [], "l": []}
        extents: dict[str, dict[str, int]] = {"g": {}, "l": {}}
        for kind, maps_of in maps.items():
            maps_of.extend({} for _ in operands)
            for i in range(rng.randint(0, 2)):
                name, extent = f"{kind}{number}{i}", rng.choice((2, 3))
                for handle, map_ in rng.sample(list(zip(operands, maps_of, strict=True)), len(operands)):
                    dims = [d for d, size in enumerate(left[handle]) if size % extent == 0]
                    if dims and (name not in extents[kind] or rng.random() < 0.7):
                        map_[name] = rng.choice(dims)
                        left[handle][map_[name]] //= extent
                        extents[kind][name] = extent
            self.extents.update(extents[kind])
        self.used.clear()
        grid, loops = ({n: rng.choice((None, e)) for n, e in extents[kind].items()} for kind in "gl")
        with self.b.kernel(grid, loops) as k:
            values = []
            for handle, imap, fmap in zip(operands, maps["g"], maps["l"], strict=True):
                values.append(k.load(handle, imap, fmap))
                self.shapes[values[-1]] = tuple(left[handle])
                self.read.add(handle.number)
            for _ in range(rng.randint(1, steps)):
                made = [self.looped, self.looped, self.online, self.step][rng.randrange(4) if loops else 3](k, values)
                values.append(made)
            values = [*self.shapes]
            ends = [self.outside(k, value) for value in values if value.place is k and value not in self.used]
            while len(ends) > 2:
                ends.append(self.apply(k, Map("add"), *(self.small(k, ends.pop(0)) for _ in range(2))))
            return [self.stored(k, value) for value in ends]

    def looped(self, k: KernelBuilder, values: Sequence[Handle]) -> Handle:
        """An accumulator or a running maximum of something in a loop, where there is such a thing."""
        x = self.rng.choice(values)
        if not (depth := k._depths[x.number]):
            return self.step(k, values)
        loop = self.rng.randrange(depth)
        name = k._loops[loop].name
        if self.rng.random() < 0.2:
            self.used.add(x)
            made = k.running(x, self.rng.choice(("max", "min")), loop=name)
            self.shapes[made] = self.shapes[x]
            return made
        return self.accumulated(k, x, loop)

    def accumulated(self, k: KernelBuilder, x: Handle, loop: int) -> Handle:
        kind = self.rng.choice(("sum", "sum", "max", "min", "last", "concat"))
        axis = self.rng.randrange(x.rank) if kind == "concat" and x.rank else None
        op = Accumulate("sum" if kind == "concat" and axis is None else kind, loop, axis)  # type: ignore[arg-type]
        trips = 1
        for name in [loop_.name for loop_ in k._loops][loop : k._depths[x.number]]:
            trips *= self.extents[name]
        return self.apply(k, op, x, trips=trips)

    def online(self, k: KernelBuilder, values: Sequence[Handle]) -> Handle:
        """The sum of exp(x - running maximum of x), rescaled, where something is in a loop."""
        x = self.rng.choice(values)
        if not k._depths[x.number] or not x.rank:
            return self.step(k, values)
        top = k.running(k.fold("max", x, axis=x.rank - 1))
        if self.shapes[x][-1] == 1 or self.rng.random() < 0.5:
            made = k.rescaled_sum(k.exp(x - top), top)
            self.shapes[made] = self.shapes[x]
        else:  # the maximum seen through a view
            last = x.rank - 1
            made = k.rescaled_sum(k.squeeze(k.fold("sum", k.exp(x - top), last), [last]), k.squeeze(top, [last]))
            self.shapes[made] = self.shapes[x][:-1]
        self.used.add(x)
        return made

    def outside(self, k: KernelBuilder, value: Handle) -> Handle:
        while depth := k._depths[value.number]:
            value = self.accumulated(k, value, self.rng.randrange(depth))
        return value

    def small(self, k: KernelBuilder, value: Handle) -> Handle:
        """The value with each dimension reduced to one element, so that it can be added to any other."""
        return self.apply(k, Fold("sum", tuple(range(value.rank))), value) if value.rank else value

    def stored(self, k: KernelBuilder, value: Handle) -> Handle:
        combine = self.rng.choice(("sum", "max"))
        omap = {axis.name: self.rng.choice((*range(value.rank), "stack", combine)) for axis in k._grid}
        made = k.store(value, omap)  # type: ignore[arg-type]
        shape = list(self.shapes[value])
        for name, how in omap.items():
            if isinstance(how, int):
                shape[how] *= self.extents[name]
        stacked = [self.extents[name] for name, how in omap.items() if how == "stack"]
        self.shapes[made] = tuple(itertools.chain(stacked, shape))
        return made
