"""Linking for GPUs: the plan of a module into a plan of launches, with a place in device memory for every tensor."""

from __future__ import annotations

from pipeline.codegen.cuda.kernel import CudaKernel
from pipeline.codegen.cuda.launch_plan import ALIGNMENT, LaunchPlan, Place, PlannedCall, PlannedCopy
from pipeline.codegen.memory import plan_memory
from pipeline.codegen.module import ModulePlan, Weight, check_plan
from pipeline.codegen.placing import bound, figures, lifetimes, outputs_of, ports_of, workspace
from pipeline.errors import CodegenError


def link(plan: ModulePlan[CudaKernel]) -> LaunchPlan:
    """Places all tensors and lists the calls. Nothing is compiled: each kernel keeps the cubin that was verified."""
    check_plan(plan)
    if plan.target.gpu is None:
        raise CodegenError("the target is no GPU", where=plan.target.name)
    return _Linker(plan).linked()


class _Linker:
    """The state of one linking."""

    def __init__(self, plan: ModulePlan[CudaKernel]) -> None:
        self._plan = plan
        self._buffers = {buffer.name: buffer for buffer in plan.buffers}
        self._outputs = outputs_of(plan)
        used = sorted({call.kernel for call in plan.calls})
        self._numbers = {kernel: number for number, kernel in enumerate(used)}
        self._places: dict[str, Place] = {}  # of buffers
        self._packed: dict[tuple[int, str], Place] = {}  # of (call, argument)
        self._packed_bytes = 0

    def linked(self) -> LaunchPlan:
        plan = self._plan
        by_name = self._buffers
        inputs, outputs = ports_of(plan)
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
        alive = lifetimes(plan, self._outputs)
        memory = plan_memory(alive, ALIGNMENT)
        for life in alive:
            self._places[life.name] = Place("arena", memory.offsets[life.name])
        return LaunchPlan(
            kernels=tuple(plan.kernels[kernel] for kernel in self._numbers),
            inputs=inputs,
            outputs=outputs,
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
            memory=figures(memory, alive),
            arch=plan.kernels[0].program.arch if plan.kernels else plan.target.cpu,
            target=plan.target.name,
            provenance=plan.provenance,
        )  # fmt: skip

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
            buffers = bound(self._plan, call)
            key = (call.kernel, tuple(buffers[a.name] for a in kernel.arguments if a.role == "constant"))
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
            buffers = bound(self._plan, call)
            read = {name for launch in kernel.program.launches for name in launch.arguments}
            first = {name for launch in kernel.program.prologue for name in launch.arguments}
            for argument in kernel.arguments:
                if argument.role == "constant" and argument.name in read:
                    kept[buffers[argument.name]] = None
                elif argument.role == "constant" and argument.name in first:
                    only[buffers[argument.name]] = None
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
        buffers = bound(self._plan, call)
        taken = {name for launch in kernel.program.prologue for name in launch.arguments}
        places = {}
        for argument in kernel.arguments:
            if argument.name not in taken:
                continue
            if argument.role == "packed":
                places[argument.name] = self._packed[number, argument.name]
            elif argument.role == "constant":
                places[argument.name] = self._places[buffers[argument.name]]
            else:
                raise CodegenError("a prologue takes what is known only when the model runs", where=kernel.symbol,
                                   why=f"{argument.name} is {argument.role}")  # fmt: skip
        return PlannedCall(self._numbers[call.kernel], places, call.label or kernel.symbol, call.task)

    def _call(self, number: int) -> PlannedCall:
        call = self._plan.calls[number]
        kernel = self._plan.kernels[call.kernel]
        buffers = bound(self._plan, call)
        places = {}
        for argument in kernel.arguments:
            match argument.role:
                case "packed":
                    places[argument.name] = self._packed[number, argument.name]
                case "workspace":
                    places[argument.name] = self._places[workspace(number, argument)]
                case "input" | "output":
                    places[argument.name] = self._places[buffers[argument.name]]
                case "constant":  # one that nothing reads has no place
                    place = self._places.get(buffers[argument.name])
                    if place is not None and place.area == "weights":
                        places[argument.name] = place
        return PlannedCall(self._numbers[call.kernel], places, call.label or kernel.symbol, call.task)


def aligned(size: int) -> int:
    """The bytes that so many take in an area; none at all are given a place of their own too."""
    return max(1, -(-size // ALIGNMENT)) * ALIGNMENT
