"""Tensorize: a unit that is what an instruction computes is marked so, and any other is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.ir.interpret import interpret
from pipeline.ir.program import Program
from pipeline.ir.program_check import check
from pipeline.ir.program_parse import from_text
from pipeline.ir.program_text import to_text
from pipeline.ir.target import Target
from pipeline.schedule.intrinsics import INTRINSICS
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import Blockize, CacheWrite, Step, Tensorize
from pipeline.schedule.trace import replay
from tests.schedule.byte_products import byte_feeds, byte_product, exact, tiled, united
from tests.schedule.programs import applied, golden, matmul, refuses

VNNI, AVX, NEON = "avx512vnni.dot_u8i8i32", "avxvnni.dot_u8i8i32", "neon.dot_i8i8i32"
CASES = [(VNNI, 16, "uint8"), (AVX, 8, "uint8"), (NEON, 4, "int8")]
CPU = Target("cpu", "any", "x86_64-unknown-linux-gnu", "any", (), 1, 512, 32, 1.0, 4, 1.0, 1.0, ())


def test_the_text_of_a_tensorized_nest_is_the_nest() -> None:
    program = applied(byte_product(), *united(), Tensorize("n1", VNNI))
    check(program)
    golden(program, "tensorize/dot")


@pytest.mark.parametrize(("name", "lanes", "left"), CASES)
@pytest.mark.parametrize(("n", "k"), [(32, 12), (35, 13), (3, 2)])
def test_a_tensorized_nest_means_what_it_meant(name: str, lanes: int, left: str, n: int, k: int) -> None:
    before = byte_product(n=n, k=k, left=left)
    program = applied(before, *united(lanes), Tensorize("n1", name))
    check(program)
    feeds = byte_feeds(before)
    found = interpret(program, feeds)["C"]
    np.testing.assert_array_equal(found, interpret(before, feeds)["C"])
    np.testing.assert_array_equal(found, exact(feeds))


@pytest.mark.parametrize("name", INTRINSICS)
def test_the_description_of_an_intrinsic_is_a_legal_program_and_matches_itself(name: str) -> None:
    program = INTRINSICS[name].description
    check(program)
    outermost = INTRINSICS[name].loop.axes[0].var
    check(applied(program, Blockize(outermost), Tensorize(outermost, name)))


def test_the_factors_may_stand_the_other_way_round() -> None:
    text = to_text(byte_product()).replace("cast(A[m, k]):int32 * cast(B[k, n]):int32",
                                           "cast(B[k, n]):int32 * cast(A[m, k]):int32")  # fmt: skip
    assert text != to_text(byte_product())
    check(applied(from_text(text), *united(), Tensorize("n1", VNNI)))


def test_the_sums_may_be_in_a_register_tile() -> None:
    steps = (*tiled()[:4], CacheWrite("mm", "local", "n0"), tiled()[4], Blockize("n1"), Tensorize("n1", VNNI))
    program = applied(byte_product(), *steps)
    check(program)
    feeds = byte_feeds(program)
    np.testing.assert_array_equal(interpret(program, feeds)["C"], exact(feeds))


def test_the_steps_survive_as_a_trace() -> None:
    sketch = Sketch(byte_product())
    for step in (*united(), Tensorize("n1", VNNI)):
        sketch = sketch.apply(step)
    assert replay(byte_product(), sketch.trace).program == sketch.program


def test_an_intrinsic_knows_which_targets_have_it() -> None:
    assert INTRINSICS[VNNI].lacking(replace(CPU, features=("+avx512f", "+avx512vnni"))) is None
    assert INTRINSICS[AVX].lacking(replace(CPU, features=("+avx512vl", "+avx512vnni"))) is None
    assert INTRINSICS[AVX].lacking(replace(CPU, features=("+avxvnni",))) is None
    assert "any has not the features +dotprod" in str(INTRINSICS[NEON].lacking(CPU))


UNITED = united()


@pytest.mark.parametrize(
    ("program", "before", "step", "why"),
    [
        (byte_product(), UNITED, Tensorize("x", VNNI), "there is no loop x"),
        (byte_product(), UNITED, Tensorize("n1", "amx"), "there is no intrinsic amx: the intrinsics are avx512vnni"),
        (byte_product(), tiled(), Tensorize("n1", VNNI), "loop n1 is no unit: blockize it first"),
        (byte_product(), UNITED, Tensorize("k1", VNNI), "loop k1 is inside the unit n1"),
        (byte_product(), (*UNITED, Tensorize("n1", VNNI)), Tensorize("n1", VNNI), "executed by avx512vnni"),
        (byte_product(), UNITED, Tensorize("n1", AVX), "the loops from n1 on are 16 x 4; avxvnni.dot_u8i8i32 takes 8"),
        (byte_product(), (*tiled(depth=2), Blockize("n1")), Tensorize("n1", VNNI), "the loops from n1 on are 16 x 2"),
        (byte_product(left="int8"), UNITED, Tensorize("n1", VNNI), "the value of block mm is not the one"),
        (byte_product(right="uint8"), UNITED, Tensorize("n1", VNNI), "the value of block mm is not the one"),
        (byte_product(), united(4), Tensorize("n1", NEON), "the value of block mm is not the one"),
        (byte_product(), (*tiled()[:4], Blockize("n1")), Tensorize("n1", VNNI), "has an initial value: decompose"),
        (byte_product(), (*tiled()[:3], tiled()[4], Blockize("n1")), Tensorize("n1", VNNI),
         "B is stepped through by 1, 32 elements along n1, k1; avx512vnni.dot_u8i8i32 needs 4, 1"),
        (matmul(n=16, k=4), (Blockize("mm_n"),), Tensorize("mm_n", VNNI), "has an initial value"),
    ],
)  # fmt: skip
def test_a_nest_that_is_another_is_refused(program: Program, before: tuple[Step, ...], step: Step, why: str) -> None:
    refuses(applied(program, *before), step, why)


def test_a_maximum_is_no_sum() -> None:
    text = to_text(byte_product()).replace("+=", "max=")
    refuses(applied(from_text(text), *united()), Tensorize("n1", VNNI), "does not combine by sum")


def test_loops_of_another_order_are_refused() -> None:
    program = applied(byte_product(), *tiled()[:2], Blockize("k0"))
    refuses(program, Tensorize("k0", VNNI), "the loops from k0 on are 3 x 4")
