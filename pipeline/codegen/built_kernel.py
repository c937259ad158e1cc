"""What a builder makes of a program: a kernel for CPUs or one for GPUs."""

from __future__ import annotations

from typing import TypeVar

from pipeline.codegen.cuda.kernel import CudaKernel
from pipeline.codegen.kernel import Kernel

BuiltKernel = Kernel | CudaKernel
AnyKernel = TypeVar("AnyKernel", bound=BuiltKernel, covariant=True)
