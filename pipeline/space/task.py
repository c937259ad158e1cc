"""A task: the part of a graph that becomes one kernel, with its work and traffic counted."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from pipeline.ir.graph import (
    ITEM_BYTES,
    Constant,
    Contract,
    Elementwise,
    Gather,
    Graph,
    Input,
    Node,
    Reduce,
    ReduceWindow,
    Slice,
)
from pipeline.ir.graph_text import to_text
from pipeline.ir.target import Target

PACE = 0.5  # of the time of the arithmetic from which on reading is what a task waits for: the two overlap in part
# The same where a model has other weights: at 0.18 of it (128 rows), of two kernels that took 4.9 ms with their weights
# in the last cache the one took 5.2 ms with empty caches, which a model takes with either, and the other 6.4 ms.
PACE_IN_MODEL = 0.05
SHARED = 0.25  # of the last cache, which other programs use too: what weights of a model may take and still be there


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A graph whose larger constants are inputs, so that layers that differ in their weights alone are one task.

    constants  names of the inputs whose data is known when the model is compiled
    fed        names of the large inputs that the caller of the model hands in: they need not begin on a cache line
    key        sha256 of the text of the graph and of those names
    flops      arithmetic operations of one run; a multiply-add counts two
    traffic    compulsory bytes: what is read of every input, once, and every output
    """

    name: str
    graph: Graph
    constants: tuple[str, ...]
    fed: tuple[str, ...]
    key: str
    flops: int
    traffic: int


def make_task(graph: Graph, constants: tuple[str, ...], fed: tuple[str, ...] = ()) -> Task:
    """Names the graph after its main operation and counts its work."""
    text = f"{to_text(graph)}\nconstants {' '.join(constants)}" + (f"\nfed {' '.join(fed)}" if fed else "")
    key = hashlib.sha256(text.encode()).hexdigest()
    return Task(title(graph), graph, constants, fed, key, flops(graph), traffic(graph))


def flops(graph: Graph) -> int:
    return sum(_work(graph, node) for node in graph.nodes)


def roofline_seconds(graph: Graph, target: Target) -> float:
    """The least that the target's limits allow: all arithmetic at the peak of its units, or all compulsory bytes."""
    return max(arithmetic_seconds(graph, target), traffic(graph) / (target.bandwidth_gbs * 1e9))


def waits_for_weights(task: Task, target: Target, others: int = 0) -> bool:
    """Does memory set the pace of a task on a CPU, by what is known at compile time and no cache of a core holds? In a
    model it is not in the larger caches either, as other weights were read since.

    others  bytes of those; where caches hold them all, so do they what this task reads
    """
    size = weight_bytes(task)
    if target.kind != "cpu" or size <= target.core_cache:
        return False
    read = others > 0 and size + others > SHARED * target.last_cache
    pace = PACE_IN_MODEL if read else PACE
    return size / (target.bandwidth_gbs * 1e9) > pace * arithmetic_seconds(task.graph, target)


def weight_bytes(task: Task) -> int:
    """Of what a task reads, that which is known at compile time."""
    known = [
        n for n, node in enumerate(task.graph.nodes) if isinstance(node.op, Input) and node.op.name in task.constants
    ]
    return sum(bytes_read(task.graph, number) for number in known)


def arithmetic_seconds(graph: Graph, target: Target) -> float:
    """All arithmetic at the peak. A GPU multiplies halves and bytes by other units, at rates of their own."""
    if target.gpu is None:
        return flops(graph) / (target.peak_gflops() * 1e9)
    clock = 2e9 * target.clock_ghz * target.cores
    total = 0.0
    for node in graph.nodes:
        of_product = isinstance(node.op, Contract)
        dtype = graph.nodes[node.inputs[0]].type.dtype if of_product else "float32"
        total += _work(graph, node) / (target.gpu_fma(dtype) * clock)
    return total


def _work(graph: Graph, node: Node) -> int:
    size = math.prod(node.type.shape)
    match node.op:
        case Contract(spatial, reduced, _, _):
            return 2 * math.prod(spatial) * math.prod(reduced)
        case ReduceWindow(_, spatial, reduced, _):
            return math.prod(spatial) * math.prod(reduced)
        case Reduce():
            return math.prod(graph.nodes[node.inputs[0]].type.shape)
        case Elementwise(fn):
            return 0 if fn in ("cast", "identity") else size
        case _:
            return 0


def traffic(graph: Graph) -> int:
    """Bytes of all inputs and constants, as far as they are read, and of all outputs.

    A constant of rank 0 is part of the code.
    """
    total = sum(tensor_bytes(graph.nodes[number]) for _, number in graph.outputs)
    for number, node in enumerate(graph.nodes):
        if isinstance(node.op, Input) or (isinstance(node.op, Constant) and node.type.shape):
            total += bytes_read(graph, number)
    return total


def bytes_read(graph: Graph, value: int) -> int:
    """Of what others than the graph have made: all of it, or, of a table that is only looked up in and of a tensor that
    is read in part, the elements that are taken."""
    node = graph.nodes[value]
    readings = [_taken(graph, user, place) for user in graph.nodes for place, v in enumerate(user.inputs) if v == value]
    size = ITEM_BYTES[node.type.dtype]
    return min(tensor_bytes(node), size * sum(readings)) if readings else tensor_bytes(node)


def _taken(graph: Graph, user: Node, place: int) -> int:
    """Elements of one operand that an operation reads, at most."""
    shape = graph.nodes[user.inputs[place]].type.shape
    match user.op:
        case Slice() | Gather() if place == 0:
            return math.prod(user.type.shape)
        case Contract(spatial, reduced, lhs, rhs):
            extents = (*spatial, *reduced)
            reach = [1 + sum(abs(c) * (extents[v] - 1) for v, c in dim.terms) for dim in (lhs, rhs)[place]]
            return math.prod(max(0, min(n, most)) for n, most in zip(shape, reach, strict=True))
        case _:
            return math.prod(shape)


def tensor_bytes(node: Node) -> int:
    """Of what an operation gives."""
    return math.prod(node.type.shape) * ITEM_BYTES[node.type.dtype]


def title(graph: Graph) -> str:
    """Such as contract_128x768x3072_add_erf: the operations in order, the first with its extents."""
    parts: list[str] = []
    for node in graph.nodes:
        match node.op:
            case Input() | Constant():
                continue
            case Contract(spatial, reduced, _, _):
                parts.append("contract_" + "x".join(str(n) for n in (*spatial, *reduced) if n > 1))
            case Elementwise(fn):
                parts.append(fn)
            case Reduce(kind, _, _):
                parts.append(kind)
            case _:
                parts.append(type(node.op).__name__.lower())
    if parts and not parts[0].startswith("contract"):
        parts.insert(1, "x".join(str(n) for n in graph.nodes[graph.outputs[0][1]].type.shape) or "scalar")
    name = "_".join(parts[:6]) or "copy"
    return name if len(parts) <= 6 else f"{name}_{len(parts) - 6}more"
