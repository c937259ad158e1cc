"""The drawing of a µGraph for a terminal: kernels as boxes, loops as frames, each operator as a short expression.

x (8, 64)   w (64, 96)
┌ kernel 0: grid n = 6
│ ┌ loop k = 4
│ │ v0 = x[k→1]                8×16
│ │ v1 = w[n→1 k→0]           16×16
│ │ v2 = mk,kn→mn(v0, v1)      8×16
│ └ v3 = Σ v2                  8×16
└ %2 = v3[n→1]                 8×96
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from pipeline.ir.graph import Shape
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
    depths,
)
from pipeline.superopt.mugraph.shapes import BlockShapes, shapes

INFIX = {"add": "+", "sub": "−", "mul": "·", "div": "/"}
SIGNS = {"sum": "Σ", "prod": "∏"}
LONGEST_NAME = 24


def listing(graph: MuGraph, inputs: Mapping[str, Shape] | None = None, extents: Mapping[str, int] | None = None) -> str:
    """The lines of a valid µGraph, with a newline at the end; with shapes of the inputs also those of all tiles.

    inputs, extents  as in `pipeline.superopt.mugraph.shapes.shapes`; CheckError where they do not fit
    """
    found = None if inputs is None else shapes(graph, inputs, extents)
    names = tensor_names(graph)
    rows: list[tuple[str, str]] = []
    for number in range(len(graph.inputs)):
        rows.append((names[number], "" if found is None else size_text(found.tensors[number])))
    tensor = len(graph.inputs)
    for number, node in enumerate(graph.nodes):
        if isinstance(node.op, BlockGraph):
            tiles = None if found is None else found.blocks[number]
            operands = [names[i] for i in node.inputs]
            rows += _block_rows(number, node.op, operands, names[tensor : tensor + node.results], tiles, extents or {})
        elif not isinstance(node.op, Scalar):
            text = expression(node.op, [_read(graph, names, i) for i in node.inputs])
            rows.append((f"{names[tensor]} = {text}", "" if found is None else size_text(found.tensors[tensor])))
        tensor += node.results
    rows.append((f"→ {', '.join(_read(graph, names, i) for i in graph.outputs)}", ""))
    wide = max(len(text) for text, _ in rows) + 2
    longest = max(len(size) for _, size in rows)
    return "\n".join([*(f"{text:<{wide}}{size:>{longest}}".rstrip() for text, size in rows), ""])


def _read(graph: MuGraph, names: Sequence[str], tensor: int) -> str:
    """The name of a tensor, or the number that it is."""
    value = scalar_tensors(graph).get(tensor)
    return names[tensor] if value is None else number_text(value)


def _block_rows(
    number: int,
    block: BlockGraph,
    operands: Sequence[str],
    results: Sequence[str],
    tiles: BlockShapes | None,
    extents: Mapping[str, int],
) -> list[tuple[str, str]]:
    rows = [(f"┌ kernel {number}: {grid_text(block, extents)}", "")]
    stages, values = block_stages(block), value_texts(block, operands)
    loops = len(block.loops)

    def show(value: int, frame: str) -> None:
        size = "" if tiles is None else size_text(tiles.tiles[value])
        rows.append((f"{frame} v{value} = {values[value]}", size))

    for stage in range(2 * loops + 1):
        depth = min(stage, 2 * loops - stage)
        if 0 < stage <= loops:
            axis = axis_text(block.loops[stage - 1], extents)
            rows.append(("│ " * stage + f"┌ loop {axis}", ""))
        if stage > loops:
            leaving = sorted(v for v, s in stages.items() if s == stage - 0.5)
            for value in leaving[:-1]:
                show(value, "│ " * (depth + 1) + "├")
            for value in leaving[-1:]:
                show(value, "│ " * (depth + 1) + "└")
            if not leaving:
                rows.append(("│ " * (depth + 1) + "└", ""))
        for value in sorted(v for v, s in stages.items() if s == stage):
            show(value, "│ " * depth + "│")
    for i, out in enumerate(block.outputs):
        size = "" if tiles is None else size_text(tiles.results[i])
        corner = "└" if i == len(block.outputs) - 1 else "├"
        made = f"v{out.value}" if out.value in stages else values[out.value]
        rows.append((f"{corner} {results[i]} = {made}{_mapped(omap_text(block, i))}", size))
    return rows


def block_stages(block: BlockGraph) -> dict[int, float]:
    """When each value of a block is made: stage d before the loops inside depth d, 2n - d after them.

    Half a stage earlier: an accumulator, on the edge of the loop that it leaves. Numbers are left out; what only the
    stage after the loops reads waits for it.
    """
    depth, loops, count = depths(block), len(block.loops), len(block.inputs)
    stages: dict[int, float] = {value: depth[value] for value in range(count)}
    late: set[int] = set()
    readers: dict[int, list[int]] = {}
    for value, node in enumerate(block.nodes, count):
        for i in node.inputs:
            readers.setdefault(i, []).append(value)
        after = any(i in late for i in node.inputs)
        match node.op:
            case Scalar():
                continue
            case Accumulate(level=level) | RescaledSum(level=level):
                stages[value] = 2 * loops - level - 0.5
                late.add(value)
            case _:
                stages[value] = 2 * loops - depth[value] if after else depth[value]
                if after:
                    late.add(value)
    for value in sorted(stages, reverse=True):
        if value in late or value not in readers:
            continue
        wait = 2 * loops - depth[value]
        if all(stages.get(reader) == wait for reader in readers[value]):
            stages[value] = wait
    return stages


def value_texts(block: BlockGraph, operands: Sequence[str]) -> list[str]:
    """Each value of a block as an expression of the others, where the operands of the kernel have these names."""
    texts = [f"{name}{_mapped(cut_text(block, i))}" for i, name in enumerate(operands)]
    count = len(operands)
    for node in block.nodes:
        inner = [block.nodes[i - count].op if i >= count else None for i in node.inputs]
        read = [number_text(op.value) if isinstance(op, Scalar) else f"v{i}"
                for op, i in zip(inner, node.inputs, strict=True)]  # fmt: skip
        texts.append(expression(node.op, read))
    return texts


def expression(op: Op, operands: Sequence[str]) -> str:
    """An operator on operands of these names, as short as it can be said."""
    inner = ", ".join(operands)
    match op:
        case Scalar(value):
            return number_text(value)
        case Map(fn) if fn in INFIX:
            return f" {INFIX[fn]} ".join(operands)
        case Map(fn):
            return f"{fn}({inner})"
        case Contract(subscripts):
            return f"{subscripts.replace('->', '→')}({inner})"
        case Fold(kind, axes, keep):
            return f"{SIGNS.get(kind, kind)}{_list(axes)}{f' to {keep}' if keep != 1 else ''} {inner}"
        case Transpose(perm):
            return f"transpose{_list(perm)} {inner}"
        case Unsqueeze(axes):
            return f"unsqueeze{_list(axes)} {inner}"
        case Squeeze(axes):
            return f"squeeze{_list(axes)} {inner}"
        case Concat(axis):
            return f"concat[{axis}]({inner})"
        case Accumulate("concat", _, axis):
            return f"concat[{axis}] {inner}"
        case Accumulate(kind):
            return f"{SIGNS.get(kind, kind)} {inner}"
        case Running(kind):
            return f"running {kind} {inner}"
        case RescaledSum():
            return f"Σ {operands[0]} rescaled by {operands[1]}"
        case _:
            assert_never(op)


def tensor_names(graph: MuGraph) -> list[str]:
    """Inputs by their names, shortened where they are long; results as in the text of the µGraph."""
    results = sum(node.results for node in graph.nodes)
    count = len(graph.inputs)
    return [*(shortened(name) for name in graph.inputs), *(f"%{i}" for i in range(count, count + results))]


def scalar_tensors(graph: MuGraph) -> dict[int, float]:
    """The tensors that are numbers."""
    found: dict[int, float] = {}
    tensor = len(graph.inputs)
    for node in graph.nodes:
        if isinstance(node.op, Scalar):
            found[tensor] = node.op.value
        tensor += node.results
    return found


def shortened(name: str, longest: int = LONGEST_NAME) -> str:
    """The name, its middle left out where it is longer than that."""
    if len(name) <= longest:
        return name
    head = (longest - 1) // 2
    return f"{name[:head]}…{name[len(name) - (longest - 1 - head) :]}"


def number_text(value: float) -> str:
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def size_text(shape: Shape) -> str:
    """8×16; of a scalar, ()."""
    return "×".join(map(str, shape)) or "()"


def axis_text(axis: Axis, extents: Mapping[str, int]) -> str:
    """`k = 4`, or `k` alone where nothing says its extent."""
    size = extents.get(axis.name, axis.extent)
    return shortened(axis.name) if size is None else f"{shortened(axis.name)} = {size}"


def grid_text(block: BlockGraph, extents: Mapping[str, int]) -> str:
    """`grid n = 6, h = 2`."""
    return f"grid {', '.join(axis_text(axis, extents) for axis in block.grid) or 'of one point'}"


def cut_text(block: BlockGraph, number: int) -> str:
    """How an input of a block is cut: `n→1 k→0`, each axis with the dimension that it partitions."""
    tile = block.inputs[number]
    pairs = zip((*block.grid, *block.loops), (*tile.imap, *tile.fmap), strict=True)
    return " ".join(f"{shortened(axis.name)}→{dim}" for axis, dim in pairs if dim is not None)


def omap_text(block: BlockGraph, number: int) -> str:
    """How an output of a block is put together: `n→1 s→sum`."""
    pairs = zip(block.grid, block.outputs[number].omap, strict=True)
    return " ".join(f"{shortened(axis.name)}→{how}" for axis, how in pairs)


def _mapped(text: str) -> str:
    return f"[{text}]" if text else ""


def _list(values: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, values))}]"
