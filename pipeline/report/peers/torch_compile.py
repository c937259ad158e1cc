"""PyTorch, compiled by Inductor."""

from __future__ import annotations

import shutil
from typing import Any

from pipeline.report.peers.peer import PeerModel, Run, missing
from pipeline.report.peers.torch import as_run

_COMPILERS = ("c++", "g++", "clang++", "cl")


class TorchCompile:
    """`torch.compile` with frozen weights, which lets it fold constants and pack the weights for its kernels."""

    name = "torch_compile"

    def available(self) -> str | None:
        absent = missing("torch", "torch")
        if absent is None and not any(shutil.which(compiler) for compiler in _COMPILERS):
            return f"torch.compile needs a C++ compiler: none of {', '.join(_COMPILERS)} is on the path"
        return absent

    def prepare(self, model: PeerModel, threads: int) -> Run:
        import torch
        import torch._inductor.config as settings

        def finish(module: Any) -> Any:
            return torch.compile(module, dynamic=False)

        torch._dynamo.reset()
        torch.set_num_threads(threads)
        with settings.patch(freezing=True):
            return as_run(model, threads, torch, finish)
