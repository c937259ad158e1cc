"""Programs bound to the threads of a GPU without any thought, run from their emitted source on this host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from pipeline.codegen.cuda.build import emit_kernel
from pipeline.codegen.cuda.compile import compile_source
from pipeline.codegen.cuda.execute import execute
from pipeline.ir.expr import loads, substitute, variables
from pipeline.ir.program import Axis, Block, Loop, LoopKind, Program, Seq, Stmt, walk
from pipeline.ir.target import Target
from tests.codegen.cuda.gpu_targets import gpu_target

Binding = Literal["alone", "threads", "vectors"]
MOST_THREADS = 48  # an odd number for a block, so that some threads have nothing to do


def bound(program: Program, how: Binding) -> Program:
    """The loops whose iterations write elements of their own as blocks of the grid and threads; alone: as it is."""
    if how == "alone":
        return program
    body = Seq(tuple(_region(region, how) for region in program.body.body))
    prologue = Seq(tuple(_region(region, how) for region in program.prologue.body))
    return replace(program, body=body, prologue=prologue)


def _region(region: Stmt, how: Binding) -> Stmt:
    loops: list[Loop] = []
    inner = region
    while isinstance(inner, Loop) and inner.kind == "serial" and _independent(inner):
        loops.append(inner)
        inner = inner.body
    axes = tuple(axis for loop in loops for axis in loop.axes)
    vector: tuple[Axis, ...] = ()
    if how == "vectors" and axes and isinstance(inner, Block):
        axes, vector = axes[:-1], axes[-1:]
    thread: tuple[Axis, ...] = ()
    threads = 1
    while axes and threads * axes[-1].extent.value <= MOST_THREADS:
        threads *= axes[-1].extent.value
        axes, thread = axes[:-1], (axes[-1], *thread)
    kinds: tuple[LoopKind, ...] = ("vectorized", "threadIdx.x", "blockIdx.x")
    for part, kind in zip((vector, thread, axes), kinds, strict=True):
        inner = Loop(part, inner, kind) if part else inner
    return inner


def _independent(loop: Loop) -> bool:
    """Does each iteration write its own elements, and read none that the others write?"""
    blocks = [stmt for stmt in walk(loop) if isinstance(stmt, Block)]
    written = {block.buffer for block in blocks}
    for axis in loop.axes:
        for block in blocks:
            bindings = {it.var: it.binding for it in block.iters}
            spatial = {it.var for it in block.iters if it.kind == "spatial"}
            own = [set(variables(index)) <= spatial and axis.var in variables(substitute(index, bindings))
                   and not loads(index) and bindings.get(*variables(index)) == substitute(index, bindings)
                   for index in block.indices if len(variables(index)) == 1]  # fmt: skip
            if not any(own) or any(load.buffer in written for load in loads(block.value)):
                return False
    return True


def run_on_host(
    program: Program,
    feeds: Mapping[str, np.ndarray],
    target: Target | None = None,
    *,
    compiled: bool = False,
    without: str = "",
) -> dict[str, np.ndarray]:
    """The outputs of the emitted source; AssertionError where a thread did what it may not.

    without   a text that is taken out of the source before
    """
    source = emit_kernel(program, target or gpu_target())
    if without:
        source = replace(source, source=source.source.replace(without, ""))
    if compiled and source.launches:
        compile_source(source.source, source.arch)
    done = execute(source, feeds)
    assert not done.faults, f"{done.faults[0]}\n{source.source}"
    return dict(done.outputs)
