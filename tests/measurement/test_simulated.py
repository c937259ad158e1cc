"""Simulated times: the same in every process, and failures where the formula says so."""

import os
import subprocess
import sys

from pipeline.measurement.failure import Failure
from pipeline.measurement.protocol import Built, MeasureRequest, Reference
from pipeline.measurement.simulated import Simulated, from_key

REFERENCE = Reference("task", {}, ())


def test_a_candidate_has_the_time_of_its_key():
    simulated = Simulated()
    built = simulated.build([MeasureRequest(None, "a"), MeasureRequest(None, "b")])
    first, second = simulated.run(built, REFERENCE)
    assert (first.key, first.samples_ns) == ("a", (from_key("a"),))
    assert second.samples_ns != first.samples_ns
    assert simulated.remeasure(built, REFERENCE, 3)[0].samples_ns == (from_key("a"),) * 3
    assert all(1e4 <= from_key(str(i)) <= 1e7 for i in range(100))


def test_the_time_is_the_same_in_another_process():
    program = "from pipeline.measurement.simulated import from_key; print(from_key('a'))"
    for seed in ("0", "1"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        there = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
        )
        assert float(there.stdout) == from_key("a")


def test_a_failure_of_the_formula_or_of_the_build_is_handed_on():
    crash, build = Failure("crash", "SIGSEGV"), Failure("build", "no such tile")
    simulated = Simulated(lambda key: crash if key == "a" else 5.0)
    results = simulated.run([*simulated.build([MeasureRequest(None, "a")]), Built("b", build)], REFERENCE)
    assert [result.failure for result in results] == [crash, build]
    assert all(result.samples_ns == () for result in results)
