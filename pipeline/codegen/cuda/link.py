"""Linking for GPUs: the plan of a module into a plan of launches, with a place in device memory for every tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.codegen.cuda.kernel import CudaKernel
from pipeline.codegen.cuda.launch_plan import ALIGNMENT, LaunchPlan, Place, PlannedCall, PlannedCopy
from pipeline.codegen.kernel import Argument
from pipeline.codegen.memory import Lifetime, plan_memory
from pipeline.codegen.module import BOUND_ROLES, Call, MemoryFigures, ModulePlan, Port, Weight, check_plan
from pipeline.errors import CodegenError


def link(plan: ModulePlan[CudaKernel]) -> LaunchPlan:
    """Places all tensors and lists the calls. Nothing is compiled: each kernel keeps the cubin that was verified."""
    check_plan(plan)
    if plan.target.gpu is None:
        raise CodegenError("the target is no GPU", where=plan.target.name)
    return _Linker(plan).linked()


@dataclass(frozen=True, slots=True)
class _Output:
    """An output of the model: the buffer that lives in it, or (`copied`) whose bytes it gets at the end."""

    root: str
    copied: bool


class _Linker:
    """The state of one linking."""

    def __init__(self, plan: ModulePlan[CudaKernel]) -> None:
        self._plan = plan
        self._buffers = {buffer.name: buffer for buffer in plan.buffers}
        self._outputs = self._of_outputs()
        used = sorted({call.kernel for call in plan.calls})
        self._numbers = {kernel: number for number, kernel in enumerate(used)}
        self._places: dict[str, Place] = {}  # of buffers
        self._packed: dict[tuple[int, str], Place] = {}  # of (call, argument)
        self._packed_bytes = 0

    def linked(self) -> LaunchPlan:
        plan = self._plan
        by_name = self._buffers
        ports, input_places, output_places = 0, [], []
        for name in plan.inputs:
            input_places.append(Place("ports", ports))
            self._places[name] = input_places[-1]
            ports += aligned(by_name[name].nbytes)
        for output in self._outputs:
            output_places.append(Place("ports", ports))
            if not output.copied:
                self._places[output.root] = output_places[-1]
            ports += aligned(by_name[output.root].nbytes)
        setups = self._prologues()
        weights, kept_bytes, all_bytes = self._constants()
        lifetimes = self._lifetimes()
        memory = plan_memory(lifetimes, ALIGNMENT)
        for life in lifetimes:
            self._places[life.name] = Place("arena", memory.offsets[life.name])
        return LaunchPlan(
            kernels=tuple(plan.kernels[kernel] for kernel in self._numbers),
            inputs=tuple(Port(name, by_name[name].shape, by_name[name].dtype) for name in plan.inputs),
            outputs=tuple(
                Port(name, plan.shapes.get(name, by_name[output.root].shape), by_name[output.root].dtype)
                for name, output in zip(plan.outputs, self._outputs, strict=True)
            ),
            input_places=tuple(input_places),
            output_places=tuple(output_places),
            weights=weights,
            data={weight.name: plan.constants[weight.name] for weight in weights},
            prologues=tuple(self._setup(number) for number in setups),
            calls=tuple(self._call(number) for number in range(len(plan.calls))),
            copies=tuple(
                PlannedCopy(self._places[output.root], place, by_name[output.root].nbytes, f"copy to {name}")
                for name, output, place in zip(plan.outputs, self._outputs, output_places, strict=True)
                if output.copied
            ),
            sizes={
                "ports": ports, "weights": kept_bytes, "setup": all_bytes - kept_bytes,
                "packed": self._packed_bytes, "arena": memory.total,
            },
            memory=MemoryFigures(
                memory.total, memory.lower_bound, sum(life.nbytes for life in lifetimes), memory.heuristic
            ),
            arch=plan.kernels[0].program.arch if plan.kernels else plan.target.cpu,
            target=plan.target.name,
            provenance=plan.provenance,
        )  # fmt: skip

    def _of_outputs(self) -> tuple[_Output, ...]:
        homes: set[str] = set()
        found = []
        for name in self._plan.outputs:
            root = self._plan.root(name)
            lives = self._buffers[root].role in ("output", "intermediate") and root not in homes
            homes.add(root)
            found.append(_Output(root, not lives))
        return tuple(found)

    def _prologues(self) -> list[int]:
        """One call of each kernel and set of constants whose prologue fills something; places what it fills."""
        made: dict[tuple[int, tuple[str, ...]], dict[str, Place]] = {}
        calls = []
        for number, call in enumerate(self._plan.calls):
            kernel = self._plan.kernels[call.kernel]
            results = [argument for argument in kernel.arguments if argument.role == "packed"]
            if not results:
                continue
            if not kernel.program.prologue:
                raise CodegenError("a kernel has packed arguments and no prologue", where=kernel.symbol)
            bound = self._bound(call)
            key = (call.kernel, tuple(bound[a.name] for a in kernel.arguments if a.role == "constant"))
            if key not in made:
                made[key] = {}
                for argument in results:
                    made[key][argument.name] = Place("packed", self._packed_bytes)
                    self._packed_bytes += aligned(argument.nbytes)
                calls.append(number)
            self._packed.update(((number, name), place) for name, place in made[key].items())
        return calls

    def _constants(self) -> tuple[tuple[Weight, ...], int, int]:
        """The layout of the constants: first those that are kept. Gives it, the bytes of those, and of all."""
        kept: dict[str, None] = {}
        only: dict[str, None] = {}
        for call in self._plan.calls:
            kernel = self._plan.kernels[call.kernel]
            bound = self._bound(call)
            read = {name for launch in kernel.program.launches for name in launch.arguments}
            first = {name for launch in kernel.program.prologue for name in launch.arguments}
            for argument in kernel.arguments:
                if argument.role == "constant" and argument.name in read:
                    kept[bound[argument.name]] = None
                elif argument.role == "constant" and argument.name in first:
                    only[bound[argument.name]] = None
        for output in self._outputs:
            if self._buffers[output.root].role == "constant":
                kept[output.root] = None
        weights, offset, kept_bytes = [], 0, 0
        for name in (*kept, *(name for name in only if name not in kept)):
            buffer = self._buffers[name]
            weights.append(Weight(name, buffer.shape, buffer.dtype, offset))
            offset += aligned(buffer.nbytes)
            if name in kept:
                kept_bytes = offset
        for weight in weights:
            inside = weight.offset < kept_bytes
            self._places[weight.name] = Place(
                "weights" if inside else "setup", weight.offset - (0 if inside else kept_bytes)
            )
        return tuple(weights), kept_bytes, offset

    def _setup(self, number: int) -> PlannedCall:
        call = self._plan.calls[number]
        kernel = self._plan.kernels[call.kernel]
        bound = self._bound(call)
        taken = {name for launch in kernel.program.prologue for name in launch.arguments}
        places = {}
        for argument in kernel.arguments:
            if argument.name not in taken:
                continue
            if argument.role == "packed":
                places[argument.name] = self._packed[number, argument.name]
            elif argument.role == "constant":
                places[argument.name] = self._places[bound[argument.name]]
            else:
                raise CodegenError("a prologue takes what is known only when the model runs", where=kernel.symbol,
                                   why=f"{argument.name} is {argument.role}")  # fmt: skip
        return PlannedCall(self._numbers[call.kernel], places, call.label or kernel.symbol, call.task)

    def _lifetimes(self) -> tuple[Lifetime, ...]:
        """When each intermediate and each workspace is alive, in numbers of calls."""
        plan = self._plan
        spans: dict[str, tuple[int, int]] = {}
        workspaces = []
        homes = {output.root for output in self._outputs if not output.copied}
        for number, call in enumerate(plan.calls):
            for name in call.buffers:
                root = plan.root(name)
                if self._buffers[root].role in ("intermediate", "output") and root not in homes:
                    spans[root] = (spans.get(root, (number, number))[0], number)
            for argument in plan.kernels[call.kernel].arguments:
                if argument.role == "workspace":
                    workspaces.append(Lifetime(_workspace(number, argument), argument.nbytes, number, number))
        for output in self._outputs:
            if output.copied and output.root in spans:
                spans[output.root] = (spans[output.root][0], len(plan.calls))
        lives = (Lifetime(name, self._buffers[name].nbytes, first, last) for name, (first, last) in spans.items())
        return (*lives, *workspaces)

    def _call(self, number: int) -> PlannedCall:
        call = self._plan.calls[number]
        kernel = self._plan.kernels[call.kernel]
        bound = self._bound(call)
        places = {}
        for argument in kernel.arguments:
            match argument.role:
                case "packed":
                    places[argument.name] = self._packed[number, argument.name]
                case "workspace":
                    places[argument.name] = self._places[_workspace(number, argument)]
                case "input" | "output":
                    places[argument.name] = self._places[bound[argument.name]]
                case "constant":  # one that nothing reads has no place
                    place = self._places.get(bound[argument.name])
                    if place is not None and place.area == "weights":
                        places[argument.name] = place
        return PlannedCall(self._numbers[call.kernel], places, call.label or kernel.symbol, call.task)

    def _bound(self, call: Call) -> Mapping[str, str]:
        arguments = self._plan.kernels[call.kernel].arguments
        names = (argument.name for argument in arguments if argument.role in BOUND_ROLES)
        return {argument: self._plan.root(name) for argument, name in zip(names, call.buffers, strict=True)}


def aligned(size: int) -> int:
    """The bytes that so many take in an area; none at all are given a place of their own too."""
    return max(1, -(-size // ALIGNMENT)) * ALIGNMENT


def _workspace(number: int, argument: Argument) -> str:
    return f"{number}.{argument.name}"
