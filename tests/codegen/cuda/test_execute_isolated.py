"""Executions in a worker process, and kernels that would end a process."""

import re

import pytest

from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.measurement.pool import WorkerPool
from tests.codegen.cuda import hand_sources as hand
from tests.codegen.cuda.test_execute import run

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")


def test_a_worker_gives_what_this_process_gives_and_outlives_an_endless_kernel() -> None:
    with WorkerPool(1, memory_bytes=1 << 30) as pool:
        here, _ = run(hand.REDUCTION)
        there, _ = run(hand.REDUCTION, pool=pool, blocks=lambda launch: None)
        assert there.faults == () and there.counts == here.counts
        assert there.outputs["y"].tobytes() == here.outputs["y"].tobytes()
        some, _ = run(hand.REDUCTION, pool=pool, blocks=lambda launch: [(1, 0, 0)])
        assert some.written["y"].tolist() == [False, True, False]
        endless = hand.replaced(hand.REDUCTION, "float whole", "for (volatile int i = 0; i < 1;) i = 0;\nfloat whole")
        stopped, _ = run(endless, pool=pool, timeout_s=3.0)
        assert [fault.kind for fault in stopped.faults] == ["crash"] and "timeout" in str(stopped.faults[0])
        assert not stopped.written["y"].any() and not stopped.whole
        assert run(hand.REDUCTION, pool=pool)[0].faults == ()


@pytest.mark.parametrize(
    ("wrong", "signal"),
    [
        ("int own[3] = {1, 2, 3}; whole = own[ms::block_x() + 1];", "SIGILL|SIGTRAP"),
        ("volatile char large[1 << 20]; for (int i = 0; i < 1 << 20; i++) large[i] = 1;", "SIGSEGV|SIGBUS"),
    ],
)
def test_a_kernel_that_would_end_the_process_is_a_fault(wrong: str, signal: str) -> None:
    execution, _ = run(hand.replaced(hand.REDUCTION, "float whole = 0.0f;", f"float whole = 0.0f;\n{wrong}"))
    assert [fault.kind for fault in execution.faults] == ["crash"] and not execution.whole
    assert re.search(signal, str(execution.faults[0]))
    assert run(hand.REDUCTION)[0].faults == ()
