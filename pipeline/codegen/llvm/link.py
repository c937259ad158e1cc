"""The linker: a module plan into one SPMD function, the data that it needs, and a static memory plan.

`muschedule_main(buffers, thread, threads, barrier)` calls the kernels in order. `buffers` is the caller's array of
pointers: the inputs, the outputs, then the constants area, the arena and the pointer table (and, traced, the trace).

How a kernel gets its pointers: a call that touches neither an input nor an output always has the same ones, so
`muschedule_bind` writes them into the table once per arena, and the call costs one address. The few other calls build
theirs on the stack of each thread. A table patched at every run would need a barrier after the patch and could not be
shared by threads; building every list on the stack would repeat thousands of stores per run.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.codegen.kernel import Kernel
from pipeline.codegen.llvm.compile import LoadedObject, compile_ir
from pipeline.codegen.llvm.main_function import (
    Access,
    CopyStep,
    KernelStep,
    Pointer,
    Region,
    Step,
    barriers_before,
    main_ir,
)
from pipeline.codegen.llvm.team_ir import team_object
from pipeline.codegen.memory import ALIGNMENT, MemoryPlan, plan_memory
from pipeline.codegen.module import LinkedCall, LinkedModule, ModulePlan, Weight, check_plan
from pipeline.codegen.placing import bound, figures, lifetimes, outputs_of, ports_of, workspace
from pipeline.errors import CodegenError
from pipeline.ir.graph import ITEM_BYTES, DType
from pipeline.ir.graph_types import numpy_dtype


def link(plan: ModulePlan[Kernel]) -> LinkedModule:
    """Plans the memory, packs the constants, and compiles the main function and the team for the plan's target."""
    check_plan(plan)
    outputs = outputs_of(plan)
    homes = {output.root: index for index, output in enumerate(outputs) if not output.copied}
    copies = [(index, output.root) for index, output in enumerate(outputs) if output.copied]
    team = team_object(plan.target)
    packed, weights, data = _constants(plan, [root for _, root in copies], team)
    alive = lifetimes(plan, outputs)
    memory = plan_memory(alive)
    pointers = _Pointers(plan, homes, {weight.name: weight.offset for weight in weights}, packed, memory)
    steps: list[Step] = [pointers.kernel_step(index) for index in range(len(plan.calls))]
    steps += [pointers.copy_step(index, root) for index, root in copies]
    ports = len(plan.inputs) + len(plan.outputs)
    text, slots = main_ir(steps, ports, plan.target)
    objects = {f"kernel_{i:04d}.o": kernel.object_code for i, kernel in enumerate(plan.kernels)}
    used = {call.kernel for call in plan.calls}
    objects = {name: code for i, (name, code) in enumerate(objects.items()) if i in used}
    parallel = [plan.kernels[i].threads for i in used if plan.kernels[i].parallel]
    inputs, results = ports_of(plan)
    return LinkedModule(
        objects={"main.o": compile_ir(text, plan.target), "team.o": team, **objects},
        inputs=inputs,
        outputs=results,
        weights=weights,
        data=data,
        calls=tuple(step.trace for step in steps),
        threads=max(1, min([plan.threads, *parallel])) if parallel else 1,
        slots=slots,
        barriers=sum(barriers_before(steps)),
        memory=figures(memory, alive),
        target=plan.target,
        provenance=plan.provenance,
    )


