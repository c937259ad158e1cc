"""The smallest and the largest value of each dtype, and what changes nothing when it is combined."""

from __future__ import annotations

from typing import assert_never

from pipeline.ir.graph import DType
from pipeline.ir.program import Combine


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


def neutral_number(combine: Combine, dtype: DType) -> int | float | bool:
    """The value that changes nothing when it is combined, in the kind of number that the dtype holds."""
    match combine:
        case "sum" | "prod":
            one = combine == "prod"
            return one if dtype == "bool" else float(one) if dtype.startswith(("float", "bfloat")) else int(one)
        case "max":
            return smallest(dtype)
        case "min":
            return largest(dtype)
        case _:
            assert_never(combine)


def _bits(dtype: DType) -> int:
    return int("".join(c for c in dtype if c.isdigit()))
