"""A whole model for a GPU: compiled kernels, and the order, the arguments and the memory of their calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pipeline.codegen.cuda.kernel import CudaKernel
from pipeline.codegen.module import MemoryFigures, Port, Weight

ALIGNMENT = 256  # bytes: what the driver aligns allocations to, and more than any access needs
AREAS = ("ports", "weights", "setup", "packed", "arena")
Area = Literal["ports", "weights", "setup", "packed", "arena"]


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes in device memory, from an offset in an area.

    area   ports: inputs and outputs of the model · weights: constants that kernels read · setup: constants that only
           prologues read, given back after them · packed: what prologues made · arena: intermediates and workspaces
    """

    area: Area
    offset: int


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """All launches of one kernel, one after the other.

    kernel  position in `LaunchPlan.kernels`
    places  of the kernel's arguments, by name; constants that these launches do not read have none
    label   what a trace and a table show
    task    the tuning task that the kernel was found by
    """

    kernel: int
    places: Mapping[str, Place]
    label: str = ""
    task: str = ""


@dataclass(frozen=True, slots=True)
class PlannedCopy:
    """An output that is a second name of something: its bytes are copied after the last call."""

    source: Place
    target: Place
    nbytes: int
    label: str


@dataclass(frozen=True, slots=True, eq=False)
class LaunchPlan:
    """What a session needs.

    inputs, outputs   as the caller sees them; `input_places`, `output_places` in the area of ports, in the same order
    weights           of the weights and then of the setup area, whose data is `data`, by name; offsets from the
                      beginning of the weights area, and the setup area begins where that one ends
    prologues         calls whose kernels' prologues run once, when the model is loaded
    sizes             bytes of each area
    """

    kernels: tuple[CudaKernel, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    input_places: tuple[Place, ...]
    output_places: tuple[Place, ...]
    weights: tuple[Weight, ...]
    data: Mapping[str, np.ndarray[Any, Any]]
    prologues: tuple[PlannedCall, ...]
    calls: tuple[PlannedCall, ...]
    copies: tuple[PlannedCopy, ...]
    sizes: Mapping[Area, int]
    memory: MemoryFigures
    arch: str
    target: str
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def launches(self) -> int:
        """Of one run."""
        return sum(len(self.kernels[call.kernel].program.launches) for call in self.calls)
