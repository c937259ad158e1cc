"""Annotate: hints that go with their loop and change nothing."""

from __future__ import annotations

import pytest

from pipeline.ir.poly import Poly
from pipeline.ir.program import Loop, walk
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import (
    Annotate,
    Blockize,
    Fuse,
    Parallel,
    Reorder,
    Split,
    Step,
    Tensorize,
    Unroll,
    Vectorize,
)
from pipeline.schedule.trace import replay
from pipeline.schedule.variables import Tile
from tests.schedule.programs import applied, golden, keeps_meaning, matmul, refuses

NEXT = (Annotate("mm_k", "prefetch_next", "mm_n"),)


def hinted(*before: Step) -> tuple[Step, ...]:
    return (*before, Annotate("mm_k", "prefetch", 2))


def test_a_hint_is_in_the_text_and_changes_nothing() -> None:
    program = applied(matmul(), *hinted())
    golden(program, "annotate/prefetch")
    keeps_meaning(matmul(), program)


def test_a_hint_goes_with_its_loop_when_it_is_reordered() -> None:
    program = applied(matmul(), *hinted(), Reorder(("mm_k", "mm_m", "mm_n")))
    outermost = program.body.body[0]
    assert isinstance(outermost, Loop) and outermost.annotations == (("prefetch", 2),)
    keeps_meaning(matmul(), program)


def test_a_hint_stays_where_other_loops_are_split_and_fused() -> None:
    steps = (Split("mm_n", (5,), ("n0", "n1")), Fuse(("mm_m", "n0")), Unroll("n1"), Parallel("mm_m"))
    program = applied(matmul(), *hinted(), *steps)
    notes = [loop.annotations for loop in walk(program.body) if isinstance(loop, Loop)]
    assert notes == [(), (), (("prefetch", 2),)]
    keeps_meaning(matmul(), program)


def test_a_hint_may_ask_for_the_next_iteration_of_a_loop_further_out() -> None:
    program = applied(matmul(), Annotate("mm_k", "prefetch_next", "mm_n"))
    golden(program, "annotate/prefetch_next")
    keeps_meaning(matmul(), program)


def test_a_loop_whose_next_iteration_is_asked_for_may_still_move_while_it_stays_around() -> None:
    before = (Annotate("mm_k", "prefetch_next", "mm_n"),)
    for step in (Reorder(("mm_n", "mm_m")), Split("mm_m", (2,), ("m0", "m1")), Parallel("mm_m")):
        keeps_meaning(matmul(), applied(matmul(), *before, step))


def test_a_hint_stays_when_parameters_get_their_values() -> None:
    sketch = Sketch(matmul()).declare(Tile(("t",), 7, (1,), (4,)))
    sketch = sketch.apply(Split("mm_k", (Poly.symbol("t"),), ("k0", "k1"))).apply(Annotate("k0", "prefetch", 3))
    candidate = sketch.candidate({"t": 2})
    assert [loop.annotations for loop in walk(candidate.body) if isinstance(loop, Loop)][2] == (("prefetch", 3),)
    assert replay(matmul(), sketch.trace).program == sketch.program
    keeps_meaning(matmul(), sketch)


@pytest.mark.parametrize(
    ("before", "step", "why"),
    [
        ((), Annotate("x", "prefetch", 1), "there is no loop x"),
        (
            (),
            Annotate("mm_k", "swizzle", 1),
            "no annotation swizzle: the annotations are prefetch, blockize",
        ),
        ((), Annotate("mm_k", "prefetch", 0), "prefetch is 0, not a positive number"),
        ((), Annotate("mm_k", "prefetch", "far"), "prefetch is 'far', not a positive number"),
        ((), Annotate("mm_k", "tensorize", "x"), "the step Tensorize makes it"),
        (hinted(), Annotate("mm_k", "prefetch", 3), "has the annotation prefetch"),
        ((), Annotate("mm_k", "prefetch_next", 1), "prefetch_next is 1, not a name"),
        ((), Annotate("mm_k", "prefetch_next", "x"), "there is no serial loop x around loop mm_k"),
        ((), Annotate("mm_m", "prefetch_next", "mm_k"), "there is no serial loop mm_k around loop mm_m"),
        ((), Annotate("mm_k", "prefetch_next", "mm_k"), "there is no serial loop mm_k around loop mm_k"),
        ((Parallel("mm_m"),), Annotate("mm_k", "prefetch_next", "mm_m"), "there is no serial loop mm_m"),
        ((Fuse(("mm_m", "mm_n")),), Annotate("mm_k", "prefetch_next", "mm_m"), "there is no serial loop mm_m"),
        (NEXT, Annotate("mm_k", "prefetch", 3), "has the annotation prefetch_next"),
        (
            NEXT,
            Split("mm_n", (2,), ("n0", "n1")),
            "loop mm_k asks for the next iteration of loop mm_n: it has to be split",
        ),
        (NEXT, Fuse(("mm_m", "mm_n")), "it has to be fused before that"),
        (NEXT, Unroll("mm_n"), "it has to be unrolled before that"),
        (NEXT, Reorder(("mm_k", "mm_n")), "asks for the next iteration of loop mm_n, which has to stay around it"),
        (NEXT, Reorder(("mm_k", "mm_m", "mm_n")), "which has to stay around it"),
        ((Blockize("mm_k"),), Annotate("mm_k", "prefetch", 3), "part of the unit mm_k"),
        ((Unroll("mm_k"),), Annotate("mm_k", "prefetch", 1), "loop mm_k is unrolled"),
        ((Fuse(("mm_m", "mm_n")),), Annotate("mm_m", "prefetch", 1), "loop mm_m is fused of mm_m, mm_n"),
        (hinted(), Split("mm_k", (2,), ("k0", "k1")), "has the annotation prefetch: it has to be split before that"),
        (hinted(), Fuse(("mm_n", "mm_k")), "has the annotation prefetch: it has to be fused before that"),
        (hinted(), Unroll("mm_k"), "it has to be unrolled before that"),
        (hinted(), Vectorize("mm_k"), "it has to be vectorized before that"),
        (hinted(Reorder(("mm_k", "mm_m"))), Parallel("mm_k"), "it has to be parallel before that"),
        (hinted(), Blockize("mm_k"), "has the annotation prefetch"),
        (hinted(), Tensorize("mm_k", "neon.dot_i8i8i32"), "loop mm_k is no unit: blockize it first"),
    ],
)
def test_a_hint_that_could_not_be_honoured_is_refused(before: tuple[Step, ...], step: Step, why: str) -> None:
    refuses(applied(matmul(), *before), step, why)
