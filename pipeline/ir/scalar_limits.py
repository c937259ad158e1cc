"""The smallest and the largest value of each dtype: the neutral elements of max and min."""

from __future__ import annotations

from pipeline.ir.graph import DType


def smallest(dtype: DType) -> int | float | bool:
    """-inf for floats."""
    if dtype.startswith(("float", "bfloat")):
        return float("-inf")
    if dtype == "bool":
        return False
    return 0 if dtype.startswith("uint") else -(1 << (_bits(dtype) - 1))


def largest(dtype: DType) -> int | float | bool:
    """+inf for floats."""
    if dtype.startswith(("float", "bfloat")):
        return float("inf")
    if dtype == "bool":
        return True
    return (1 << _bits(dtype)) - 1 if dtype.startswith("uint") else (1 << (_bits(dtype) - 1)) - 1


def _bits(dtype: DType) -> int:
    return int("".join(c for c in dtype if c.isdigit()))
