"""PyTorch, compiled by Inductor."""

from __future__ import annotations

import contextlib
import io
import shutil
from typing import Any

from pipeline.report.peers.peer import PeerModel, Run, missing
from pipeline.report.peers.torch import as_run

_COMPILERS = ("c++", "g++", "clang++", "cl")


class TorchCompile:
    """`torch.compile` at its best on a CPU: frozen weights, which it may fold and pack, and `max_autotune`, with which
    it measures its own generated products beside those of the library."""

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
        # Its reports of what it measured would stand between our own lines.
        with settings.patch(freezing=True, max_autotune=True), contextlib.redirect_stderr(io.StringIO()):
            return as_run(model, threads, torch, finish)
