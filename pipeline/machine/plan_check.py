"""The gate of a GPU's module where there is no GPU: its plan is run on the CPU and compared with the model in float64.

A small module runs whole: every block of every launch of the emitted source. Of a large one two things are shown that
together say as much: that the plan computes the model where each kernel is replaced by the reference of its task, its
memory plan included, and that each kernel computes its task on the data that it meets there, in a sample of its blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pipeline.codegen.cuda.check_outputs import check_outputs
from pipeline.codegen.cuda.execute import ExecuteJob, perform
from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.codegen.cuda.execution import Execution
from pipeline.codegen.cuda.kernel import CudaKernel
from pipeline.codegen.cuda.launch_plan import LaunchPlan, PlannedCall
from pipeline.codegen.cuda.sample_blocks import sample_blocks
from pipeline.codegen.cuda.scratch_folder import sweep
from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import Graph, Input
from pipeline.ir.graph_types import numpy_dtype
from pipeline.measurement.pool import WorkerPool
from pipeline.progress import Step, untold
from pipeline.runtime.host_module import Arrays, HostModule
from pipeline.space.lower import argument_name, output_name
from pipeline.space.partition import Partition
from pipeline.space.task import Task, flops
from pipeline.verification.module_gate import Case, Report, verify_module
from pipeline.verification.tolerance import Reference, evaluate_with_bound
from pipeline.verification.verdict import Verdict

WHOLE_FLOPS = 2e6  # of the model: below it all of it is executed
MEMORY_BYTES = 8 << 30
TIMEOUT_S = 600.0  # for one kernel
BLOCKS = 8

Feeds = Mapping[str, np.ndarray[Any, Any]]


def verify_plan(
    model: Graph, parts: Partition, plan: LaunchPlan, feeds: Feeds, step: Step = untold, *, seed: int, workers: int,
    least: bool = False,
) -> Report:  # fmt: skip
    """Whether the plan computes the model. parts: the partition whose instances are the plan's calls, in order.

    Without a C++ compiler, or where the least is asked for, no kernel of a large module is executed here: what was
    shown of each when it was chosen has to do.
    """
    compiler = find_compiler() is not None

    def check(module: HostModule, rounds: int) -> Report:
        return verify_module(
            model, partial(module.run, None), seed=seed, rounds=rounds, hostile=(), usual=(dict(feeds),), step=step
        )

    if compiler and flops(model) <= WHOLE_FLOPS:
        return check(HostModule(plan), 0 if least else 1)
    with WorkerPool(workers, memory_bytes=MEMORY_BYTES) as pool:
        by_reference = _ByReference(plan, parts, pool if compiler and not least else None)
        flow = check(HostModule(plan, by_reference), 0)
        wrong = by_reference.wrong()
    sweep()  # of what the workers compiled
    return replace(flow, verified=flow.verified and not wrong, cases=(*flow.cases, *wrong))


class _ByReference:
    """Computes a call by the reference of its task; the first call of each kernel is executed beside that."""

    def __init__(self, plan: LaunchPlan, parts: Partition, pool: WorkerPool | None) -> None:
        self._tasks: dict[int, Task] = {
            id(call): parts.tasks[instance.task] for call, instance in zip(plan.calls, parts.instances, strict=True)
        }
        self._pool = pool
        self._pending: dict[int, tuple[str, Future[object], Mapping[str, Reference]]] = {}

    def __call__(self, call: PlannedCall, kernel: CudaKernel, arrays: Arrays) -> Arrays:
        graph = self._tasks[id(call)].graph
        given = {
            node.op.name: arrays[argument_name(node.op.name)] for node in graph.nodes if isinstance(node.op, Input)
        }
        if self._pool is None or call.kernel in self._pending or not kernel.program.launches:
            values = evaluate(graph, given)
        else:
            references = evaluate_with_bound(graph, given)
            values = {name: reference.value for name, reference in references.items()}
            self._pending[call.kernel] = (call.label, self._start(self._pool, kernel, arrays), references)
        made = {}
        for position, (name, number) in enumerate(graph.outputs):
            with np.errstate(all="ignore"):
                made[output_name(position)] = values[name].astype(numpy_dtype(graph.nodes[number].type.dtype))
        return made

    def wrong(self) -> tuple[Case, ...]:
        """The kernels that are, once all of them have ended."""
        found = []
        for label, future, references in self._pending.values():
            outcome = future.result()
            if not isinstance(outcome, Execution):  # it did not end, or the worker died
                found.append(_wrong(label, f"it could not be executed: {outcome}"))
                continue
            named = {output_name(position): reference for position, reference in enumerate(references.values())}
            verdict = check_outputs(
                outcome, {n: r.value for n, r in named.items()}, {n: r.bound for n, r in named.items()}, edges=False
            )
            if not verdict.ok:
                found.append(_wrong(label, verdict.reason))
        return tuple(found)

    @staticmethod
    def _start(pool: WorkerPool, kernel: CudaKernel, arrays: Arrays) -> Future[object]:
        """All that a kernel reads is copied on its way to the worker, and may change here afterwards."""
        blocks = tuple(sample_blocks(launch, limit=BLOCKS) for launch in kernel.program.launches)
        read = {
            argument.name: arrays[argument.name]
            for argument in kernel.arguments
            if argument.role in ("input", "constant")
        }
        return pool.submit(perform, ExecuteJob(kernel.program, read, blocks, count=False), TIMEOUT_S)


def _wrong(label: str, reason: str) -> Case:
    return Case("as the model has them", label, Verdict(False, 0.0, 0.0, 0.0, (), float("inf"), 0.0, reason))
