"""A specification cut at one value into two that are computed one after another, and their µGraphs joined again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pipeline.ir.graph import AffineDim
from pipeline.superopt.mugraph.graph import Axis, BlockGraph, KernelNode, MuGraph
from pipeline.superopt.spec import Number, Product, Reduction, Spec, SpecInput, SpecNode


@dataclass(frozen=True, slots=True)
class Cut:
    """The value goes to memory as `name`: the result of `first`, an input of `second`. Axes keep their labels."""

    value: int
    name: str
    first: Spec
    second: Spec


def cuts(spec: Spec) -> Iterator[Cut]:
    """At every value between two reductions, right after the first or right before the second.

    Elementwise operators alone are never worth a kernel of their own, nor a choice of kernel.
    """
    count = len(spec.inputs)
    read = {i for node in spec.nodes if isinstance(node.op, Product | Reduction) for i in node.inputs}
    taken = {tensor.name for tensor in spec.inputs}
    name = next(f"cut{number}" for number in range(len(taken) + 1) if f"cut{number}" not in taken)
    for value in range(count, count + len(spec.nodes)):
        op = spec.nodes[value - count].op
        if value == spec.output or isinstance(op, Number) or not (isinstance(op, Product | Reduction) or value in read):
            continue
        first = _part(spec, value, {})
        labels = spec.labels(value)
        shape = tuple(spec.extents[label] for label in labels)
        access = tuple(AffineDim(((label, 1),)) for label in labels)
        dtype = spec.nodes[value - count].dtype
        second = _part(spec, spec.output, {value: SpecInput(name, labels, dtype, shape, access)})
        if _reduces(first) and _reduces(second) and any(tensor.name == name for tensor in second.inputs):
            yield Cut(value, name, first, second)


def _reduces(spec: Spec) -> bool:
    return any(isinstance(node.op, Product | Reduction) for node in spec.nodes)


def _part(spec: Spec, output: int, known: Mapping[int, SpecInput]) -> Spec:
    """What it takes to compute the output where some values are known."""
    count = len(spec.inputs)
    wanted: set[int] = set()
    stack = [output]
    while stack:
        value = stack.pop()
        if value not in wanted:
            wanted.add(value)
            if value >= count and value not in known:
                stack.extend(spec.nodes[value - count].inputs)
    inputs = [value for value in sorted(wanted) if value < count or value in known]
    nodes = [value for value in sorted(wanted) if value >= count and value not in known]
    numbers = {value: number for number, value in enumerate((*inputs, *nodes))}
    labels = spec.labels(output)
    whole = output == spec.output
    return Spec(
        extents=spec.extents,
        inputs=tuple(known[value] if value in known else spec.inputs[value] for value in inputs),
        nodes=tuple(_renumbered(spec.nodes[value - count], numbers) for value in nodes),
        output=numbers[output],
        shape=spec.shape if whole else tuple(spec.extents[label] for label in labels),
        store=spec.store if whole else tuple(AffineDim(((label, 1),)) for label in labels),
    )


def _renumbered(node: SpecNode, numbers: Mapping[int, int]) -> SpecNode:
    return replace(node, inputs=tuple(numbers[i] for i in node.inputs))


def join(spec: Spec, name: str, first: MuGraph, second: MuGraph) -> MuGraph:
    """The kernels of the first, then those of the second, which read its result under this name."""
    inputs = tuple(tensor.name for tensor in spec.inputs)
    tensors = {tensor: number for number, tensor in enumerate(inputs)}
    nodes: list[KernelNode] = []
    taken: set[str] = set()
    results: tuple[int, ...] = ()
    for graph in (first, second):
        numbers = [tensors[tensor] for tensor in graph.inputs]
        names = _fresh(graph, taken)
        for node in graph.nodes:
            begin = len(inputs) + sum(made.results for made in nodes)
            nodes.append(KernelNode(_renamed(node, names), tuple(numbers[i] for i in node.inputs)))
            numbers.extend(range(begin, begin + node.results))
        taken.update(names.values())
        results = tuple(numbers[i] for i in graph.outputs)
        tensors[name] = results[0]
    return MuGraph(inputs, tuple(nodes), results)


def _fresh(graph: MuGraph, taken: set[str]) -> dict[str, str]:
    """New names of the axes of a µGraph, none of which is taken."""
    found: dict[str, str] = {}
    for node in graph.nodes:
        for axis in (*node.op.grid, *node.op.loops) if isinstance(node.op, BlockGraph) else ():
            name, number = axis.name, 0
            while name in taken or (name in found.values() and found.get(axis.name) != name):
                number += 1
                name = f"{axis.name}_k{number}"
            found[axis.name] = name
    return found


def _renamed(node: KernelNode, names: Mapping[str, str]) -> BlockGraph:
    assert isinstance(node.op, BlockGraph)

    def axes(own: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(names[axis.name], axis.extent) for axis in own)

    return replace(node.op, grid=axes(node.op.grid), loops=axes(node.op.loops))
