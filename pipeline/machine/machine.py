"""The role of a machine: everything in a run that hangs on the kind of its target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pipeline.codegen.built_kernel import BuiltKernel
from pipeline.codegen.module import MemoryFigures, ModulePlan
from pipeline.config import MeasurementSettings
from pipeline.ir.graph import Graph
from pipeline.ir.program import Program
from pipeline.ir.target import Target
from pipeline.measurement.peak import Peak
from pipeline.progress import Step
from pipeline.registry import Component
from pipeline.report.summary import KernelFacts, Latency
from pipeline.report.summary import Machine as MachineFacts
from pipeline.space.partition import Partition
from pipeline.verification.module_gate import Report

VERSION = "0.1.0"

Feeds = Mapping[str, np.ndarray[Any, Any]]


class Runnable(Protocol):
    """A module that was loaded."""

    @property
    def memory(self) -> MemoryFigures: ...

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> list[np.ndarray[Any, Any]]:
        """The outputs of that name, all when None."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What the machine offers to the components that build and measure.

    function, options   (program, target, **options) -> kernel, importable by worker processes
    workers             processes that build
    runner              the component that measures, or predicts
    given               what its constructor may take beside the target
    batch               candidates of one batch, at most; None: as many as the configuration says
    """

    function: Callable[..., BuiltKernel]
    options: Mapping[str, object]
    workers: int
    runner: Component
    given: Mapping[str, object] = field(default_factory=dict)
    batch: int | None = None


class Machine(Protocol):
    """A kind of target, ready for one run.

    target       with the limits that the models are to believe in
    peak         the limits that a report names
    compiler     which versions made the code: records of another are not resumed
    fingerprint  the machine in the store
    predicted    its times are a model's and no clock's
    unchecked    what its checks cannot see; "" where there is nothing
    threads      of this host: that a run and its peers have, and how many processes search and build
    """

    target: Target
    peak: Peak
    compiler: str
    fingerprint: str
    predicted: bool
    unchecked: str
    threads: int

    def parts(self, measurement: MeasurementSettings) -> Parts: ...

    def refuse_too_large(self, graph: Graph) -> None:
        """Raises a `UserError` where a memory of its own, beside this program's, cannot hold the model."""
        ...

    def unfinished(self, program: Program) -> str | None:
        """What rules have left undone in a program, so that no kernel can be made of it; None where that is nothing."""
        ...

    def save(self, plan: ModulePlan[Any], path: Path) -> Path:
        """Links a module and writes its artifact. A `UserError` where a memory of its own cannot hold the module."""
        ...

    def open(self, path: Path) -> AbstractContextManager[Runnable]:
        """The module of an artifact, ready to run or, where that cannot be, to be checked."""
        ...

    def verified(
        self, model: Graph, parts: Partition, module: Runnable, feeds: Feeds, step: Step, *, least: bool = False
    ) -> Report:
        """The whole module against the model in float64, on these feeds and, unless the least is asked for, on others.

        parts: the tasks of its calls, in order · step: is told how many sets of feeds have been judged, of how many,
        and the name of the next.
        """
        ...

    def latency(self, module: Runnable, feeds: Feeds, alone: float, folder: Path) -> Latency:
        """Of one run. alone: seconds that its kernels take by themselves · folder: for a trace."""
        ...

    def listings(self, program: Program, kernel: BuiltKernel, said: str) -> Mapping[str, str]:
        """Files about a kernel, and the program that it was built of, for people, by their ending; `said` is in the
        first line of each text."""
        ...

    def facts_of(self, program: Program, kernel: BuiltKernel) -> KernelFacts | None:
        """What a report says of a kernel; None where there is nothing to say."""
        ...

    def facts(self) -> MachineFacts: ...

    def versions(self) -> dict[str, str]:
        """Of what made the code, beside Python's and NumPy's."""
        ...
