"""Runs of compiled kernels in this process, between guards, and their comparison with the definition of a graph."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import yaml

from pipeline.codegen.kernel import Kernel
from pipeline.codegen.llvm.build import build_kernel
from pipeline.codegen.llvm.compile import LoadedObject
from pipeline.codegen.llvm.team import Team, called_by_kernels
from pipeline.codegen.llvm.team_ir import team_object
from pipeline.ir.graph import DType, Graph, Shape
from pipeline.ir.graph_types import numpy_dtype
from pipeline.ir.program import Program
from pipeline.ir.target import Cache, Target
from pipeline.measurement.guarded import GuardedBuffer
from pipeline.measurement.host import detect_host
from pipeline.registry import Component, Registry
from pipeline.schedule.rule import Rule
from pipeline.space.lower import argument_name, output_name
from pipeline.verification.tolerance import evaluate_with_bound
from pipeline.verification.verdict import compare

CONF = Path(__file__).parents[2] / "conf"
THREADS = 2


@cache
def native() -> Target:
    """This machine, with two threads whatever it has."""
    return replace(detect_host(), cores=THREADS)


@cache
def described(name: str) -> Target:
    """A target of `conf/target`, with two threads."""
    values = yaml.safe_load((CONF / "target" / f"{name}.yaml").read_text(encoding="utf-8"))
    values.pop("detect")
    caches = tuple(Cache(**level) for level in values.pop("caches"))
    return replace(Target(**values | {"features": tuple(values["features"]), "caches": caches}), cores=THREADS)


@cache
def cpu_rules() -> tuple[Rule, ...]:
    """The rules of `conf/rules/cpu.yaml`."""
    listed = yaml.safe_load((CONF / "rules" / "cpu.yaml").read_text(encoding="utf-8"))["schedule"]
    registry = Registry()
    return tuple(registry.build(object, Component(**entry), "rules.schedule") for entry in listed)


@cache
def _team(target: Target) -> tuple[Team, LoadedObject]:
    code = LoadedObject(team_object(target))
    return Team(THREADS, code), code


def run_kernel(
    kernel: Kernel, feeds: Mapping[str, np.ndarray], target: Target, *, page_ends: bool = False
) -> dict[str, np.ndarray]:
    """The outputs of a kernel; AssertionError where it wrote next to a buffer or into an input.

    What a kernel does not write is NaN, or a pattern; what lies next to its inputs is NaN.
    page_ends  inputs and outputs end where memory does: to read beyond them ends the process
    """
    team, code = _team(target)
    loaded = LoadedObject(kernel.object_code, symbols=called_by_kernels(code), target=target)
    buffers = []
    for argument in kernel.arguments:
        given = argument.role in ("input", "constant")
        outside = argument.role in ("input", "constant", "output")
        buffer = (PageEnd if page_ends and outside else GuardedBuffer)(argument.shape, argument.dtype, poison=given)
        if given:
            assert feeds[argument.name].dtype == numpy_dtype(argument.dtype), argument
            buffer.array[...] = feeds[argument.name]
        else:
            buffer.spoil()
        buffers.append(buffer)
    table = (ctypes.c_void_p * max(1, len(buffers)))(*(buffer.address for buffer in buffers))
    if kernel.prologue is not None:
        job = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
        job(loaded.address(kernel.prologue))(ctypes.addressof(table), 0, 1, None)
    team.run(loaded.address(kernel.symbol), ctypes.addressof(table))
    outputs = {}
    for argument, buffer in zip(kernel.arguments, buffers, strict=True):
        assert not buffer.damage(), f"{argument.name}: {buffer.damage()}"
        if argument.role in ("input", "constant"):
            assert buffer.array.tobytes() == feeds[argument.name].tobytes(), f"{argument.name} was written"
        if argument.role == "output":
            outputs[argument.name] = buffer.array.copy()
    return outputs


def run_program(program: Program, feeds: Mapping[str, np.ndarray], target: Target) -> dict[str, np.ndarray]:
    """The outputs of a program, compiled for the target."""
    return run_kernel(build_kernel(program, target), feeds, target)


def argument_feeds(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Feeds of a graph under the names of the arguments of its kernel."""
    return {argument_name(name): data for name, data in feeds.items()}


def assert_right(graph: Graph, feeds: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray], what: str) -> None:
    """Every output within the bound that rounding explains."""
    for position, (name, want) in enumerate(evaluate_with_bound(graph, feeds).items()):
        verdict = compare(got[output_name(position)], want)
        assert verdict.ok, f"{what}: {name}: {verdict.reason}"


class PageEnd(GuardedBuffer):
    """A buffer that ends where a page begins that may not be touched, and so is aligned to its elements only."""

    def __init__(self, shape: Shape, dtype: DType, *, poison: bool = False) -> None:
        super().__init__((0,), dtype, poison=poison)
        kind = numpy_dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        whole = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._pages = mmap.mmap(-1, whole + mmap.PAGESIZE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(base + whole), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
        self.address = base + whole - size
        self._bytes = np.frombuffer((ctypes.c_uint8 * size).from_address(self.address), np.uint8)
        self.array = self._bytes.view(kind).reshape(shape) if size else np.empty(shape, kind)


@cache
def sse2() -> Target:
    """What every 64-bit x86 has: 16 registers of 128 bits and no fused multiply-add."""
    return replace(described("avx2"), name="x86-64", cpu="x86-64", features=(), vector_bits=128)


@cache
def avx512() -> Target:
    """Skylake's server cores: 32 registers of 512 bits."""
    features = ("+avx512f", "+avx512bw", "+avx512dq", "+avx512vl", "+fma", "+avx2", "+f16c", "-prefer-256-bit")
    return replace(described("avx2"), name="skylake-avx512", cpu="skylake-avx512", features=features,
                   vector_bits=512, vector_registers=32)  # fmt: skip
