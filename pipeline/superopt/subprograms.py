"""The subprograms of a partitioned graph that one kernel could compute, with their specifications and what that saves.

A candidate is one task and some of those that feed it, directly or through each other. What it does may be needed
elsewhere too: then that task stays beside it, and the candidate does its work once more. Which of them are used is
decided by cost (`pipeline.superopt.cover`), not by the order in which they are found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.ir.graph import Constant, Contract, Graph, Reduce
from pipeline.ir.target import Target
from pipeline.space.partition import Instance, Partition, base, extract
from pipeline.space.task import Task, bytes_read, tensor_bytes
from pipeline.superopt.label import BROADCAST, NOTHING, Opaque, specify
from pipeline.superopt.many_cores import many_cores
from pipeline.superopt.spec import Spec

MOST_SETS = 48  # candidates that end in one task
BARRIER_SECONDS = 2e-6  # of a CPU between two tasks, with the threads out of step
COLD_SECONDS = 8e-6  # of a CPU until weights that come from memory arrive as fast as a product takes them
LIKE = 0.5  # of what a part promises: what the whole must promise to be looked at before it
USED = 0.3  # of the fused kernels that are found, so many are faster than what they replace
COMPROMISE = 0.03  # of the time of a product, where others decide over its tiles
CACHE_BYTES_PER_CYCLE = {2: 24.0, 3: 8.0}  # of one core, read and written


@dataclass(frozen=True, slots=True)
class Subprogram:
    """One task in place of several, everywhere it occurs.

    uses       the instances that it could be, their task being -1
    replaced   for each use the tasks of the partition that it does the work of, as positions in its instances
    seconds    of one run at the roofline
    ordinary   of one run of what it replaces; a task that feeds others too counts by their share
    chained    of its products whose results go into further products or reductions
    """

    task: Task
    spec: Spec
    uses: tuple[Instance, ...]
    replaced: tuple[tuple[int, ...], ...]
    seconds: float
    ordinary: float
    chained: float

    @property
    def saved(self) -> float:
        """Seconds of one use, at the roofline."""
        return self.ordinary - self.seconds

    def whole_of(self, other: Subprogram) -> bool:
        """The other one does a part of what this one does, and saves less."""
        return set(other.replaced[0]) < set(self.replaced[0]) and other.saved < self.saved

    @property
    def promise(self) -> float:
        """How early it is worth a search: what it can save, how large a part that is, how large the search.

        Products in a chain must agree on their tiles: that may cost some of their speed, which lessens the hope.
        """
        return self._promise(self.saved)

    def promise_beside(self, found: Sequence[Subprogram]) -> float:
        """The same where fused kernels of these are there already: only what it saves beyond what they may counts. The
        more of them do some of its work, the likelier one of them is used."""
        own = set(self.replaced[0])
        touching = [other for other in found if any(own.intersection(done) for done in other.replaced)]
        apart = [one for one in touching if not any(other.whole_of(one) for other in touching)]
        likely = 1 - (1 - USED) ** len(touching)
        return self._promise(self.saved - likely * sum(one.saved for one in apart))

    @property
    def gain(self) -> float:
        """How early it is worth being tuned, once it is found: all that it can save."""
        return len(self.uses) * self.saved * self._hope()

    def _promise(self, saved: float) -> float:
        large = math.sqrt(abs(saved) / self.ordinary)
        return len(self.uses) * saved * large * self._hope() / 1.5 ** anchors(self.task.graph)

    def _hope(self) -> float:
        return self.saved / (self.saved + COMPROMISE * self.chained)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one subprogram: products and reductions, and all its operations. count: subprograms that are kept."""

    anchors: int = 8
    nodes: int = 48
    count: int = 64


def subprograms(graph: Graph, parts: Partition, target: Target, limits: Limits | None = None) -> tuple[Subprogram, ...]:
    """Those with at least two products or reductions that the roofline finds faster than what they replace.

    The one that promises most comes first; before a part of it comes the whole, where that promises nearly as much: the
    search for it looks at its parts too.
    """
    limits = Limits() if limits is None else limits
    roofline = roofline_of(graph, target)
    seconds = [roofline.seconds(task) for task in parts.tasks]
    readers = _readers(graph, parts)
    found: dict[str, tuple[Task, list[Instance], list[tuple[int, ...]]]] = {}
    opaque = _opaque(parts)
    for number in range(len(parts.instances)):
        for chosen in _sets(parts, number, opaque, limits):
            instance, task = _joined(graph, parts, chosen, number)
            _, uses, replaced = found.setdefault(task.key, (task, [], []))
            uses.append(instance)
            replaced.append(chosen)
    made = []
    for task, uses, replaced in found.values():
        shares, fused = _shares(parts, uses[0].output, replaced[0], readers), roofline.fused(task)
        ordinary = sum(share * seconds[parts.instances[number].task] for number, share in shares.items())
        spec = specify(task.graph, task.constants) if fused < ordinary else None
        if isinstance(spec, Spec):
            made.append(Subprogram(task, spec, tuple(uses), tuple(replaced), fused, ordinary, roofline.chained(task)))
    ranked = sorted(made, key=lambda one: -one.promise)[: limits.count]
    return tuple(_whole_first(ranked, lambda one: one.promise))


