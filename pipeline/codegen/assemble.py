"""A partitioned graph and a kernel for each task into the plan of a module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.codegen.built_kernel import AnyKernel
from pipeline.codegen.module import Buffer, Call, ModulePlan
from pipeline.ir.graph import Constant, Graph, Input
from pipeline.ir.target import Target
from pipeline.space.partition import Partition


def assemble(
    graph: Graph, parts: Partition, kernels: Sequence[AnyKernel], target: Target, provenance: Mapping[str, Any]
) -> ModulePlan[AnyKernel]:
    """Calls in the order of the partition; buffers named after the values of the graph.

    kernels  one for each task; tasks that differ as graphs may come to one and the same kernel, which is there once
    """
    distinct = {kernel.symbol: kernel for kernel in kernels}
    places = {symbol: place for place, symbol in enumerate(distinct)}
    names: dict[int, str] = {}
    buffers: list[Buffer] = []
    constants: dict[str, np.ndarray] = {}
    inputs: list[str] = []
    taken = {node.op.name for node in graph.nodes if isinstance(node.op, Input)} | {name for name, _ in graph.outputs}

    def fresh(name: str) -> str:
        """A name that the model does not use itself."""
        while name in taken:
            name += "'"
        taken.add(name)
        return name

    used = {source for instance in parts.instances for source in instance.inputs} | {n for _, n in graph.outputs}
    used |= set(parts.aliases.values())
    for number, node in enumerate(graph.nodes):
        match node.op:
            case Input(name):
                names[number] = name
                inputs.append(name)
                buffers.append(Buffer(name, node.type.shape, node.type.dtype, "input"))
            case Constant(key) if number in used:
                names[number] = fresh(f"constant.{number}")
                constants[names[number]] = np.ascontiguousarray(graph.constants[key]).reshape(node.type.shape)
                buffers.append(Buffer(names[number], node.type.shape, node.type.dtype, "constant"))
    for instance in parts.instances:
        node = graph.nodes[instance.output]
        names[instance.output] = fresh(f"value.{instance.output}")
        buffers.append(Buffer(names[instance.output], node.type.shape, node.type.dtype, "intermediate"))
    aliases: dict[str, str] = {}
    for number, source in parts.aliases.items():
        while source in parts.aliases:
            source = parts.aliases[source]
        if source in names:
            names[number] = fresh(f"value.{number}")
            aliases[names[number]] = names[source]
    shapes = {}
    outputs = []
    for name, number in graph.outputs:
        label = name if name not in inputs else f"{name}.out"
        aliases[label] = names[number]
        shapes[label] = graph.nodes[number].type.shape
        outputs.append(label)
    calls = tuple(
        Call(
            places[kernels[instance.task].symbol],
            (*(names[source] for source in instance.inputs), names[instance.output]),
            graph.nodes[instance.output].name or parts.tasks[instance.task].name,
            parts.tasks[instance.task].name,
        )
        for instance in parts.instances
    )
    return ModulePlan(
        kernels=tuple(distinct.values()), calls=calls, buffers=tuple(buffers), inputs=tuple(inputs),
        outputs=tuple(outputs), constants=constants, threads=target.cores, target=target, aliases=aliases,
        shapes=shapes, provenance=dict(provenance),
    )  # fmt: skip
