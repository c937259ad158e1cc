"""What a peer is: another runtime that runs the same model, with the same threads and precision, to compare with."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from pipeline.ir.graph import Graph
from pipeline.report.onnx_export import to_onnx

# Outputs by name. The arrays may be the runtime's own memory, which the next run overwrites.
Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


@dataclass(frozen=True, slots=True, eq=False)
class PeerModel:
    """The model as the peers get it.

    graph   as we compile it
    feeds   one set of inputs, whose shapes are those of all runs
    file    the user's own ONNX file, which peers that read ONNX use as it is; None for a workload that is built here
    """

    graph: Graph
    feeds: Mapping[str, np.ndarray]
    file: Path | None = None

    def onnx(self) -> bytes | Path:
        """The user's file, or the graph in ONNX."""
        return to_onnx(self.graph) if self.file is None else self.file

    def outputs(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.graph.outputs)


class Peer(Protocol):
    """A runtime. Its optional package is imported by `prepare` only."""

    @property
    def name(self) -> str: ...

    def available(self) -> str | None:
        """None where it can run here, else why not."""
        ...

    def prepare(self, model: PeerModel, threads: int) -> Run:
        """Load and optimise the model for so many threads, float32 in float32. May take long; is not timed."""
        ...


def missing(package: str, install: str) -> str | None:
    """Why the package cannot be used, or None."""
    if importlib.util.find_spec(package) is not None:
        return None
    return f"{package} is not installed (pip install {install})"
