"""A GPU as the roofline of µGraphs sees it: many cores, each with scratch of its own and a share of one last cache."""

from __future__ import annotations

from dataclasses import replace

from pipeline.ir.target import Cache, Target

FLOAT_BITS = 32


def many_cores(target: Target) -> Target:
    """The target itself where it is a CPU; of a GPU, its multiprocessors as cores with wide vectors.

    The lanes of a vector are the ordinary units: tensor cores make products faster, not the choice between topologies,
    which bytes and rounds decide. Level 2 is the shared memory that one block may take, level 3 the L2.
    """
    gpu = target.gpu
    if gpu is None:
        return target
    caches = (
        Cache(1, gpu.shared_per_block, 1, 1),
        Cache(2, gpu.shared_per_block, 1, 1),
        Cache(3, gpu.l2_bytes, 16, gpu.multiprocessors),
    )
    lanes = int(gpu.fma.get("float32", 64))
    return replace(target, cores=gpu.multiprocessors, vector_bits=lanes * FLOAT_BITS, fma_per_cycle=1.0, fma_latency=4,
                   caches=caches, gpu=None)  # fmt: skip


def scratch_bytes(target: Target) -> int:
    """What the tiles of one block graph may take at a time."""
    if target.gpu is not None:
        return target.gpu.shared_per_block
    return (target.cache(2) or 1 << 18) * 3 // 4
