"""StorageAlign, Swizzle and SoftwarePipeline: where elements of shared memory lie, and when they are copied."""

from __future__ import annotations

import pytest

from pipeline.errors import UserError
from pipeline.ir.poly import Poly
from pipeline.ir.program import Loop, Program, walk
from pipeline.schedule.codec import decode, encode
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import (
    STEPS,
    CacheRead,
    Fuse,
    Reorder,
    SetScope,
    SoftwarePipeline,
    Split,
    Step,
    StorageAlign,
    Swizzle,
    Unroll,
)
from pipeline.schedule.trace import replay
from pipeline.schedule.variables import Choice
from tests.schedule.programs import applied, golden, keeps_meaning, matmul, refuses

STAGED = (
    Split("mm_k", (4,), ("k0", "k1")),
    Reorder(("k0", "mm_m", "mm_n", "k1")),
    CacheRead("mm", "A", "shared", "k0", fill=True),
)


def staged(*steps: Step) -> Program:
    return applied(matmul(), *STAGED, *steps)


def test_rows_get_room_after_them_and_nothing_else_changes() -> None:
    program = staged(StorageAlign("A_shared", 8))
    assert program.buffer("A_shared").pad == Poly.of(8) and program.body.body != staged().body.body
    golden(program, "storage_align/number")
    keeps_meaning(matmul(), program)


def test_the_room_may_be_a_parameter() -> None:
    sketch = Sketch(matmul()).declare(Choice("p", (0, 4, 8)))
    for step in (*STAGED, StorageAlign("A_shared", Poly.symbol("p"))):
        sketch = sketch.apply(step)
    assert sketch.candidate({"p": 4}).buffer("A_shared").pad == Poly.of(4)
    assert replay(matmul(), sketch.trace).program == sketch.program
    keeps_meaning(matmul(), sketch)


def test_pieces_of_rows_change_places_and_nothing_else_changes() -> None:
    program = staged(Swizzle("A_shared"))
    assert program.buffer("A_shared").swizzled
    golden(program, "swizzle/rows")
    keeps_meaning(matmul(), program)


@pytest.mark.parametrize("stages", [1, 3])
def test_a_pipeline_is_in_the_text_and_changes_nothing(stages: int) -> None:
    program = staged(SoftwarePipeline("k0", stages))
    golden(program, f"software_pipeline/{stages}")
    keeps_meaning(matmul(), program)


def test_the_depth_of_a_pipeline_may_be_a_parameter() -> None:
    sketch = Sketch(matmul()).declare(Choice("stages", (1, 2, 3)))
    for step in (*STAGED, SoftwarePipeline("k0", "stages")):
        sketch = sketch.apply(step)
    loops = [stmt for stmt in walk(sketch.candidate({"stages": 3}).body) if isinstance(stmt, Loop)]
    assert [loop.annotation("software_pipeline") for loop in loops if loop.annotations] == [3]
    assert replay(matmul(), sketch.trace).program == sketch.program


@pytest.mark.parametrize(
    "step",
    [
        StorageAlign("S", 8),
        StorageAlign("S", Poly.symbol("p") * 8),
        Swizzle("S"),
        SoftwarePipeline("k", 3),
        SoftwarePipeline("k", "stages"),
        CacheRead("b", "A", "shared", "k", fill=True),
    ],
)
def test_steps_survive_json(step: Step) -> None:
    assert decode(encode(step), STEPS) == step


def test_a_pipeline_of_a_fraction_is_no_step_of_a_trace() -> None:
    with pytest.raises(UserError, match=r"SoftwarePipeline\.stages is 1\.5"):
        decode({"kind": "SoftwarePipeline", "loop": "k", "stages": 1.5}, STEPS)


@pytest.mark.parametrize(
    ("before", "step", "why"),
    [
        ((), StorageAlign("x", 8), "there is no buffer x"),
        ((), StorageAlign("A", 8), "A is global"),
        ((SetScope("A_shared", "local"),), StorageAlign("A_shared", 8), "A_shared is local"),
        ((), StorageAlign("A_shared", -8), "the padding -8 is not known to be 0 or more"),
        ((), StorageAlign("A_shared", Poly.symbol("p")), "p is not a parameter"),
        ((Swizzle("A_shared"),), StorageAlign("A_shared", 8), "A_shared is swizzled"),
        ((), Swizzle("x"), "there is no buffer x"),
        ((), Swizzle("A"), "A is global"),
        ((Swizzle("A_shared"),), Swizzle("A_shared"), "swizzled already"),
        ((StorageAlign("A_shared", 8),), Swizzle("A_shared"), "A_shared is padded by 8"),
        ((), SoftwarePipeline("x", 2), "there is no loop x"),
        ((), SoftwarePipeline("k0", 0), "software_pipeline is 0, not a positive number"),
        ((), SoftwarePipeline("k0", "s"), "s is not a parameter"),
        ((Unroll("k0"),), SoftwarePipeline("k0", 2), "loop k0 is unrolled"),
        ((Fuse(("mm_m", "mm_n")),), SoftwarePipeline("mm_m", 2), "is fused of mm_m, mm_n"),
        ((), SoftwarePipeline("mm_m", 2), "has no buffer in shared memory"),
        ((SoftwarePipeline("k0", 2),), SoftwarePipeline("k0", 3), "has the annotation software_pipeline"),
    ],
)
def test_what_makes_no_sense_is_refused(before: tuple[Step, ...], step: Step, why: str) -> None:
    refuses(staged(*before), step, why)


def test_a_pipeline_inside_another_one_is_refused() -> None:
    again = (SoftwarePipeline("k0", 2), CacheRead("mm", "B", "shared", "mm_m"))
    refuses(staged(*again), SoftwarePipeline("mm_m", 2), "loop k0 is a pipeline already")
