"""The judgement of an execution: what is wrong is told, and a check of nothing is none."""

from dataclasses import replace

import numpy as np
import pytest

from pipeline.codegen.cuda.check_outputs import check_outputs
from pipeline.codegen.cuda.execution import Execution, Fault
from pipeline.errors import CodegenError

WANT = {"C": np.arange(12.0).reshape(3, 4)}
BOUND = {"C": np.array(1e-3)}


def execution(got: np.ndarray, mask: np.ndarray | None = None, *faults: Fault) -> Execution:
    written = np.ones(got.shape, np.bool_) if mask is None else mask
    return Execution({"C": got}, {"C": written}, faults, whole=mask is None)


def right() -> np.ndarray:
    return WANT["C"].astype(np.float32)


def edges() -> np.ndarray:
    mask = np.zeros((3, 4), np.bool_)
    mask[0, 0] = mask[2, 3] = True
    return mask


def test_what_is_right_passes() -> None:
    verdict = check_outputs(execution(right()), WANT, BOUND)
    assert verdict.ok and verdict.checked == verdict.elements == 12 and verdict.reason == ""


def test_a_wrong_element_fails_with_its_place() -> None:
    got = right()
    got[1, 2] += 1
    verdict = check_outputs(execution(got), WANT, BOUND)
    assert not verdict.ok and "[1, 2]" in verdict.reason and verdict.max_absolute == 1.0


def test_only_what_a_sample_wrote_is_compared() -> None:
    got = np.full((3, 4), np.nan, np.float32)
    got[edges()] = right()[edges()]
    verdict = check_outputs(execution(got, edges()), WANT, BOUND)
    assert verdict.ok and verdict.checked == 2
    got[2, 3] = 7.0
    verdict = check_outputs(execution(got, edges()), WANT, BOUND)
    assert not verdict.ok and "[2, 3]" in verdict.reason


def test_a_sample_without_a_tail_fails_where_tails_are_asked_for() -> None:
    mask = edges()
    mask[2, 3] = False
    mask[2, 1] = True
    verdict = check_outputs(execution(right(), mask), WANT, BOUND)
    assert not verdict.ok and "last index of dimension 1" in verdict.reason
    assert check_outputs(execution(right(), mask), WANT, BOUND, edges=False).ok


def test_a_check_of_nothing_fails() -> None:
    nothing = np.zeros((3, 4), np.bool_)
    verdict = check_outputs(execution(right(), nothing), WANT, BOUND, edges=False)
    assert not verdict.ok and "no element" in verdict.reason


def test_a_whole_run_has_to_write_everything() -> None:
    run = replace(execution(right(), edges()), whole=True)
    verdict = check_outputs(run, WANT, BOUND)
    assert not verdict.ok and "10 elements were not written, such as [0, 1]" in verdict.reason


def test_a_fault_fails_whatever_the_values_are() -> None:
    verdict = check_outputs(execution(right(), None, Fault("race", "kernel")), WANT, BOUND)
    assert not verdict.ok and "race" in verdict.reason


def test_a_reference_of_another_shape_or_without_the_output_is_told() -> None:
    assert not check_outputs(execution(right()), {"C": np.zeros((4, 3))}, BOUND).ok
    with pytest.raises(CodegenError, match="lacks an output"):
        check_outputs(execution(right()), {"D": np.zeros(3)}, BOUND)
