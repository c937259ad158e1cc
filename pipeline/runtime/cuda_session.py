"""A session on an NVIDIA GPU: weights resident, one graph of launches, tensors from and to host or device."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.codegen.cuda.driver import Device, Function
from pipeline.codegen.cuda.launch_plan import Area, Place, PlannedCall
from pipeline.codegen.module import MemoryFigures
from pipeline.errors import MeasureError, UserError, listed
from pipeline.ir.graph_types import numpy_dtype
from pipeline.runtime.cuda_artifact import CudaArtifact, load_cuda_artifact
from pipeline.runtime.device_array import DeviceArray, DeviceMemory, admit, on_device
from pipeline.runtime.node_arg import NodeArg, admitted, no_names


class CudaSession:
    """A model that is ready to run on one GPU; any number of Python threads may call it, one runs at a time.

    device  the number of the GPU, or one that was opened; without a driver, or with another GPU than the model was made
            for, a UserError says what is needed
    verify  check the hash of the weights too
    """

    def __init__(self, path: Path | str, *, device: int | Device = 0, verify: bool = False) -> None:
        self._artifact = load_cuda_artifact(path, verify=verify)
        self._plan = plan = self._artifact.plan
        self._own = not isinstance(device, Device)
        self._device = device if isinstance(device, Device) else Device(device)
        self._lock = threading.Lock()
        self._closed = False
        self._functions: list[tuple[tuple[Function, ...], tuple[Function, ...]]] = []
        self._areas: dict[Area, int] = {}
        self._stream: Any = None
        self._graph: Any = None
        try:
            self._device.refuse_other(plan.arch, str(path))
            for kernel in plan.kernels:
                self._functions.append(self._device.functions(kernel))
            self._stream = self._device.stream()
            for area, size in plan.sizes.items():
                self._areas[area] = self._device.allocate(size)
            self._set_up()
            if plan.launches or plan.copies:
                self._graph = self._device.captured(self._stream, self._queue)
        except BaseException:
            self.close()
            raise

    def get_inputs(self) -> list[NodeArg]:
        """What `run` has to be fed, in order."""
        return [NodeArg(port) for port in self._plan.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """What `run` gives, in order."""
        return [NodeArg(port) for port in self._plan.outputs]

    @property
    def artifact(self) -> CudaArtifact:
        """The loaded folder: plan, memory figures, provenance."""
        return self._artifact

    @property
    def memory(self) -> MemoryFigures:
        """What it takes for intermediates."""
        return self._plan.memory

    @property
    def stream(self) -> int:
        """The stream on which it runs unless it is given another."""
        return int(self._stream)

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
        """The outputs of that name (all when None), in new arrays of the host.

        feeds  for each input an array of NumPy, or a tensor in device memory
        """
        chosen = self._chosen(output_names)
        with self._lock:
            self._start(feeds, self._stream)
            arrays = []
            for number in chosen:
                port = self._plan.outputs[number]
                array = np.empty(port.shape, numpy_dtype(port.dtype))
                self._device.download(array, self._address(self._plan.output_places[number]), self._stream)
                arrays.append(array)
            self._device.synchronize(self._stream)
        return arrays

    def run_on_device(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], *, stream: int | None = None
    ) -> list[DeviceArray]:
        """The same, with outputs that stay in device memory, until the next run.

        stream  on which it is queued, and after which inputs are read; by default the session's own, which is waited
                for. With one of the caller's this returns before the run has ended
        """
        chosen = self._chosen(output_names)
        queue = self._stream if stream is None else stream
        with self._lock:
            self._start(feeds, queue)
            if stream is None:
                self._device.synchronize(queue)
        memory = DeviceMemory(self._device.ordinal, None if stream is None else int(stream), self._read, self._wait)
        return [
            DeviceArray(memory, self._address(self._plan.output_places[number]), self._plan.outputs[number])
            for number in chosen
        ]

    def time(self, feeds: Mapping[str, Any], runs: int = 100) -> list[float]:
        """Milliseconds of each of some runs by the device's clock, inputs already there."""
        with self._lock:
            self._start(feeds, self._stream)
            events = [self._device.event() for _ in range(runs + 1)]
            self._device.record(events[0], self._stream)
            for event in events[1:]:
                self._launch(self._stream)
                self._device.record(event, self._stream)
            self._device.synchronize(self._stream)
            return self._device.spans_ms(events)

    def profile(self, feeds: Mapping[str, Any], *, repeats: int = 10) -> dict[str, Any]:
        """Where the time of a run goes: {total_ms, calls: [{label, task, ms, share}]}, medians. Launches are made one
        by one for it, so that they sum to more than a run of the graph takes."""
        calls = self._plan.calls
        with self._lock:
            self._start(feeds, self._stream)
            taken = np.zeros((max(1, repeats), len(calls)))
            for turn in range(len(taken)):
                events = [self._device.event() for _ in range(len(calls) + 1)]
                self._device.record(events[0], self._stream)
                for call, event in zip(calls, events[1:], strict=True):
                    self._queue_call(call, self._functions[call.kernel][1])
                    self._device.record(event, self._stream)
                self._device.synchronize(self._stream)
                taken[turn] = self._device.spans_ms(events)
        spans = np.median(taken, axis=0)
        total = float(spans.sum())
        return {
            "total_ms": total,
            "calls": [
                {"label": c.label, "task": c.task, "ms": float(ms), "share": float(ms) / total if total else 0.0}
                for c, ms in zip(calls, spans, strict=True)
            ],
        }

    def chrome_trace(self, path: Path | str, feeds: Mapping[str, Any]) -> None:
        """Writes one run, a bar per call, for chrome://tracing or Perfetto."""
        start, events = 0.0, []
        for call in self.profile(feeds, repeats=3)["calls"]:
            events.append({
                "name": call["label"], "cat": call["task"] or "call", "ph": "X", "ts": start, "dur": call["ms"] * 1e3,
                "pid": 1, "tid": 0,
            })  # fmt: skip
            start += call["ms"] * 1e3
        try:
            Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
        except OSError as error:
            raise UserError(
                "the trace cannot be written", where=str(path), why=str(error), todo="Name another path"
            ) from error

    def close(self) -> None:
        """Gives back memory, code, graph and stream. A closed session does not run again."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(MeasureError):  # after a kernel's fault the driver refuses everything
            self._device.use()
            for address in self._areas.values():  # this waits for what still runs, on streams of others too
                self._device.free(address)
            if self._graph is not None:
                self._device.discard_graph(self._graph)
            self._device.unload([function for both in self._functions for each in both for function in each])
            if self._stream is not None:
                self._device.discard_stream(self._stream)
        if self._own:
            self._device.close()

    def __enter__(self) -> CudaSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _set_up(self) -> None:
        """Uploads the constants and runs the prologues; what only they read is given back."""
        kept = self._plan.sizes["weights"]
        for weight in self._plan.weights:
            inside = weight.offset < kept
            place = Place("weights", weight.offset) if inside else Place("setup", weight.offset - kept)
            self._device.upload(self._address(place), np.ascontiguousarray(self._plan.data[weight.name]), self._stream)
        for call in self._plan.prologues:
            self._queue_call(call, self._functions[call.kernel][0])
        self._device.synchronize(self._stream)
        self._device.free(self._areas.pop("setup"))

    def _start(self, feeds: Mapping[str, Any], stream: Any) -> None:
        """Inputs into their places, and one run; queued."""
        if self._closed:
            raise UserError("the session is closed", where=str(self._artifact.path), todo="Load the artifact again")
        names = [port.name for port in self._plan.inputs]
        if not isinstance(feeds, Mapping) or set(feeds) != set(names):
            said = listed(feeds) if isinstance(feeds, Mapping) else f"a {type(feeds).__name__}"
            raise UserError("the feeds are not the model's inputs", why=f"given: {said}", todo=f"Give {listed(names)}")
        self._device.use()
        release: list[Callable[[], None]] = []
        try:
            for port, place in zip(self._plan.inputs, self._plan.input_places, strict=True):
                value = feeds[port.name]
                if on_device(value):
                    given = admit(value, port, self._device.ordinal, int(stream))
                    release.append(given.release)
                    if given.stream is not None:
                        self._device.wait_for(given.stream, stream)
                    self._device.copy(self._address(place), given.address, port.nbytes, stream)
                else:
                    array = admitted(port.name, value, port.shape, numpy_dtype(port.dtype))
                    self._device.upload(self._address(place), array, stream)
            self._launch(stream)
            if release:  # what was lent must not go before it was read
                self._device.synchronize(stream)
        finally:
            for done in release:
                done()

    def _launch(self, stream: Any) -> None:
        if self._graph is not None:
            self._device.launch_graph(self._graph, stream)

    def _queue(self) -> None:
        """All launches and copies of one run."""
        for call in self._plan.calls:
            self._queue_call(call, self._functions[call.kernel][1])
        for copy in self._plan.copies:
            self._device.copy(self._address(copy.target), self._address(copy.source), copy.nbytes, self._stream)

    def _queue_call(self, call: PlannedCall, functions: Sequence[Function]) -> None:
        for function in functions:
            addresses = [self._address(call.places[name]) for name in function.launch.arguments]
            self._device.launch(function, addresses, self._stream)

    def _address(self, place: Place) -> int:
        return self._areas[place.area] + place.offset

    def _read(self, array: np.ndarray[Any, Any], address: int) -> None:
        with self._lock:
            self._device.use()
            self._device.download(array, address, self._stream)
            self._device.synchronize(self._stream)

    def _wait(self, stream: int) -> None:
        self._device.use()
        self._device.synchronize(stream)

    def _chosen(self, names: Sequence[str] | None) -> list[int]:
        positions = {port.name: number for number, port in enumerate(self._plan.outputs)}
        if names is not None and not isinstance(names, Iterable):
            raise no_names(names)
        wanted = list(positions) if names is None else [names] if isinstance(names, str) else list(names)
        unknown = [name for name in wanted if name not in positions]
        if unknown:
            raise UserError(
                "the model has no such output", where=listed(unknown), todo=f"Its outputs are {listed(positions)}"
            )
        return [positions[name] for name in wanted]
