"""Tests of the check of bounds: it accepts what is in bounds, by intervals or by trying, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from pipeline.errors import CheckError
from pipeline.ir import program_bounds
from pipeline.ir.interpret import interpret
from pipeline.ir.program import Program
from pipeline.ir.program_bounds import check_bounds
from pipeline.ir.program_parse import from_text
from tests.ir.random_programs import feeds, runnable_programs

DECLARED = "program p():\n    input x: float32[8]\n    input p: int64[8]\n    output y: float32[8]\n    body:\n"


def block(loops: str, *lines: str) -> Program:
    inner = "".join(f"                {line}\n" for line in lines)
    return from_text(f"{DECLARED}        for {loops}:\n            block b:\n{inner}")


IN_BOUNDS = {
    "a_plain_copy": ("i in serial(8)", "spatial v in range(8) = i", "y[v] = x[v]"),
    "a_ragged_tile": ("i, j in serial(3, 3)", "spatial v in range(8) = 3*i + j", "y[v] = x[v]"),
    "a_condition_instead_of_a_domain": ("i, j in serial(3, 3)", "spatial v in range(9) = 3*i + j", "where 3*i + j < 8",
                                        "y[v] = x[v]"),
    "a_guarded_window": ("i, j in serial(8, 3)", "spatial v in range(8) = i", "reduce r in range(3) = j",
                         "init 0.0:float32",
                         "y[v] += guard(v + r >= 1 and v + r - 1 < 8, x[v + r - 1], 0.0:float32)"),
    "the_other_side_of_a_guard": ("i in serial(8)", "spatial v in range(8) = i",
                                  "y[v] = guard(v < 4, x[v + 4], x[v - 4])"),
    "a_guard_with_or": ("i in serial(8)", "spatial v in range(8) = i",
                        "y[v] = guard(v < 2 or v > 5, 0.0:float32, x[v - 2] + x[v + 2])"),
    "quotients_and_remainders": ("i in serial(64)", "spatial v in range(64) = i", "y[v // 8] = x[(v + 3) % 8]"),
    "a_clipped_gather": ("i in serial(8)", "spatial v in range(8) = i", "y[v] = x[max(min(p[v], 7), 0)]"),
    "a_wrapped_gather": ("i in serial(8)", "spatial v in range(8) = i",
                         "y[v] = x[max(min(where(p[v] < 0, p[v] + 8, p[v]), 7), 0)]"),
    "a_block_that_never_runs": ("i in serial(8)", "spatial v in range(8) = i + 8", "y[v + 100] = x[v]"),
    "a_loop_that_never_runs": ("i in serial(0)", "spatial v in range(8) = i", "y[v + 100] = x[v]"),
    "a_product_of_variables": ("i, j in serial(3, 4)", "spatial v in range(3) = i", "spatial w in range(4) = j",
                               "y[v * w] = 1.0:float32"),
    "a_condition_on_a_remainder": ("i in serial(16)", "spatial v in range(16) = i", "where i % 2 == 0 and i % 4 == 0",
                                   "y[v - v // 16 * 8 - v % 4 * 100 - max(v - 7, 0)] = 1.0:float32"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(IN_BOUNDS))
def test_an_access_is_accepted_with(name: str) -> None:
    check_bounds(block(*IN_BOUNDS[name]))


@pytest.mark.parametrize("name", sorted(set(IN_BOUNDS) - {"a_product_of_variables", "a_condition_on_a_remainder"}))
def test_intervals_tell_of_large_nests_without_trying(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_bounds, "POINTS", 0)
    check_bounds(block(*IN_BOUNDS[name]))


OUT_OF_BOUNDS = {
    "a_read_past_the_end": (("i in serial(8)", "spatial v in range(8) = i", "y[v] = x[v + 1]"),
                            "x[i + 1] is out of bounds at i=7. The index i + 1 is 8, the extent 8."),
    "a_read_before_the_start": (("i in serial(8)", "spatial v in range(8) = i", "y[v] = x[v - 1]"),
                                "x[i + -1] is out of bounds at i=0"),
    "a_write_past_the_end": (("i, j in serial(3, 3)", "spatial v in range(9) = 3*i + j", "y[v] = 1.0:float32"),
                             "y[3 * i + j] is out of bounds at i=2, j=2"),
    "a_guard_that_is_too_wide": (("i in serial(8)", "spatial v in range(8) = i",
                                  "y[v] = guard(v <= 4, x[v + 4], 0.0:float32)"), "x[i + 4] is out of bounds at i=4"),
    "a_guard_the_wrong_way_round": (("i in serial(8)", "spatial v in range(8) = i",
                                     "y[v] = guard(v < 4, x[v - 4], x[v])"), "x[i + -4] is out of bounds at i=0"),
    "a_guard_of_one_side_only": (("i, j in serial(8, 3)", "spatial v in range(8) = i", "reduce r in range(3) = j",
                                  "init 0.0:float32", "y[v] += guard(v + r >= 1, x[v + r - 1], 0.0:float32)"),
                                 "is out of bounds at i=7, j=2"),
    "an_index_in_an_index": (("i in serial(9)", "spatial v in range(9) = i", "y[0] = x[max(min(p[v], 7), 0)]"),
                             "p[i] is out of bounds at i=8"),
    "a_gather_that_is_not_clipped": (("i in serial(8)", "spatial v in range(8) = i", "y[v] = x[min(p[v], 7)]"),
                                     "x[min(p[i]:int64, 7)] cannot be shown to be in bounds. An index is read from p."),
    "a_condition_that_reads": (("i in serial(9)", "spatial v in range(9) = i", "where p[i] > 0", "y[v] = 1.0:float32"),
                               "p[i] is out of bounds at i=8"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(OUT_OF_BOUNDS))
def test_an_access_is_refused_with(name: str) -> None:
    lines, message = OUT_OF_BOUNDS[name]
    with pytest.raises(CheckError) as caught:
        check_bounds(block(*lines))
    assert message in str(caught.value)
    assert caught.value.where == "block b"


def test_an_index_that_the_program_has_computed_itself_is_trusted() -> None:
    check_bounds(
        from_text("""\
