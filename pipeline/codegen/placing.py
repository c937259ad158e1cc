"""What every linker finds out of a plan: which outputs live where the caller wants them, and when the rest is alive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.codegen.built_kernel import BuiltKernel
from pipeline.codegen.kernel import Argument
from pipeline.codegen.memory import Lifetime, MemoryPlan
from pipeline.codegen.module import BOUND_ROLES, Call, MemoryFigures, ModulePlan, Port


@dataclass(frozen=True, slots=True)
class Output:
    """An output of the model: the buffer that lives in it, or (`copied`) whose bytes it gets after the last call, as it
    is a second name of something."""

    root: str
    copied: bool


def outputs_of(plan: ModulePlan[BuiltKernel]) -> tuple[Output, ...]:
    """In their order."""
    roles = {buffer.name: buffer.role for buffer in plan.buffers}
    homes: set[str] = set()
    found = []
    for root in map(plan.root, plan.outputs):
        found.append(Output(root, roles[root] not in ("output", "intermediate") or root in homes))
        homes.add(root)
    return tuple(found)


def ports_of(plan: ModulePlan[BuiltKernel]) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """The inputs and the outputs as the caller sees them."""
    buffers = {buffer.name: buffer for buffer in plan.buffers}

    def port(name: str) -> Port:
        root = buffers[plan.root(name)]
        return Port(name, plan.shapes.get(name, root.shape), root.dtype)

    return tuple(map(port, plan.inputs)), tuple(map(port, plan.outputs))


def bound(plan: ModulePlan[BuiltKernel], call: Call) -> Mapping[str, str]:
    """The buffer of each argument that a call names one for."""
    arguments = plan.kernels[call.kernel].arguments
    names = (argument.name for argument in arguments if argument.role in BOUND_ROLES)
    return {argument: plan.root(name) for argument, name in zip(names, call.buffers, strict=True)}


def lifetimes(plan: ModulePlan[BuiltKernel], outputs: Sequence[Output]) -> tuple[Lifetime, ...]:
    """When each intermediate and each workspace is alive, in numbers of calls; copies are made after all of them."""
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    homes = {output.root for output in outputs if not output.copied}
    spans: dict[str, tuple[int, int]] = {}
    workspaces = []
    for number, call in enumerate(plan.calls):
        for root in map(plan.root, call.buffers):
            if buffers[root].role in ("intermediate", "output") and root not in homes:
                spans[root] = (spans.get(root, (number, number))[0], number)
        for argument in plan.kernels[call.kernel].arguments:
            if argument.role == "workspace":
                workspaces.append(Lifetime(workspace(number, argument), argument.nbytes, number, number))
    for output in outputs:
        if output.copied and output.root in spans:
            spans[output.root] = (spans[output.root][0], len(plan.calls))
    lives = (Lifetime(name, buffers[name].nbytes, first, last) for name, (first, last) in spans.items())
    return (*lives, *workspaces)


def workspace(number: int, argument: Argument) -> str:
    """The name of a workspace of that call."""
    return f"{number}.{argument.name}"


def figures(memory: MemoryPlan, alive: Sequence[Lifetime]) -> MemoryFigures:
    """Of the arena for those."""
    return MemoryFigures(memory.total, memory.lower_bound, sum(life.nbytes for life in alive), memory.heuristic)
