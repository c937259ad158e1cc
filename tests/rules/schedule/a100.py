"""The targets of the tests of rules for GPUs: an A100, and a T4, which is older."""

from __future__ import annotations

from dataclasses import replace

from pipeline.ir.target import Gpu, Target

GPU = Gpu(
    arch="sm_80",
    multiprocessors=108,
    threads_per_block=1024,
    threads=2048,
    blocks=32,
    registers=65536,
    registers_per_thread=255,
    shared_bytes=167936,
    shared_per_block=166912,
    shared_reserved=1024,
    l2_bytes=40 << 20,
    l2_bytes_per_clock=64.0,
    memory_bytes=40 << 30,
    fma={"float64": 32.0, "float32": 64.0, "float16": 256.0, "int32": 64.0},
    tensor_fma={"float16": 1024.0, "bfloat16": 1024.0, "tfloat32": 512.0, "int8": 2048.0},
    mma_share=1.0,
    special_per_clock=16.0,
    memory_latency=500,
    l2_latency=250,
    shared_latency=25,
    launch_us=2.0,
)

A100 = Target(
    kind="cuda",
    name="A100",
    triple="nvptx64-nvidia-cuda",
    cpu="sm_80",
    features=("+sm_75", "+sm_80"),
    cores=108,
    vector_bits=128,
    vector_registers=255,
    fma_per_cycle=1.0,
    fma_latency=4,
    clock_ghz=1.41,
    bandwidth_gbs=1555.0,
    caches=(),
    gpu=GPU,
)

T4 = replace(
    A100,
    name="T4",
    cpu="sm_75",
    features=("+sm_75",),
    gpu=replace(
        GPU,
        arch="sm_75",
        multiprocessors=40,
        threads=1024,
        blocks=16,
        shared_bytes=65536,
        shared_per_block=65536,
        tensor_fma={"float16": 512.0},
    ),
)
