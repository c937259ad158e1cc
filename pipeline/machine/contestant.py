"""A module as the runtimes that it is compared with are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.machine.machine import Runnable
from pipeline.report.peers.peer import Run
from pipeline.runtime.cuda_session import CudaSession


def contestant(module: Runnable, outputs: Sequence[str]) -> Run:
    """Outputs by name; of a module on a GPU also the times by the device's clock."""
    if isinstance(module, CudaSession):
        return OnDevice(module, tuple(outputs))
    return lambda feeds: dict(zip(outputs, module.run(None, feeds), strict=True))


@dataclass(frozen=True, slots=True)
class OnDevice:
    """See `pipeline.report.compare.Clocked`."""

    session: CudaSession
    outputs: tuple[str, ...]

    def __call__(self, feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return dict(zip(self.outputs, self.session.run(None, feeds), strict=True))

    def time(self, feeds: Mapping[str, np.ndarray], runs: int) -> list[float]:
        """Milliseconds of each of some runs."""
        return self.session.time(feeds, runs)
