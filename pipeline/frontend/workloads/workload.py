"""What a workload is: a graph to be made faster, built from a seed."""

from __future__ import annotations

from typing import Protocol

from pipeline.ir.graph import Graph


class Workload(Protocol):
    """A built-in operator or model, or the import of a file."""

    def build(self, seed: int) -> Graph:
        """The graph; `seed` decides the random weights, where there are some."""

    def describe(self) -> str:
        """One line for logs and reports: what it is, with its sizes."""