program p():
    input x: float32[8]
    intermediate q: int64[8]
    output y: float32[8]
    body:
        for i in serial(8):
            block place:
                spatial v in range(8) = i
                q[v] = v
        for j in serial(8):
            block take:
                spatial v in range(8) = j
                y[v] = x[q[v]]
""")
    )


def test_a_nest_that_is_too_large_to_try_is_not_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_bounds, "POINTS", 8)
    with pytest.raises(CheckError, match="12 points are too many to try"):
        check_bounds(block(*IN_BOUNDS["a_product_of_variables"]))


def test_a_large_nest_is_tried_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_bounds, "CHUNK", 5)
    check_bounds(block(*IN_BOUNDS["a_product_of_variables"]))
    with pytest.raises(CheckError, match=r"y.i . j. is out of bounds at i=2, j=4"):
        check_bounds(block("i, j in serial(3, 5)", *IN_BOUNDS["a_product_of_variables"][1:2],
                           "spatial w in range(5) = j", "y[v * w] = 1.0:float32"))  # fmt: skip


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(runnable_programs())
def test_what_is_accepted_never_leaves_a_buffer(program: Program) -> None:
    try:
        check_bounds(program)
    except CheckError:
        return
    try:
        interpret(program, feeds(2))
    except CheckError as error:
        assert "out of bounds" not in error.what


def test_the_window_of_a_convolution_with_padding_computes() -> None:
    program = block(*IN_BOUNDS["a_guarded_window"])
    x = np.arange(8, dtype=np.float32)
    y = interpret(program, {"x": x, "p": np.zeros(8, np.int64)})["y"]
    assert y.tolist() == np.convolve(x, np.ones(3), "same").tolist()
