"""PyTorch, eager: each operator by PyTorch's own kernel, one after the other."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from pipeline.ir import graph as g
from pipeline.report.onnx_export import to_onnx
from pipeline.report.peers.peer import PeerModel, Run, missing
from pipeline.report.peers.torch_fx import to_torch

_TRIES = 5


class Torch:
    """In inference mode. Its threads (OpenMP) spin for a moment after a run; the comparison waits until they sleep."""

    name = "torch"

    def available(self) -> str | None:
        return missing("torch", "torch")

    def prepare(self, model: PeerModel, threads: int) -> Run:
        import torch

        return as_run(model, threads, torch, lambda module: module)


def as_run(model: PeerModel, threads: int, torch: Any, finish: Callable[[Any], Any]) -> Run:
    """The model as a module, finished in some way, and called with arrays.

    With attention in it there are two: with PyTorch's function for it, and with products and a softmax, which is the
    faster one for some shapes. A user would try both, so the faster one is given.
    """
    proto = onnx.load_from_string(to_onnx(model.graph))
    fused = to_torch(proto, torch)
    modules = [fused]
    if any(node.target is torch.nn.functional.scaled_dot_product_attention for node in fused.graph.nodes):
        modules.append(to_torch(proto, torch, attention=False))
    return fastest([_called(finish(module), model, threads, torch) for module in modules], model.feeds)


def fastest(
    runs: Sequence[Run], feeds: Mapping[str, np.ndarray], clock: Callable[[], float] = time.perf_counter
) -> Run:
    """The run with the shortest call of a few. Each has been called before."""
    if len(runs) == 1:
        return runs[0]
    best = [math.inf] * len(runs)
    for _ in range(_TRIES):
        for place, run in enumerate(runs):
            start = clock()
            run(feeds)
            best[place] = min(best[place], clock() - start)
    return runs[best.index(min(best))]


def _called(module: Any, model: PeerModel, threads: int, torch: Any) -> Run:
    inputs = [node.op.name for node in model.graph.nodes if isinstance(node.op, g.Input)]
    names = model.outputs()

    def run(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        torch.set_num_threads(threads)  # of the process, so it is said each time; the call costs nothing
        with torch.inference_mode():
            outputs = module(*(as_tensor(feeds[name], torch) for name in inputs))
        return {name: as_array(output, torch) for name, output in zip(names, outputs, strict=True)}

    run(model.feeds)  # compiles, where it is compiled
    return run


def as_tensor(array: np.ndarray, torch: Any) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_array(tensor: Any, torch: Any) -> np.ndarray:
    array: np.ndarray = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array
