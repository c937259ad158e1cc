"""What a valid µGraph is, without regard to shapes: small named invariants, in the order in which they are asked.

Each may rely on those before it. Shapes, with what has to divide what, are the business of `mugraph_shapes`.

Decided here: an axis whose extent is not 1 partitions some input, or else its points or iterations would all be the
same and the meaning of the µGraph would depend on how many there are. One name is one axis in a kernel; in two kernels
it may be used twice, and then both have that extent. A rescaled sum may follow its running maximum through views, which
only put dimensions in another order, add or take away those of extent one. An input of the µGraph may be unused (its
specification lists it); anything else that reaches no output is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf

from pipeline.errors import CheckError
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    Axis,
    BlockGraph,
    BlockNode,
    MuGraph,
    Op,
    RescaledSum,
    Running,
    Squeeze,
    Transpose,
    Unsqueeze,
    depths,
)
from pipeline.superopt.mugraph.operator import Rank, result_rank, wrong_attributes, wrong_operands

PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
VIEWS = (Transpose, Squeeze, Unsqueeze)
TOGETHER = ("sum", "max", "stack")  # an omap that is no dimension


def check(graph: MuGraph, ranks: Mapping[str, int] | None = None) -> None:
    """CheckError at the first invariant that does not hold.

    ranks  of the inputs, by name; where one is missing, what follows from it is not checked
    """
    given = tuple((ranks or {}).get(name) for name in graph.inputs)
    for invariant in CHECKS:
        for complaint in invariant(graph, given):
            raise CheckError(complaint, where="µGraph",
                             why=f"The invariant is that {invariant.__name__.replace('_', ' ')}")  # fmt: skip


Ranks = tuple[Rank, ...]
Check = Callable[[MuGraph, Ranks], Iterator[str]]


def names_are_plain_and_unique(graph: MuGraph, _: Ranks) -> Iterator[str]:
    yield from (f"input {name!r} is there {n} times" for name, n in Counter(graph.inputs).items() if n > 1)
    for where, block in _blocks(graph):
        names = [axis.name for axis in (*block.grid, *block.loops)]
        yield from (f"axis {name} of {where} is there {n} times" for name, n in Counter(names).items() if n > 1)
        yield from (f"the name {name!r} of an axis of {where} is not plain" for name in names if not _plain(name))


def _plain(name: str) -> bool:
    return PLAIN.fullmatch(name) is not None


def extents_are_positive(graph: MuGraph, _: Ranks) -> Iterator[str]:
    for where, block in _blocks(graph):
        for axis in (*block.grid, *block.loops):
            if axis.extent is not None and axis.extent < 1:
                yield f"axis {axis.name} of {where} has extent {axis.extent}"


def one_name_has_one_extent(graph: MuGraph, _: Ranks) -> Iterator[str]:
    found: dict[str, Axis] = {}
    for where, block in _blocks(graph):
        for axis in (*block.grid, *block.loops):
            if found.setdefault(axis.name, axis) != axis:
                yield f"axis {axis.name} of {where} has extent {axis.extent}, earlier {found[axis.name].extent}"


def operands_come_earlier(graph: MuGraph, _: Ranks) -> Iterator[str]:
    known = len(graph.inputs)
    for number, node in enumerate(graph.nodes):
        for i in node.inputs:
            if not 0 <= i < known:
                yield f"kernel {number} reads tensor {i}, which is not there before it"
        if isinstance(node.op, BlockGraph):
            yield from _tile_order(node.op, f"kernel {number}")
        known += node.results
    for value in graph.outputs:
        if not 0 <= value < known:
            yield f"output {value} is no tensor: there are {known}"


def _tile_order(block: BlockGraph, where: str) -> Iterator[str]:
    for value, node in enumerate(block.nodes, len(block.inputs)):
        for i in node.inputs:
            if not 0 <= i < value:
                yield f"value {value} of {where} reads value {i}, which is not there before it"
    for out in block.outputs:
        if not 0 <= out.value < len(block.inputs) + len(block.nodes):
            yield f"{where} writes value {out.value}, which it does not have"


def there_are_outputs(graph: MuGraph, _: Ranks) -> Iterator[str]:
    if not graph.outputs:
        yield "the µGraph has no output"
    yield from (f"{where} writes nothing" for where, block in _blocks(graph) if not block.outputs)


def maps_have_an_entry_for_each_axis(graph: MuGraph, _: Ranks) -> Iterator[str]:
    for number, node in enumerate(graph.nodes):
        if not isinstance(block := node.op, BlockGraph):
            continue
        if len(block.inputs) != len(node.inputs):
            yield f"kernel {number} has {len(node.inputs)} operands and cuts {len(block.inputs)}"
        for i, tile in enumerate(block.inputs):
            if len(tile.imap) != len(block.grid):
                yield f"input {i} of kernel {number} has {len(tile.imap)} imap entries for {len(block.grid)} grid axes"
            if len(tile.fmap) != len(block.loops):
                yield f"input {i} of kernel {number} has {len(tile.fmap)} fmap entries for {len(block.loops)} loops"
        for i, out in enumerate(block.outputs):
            if len(out.omap) != len(block.grid):
                yield f"output {i} of kernel {number} has {len(out.omap)} omap entries for {len(block.grid)} grid axes"
            for how in out.omap:
                if isinstance(how, str) and how not in TOGETHER:
                    yield f"output {i} of kernel {number} is put together by {how!r}, none of {', '.join(TOGETHER)}"


def an_output_is_reduced_in_one_way(graph: MuGraph, _: Ranks) -> Iterator[str]:
    """The sum of maxima is not the maximum of sums, and an omap does not say which comes first."""
    for where, block in _blocks(graph):
        for i, out in enumerate(block.outputs):
            if "sum" in out.omap and "max" in out.omap:
                yield f"output {i} of {where} is put together by sum and by max"


def every_axis_partitions_an_input(graph: MuGraph, _: Ranks) -> Iterator[str]:
    for where, block in _blocks(graph):
        cut = [*(zip(*(tile.imap for tile in block.inputs), strict=True) if block.inputs else ())]
        cut += [*(zip(*(tile.fmap for tile in block.inputs), strict=True) if block.inputs else ())]
        for number, axis in enumerate((*block.grid, *block.loops)):
            if axis.extent != 1 and (not cut or all(dim is None for dim in cut[number])):
                yield f"axis {axis.name} of {where} partitions no input"


def operators_mean_something(graph: MuGraph, _: Ranks) -> Iterator[str]:
    for number, node in enumerate(graph.nodes):
        if not isinstance(node.op, BlockGraph):
            if isinstance(node.op, Accumulate | Running | RescaledSum):
                yield f"kernel {number} is an accumulator outside of a block graph"
            elif reason := wrong_attributes(node.op):
                yield f"{_named(node.op)}, kernel {number}: {reason}"
            continue
        for value, inner in enumerate(node.op.nodes, len(node.op.inputs)):
            if reason := wrong_attributes(inner.op):
                yield f"{_named(inner.op)}, value {value} of kernel {number}: {reason}"


def ranks_agree(graph: MuGraph, given: Ranks) -> Iterator[str]:
    tensors: list[Rank] = list(given)
    for number, node in enumerate(graph.nodes):
        operands = [tensors[i] for i in node.inputs]
        if not isinstance(node.op, BlockGraph):
            if reason := wrong_operands(node.op, operands):
                yield f"{_named(node.op)}, kernel {number}: {reason}"
                return
            tensors.append(result_rank(node.op, operands))
            continue
        for i, (tile, rank) in enumerate(zip(node.op.inputs, operands, strict=True)):
            for dim in (*tile.imap, *tile.fmap):
                if dim is not None and not 0 <= dim < (inf if rank is None else rank):
                    yield f"input {i} of kernel {number} has no dimension {dim} to cut: its rank is {rank}"
        values = list(operands)
        for value, inner in enumerate(node.op.nodes, len(operands)):
            if reason := wrong_operands(inner.op, [values[i] for i in inner.inputs]):
                yield f"{_named(inner.op)}, value {value} of kernel {number}: {reason}"
                return
            values.append(result_rank(inner.op, [values[i] for i in inner.inputs]))
        for i, out in enumerate(node.op.outputs):
            rank = values[out.value]
            for how in out.omap:
                if isinstance(how, int) and not 0 <= how < (inf if rank is None else rank):
                    yield f"output {i} of kernel {number} has no dimension {how}: its rank is {rank}"
            tensors.append(None if rank is None else rank + out.omap.count("stack"))


def accumulators_combine_a_loop(graph: MuGraph, _: Ranks) -> Iterator[str]:
    for where, block in _blocks(graph):
        depth = depths(block)
        for value, node in enumerate(block.nodes, len(block.inputs)):
            if reason := wrong_level(node.op, [depth[i] for i in node.inputs]):
                yield f"{_named(node.op)}, value {value} of {where}: {reason}"


def rescaled_sums_follow_a_running_maximum(graph: MuGraph, _: Ranks) -> Iterator[str]:
    for where, block in _blocks(graph):
        count = len(block.inputs)
        for value, node in enumerate(block.nodes, count):
            if isinstance(node.op, RescaledSum):
                source = seen_through(block, node.inputs[1])
                made = block.nodes[source - count].op if source >= count else None
                if reason := wrong_maximum(node.op, made):
                    yield f"value {value} of {where}: {reason}"


def loops_are_traversed_once(graph: MuGraph, _: Ranks) -> Iterator[str]:
    """What depends on an accumulator of level L is not read inside a loop of number L or higher."""
    for where, block in _blocks(graph):
        depth = depths(block)
        ends = accumulator_levels(block)
        for value, node in enumerate(block.nodes, len(block.inputs)):
            reads = max((depth[i] for i in node.inputs), default=0)
            for i in node.inputs:
                if reads > ends[i]:
                    yield (
                        f"{_named(node.op)}, value {value} of {where}, reads value {i} inside loop {reads - 1}, "
                        f"but an accumulator that it depends on has its value only after loop {int(ends[i])}"
                    )


def outputs_have_depth_zero(graph: MuGraph, _: Ranks) -> Iterator[str]:
    for where, block in _blocks(graph):
        depth = depths(block)
        for i, out in enumerate(block.outputs):
            if depth[out.value]:
                yield f"output {i} of {where} is value {out.value} of depth {depth[out.value]}: accumulate it first"


def everything_reaches_an_output(graph: MuGraph, _: Ranks) -> Iterator[str]:
    read = {*graph.outputs, *(i for node in graph.nodes for i in node.inputs)}
    tensor = len(graph.inputs)
    for number, node in enumerate(graph.nodes):
        for result in range(node.results):
            if tensor + result not in read:
                yield f"result {result} of kernel {number} is not used"
        tensor += node.results
    for where, block in _blocks(graph):
        inside = {*(out.value for out in block.outputs), *(i for inner in block.nodes for i in inner.inputs)}
        for value in range(len(block.inputs) + len(block.nodes)):
            if value not in inside:
                yield f"value {value} of {where} is not used"


def wrong_level(op: Op, operand_depths: Sequence[int]) -> str:
    """Why an operator cannot combine operands of these depths, or ""."""
    if not isinstance(op, Accumulate | Running | RescaledSum):
        return ""
    if op.level >= operand_depths[0]:
        return f"it combines the loops from {op.level} on, but its operand has depth {operand_depths[0]}"
    if isinstance(op, RescaledSum) and operand_depths[1] > operand_depths[0]:
        return f"its maximum has depth {operand_depths[1]}, the sum only {operand_depths[0]}"
    return ""


def seen_through(block: BlockGraph, value: int) -> int:
    """The value that has the same elements before its dimensions were put in another order, added or taken away."""
    count = len(block.inputs)
    while value >= count and isinstance(block.nodes[value - count].op, VIEWS):
        value = block.nodes[value - count].inputs[0]
    return value


def wrong_maximum(op: RescaledSum, second: Op | None) -> str:
    """Why a rescaled sum cannot follow the value that this operator gives (None: an input), or "".

    The value is that which is `seen_through` its second operand.
    """
    if second == Running("max", op.level):
        return ""
    return f"a rescaled sum of level {op.level} follows a running maximum of that level, not {_named(second)}"


def accumulator_levels(block: BlockGraph) -> tuple[float, ...]:
    """For each value the least level of the accumulators that it depends on; infinity where it depends on none."""
    found: list[float] = [inf] * len(block.inputs)
    for node in block.nodes:
        found.append(accumulator_level(node, found))
    return tuple(found)


def accumulator_level(node: BlockNode, found: Sequence[float]) -> float:
    """`accumulator_levels` of one node, from those of the values before it."""
    own = node.op.level if isinstance(node.op, Accumulate | RescaledSum) else inf
    return min((own, *(found[i] for i in node.inputs)))


def _named(op: Op | None) -> str:
    return "an input" if op is None else repr(op)


def _blocks(graph: MuGraph) -> Iterator[tuple[str, BlockGraph]]:
    for number, node in enumerate(graph.nodes):
        if isinstance(node.op, BlockGraph):
            yield f"kernel {number}", node.op


CHECKS: tuple[Check, ...] = (
    names_are_plain_and_unique,
    extents_are_positive,
    one_name_has_one_extent,
    there_are_outputs,
    operands_come_earlier,
    maps_have_an_entry_for_each_axis,
    an_output_is_reduced_in_one_way,
    every_axis_partitions_an_input,
    operators_mean_something,
    ranks_agree,
    accumulators_combine_a_loop,
    rescaled_sums_follow_a_running_maximum,
    loops_are_traversed_once,
    outputs_have_depth_zero,
    everything_reaches_an_output,
)
