"""PyTorch on an NVIDIA GPU: cuBLAS, cuDNN and its fused attention, eager or compiled, timed by the device's clock."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx

from pipeline.ir import graph as g
from pipeline.report.onnx_export import to_onnx
from pipeline.report.peers.peer import PeerModel, Run, missing
from pipeline.report.peers.torch import as_array, as_tensor
from pipeline.report.peers.torch_fx import to_torch

_TRIES = 20
_WARM_UP = 3

Mode = Literal["eager", "compile"]


class TorchCuda:
    """Inputs and weights are in device memory, and launches are replayed as one CUDA graph where PyTorch can capture
    them: what is compared is the work of the device.

    mode  eager: each operator by the library's own kernel · compile: by Inductor, with max-autotune
    """

    def __init__(self, mode: Mode = "eager") -> None:
        self.mode = mode
        self.name = "torch_cuda" if mode == "eager" else "torch_cuda_compile"

    def available(self) -> str | None:
        absent = missing("torch", "torch")
        if absent is not None:
            return absent
        import torch

        return None if torch.cuda.is_available() else "this PyTorch finds no GPU (torch.cuda.is_available())"

    def prepare(self, model: PeerModel, threads: int) -> Run:
        import torch

        torch.set_num_threads(threads)
        proto = onnx.load_from_string(to_onnx(model.graph))
        modules = [to_torch(proto, torch)]
        attends = torch.nn.functional.scaled_dot_product_attention
        if any(node.target is attends for node in modules[0].graph.nodes):
            modules.append(to_torch(proto, torch, attention=False))
        runs = [self._run(module, model, torch) for module in modules]
        return min(runs, key=lambda run: statistics.median(run.time(model.feeds, _TRIES)))

    def _run(self, module: Any, model: PeerModel, torch: Any) -> DeviceRun:
        module = module.to("cuda")
        if self.mode == "compile":
            torch._dynamo.reset()
            module = torch.compile(module, dynamic=False, mode="max-autotune-no-cudagraphs")
        names = [node.op.name for node in model.graph.nodes if isinstance(node.op, g.Input)]
        inputs = {name: as_tensor(model.feeds[name], torch).to("cuda") for name in names}
        run = DeviceRun(torch, module, inputs, model.outputs())
        run.warm_up()
        return run


@dataclass(slots=True)
class DeviceRun:
    """A module with its inputs on the device.

    outputs  names of what it gives, in order
    replay   runs the captured launches; None: they could not be captured, and each run launches them again
    results  tensors that a replay fills
    """

    torch: Any
    module: Callable[..., Sequence[Any]]
    inputs: dict[str, Any]
    outputs: tuple[str, ...]
    replay: Callable[[], None] | None = None
    results: Sequence[Any] = ()

    def warm_up(self) -> None:
        """Compiles and chooses algorithms, then captures."""
        torch = self.torch
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode(), torch.cuda.stream(aside):
            for _ in range(_WARM_UP):
                self.results = self.module(*self.inputs.values())
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.inference_mode(), torch.cuda.graph(graph):
                self.results = self.module(*self.inputs.values())
        except RuntimeError:  # an operator that waits for the host cannot be captured
            torch.cuda.synchronize()
            return
        self.replay = graph.replay

    def __call__(self, feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """The outputs, on the host."""
        self._load(feeds)
        self._launch()
        self.torch.cuda.synchronize()
        return {name: as_array(one.cpu(), self.torch) for name, one in zip(self.outputs, self.results, strict=True)}

    def time(self, feeds: Mapping[str, np.ndarray], runs: int) -> list[float]:
        """Milliseconds of each of some runs by the device's clock, inputs already there."""
        self._load(feeds)
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(runs + 1)]
        events[0].record()
        for event in events[1:]:
            self._launch()
            event.record()
        self.torch.cuda.synchronize()
        return [before.elapsed_time(after) for before, after in itertools.pairwise(events)]

    def _load(self, feeds: Mapping[str, np.ndarray]) -> None:
        for name, tensor in self.inputs.items():
            tensor.copy_(as_tensor(feeds[name], self.torch))

    def _launch(self) -> None:
        if self.replay is not None:
            self.replay()
            return
        with self.torch.inference_mode():
            self.results = self.module(*self.inputs.values())