def tuned_in_turn(found: Sequence[Subprogram]) -> list[Subprogram]:
    """Those with fused kernels, the one that may save most first, and the whole before its part where it saves nearly
    as much: what passes between two kernels takes time beside the arithmetic too, which no roofline says."""
    return _whole_first(sorted(found, key=lambda one: -one.gain), lambda one: one.gain)


def _whole_first(ranked: Sequence[Subprogram], worth: Callable[[Subprogram], float]) -> list[Subprogram]:
    done: dict[str, Subprogram] = {}
    for one in ranked:
        wholes = [other for other in ranked if other.whole_of(one) and worth(other) > LIKE * worth(one)]
        for other in (*sorted(wholes, key=lambda whole: -whole.saved), one):
            done.setdefault(other.task.key, other)
    return list(done.values())


def _shares(parts: Partition, output: int, replaced: Sequence[int], readers: Sequence[set[int]]) -> dict[int, float]:
    """How much of each instance falls away where these are replaced: all of the last one, of the others what those of
    their readers fall away. What others still read is computed all the same, and so is what leads to it."""
    shares: dict[int, float] = {}
    for number in sorted(replaced, reverse=True):  # readers have larger numbers
        own = sum(shares.get(reader, 0.0) for reader in readers[number])
        shares[number] = 1.0 if parts.instances[number].output == output else own / max(1, len(readers[number]))
    return shares


def _readers(graph: Graph, parts: Partition) -> list[set[int]]:
    """For each instance those that read its result; -1 stands for the caller, who reads the outputs."""
    found: dict[int, set[int]] = {instance.output: set() for instance in parts.instances}
    for number, instance in enumerate(parts.instances):
        for value in instance.inputs:
            found.get(base(value, parts.aliases), set()).add(number)
    for _, value in graph.outputs:
        found.get(base(value, parts.aliases), set()).add(-1)
    return [found[instance.output] for instance in parts.instances]


def anchors(graph: Graph) -> int:
    """Products and reductions."""
    return sum(isinstance(node.op, Contract | Reduce) for node in graph.nodes)


def _sets(parts: Partition, last: int, opaque: Sequence[bool], limits: Limits) -> Iterator[tuple[int, ...]]:
    """Sets of instances that end in one: it, and more and more of what feeds it; the smallest first."""
    producer = {instance.output: number for number, instance in enumerate(parts.instances)}
    queue: list[tuple[int, ...]] = [(last,)]
    seen = set(queue)
    given = 0
    while queue and given < MOST_SETS:
        chosen = queue.pop(0)
        tasks = [parts.instances[i].task for i in chosen]
        graphs = [parts.tasks[task].graph for task in tasks]
        count = sum(map(anchors, graphs))
        size = sum(len(g.nodes) for g in graphs)
        if opaque[tasks[chosen.index(last)]] or count > limits.anchors or size > limits.nodes:
            continue
        if count >= 2:
            given += 1
            yield chosen
        feeding = {
            producer[source]
            for number in chosen for value in parts.instances[number].inputs
            if (source := base(value, parts.aliases)) in producer
        }  # fmt: skip
        for number in sorted(feeding - set(chosen)):
            larger = tuple(sorted((*chosen, number)))
            if not opaque[parts.instances[number].task] and larger not in seen:
                seen.add(larger)
                queue.append(larger)


def _opaque(parts: Partition) -> list[bool]:
    """For each task: does it hold something that no specification can?"""
    reasons = [specify(task.graph, task.constants) for task in parts.tasks]
    return [isinstance(found, Opaque) and found.reason not in (NOTHING, BROADCAST) for found in reasons]


def _joined(graph: Graph, parts: Partition, chosen: Sequence[int], last: int) -> tuple[Instance, Task]:
    """The instances of a set as one, with the reshapes between them."""
    members = {member for number in chosen for member in parts.instances[number].members}
    for member in sorted(members):
        for value in graph.nodes[member].inputs:
            if base(value, parts.aliases) in members:
                while value not in members:
                    members.add(value)
                    value = parts.aliases[value]
    output = parts.instances[last].output
    task, inputs = extract(graph, members, output, parts.aliases, by_feed=parts.by_feed)
    return Instance(-1, inputs, output, tuple(sorted(members))), task


