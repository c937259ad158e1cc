"""What a runner asks of the process that checks and times kernels, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from pipeline.codegen.built_kernel import AnyKernel
from pipeline.measurement.failure import Failure
from pipeline.measurement.protocol import CacheState
from pipeline.measurement.reference_files import ReferenceFiles
from pipeline.measurement.sampling import Samples, SamplingPolicy


@dataclass(frozen=True, slots=True)
class BenchJob(Generic[AnyKernel]):
    """Kernels of one task to check and time. `rounds`: time them in turns so many times; None: each on its own."""

    kernels: tuple[AnyKernel, ...]
    reference: ReferenceFiles
    policy: SamplingPolicy
    best_ns: float | None = None
    rounds: int | None = None


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One kernel's samples, or why there are none."""

    samples: Samples
    failure: Failure | None
    max_absolute: float
    max_relative: float
    tolerance: float
    seconds: float
    cache: CacheState
