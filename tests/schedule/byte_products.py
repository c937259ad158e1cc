"""A product of matrices of bytes, its operands, and the steps up to the nest that an instruction executes."""

from __future__ import annotations

import numpy as np

from pipeline.ir.program import Program
from pipeline.ir.program_parse import from_text
from pipeline.schedule.steps import Blockize, DecomposeReduction, Pack, Reorder, Split, Step


def byte_product(m: int = 3, n: int = 32, k: int = 12, left: str = "uint8", right: str = "int8") -> Program:
    """C = A @ B, summed up in 32 bits."""
    return from_text(f"""program byte_product():
    input A: {left}[{m}, {k}]
    constant B: {right}[{k}, {n}]
    output C: int32[{m}, {n}]
    body:
        for mm_m in serial({m}):
            for mm_n in serial({n}):
                for mm_k in serial({k}):
                    block mm:
                        spatial m in range({m}) = mm_m
                        spatial n in range({n}) = mm_n
                        reduce k in range({k}) = mm_k
                        init 0:int32
                        C[m, n] += cast(A[m, k]):int32 * cast(B[k, n]):int32
""")


def byte_feeds(program: Program, seed: int = 0) -> dict[str, np.ndarray]:
    """Bytes of all values, the extreme ones in the first row or column."""
    rng = np.random.default_rng(seed)
    found = {}
    for buffer in program.buffers:
        if buffer.role in ("input", "constant"):
            limits = np.iinfo(buffer.dtype)
            shape = tuple(extent.value for extent in buffer.shape)
            array = rng.integers(limits.min, limits.max, shape, np.dtype(buffer.dtype), endpoint=True)
            array[0], array[:, 0] = limits.max, limits.min
            found[buffer.name] = array
    return found


def exact(feeds: dict[str, np.ndarray]) -> np.ndarray:
    """The product in 64 bits, which is far from its limits."""
    return np.asarray(feeds["A"].astype(np.int64) @ feeds["B"].astype(np.int64))


def tiled(lanes: int = 16, depth: int = 4) -> tuple[Step, ...]:
    """Groups of bytes innermost, in both operands: loop n1 is the nest of an instruction."""
    return (
        Split("mm_n", (lanes,), ("n0", "n1")),
        Split("mm_k", (depth,), ("k0", "k1")),
        Reorder(("mm_m", "n0", "k0", "n1", "k1")),
        Pack("mm", "B", ("n0", "k0", "n1", "k1"), "P"),
        DecomposeReduction("mm", "k0"),
    )


def united(lanes: int = 16) -> tuple[Step, ...]:
    """The same, with the nest as a unit."""
    return (*tiled(lanes), Blockize("n1"))