def _constants(
    plan: ModulePlan[Kernel], copied: Sequence[str], team: bytes
) -> tuple[dict[tuple[int, str], str], tuple[Weight, ...], dict[str, np.ndarray]]:
    """Runs the prologues. Gives the packed buffer of each (call, argument), and layout and data of all that is kept."""
    by_name = {buffer.name: buffer for buffer in plan.buffers}
    packed: dict[tuple[int, str], str] = {}
    made: dict[tuple[int, tuple[str, ...]], dict[str, str]] = {}
    data: dict[str, np.ndarray] = {}
    types: dict[str, tuple[tuple[int, ...], DType]] = {}
    loaded: dict[int, LoadedObject] = {}
    for index, call in enumerate(plan.calls):
        kernel = plan.kernels[call.kernel]
        buffers = bound(plan, call)
        constants = {a.name: buffers[a.name] for a in kernel.arguments if a.role == "constant"}
        results = [argument for argument in kernel.arguments if argument.role == "packed"]
        if results:
            key = (call.kernel, tuple(constants.values()))
            if key not in made:
                if call.kernel not in loaded:
                    loaded[call.kernel] = LoadedObject((kernel.object_code, team), target=plan.target)
                arrays = _pack(kernel, constants, plan.constants, loaded[call.kernel])
                made[key] = {argument.name: f"packed.{len(made)}.{argument.name}" for argument in results}
                for argument in results:
                    name = made[key][argument.name]
                    data[name], types[name] = arrays[argument.name], (argument.shape, argument.dtype)
            packed.update(((index, result), name) for result, name in made[key].items())
        for constant, root in constants.items():
            if not (results and constant in kernel.prologue_only) and root not in data:
                data[root], types[root] = plan.constants[root], (by_name[root].shape, by_name[root].dtype)
    for root in copied:
        if by_name[root].role == "constant" and root not in data:
            data[root], types[root] = plan.constants[root], (by_name[root].shape, by_name[root].dtype)
    weights, offset = [], 0
    for name, (shape, dtype) in types.items():
        weights.append(Weight(name, shape, dtype, offset))
        offset += -(-math.prod(shape) * ITEM_BYTES[dtype] // ALIGNMENT) * ALIGNMENT
    return packed, tuple(weights), data


def _pack(
    kernel: Kernel, constants: Mapping[str, str], values: Mapping[str, np.ndarray], loaded: LoadedObject
) -> dict[str, np.ndarray]:
    """Calls the prologue once, as thread 0 of one; inputs and outputs are null for it."""
    if kernel.prologue is None:
        raise CodegenError(
            "a kernel has packed arguments and no prologue", where=kernel.symbol, todo="Give it a prologue"
        )
    arrays: list[np.ndarray | None] = []
    results = {}
    for argument in kernel.arguments:
        match argument.role:
            case "constant":
                arrays.append(aligned_copy(values[constants[argument.name]]))
            case "packed" | "workspace":
                arrays.append(aligned_zeros(argument.nbytes))
            case "input" | "output":
                arrays.append(None)
        if argument.role == "packed":
            filled = arrays[-1]
            assert filled is not None
            results[argument.name] = filled.view(numpy_dtype(argument.dtype)).reshape(argument.shape)
    pointers = np.array([0 if array is None else array.ctypes.data for array in arrays], np.int64)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    function(loaded.address(kernel.prologue))(pointers.ctypes.data, 0, 1, None)
    return results


def aligned_zeros(nbytes: int, alignment: int = ALIGNMENT) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Zeroed bytes at a multiple of `alignment`."""
    return _aligned(np.zeros(nbytes + alignment, np.uint8), nbytes, alignment)


def aligned_empty(nbytes: int, alignment: int = ALIGNMENT) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Bytes at a multiple of `alignment`, to be filled; large ones in huge pages, which zeros get from NumPy 2.2 on."""
    return _aligned(np.empty(nbytes + alignment, np.uint8), nbytes, alignment)


def _aligned(
    raw: np.ndarray[tuple[int], np.dtype[np.uint8]], nbytes: int, alignment: int
) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    start = -raw.ctypes.data % alignment
    return raw[start : start + nbytes]


def aligned_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same elements, contiguous at a multiple of 64 bytes; the array itself where it is so already."""
    if array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0:
        return array
    copy = aligned_zeros(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class _Pointers:
    """Where each argument of each call is in memory."""

    def __init__(
        self,
        plan: ModulePlan[Kernel],
        homes: Mapping[str, int],
        weights: Mapping[str, int],
        packed: Mapping[tuple[int, str], str],
        memory: MemoryPlan,
    ) -> None:
        self._plan, self._homes, self._weights, self._packed, self._memory = plan, homes, weights, packed, memory
        self._buffers = {buffer.name: buffer for buffer in plan.buffers}
        self._inputs = {name: index for index, name in enumerate(plan.inputs)}

    def kernel_step(self, index: int) -> KernelStep:
        call = self._plan.calls[index]
        kernel = self._plan.kernels[call.kernel]
        buffers = bound(self._plan, call)
        pointers, accesses = [], []
        for argument in kernel.arguments:
            match argument.role:
                case "input" | "constant" | "output":
                    dropped = argument.role == "constant" and buffers[argument.name] not in self._weights
                    pointer = Pointer(Region.NULL, 0) if dropped else self._root(buffers[argument.name])
                case "packed":
                    pointer = Pointer(Region.CONSTANTS, self._weights[self._packed[index, argument.name]])
                case "workspace":
                    pointer = Pointer(Region.ARENA, self._memory.offsets[workspace(index, argument)])
            pointers.append(pointer)
            accesses.append(Access(pointer, argument.nbytes, argument.role in ("output", "workspace")))
        trace = LinkedCall(call.label or kernel.symbol, call.task, kernel.symbol, kernel.parallel)
        return KernelStep(trace, tuple(pointers), tuple(accesses))

    def copy_step(self, output: int, root: str) -> CopyStep:
        target = Pointer(Region.PORT, len(self._plan.inputs) + output)
        trace = LinkedCall(f"copy to {self._plan.outputs[output]}", "", "memcpy", False)
        return CopyStep(trace, target, self._root(root), self._buffers[root].nbytes)

    def _root(self, root: str) -> Pointer:
        if root in self._homes:
            return Pointer(Region.PORT, len(self._plan.inputs) + self._homes[root])
        match self._buffers[root].role:
            case "input":
                return Pointer(Region.PORT, self._inputs[root])
            case "constant" | "packed":
                return Pointer(Region.CONSTANTS, self._weights[root])
            case "intermediate" | "output":
                return Pointer(Region.ARENA, self._memory.offsets[root])
