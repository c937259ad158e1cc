"""Random programs: the emitted source computes what the interpreter does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.errors import CheckError
from pipeline.ir.interpret import interpret
from pipeline.ir.program import Program
from pipeline.ir.program_check import check
from pipeline.ir.program_text import to_text
from tests.codegen.cuda.gpu_runs import run_on_host
from tests.ir import random_programs

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(random_programs.runnable_programs(), st.integers(0, 1 << 16))
def test_random_programs_compute_what_the_interpreter_does(program: Program, seed: int) -> None:
    feeds = random_programs.feeds(seed)
    try:
        check(program)
        want = interpret(program, feeds)
    except CheckError:
        return
    got = run_on_host(program, feeds)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5, err_msg=to_text(program))