def roofline_of(graph: Graph, target: Target) -> Roofline:
    """That of kernels of a graph, on a CPU or a GPU."""
    gpu = target.gpu
    if gpu is None:
        return Roofline(graph, target, BARRIER_SECONDS, COLD_SECONDS, apart=True)
    cold = (gpu.memory_latency - gpu.l2_latency) / (target.clock_ghz * 1e9)
    return Roofline(graph, many_cores(target), gpu.launch_us * 1e-6, cold, apart=False)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Seconds of a task that computes and moves no more than it must, where its tensors lie when it begins.

    start   until it begins, after the one before it
    cold    until weights that come from memory arrive as fast as a product takes them
    apart   what follows a product does not overlap with it; of a GPU other blocks compute meanwhile
    """

    graph: Graph
    target: Target
    start: float
    cold: float
    apart: bool

    def seconds(self, task: Task) -> float:
        """Of a task as the rules would schedule it: each reduction after the first reads its operand once more."""
        again = [node for node in task.graph.nodes if isinstance(node.op, Reduce | Contract)][1:]
        passes = sum(
            self.moved(max(tensor_bytes(task.graph.nodes[v]) for v in node.inputs))
            for node in again
            if isinstance(node.op, Reduce)
        )
        return self.fused(task) + passes

    def fused(self, task: Task) -> float:
        """Of a task in one pass."""
        work = task.flops / (self.target.peak_gflops() * 1e9)
        cold = self.weights() > self.target.last_cache and any(isinstance(n.op, Contract) for n in task.graph.nodes)
        beside, after = self.traffic(task)
        return max(work, beside) + after + self.start + (self.cold if cold and task.constants else 0.0)

    def chained(self, task: Task) -> float:
        """Of the products whose results go into further products or reductions."""
        feeds: set[int] = set()
        total = 0.0
        for number in range(len(task.graph.nodes) - 1, -1, -1):
            node = task.graph.nodes[number]
            if isinstance(node.op, Contract) and number in feeds:
                total += 2.0 * math.prod(node.op.spatial) * math.prod(node.op.reduced)
            if isinstance(node.op, Contract | Reduce) or number in feeds:
                feeds.update(node.inputs)
        return total / (self.target.peak_gflops() * 1e9)

    def traffic(self, task: Task) -> tuple[float, float]:
        """Seconds to read what is needed of every input and to write the output: while the task computes, and apart.

        The factors of a product come while it computes. What is read once a tile is summed up, and the output, come
        apart where a core has one tile at a time: 4 MiB more that were read behind a product of 128 rows took two cores
        0.2 ms to 0.35 ms, at 15 ms of arithmetic.
        """
        behind = self._behind(task.graph)
        beside = after = 0.0
        for number, node in enumerate(task.graph.nodes):
            if not node.inputs and not isinstance(node.op, Constant):
                size = bytes_read(task.graph, number)
                cold = getattr(node.op, "name", "") in task.constants and self.weights() > self.target.last_cache
                seconds = self.moved(size, cold=cold)
                beside, after = (beside, after + seconds) if number in behind else (beside + seconds, after)
        result = task.graph.outputs[0][1]
        seconds = self.moved(tensor_bytes(task.graph.nodes[result]))
        return (beside, after + seconds) if result in behind else (beside + seconds, after)

    def _behind(self, graph: Graph) -> set[int]:
        """What no product of the graph depends on, where there are products and cores wait for what they read there."""
        if not self.apart or not any(isinstance(node.op, Contract) for node in graph.nodes):
            return set()
        feeding: set[int] = set()
        for number in range(len(graph.nodes) - 1, -1, -1):
            if number in feeding or isinstance(graph.nodes[number].op, Contract):
                feeding.update(graph.nodes[number].inputs)
        return set(range(len(graph.nodes))) - feeding

    def moved(self, size: int, *, cold: bool = False) -> float:
        """Seconds to read or write so many bytes, all cores together: from caches that hold them, or from memory."""
        for level, rate in CACHE_BYTES_PER_CYCLE.items():
            if not cold and size <= self.target.cache(level) * self.target.cores / 2:
                return size / (rate * self.target.clock_ghz * 1e9 * self.target.cores)
        return size / (self.target.bandwidth_gbs * 1e9)

    def weights(self) -> int:
        """Bytes of all constants of the graph: more than the caches hold, they come from memory each time."""
        return sum(array.nbytes for array in self.graph.constants.values())
