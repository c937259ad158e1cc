"""The instructions that compute a small nest at once, by name: those of CPUs, and those of the warps of GPUs."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.ir.program_parse import from_text
from pipeline.schedule.intrinsic import Intrinsic
from pipeline.schedule.intrinsics_mma import MMA


def _dot(name: str, lanes: int, left: str, right: str, features: tuple[tuple[str, ...], ...]) -> Intrinsic:
    """In each lane four products of bytes are added to a 32-bit sum; the lanes share the left factors."""
    text = f"""program dot():
    input A: {left}[4]
    input B: {right}[{lanes}, 4]
    output C: int32[{lanes}]
    body:
        for i in serial({lanes}):
            for k in serial(4):
                block dot:
                    spatial vi in range({lanes}) = i
                    reduce vk in range(4) = k
                    C[vi] += cast(A[vk]):int32 * cast(B[vi, vk]):int32
"""
    return Intrinsic(name, features, from_text(text))


DOTS: tuple[Intrinsic, ...] = (
    _dot("avx512vnni.dot_u8i8i32", 16, "uint8", "int8", (("+avx512f", "+avx512vnni"),)),
    _dot("avxvnni.dot_u8i8i32", 8, "uint8", "int8", (("+avxvnni",), ("+avx512vl", "+avx512vnni"))),
    _dot("neon.dot_i8i8i32", 4, "int8", "int8", (("+dotprod",),)),
)

INTRINSICS: Mapping[str, Intrinsic] = {intrinsic.name: intrinsic for intrinsic in (*DOTS, *MMA)}

__all__ = ["DOTS", "INTRINSICS", "MMA", "Intrinsic"]
