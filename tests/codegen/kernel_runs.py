"""Runs of compiled kernels in this process, between guards, and their comparison with the definition of a graph."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import yaml

from pipeline.codegen.kernel import Kernel
from pipeline.codegen.llvm.build import build_kernel
from pipeline.codegen.llvm.compile import LoadedObject, compile_ir
from pipeline.codegen.llvm.team import Team, team_ir
from pipeline.ir.graph import Graph
from pipeline.ir.graph_types import numpy_dtype
from pipeline.ir.program import Program
from pipeline.ir.target import Cache, Target
from pipeline.measurement.guarded import GuardedBuffer
from pipeline.measurement.host import detect_host
from pipeline.registry import Component, Registry
from pipeline.schedule.rule import Rule
from pipeline.space.lower import argument_name, output_name
from pipeline.space.partition import Partition, partition
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
    code = LoadedObject(compile_ir(team_ir(target), target))
    return Team(THREADS, code), code


def run_kernel(kernel: Kernel, feeds: Mapping[str, np.ndarray], target: Target) -> dict[str, np.ndarray]:
    """The outputs of a kernel; AssertionError where it wrote next to a buffer or into an input.

    What a kernel does not write is NaN, or a pattern; what lies next to its inputs is NaN."""
    team, code = _team(target)
    loaded = LoadedObject(
        kernel.object_code, symbols={"muschedule_barrier": code.address("muschedule_barrier")}, target=target
    )
    buffers = []
    for argument in kernel.arguments:
        given = argument.role in ("input", "constant")
        buffer = GuardedBuffer(argument.shape, argument.dtype, poison=given)
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


def parts_of(graph: Graph) -> Partition:
    return partition(graph)


class PageGuard:
    """Memory that ends where a page begins that may not be touched: reading beyond it ends the process."""

    def __init__(self, data: np.ndarray) -> None:
        size = -(-max(data.nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, size + 2 * mmap.PAGESIZE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for edge in (base, base + size + mmap.PAGESIZE):
            assert protect(ctypes.c_void_p(edge), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
        self.address = base + mmap.PAGESIZE + size - data.nbytes
        raw = (ctypes.c_uint8 * data.nbytes).from_address(self.address)
        self.array = np.frombuffer(raw, np.uint8).view(data.dtype).reshape(data.shape) if data.nbytes else data
        if data.nbytes:
            self.array[...] = data


def rows_of(columns: Sequence[str], row: np.ndarray) -> dict[str, int]:
    return {name: int(value) for name, value in zip(columns, row, strict=True)}
