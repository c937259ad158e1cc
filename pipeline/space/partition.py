"""A graph into tasks: each anchor (a product, a reduction) takes along the elementwise work around it.

A group has one value that others see, so that nothing between its operations is ever stored. Reshapes between groups
cost nothing: both sides see the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from pipeline.ir.graph import (
    Broadcast,
    Concat,
    Constant,
    Contract,
    Elementwise,
    Gather,
    Graph,
    Input,
    Iota,
    Node,
    Pad,
    Reduce,
    ReduceWindow,
    Reshape,
    Shape,
    Slice,
    Transpose,
)
from pipeline.space.task import Task, make_task, tensor_bytes

# Bytes from which on an array has pages of its own (glibc's threshold), and begins 16 bytes behind their begin in each
# process. A smaller one begins anywhere, and would only make another task of the same operations.
FED_FROM = 1 << 17
MOVES = (Transpose, Slice, Pad, Broadcast, Gather, Iota)  # operations that only say where an element comes from


@dataclass(frozen=True, slots=True)
class Instance:
    """One use of a task: the number of the task, and the values of the whole graph that it reads and writes.

    members  the operations that it does, by number
    """

    task: int
    inputs: tuple[int, ...]
    output: int
    members: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Partition:
    """Tasks without duplicates, and their uses in an order in which they can run.

    aliases  value -> value whose bytes it shares (reshapes between groups)
    by_feed  whether tasks tell large inputs of the caller from what kernels make
    """

    tasks: tuple[Task, ...]
    instances: tuple[Instance, ...]
    aliases: dict[int, int]
    by_feed: bool = True

    def weight(self, task: int) -> int:
        """How often the task runs."""
        return sum(1 for instance in self.instances if instance.task == task)


def partition(graph: Graph, *, by_feed: bool = True) -> Partition:
    """Every operation of the graph in exactly one group.

    by_feed  see `Partition`; on a GPU, whose buffers are all its own, the two are one
    """
    groups = _Grouping(graph, by_feed)
    groups.run()
    return groups.partition()


@dataclass(slots=True)
class _Grouping:
    graph: Graph
    by_feed: bool = True
    group: dict[int, int] = field(default_factory=dict)  # node -> group
    members: list[list[int]] = field(default_factory=list)
    consumers: list[list[int]] = field(default_factory=list)
    visible: set[int] = field(default_factory=set)

    def run(self) -> None:
        nodes = self.graph.nodes
        self.consumers = [[] for _ in nodes]
        for number, node in enumerate(nodes):
            for source in dict.fromkeys(node.inputs):
                self.consumers[source].append(number)
        self.visible = {number for _, number in self.graph.outputs}
        for kinds in ((Contract,), (Reduce, ReduceWindow), None):
            for number, node in enumerate(nodes):
                if number in self.group or isinstance(node.op, Input | Constant | Reshape):
                    continue
                if kinds is None or isinstance(node.op, kinds):
                    self.grow(number)

    def grow(self, anchor: int) -> None:
        """The anchor, what only it and its followers need before it, and the longest chain after it with one result."""
        node = self.graph.nodes[anchor]
        rows = self.row_shape(node)
        members = [anchor]
        if not isinstance(node.op, Contract | Concat):
            self.absorb_producers(members, rows)
        chosen = set(members)
        best = sorted(members) if self.single_output(chosen) else [anchor]
        if isinstance(
            node.op, Contract | Reduce | ReduceWindow | Elementwise | Gather | Slice | Transpose | Broadcast | Pad
        ):
            for number in range(anchor + 1, len(self.graph.nodes)):
                if number in self.group or number in chosen or not self.follows(number, chosen, anchor, rows):
                    continue
                chosen.add(number)
                self.absorb_late(chosen)
                if self.single_output(chosen) and not isinstance(
                    self.graph.nodes[self.escaping(chosen)[0]].op, Reshape
                ):  # a reshape at the end costs nothing outside
                    best = sorted(chosen)
        for number in best:
            self.group[number] = len(self.members)
        self.members.append(best)

    def row_shape(self, node: Node) -> tuple[Shape, Shape] | None:
        """For a reduction of the last axes: (the shape of what is reduced, the shape that is left)."""
        if isinstance(node.op, Reduce):
            source = self.graph.nodes[node.inputs[0]].type.shape
            axes = sorted(axis % len(source) for axis in node.op.axes)
            if axes == list(range(len(source) - len(axes), len(source))):
                return source, node.type.shape
        return None

    def absorb_producers(self, members: list[int], rows: tuple[Shape, Shape] | None) -> None:
        """Elementwise operations before the anchor that nobody else needs."""
        chosen = set(members)
        queue = list(members)
        while queue:
            for source in self.graph.nodes[queue.pop()].inputs:
                node = self.graph.nodes[source]
                if source in chosen or source in self.group or source in self.visible:
                    continue
                if not isinstance(node.op, Elementwise | Reshape | Iota | Broadcast | Slice | Transpose):
                    continue
                if isinstance(node.op, Slice | Transpose | Broadcast) and rows is not None and len(rows[0]) > 3:
                    continue
                if any(user not in chosen for user in self.consumers[source]):
                    continue
                if isinstance(node.op, Reshape) and not self.worth(source):
                    continue
                chosen.add(source)
                members.append(source)
                queue.append(source)

    def worth(self, reshape: int) -> bool:
        """A reshape is taken in only where its operand is computed here too."""
        source = self.graph.nodes[reshape].inputs[0]
        node = self.graph.nodes[source]
        return isinstance(node.op, Elementwise) and source not in self.group and len(self.consumers[source]) == 1

    def absorb_late(self, chosen: set[int]) -> None:
        """Small unassigned elementwise operands of what was just taken in: they are recomputed for free."""
        for number in list(chosen):
            if isinstance(self.graph.nodes[number].op, Contract):
                continue  # its operands are read many times, and would be computed each time
            for source in self.graph.nodes[number].inputs:
                node = self.graph.nodes[source]
                if source in chosen or source in self.group or source in self.visible:
                    continue
                if isinstance(node.op, Elementwise) and all(user in chosen for user in self.consumers[source]):
                    outside = [i for i in node.inputs if i not in chosen]
                    if not any(self.reaches(i, chosen) for i in outside):
                        chosen.add(source)

    def follows(self, number: int, chosen: set[int], anchor: int, rows: tuple[Shape, Shape] | None) -> bool:
        """May the operation join the group: fed by it, cheap, of its shape, and not waiting for it by a detour?"""
        node = self.graph.nodes[number]
        if not any(source in chosen for source in node.inputs):
            return False
        anchor_node = self.graph.nodes[anchor]
        size = math.prod(anchor_node.type.shape)
        if rows is not None:
            full, left = rows
            sizes = {math.prod(full), math.prod(left)}
            match node.op:
                case Reduce():
                    if self.row_shape(node) != rows:
                        return False
                case Elementwise() | Reshape():
                    if math.prod(node.type.shape) not in sizes or (
                        isinstance(node.op, Reshape)
                        and math.prod(node.type.shape) == math.prod(full) != math.prod(left)
                    ):
                        return False
                case Broadcast():
                    if node.type.shape != full:
                        return False
                case _:
                    return False
        elif isinstance(node.op, Elementwise):
            if math.prod(node.type.shape) != size:
                return False
        elif isinstance(node.op, Reshape):
            padded = isinstance(anchor_node.op, Contract) and self.only_padded(number)
            if not padded and not any(
                isinstance(self.graph.nodes[user].op, Elementwise) for user in self.consumers[number]
            ):
                return False
            if (
                isinstance(anchor_node.op, Contract)
                and not padded
                and not _merges(self.graph.nodes[node.inputs[0]].type.shape, node.type.shape)
            ):
                return False
        elif isinstance(node.op, Pad) and isinstance(anchor_node.op, Contract):
            # a product whose result is wanted with a border is stored inside that border at once
            alone = self.consumers[node.inputs[0]] == [number] and node.inputs[0] not in self.visible
            if not alone or any(node.op.interior) or any(n < 0 for n in (*node.op.low, *node.op.high)):
                return False
        elif isinstance(node.op, MOVES):
            if isinstance(anchor_node.op, Contract | Reduce | ReduceWindow) or len(self.consumers[number]) == 0:
                return False
        else:
            return False
        outside = [source for source in node.inputs if source not in chosen]
        return not any(self.reaches(source, chosen) for source in outside)

    def only_padded(self, number: int) -> bool:
        """Is the value read by one padding and nothing else?"""
        users = self.consumers[number]
        return len(users) == 1 and isinstance(self.graph.nodes[users[0]].op, Pad) and number not in self.visible

    def reaches(self, value: int, chosen: set[int]) -> bool:
        """Does the value depend on a member of the group, groups that exist already taken as a whole?"""
        first = min(chosen)
        seen: set[int] = set()
        stack = [value]
        while stack:
            number = stack.pop()
            if number in chosen:
                return True
            if number in seen:
                continue
            seen.add(number)
            owner = self.group.get(number)
            together = self.members[owner] if owner is not None else [number]
            seen.update(together)
            for member in together:
                stack.extend(
                    i for i in self.graph.nodes[member].inputs if i not in seen and (i >= first or i in self.group)
                )
        return False

    def single_output(self, chosen: set[int]) -> bool:
        return len(self.escaping(chosen)) == 1

    def escaping(self, chosen: set[int]) -> list[int]:
        """Members that somebody outside sees."""
        return [
            number for number in sorted(chosen)
            if number in self.visible or not self.consumers[number]
            or any(user not in chosen for user in self.consumers[number])
        ]  # fmt: skip

    def partition(self) -> Partition:
        nodes = self.graph.nodes
        aliases = {
            number: node.inputs[0]
            for number, node in enumerate(nodes) if isinstance(node.op, Reshape) and number not in self.group
        }  # fmt: skip
        tasks: list[Task] = []
        known: dict[str, int] = {}
        placed: list[tuple[Instance, list[int]]] = []
        for members in self.members:
            (output,) = self.escaping(set(members)) if self.escaping(set(members)) else (members[-1],)
            task, inputs = extract(self.graph, members, output, aliases, by_feed=self.by_feed)
            if task.key not in known:
                known[task.key] = len(tasks)
                tasks.append(task)
            placed.append((Instance(known[task.key], inputs, output, tuple(sorted(members))), members))
        order = self.order([members for _, members in placed], aliases)
        return Partition(tuple(tasks), tuple(placed[i][0] for i in order), aliases, self.by_feed)

    def order(self, groups: list[list[int]], aliases: dict[int, int]) -> list[int]:
        """Groups in an order in which every operand is there, the earliest first."""
        where = {number: index for index, members in enumerate(groups) for number in members}
        done: list[int] = []
        state = [0] * len(groups)

        for start in sorted(range(len(groups)), key=lambda i: max(groups[i])):
            stack = [(start, False)]
            while stack:
                index, ready = stack.pop()
                if ready:
                    if state[index] != 2:
                        state[index] = 2
                        done.append(index)
                    continue
                if state[index]:
                    continue
                state[index] = 1
                stack.append((index, True))
                for member in groups[index]:
                    for source in self.graph.nodes[member].inputs:
                        owner = where.get(base(source, aliases))
                        if owner is not None and owner != index and state[owner] == 0:
                            stack.append((owner, False))
        return done


def extract(
    graph: Graph, members: Collection[int], output: int, aliases: Mapping[int, int], *, by_feed: bool = True
) -> tuple[Task, tuple[int, ...]]:
    """Some operations as a task of their own: operands in order of use, scalar constants kept, names dropped.

    aliases   and by_feed as in `Partition`: through aliases a constant and an input of the model are seen to be one
    returns   the task, and the values of the whole graph that are its inputs
    """
    nodes: list[Node] = []
    numbers: dict[int, int] = {}
    operands: list[int] = []
    constants: list[str] = []
    fed: list[str] = []
    data: dict[str, np.ndarray] = {}
    inside = set(members)
    for member in sorted(members):
        for source in graph.nodes[member].inputs:
            if source in inside or source in numbers:
                continue
            node = graph.nodes[source]
            if isinstance(node.op, Constant) and graph.constants[node.op.key].size == 1:
                # named by its content: tasks that differ in a number are different tasks
                data[node.op.key] = graph.constants[node.op.key]
                nodes.append(Node(Constant(node.op.key), (), node.type))
            else:
                origin = graph.nodes[base(source, aliases)].op
                name = f"{'w' if isinstance(origin, Constant) else 'x'}{len(operands)}"
                if isinstance(origin, Constant):
                    constants.append(name)
                elif by_feed and isinstance(origin, Input) and tensor_bytes(node) >= FED_FROM:
                    fed.append(name)
                operands.append(source)
                nodes.append(Node(Input(name), (), node.type))
            numbers[source] = len(nodes) - 1
        node = graph.nodes[member]
        nodes.append(Node(node.op, tuple(numbers[i] for i in node.inputs), node.type))
        numbers[member] = len(nodes) - 1
    taken = Graph(tuple(nodes), (("out", numbers[output]),), data)
    return make_task(taken, tuple(constants), tuple(fed)), tuple(operands)


def base(value: int, aliases: Mapping[int, int]) -> int:
    """The value whose bytes a value is, through reshapes between groups."""
    while value in aliases:
        value = aliases[value]
    return value


def _merges(before: Shape, after: Shape) -> bool:
    """Is the reshape one that only joins dimensions? Then each old index is an affine part of a new one."""
    position = 0
    for extent in after:
        product = 1
        while product < extent and position < len(before):
            product *= before[position]
            position += 1
        if product != extent:
            return False
        while position < len(before) and before[position] == 1:
            position += 1
    return position == len(before)
