"""The text of a µGraph: a line for each kernel and each operator on tiles; it parses back to an equal µGraph.

    mugraph "x", "w"
    %2 = kernel grid [n] loops [k = 16]
        v0 = tile(%0, k: 1)
        v1 = tile(%1, n: 1, k: 0)
        v2 = contract<"mk,kn->mn">(v0, v1)
        v3 = accumulate<sum>(v2)
        return v3(n: 1)
    return %2

%i are tensors, v_i the values of one block. `tile(%1, n: 1, k: 0)` cuts dimension 1 by the grid axis n and dimension 0
by the loop k; an axis that is not named cuts nothing. `return v3(n: 1)` puts tiles side by side along dimension 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import assert_never

from pipeline.superopt.mugraph.graph import (
    Accumulate,
    Axis,
    BlockGraph,
    Concat,
    Contract,
    Fold,
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


def to_text(graph: MuGraph) -> str:
    """The text of a valid µGraph, with a newline at its end; equal µGraphs have equal texts, and the other way round.

    `mugraph_canonical.canonical` first, where names of axes and the order of independent nodes should not count.
    """
    return "\n".join([*_lines(graph), ""])


def _lines(graph: MuGraph) -> Iterator[str]:
    yield " ".join(["mugraph", *([", ".join(map(json.dumps, graph.inputs))] if graph.inputs else [])])
    tensor = len(graph.inputs)
    for node in graph.nodes:
        results = ", ".join(f"%{i}" for i in range(tensor, tensor + node.results))
        tensor += node.results
        if isinstance(node.op, BlockGraph):
            yield f"{results} = kernel grid [{_axes(node.op.grid)}] loops [{_axes(node.op.loops)}]"
            yield from (f"    {line}" for line in block_lines(node.op, node.inputs))
        else:
            yield f"{results} = {op_text(node.op)}({', '.join(f'%{i}' for i in node.inputs)})"
    yield f"return {', '.join(f'%{i}' for i in graph.outputs)}"


def block_lines(block: BlockGraph, tensors: tuple[int, ...]) -> Iterator[str]:
    """The lines of a block graph on these tensors: a tile of each, the operators, and what is returned."""
    axes = [axis.name for axis in (*block.grid, *block.loops)]
    for value, (tile, tensor) in enumerate(zip(block.inputs, tensors, strict=True)):
        cut = zip(axes, (*tile.imap, *tile.fmap), strict=True)
        parts = [f"%{tensor}", *(f"{name}: {dim}" for name, dim in cut if dim is not None)]
        yield f"v{value} = tile({', '.join(parts)})"
    for value, node in enumerate(block.nodes, len(block.inputs)):
        yield f"v{value} = {op_text(node.op)}({', '.join(f'v{i}' for i in node.inputs)})"
    stores = []
    for out in block.outputs:
        joined = zip((axis.name for axis in block.grid), out.omap, strict=True)
        stores.append(f"v{out.value}({', '.join(f'{name}: {how}' for name, how in joined)})")
    yield f"return {', '.join(stores)}"


def op_text(op: Op) -> str:
    """An operator without its operands: `mul`, `fold<sum, [1]>`, `accumulate<max, level 1>`; defaults are left out."""
    match op:
        case Scalar(value):
            return f"scalar<{float(value)!r}>"
        case Map(fn):
            return fn
        case Contract(subscripts):
            return f'contract<"{subscripts}">'
        case Fold(kind, axes, keep):
            return f"fold<{kind}, {_list(axes)}{f', keep {keep}' if keep != 1 else ''}>"
        case Transpose(perm):
            return f"transpose<{_list(perm)}>"
        case Unsqueeze(axes):
            return f"unsqueeze<{_list(axes)}>"
        case Squeeze(axes):
            return f"squeeze<{_list(axes)}>"
        case Concat(axis):
            return f"concat<{axis}>"
        case Accumulate(kind, level, axis):
            parts = [kind, *([f"level {level}"] if level else []), *([] if axis is None else [f"axis {axis}"])]
            return f"accumulate<{', '.join(parts)}>"
        case Running(kind, level):
            return f"running<{kind}{f', level {level}' if level else ''}>"
        case RescaledSum(level):
            return f"rescaled_sum<level {level}>" if level else "rescaled_sum"
        case _:
            assert_never(op)


def axis_text(axis: Axis) -> str:
    """`n`, or `n = 4` where its extent is fixed."""
    return axis.name if axis.extent is None else f"{axis.name} = {axis.extent}"


def _axes(axes: tuple[Axis, ...]) -> str:
    return ", ".join(map(axis_text, axes))


def _list(values: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, values))}]"
