"""Tests of taking out loops of one iteration: the meaning stays, and pipelines are seen through them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeline.codegen.cuda.build import emit_kernel
from pipeline.codegen.cuda.single_iterations import without_single_iterations
from pipeline.ir.interpret import interpret
from pipeline.ir.program import Loop, Program, Seq, walk
from pipeline.ir.program_check import check
from pipeline.ir.program_parse import from_text
from tests.known_gpus import gpu

COPY = """program sums():
    input x: float32[8, 64]
    output y: float32[64]
    body:
        for b in blockIdx.x(1):
            alloc total: float32[1] in local:
                seq:
                    for t0 in threadIdx.x(64):
                        block zero:
                            spatial u in range(1) = 0
                            total[u] = 0.0:float32
                    for k in serial(8) with software_pipeline=3:
                        alloc s: float32[64] in shared:
                            seq:
                                for one in WRAPPER(1):
                                    for t1 in threadIdx.x(64):
                                        block copy:
                                            spatial r in range(8) = k + one
                                            spatial i in range(64) = t1
                                            s[i] = x[r, i]
                                for t2 in threadIdx.x(64):
                                    block add:
                                        spatial i in range(64) = t2
                                        spatial u in range(1) = 0
                                        reduce r in range(8) = k
                                        total[u] += s[i]
                    for t3 in threadIdx.x(64):
                        block store:
                            spatial i in range(64) = t3
                            spatial u in range(1) = 0
                            y[i] = total[u]
"""


def program(kind: str) -> Program:
    return from_text(COPY.replace("WRAPPER", kind))


def without(given: Program) -> Program:
    return replace(given, body=Seq(tuple(without_single_iterations(region) for region in given.body.body)))


def loops(given: Program) -> set[str]:
    return {axis.var for stmt in walk(given.body) if isinstance(stmt, Loop) for axis in stmt.axes}


def test_the_loop_is_gone_and_the_meaning_is_not() -> None:
    for kind in ("serial", "unrolled"):
        given = program(kind)
        taken_out = without(given)
        check(taken_out)
        assert loops(given) - loops(taken_out) == {"one"}
        x = np.arange(512, dtype=np.float32).reshape(8, 64)
        assert (interpret(taken_out, {"x": x})["y"] == interpret(given, {"x": x})["y"]).all()


def test_loops_of_threads_and_blocks_and_those_with_an_annotation_stay() -> None:
    given = program("serial")
    kept = from_text(COPY.replace("for one in WRAPPER(1):", "for one in serial(1) with prefetch=1:"))
    assert "b" in loops(without(given)) and "one" in loops(without(kept))


def test_copies_behind_such_a_loop_run_ahead() -> None:
    source = emit_kernel(program("serial"), gpu("a100"))
    assert "copy_async" in source.source
    assert source.launches[0].shared_bytes == 3 * 64 * 4


def test_a_program_without_such_loops_stays_the_same_object() -> None:
    region = from_text(COPY.replace("WRAPPER(1)", "serial(2)"))
    assert without_single_iterations(region.body.body[0]) is region.body.body[0]
