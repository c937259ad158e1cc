"""Tests of what programs for GPUs add: buffers that each thread has its own of, padding, swizzles, pipelines."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.errors import CheckError
from pipeline.ir.interpret import Mode, interpret
from pipeline.ir.program import Loop, instantiate, walk
from pipeline.ir.program_check import check
from pipeline.ir.program_parse import from_text
from pipeline.ir.program_text import to_text

TEXT = """
program sums(p, s):
    input a: float32[4, 24]
    output b: float32[4, 8]
    body:
        for row in blockIdx.x(4):
            alloc total: float32[1] in {scope}:
                seq:
                    for t0 in threadIdx.x(8):
                        block zero:
                            total[0] = 0.0:float32
                    for k in serial(3) with software_pipeline="s":
                        alloc piece: float32[8] in shared padded(p) swizzled:
                            seq:
                                for t1 in threadIdx.x(8):
                                    block fetch:
                                        spatial r in range(4) = row
                                        spatial c in range(24) = k*8 + t1
                                        spatial l in range(8) = t1
                                        piece[l] = a[r, c]
                                for t2 in threadIdx.x(8):
                                    block add:
                                        spatial l in range(8) = t2
                                        spatial z in range(1) = 0
                                        reduce kk in range(3) = k
                                        total[z] += piece[l]
                    for t3 in threadIdx.x(8):
                        block store:
                            spatial r in range(4) = row
                            spatial c in range(8) = t3
                            b[r, c] = total[0]
"""


@pytest.mark.parametrize("mode", ["lanes", "points"])
@pytest.mark.parametrize("scope", ["local", "fragment"])
def test_each_thread_has_registers_of_its_own_in_every_nest(mode: Mode, scope: str) -> None:
    program = from_text(TEXT.replace("{scope}", scope))
    check(program)
    a = np.random.default_rng(0).standard_normal((4, 24)).astype(np.float32)
    found = interpret(instantiate(program, {"p": 4, "s": 3}), {"a": a}, mode=mode)["b"]
    np.testing.assert_allclose(found, a.reshape(4, 3, 8).sum(1), rtol=1e-6)


@pytest.mark.parametrize("mode", ["lanes", "points"])
def test_threads_that_share_a_total_are_refused(mode: Mode) -> None:
    program = instantiate(from_text(TEXT.replace("{scope}", "shared")), {"p": 0, "s": 1})
    with pytest.raises(CheckError, match="loop t2, behind l in block add, is not in the indices of its store"):
        check(program)
    with pytest.raises(CheckError):
        interpret(program, {"a": np.ones((4, 24), np.float32)}, mode=mode)


def test_padding_swizzle_and_pipeline_survive_the_text() -> None:
    program = from_text(TEXT.replace("{scope}", "local"))
    assert from_text(to_text(program)) == program
    concrete = instantiate(program, {"p": 4, "s": 3})
    assert "padded(4) swizzled" in to_text(concrete)
    loops = [stmt for stmt in walk(concrete.body) if isinstance(stmt, Loop) and stmt.annotations]
    assert [loop.annotation("software_pipeline") for loop in loops] == [3]
    assert from_text(to_text(concrete)) == concrete


def test_a_pipeline_of_an_unknown_parameter_is_refused() -> None:
    program = from_text(TEXT.replace("{scope}", "local").replace('pipeline="s"', 'pipeline="q"'))
    with pytest.raises(CheckError, match="names q, which is no parameter"):
        check(program)


def test_a_padding_by_an_unknown_parameter_is_refused() -> None:
    program = from_text(TEXT.replace("{scope}", "local").replace("padded(p)", "padded(q)"))
    with pytest.raises(CheckError, match="padding of piece uses symbol q"):
        check(program)
