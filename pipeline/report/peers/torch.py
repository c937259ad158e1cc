"""PyTorch, eager: each operator by PyTorch's own kernel, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

from pipeline.ir import graph as g
from pipeline.report.onnx_export import to_onnx
from pipeline.report.peers.peer import PeerModel, Run, missing
from pipeline.report.peers.torch_fx import to_torch


class Torch:
    """In inference mode. Its threads (OpenMP) spin for a moment after a run; the comparison waits until they sleep."""

    name = "torch"

    def available(self) -> str | None:
        return missing("torch", "torch")

    def prepare(self, model: PeerModel, threads: int) -> Run:
        import torch

        return as_run(model, threads, torch, lambda module: module)


def as_run(model: PeerModel, threads: int, torch: Any, finish: Callable[[Any], Any]) -> Run:
    """The model as a module, finished in some way, and called with arrays."""
    module = finish(to_torch(onnx.load_from_string(to_onnx(model.graph)), torch))
    inputs = [node.op.name for node in model.graph.nodes if isinstance(node.op, g.Input)]
    names = model.outputs()

    def run(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        torch.set_num_threads(threads)  # of the process, so it is said each time; the call costs nothing
        with torch.inference_mode():
            outputs = module(*(_tensor(feeds[name], torch) for name in inputs))
        return {name: _array(output, torch) for name, output in zip(names, outputs, strict=True)}

    run(model.feeds)  # compiles, where it is compiled
    return run


def _tensor(array: np.ndarray, torch: Any) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _array(tensor: Any, torch: Any) -> np.ndarray:
    array: np.ndarray = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array
