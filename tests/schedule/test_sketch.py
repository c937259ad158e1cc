"""Sketches, traces and their JSON."""

from __future__ import annotations

import json

import pytest

from pipeline.errors import StepError, UserError
from pipeline.ir.poly import Poly
from pipeline.schedule.codec import decode, encode
from pipeline.schedule.constraint import AtMost, Divides, MultipleOf
from pipeline.schedule.sketch import Sketch, described
from pipeline.schedule.steps import STEPS, CacheWrite, Pack, Parallel, Reorder, Split
from pipeline.schedule.trace import KINDS, from_json, replay, to_json
from pipeline.schedule.variables import Choice, Tile
from tests.schedule.programs import matmul

T, U = Poly.symbol("t"), Poly.symbol("u")


def sketch() -> Sketch:
    found = Sketch(matmul()).declare(Tile(("t",), 10, (1,), (10,))).declare(Choice("u", (2, 4)))
    found = found.apply(Split("mm_m", (T,), ("m0", "m1"))).apply(Split("mm_n", (2 * U, 2), ("n0", "n1", "n2")))
    found = found.apply(Reorder(("m0", "n0", "mm_k", "m1"))).apply(CacheWrite("mm", "local", "n0"))
    found = found.require(AtMost("tile", T * U, 16)).require(Divides("even", U, 8)).require(MultipleOf("k", 2 * T, 2))
    return found.apply(Pack("mm", "B", ("n0", "mm_k", "n1", "n2"), "Bp")).apply(Parallel("m0"))


def test_a_trace_is_replayed_to_an_equal_sketch() -> None:
    assert replay(matmul(), sketch().trace) == sketch()


def test_a_trace_survives_json() -> None:
    text = to_json(sketch().trace)
    assert from_json(text) == sketch().trace
    assert to_json(from_json(text)) == text
    assert json.loads(text)[3] == {"kind": "Split", "loop": "mm_n", "factors": ["2*u", 2], "names": ["n0", "n1", "n2"]}


def test_a_trace_fits_another_size_of_the_same_program() -> None:
    other = replay(matmul(11, 17, 5), sketch().trace)
    assert other.program.params == ("t", "u") and other != sketch()


def test_every_step_is_known_to_the_trace() -> None:
    assert set(STEPS) <= set(KINDS) and all(kind.__name__ == name for name, kind in KINDS.items())


def test_an_illegal_step_says_what_where_and_why() -> None:
    with pytest.raises(StepError) as caught:
        sketch().apply(Parallel("n0"))
    assert str(caught.value) == (
        "matmul: Parallel(loop=n0) is not legal. loop n0 is not the outermost of its region: reorder or fuse first."
    )
    assert described(Split("i", (T,), ("a", "b"))) == "Split(loop=i, factors=['t'], names=['a', 'b'])"


def test_a_step_that_is_attempted_is_applied_where_it_is_legal() -> None:
    before = Sketch(matmul())
    assert before.attempt(Parallel("mm_n")) is before
    assert before.attempt(Parallel("mm_m")) == before.apply(Parallel("mm_m"))


def test_a_symbol_is_declared_once() -> None:
    with pytest.raises(StepError, match="the name t is taken already"):
        sketch().declare(Choice("t", (1, 2)))
    with pytest.raises(StepError, match="the name mm_k is taken already"):
        sketch().declare(Choice("mm_k", (1, 2)))


def test_a_constraint_speaks_of_declared_symbols_only() -> None:
    with pytest.raises(StepError, match="x is not a parameter"):
        sketch().require(AtMost("x", Poly.symbol("x"), 3))
    assert sketch().require(AtMost("outer", Poly.symbol("n_m0"), 3)).constraints[-1].name == "outer"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"kind": "Teleport"}, "unknown trace entry 'Teleport'"),
        ({}, "unknown trace entry 'None'"),
        ({"kind": "Parallel"}, "missing or unknown: loop"),
        ({"kind": "Parallel", "loop": "i", "x": 1}, "missing or unknown: x"),
        ({"kind": "Parallel", "loop": 3}, "Parallel.loop is 3"),
        ({"kind": "Split", "loop": "i", "factors": [2.5], "names": []}, "Split.factors is 2.5"),
        ({"kind": "Split", "loop": "i", "factors": "t", "names": []}, "Split.factors is 't'"),
        ({"kind": "CacheWrite", "block": "b", "scope": "disk", "at": "i", "name": None}, "CacheWrite.scope is 'disk'"),
    ],
)
def test_wrong_trace_data_are_an_error_that_names_the_field(data: dict[str, object], why: str) -> None:
    with pytest.raises(UserError) as caught:
        decode(data, KINDS)
    assert why in str(caught.value)


def test_a_polynomial_is_text_in_json() -> None:
    entry = AtMost("a", 2 * T * T - U + 3, 5)
    assert encode(entry) == {"kind": "AtMost", "name": "a", "poly": str(entry.poly), "limit": 5}
    assert decode(encode(entry), KINDS) == entry


def test_a_candidate_is_a_program_without_parameters() -> None:
    concrete = sketch().candidate({"t": 3, "u": 2})
    assert not concrete.params and not concrete.derived
