"""A launch plan run on the CPU: device memory as arrays of bytes, each call by a function that is given.

It shows, without a GPU, that the plan computes the model: that every call finds in memory what it needs, and that no
two tensors that live at the same time share bytes. What computes a call is the emitted source itself, or its reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pipeline.codegen.cuda.execute import execute
from pipeline.codegen.cuda.kernel import CudaKernel
from pipeline.codegen.cuda.launch_plan import Area, LaunchPlan, Place, PlannedCall
from pipeline.codegen.kernel import Argument
from pipeline.codegen.module import MemoryFigures, Port
from pipeline.errors import CheckError, UserError, listed
from pipeline.ir.graph_types import numpy_dtype

Arrays = Mapping[str, np.ndarray[Any, Any]]
# The arguments of a kernel that are not written, by name -> those of role output.
Compute = Callable[[PlannedCall, CudaKernel, Arrays], Arrays]
_SPOILED = 0xFF  # a NaN in every floating dtype


class HostModule:
    """A module whose `run` takes and gives what that of a session does.

    compute  of a call; by default the emitted source is executed, all blocks of it, and a fault is a CheckError
    """

    def __init__(self, plan: LaunchPlan, compute: Compute | None = None) -> None:
        self.plan = plan
        self._execute = compute is None
        self._compute = executed if compute is None else compute
        self._memory: dict[Area, np.ndarray[Any, np.dtype[np.uint8]]] = {
            area: np.full(size, _SPOILED, np.uint8) for area, size in plan.sizes.items()
        }
        for weight in plan.weights:
            data = np.ascontiguousarray(plan.data[weight.name]).reshape(-1).view(np.uint8)
            kept = plan.sizes["weights"]
            place = Place("weights", weight.offset) if weight.offset < kept else Place("setup", weight.offset - kept)
            self._bytes(place, data.nbytes)[...] = data
        self._setups = {_packed_places(plan, call): call for call in plan.prologues}
        self._packed = not self._execute  # the reference reads constants, and not what was packed of them

    @property
    def memory(self) -> MemoryFigures:
        return self.plan.memory

    def run(self, output_names: Sequence[str] | None, feeds: Arrays) -> list[np.ndarray[Any, Any]]:
        """The outputs of that name (all when None), in new arrays."""
        names = [port.name for port in self.plan.inputs]
        if set(names) != set(feeds):
            raise UserError(
                "the feeds are not the model's", why=f"given: {listed(feeds)}", todo=f"Give {listed(names)}"
            )
        if not self._packed:
            for call in self.plan.prologues:
                self._run_prologue(call)
            self._packed = True
        self._memory["arena"][...] = _SPOILED
        for port, place in zip(self.plan.inputs, self.plan.input_places, strict=True):
            self._view(place, port)[...] = feeds[port.name]
        for port, place in zip(self.plan.outputs, self.plan.output_places, strict=True):
            self._bytes(place, port.nbytes)[...] = _SPOILED
        for call in self.plan.calls:
            self._call(call)
        for copy in self.plan.copies:
            self._bytes(copy.target, copy.nbytes)[...] = self._bytes(copy.source, copy.nbytes)
        outputs = {
            port.name: self._view(place, port).copy()
            for port, place in zip(self.plan.outputs, self.plan.output_places, strict=True)
        }
        return [outputs[name] for name in (outputs if output_names is None else output_names)]

    def close(self) -> None:
        """Nothing to end."""

    def __enter__(self) -> HostModule:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, call: PlannedCall) -> None:
        kernel = self.plan.kernels[call.kernel]
        places = dict(call.places)
        if not self._execute:  # the reference reads constants where the kernel reads what was packed of them
            setup = self._setups.get(_packed_places(self.plan, call))
            places = {**({} if setup is None else setup.places), **places}
        read: dict[str, np.ndarray[Any, Any]] = {}
        for argument in kernel.arguments:
            if argument.role in ("output", "workspace"):
                self._bytes(places[argument.name], argument.nbytes)[...] = _SPOILED
        for argument in kernel.arguments:
            if argument.role not in ("output", "workspace"):
                place = places.get(argument.name)
                read[argument.name] = _unread(argument) if place is None else self._view(place, argument)
        made = self._compute(call, kernel, read)
        for argument in kernel.arguments:
            if argument.role == "output":
                self._view(places[argument.name], argument)[...] = made[argument.name]

    def _run_prologue(self, call: PlannedCall) -> None:
        kernel = self.plan.kernels[call.kernel]
        given = {}
        for argument in kernel.arguments:
            if argument.role in ("input", "constant"):
                place = call.places.get(argument.name)
                given[argument.name] = _unread(argument) if place is None else self._view(place, argument)
        execution = execute(replace(kernel.program, launches=()), given, count=False)
        if execution.faults:
            raise CheckError("a prologue is at fault", where=call.label, why=str(execution.faults[0]))
        for argument in kernel.arguments:
            if argument.role == "packed":
                self._view(call.places[argument.name], argument)[...] = execution.others[argument.name]

    def _bytes(self, place: Place, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return self._memory[place.area][place.offset : place.offset + size]

    def _view(self, place: Place, what: Argument | Port) -> np.ndarray[Any, Any]:
        raw = self._bytes(place, what.nbytes)
        return raw.view(numpy_dtype(what.dtype)).reshape(what.shape)


def executed(call: PlannedCall, kernel: CudaKernel, arrays: Arrays) -> Arrays:
    """The outputs by the emitted source, all blocks of it."""
    execution = execute(kernel.program, arrays, count=False)
    if execution.faults:
        raise CheckError("a kernel is at fault", where=call.label, why=str(execution.faults[0]))
    return execution.outputs


def _packed_places(plan: LaunchPlan, call: PlannedCall) -> tuple[object, ...]:
    """What tells the packed arguments of calls apart."""
    roles = {argument.name: argument.role for argument in plan.kernels[call.kernel].arguments}
    packed = sorted((name, place.offset) for name, place in call.places.items() if roles[name] == "packed")
    return (call.kernel, *packed)


def _unread(argument: Argument) -> np.ndarray[Any, Any]:
    """An array that nothing should read."""
    raw = np.full(argument.nbytes, _SPOILED, np.uint8)
    return raw.view(numpy_dtype(argument.dtype)).reshape(argument.shape)
