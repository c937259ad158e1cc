"""MuSchedule: a model or an operator in, a faster program that is proven to compute the same out."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["CudaSession", "Session", "load"]  # given by __getattr__, so that `import pipeline` loads nothing


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("pipeline.runtime"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
