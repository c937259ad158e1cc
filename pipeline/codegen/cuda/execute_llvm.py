"""The program of a GPU kernel on a CPU without its emitted source: by the CPU's code generator or the interpreter."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping

import numpy as np

from pipeline.codegen.cuda.execute import WorkspaceSource, spoiled
from pipeline.codegen.cuda.execution import Execution, Executor
from pipeline.codegen.cuda.host_program import host_program
from pipeline.codegen.cuda.kernel import Launch
from pipeline.codegen.kernel import Role
from pipeline.codegen.llvm.build import build_kernel
from pipeline.codegen.llvm.compile import LoadedObject
from pipeline.codegen.llvm.link import aligned_copy
from pipeline.codegen.llvm.team_ir import team_object
from pipeline.errors import PipelineError
from pipeline.ir.interpret import interpret
from pipeline.ir.program import Block, Program, walk
from pipeline.ir.target import Target


def execute_by_llvm(program: Program, arrays: Mapping[str, np.ndarray], host: Target) -> Execution:
    """Run a concrete program on this host, where there is no C++ compiler for its emitted source.

    The schedule is the same, the code generator is not: this finds a wrong program, but neither a wrong emission nor
    races, and nothing is counted. The result says whether the CPU's code generator was used (for `host`), or the
    interpreter, where that cannot lower the program.

    Raises PipelineError where the interpreter refuses the program too.
    """
    start = time.perf_counter()
    by: Executor = "llvm"
    try:
        outputs = _run(program, arrays, host)
    except PipelineError:
        by = "interpreter"
        given = {b.name: arrays[b.name] for b in program.buffers if b.role in ("input", "constant")}
        outputs = interpret(program, given)
    written = {name: np.ones(array.shape, np.bool_) for name, array in outputs.items()}
    return Execution(outputs, written, by=by, seconds=time.perf_counter() - start)


def workspaces_by_llvm(program: Program, arrays: Mapping[str, np.ndarray], host: Target) -> WorkspaceSource | None:
    """Where `execute` has the values of workspaces from: the same program through the code generator of CPUs, run when
    they are first asked for. None where a workspace is written by several regions: it has no one value."""
    seen: set[str] = set()
    for region in program.body.body:
        written = {stmt.buffer for stmt in walk(region) if isinstance(stmt, Block)}
        if written & seen:
            return None
        seen |= written & {buffer.name for buffer in program.buffers if buffer.role == "intermediate"}
    found: dict[str, np.ndarray] = {}

    def values(launch: Launch) -> Mapping[str, np.ndarray] | None:
        try:
            if not found:
                found.update(_run(program, arrays, host, "workspace"))
        except PipelineError:  # what cannot be lowered to a CPU has to run whole
            return None
        return found

    return values


def _run(
    program: Program, arrays: Mapping[str, np.ndarray], host: Target, role: Role = "output"
) -> dict[str, np.ndarray]:
    """The arguments of that role after a run."""
    kernel = build_kernel(host_program(program), host, level=1)
    pointer, i64 = ctypes.c_void_p, ctypes.c_int64
    loaded = LoadedObject((team_object(host), kernel.object_code), target=host)
    buffers = {}
    for argument in kernel.arguments:
        value = arrays[argument.name] if argument.role in ("input", "constant") else spoiled(argument)
        buffers[argument.name] = aligned_copy(value)
    table = (pointer * max(1, len(buffers)))(*(array.ctypes.data for array in buffers.values()))
    for symbol in (kernel.prologue, kernel.symbol):
        if symbol is not None:
            function = ctypes.CFUNCTYPE(None, pointer, i64, i64, pointer)(loaded.address(symbol))
            function(ctypes.addressof(table), 0, 1, None)
    return {argument.name: buffers[argument.name] for argument in kernel.arguments if argument.role == role}
