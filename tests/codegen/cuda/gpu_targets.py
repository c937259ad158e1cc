"""GPUs that the tests generate code for: what an A100 is, as far as code generators ask, with another architecture."""

from __future__ import annotations

import dataclasses
from typing import Any

from pipeline.ir.target import Gpu, Target

LIMITS: dict[str, Any] = {
    "multiprocessors": 108, "threads_per_block": 1024, "threads": 2048, "blocks": 32, "registers": 65536,
    "registers_per_thread": 255, "shared_bytes": 164 * 1024, "shared_reserved": 1024, "l2_bytes": 40 << 20,
    "fma": {"float32": 64.0, "float64": 32.0}, "tensor_fma": {"float16": 1024.0, "bfloat16": 1024.0},
}  # fmt: skip


def gpu_target(arch: str = "sm_80", shared_per_block: int = 163 * 1024) -> Target:
    """What only the model of time asks for is 1."""
    given = {**LIMITS, "arch": arch, "shared_per_block": shared_per_block}
    gpu = Gpu(**{field.name: given.get(field.name, 1) for field in dataclasses.fields(Gpu)})
    return Target("cuda", arch, "nvptx64-nvidia-cuda", arch, (), 108, 128, 255, 64.0, 4, 1.41, 1555.0, (), 128, gpu)
