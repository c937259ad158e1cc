"""Split: ragged and exact tiles, numbers and parameters."""

from __future__ import annotations

import pytest

from pipeline.ir.poly import Poly
from pipeline.ir.program import blocks
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import Fuse, Split, Vectorize
from pipeline.schedule.variables import Choice, Tile
from tests.schedule.programs import applied, golden, keeps_meaning, matmul, refuses, running_sum

T, U = Poly.symbol("t"), Poly.symbol("u")


def test_a_ragged_tile_needs_no_condition_where_an_iteration_ends_with_the_loop() -> None:
    program = applied(matmul(), Split("mm_m", (4,), ("m0", "m1")))
    golden(program, "split/ragged")
    keeps_meaning(matmul(), program)


def test_a_second_ragged_split_that_overlaps_the_next_tile_gets_a_condition() -> None:
    program = applied(matmul(), Split("mm_m", (5,), ("m0", "m1")), Split("m1", (2,), ("m1", "m2")))
    golden(program, "split/condition")
    keeps_meaning(matmul(), program)


def test_the_outer_loop_of_a_split_ends_with_the_iteration_too() -> None:
    sketch = Sketch(matmul()).declare(Choice("t", (3, 4))).declare(Choice("u", (2, 5)))
    sketch = sketch.apply(Split("mm_m", (T,), ("m0", "m1"))).apply(Split("m0", (U,), ("p0", "p1")))
    assert all(not block.where for block in blocks(sketch.program))
    keeps_meaning(matmul(), sketch)


def test_a_symbolic_split_makes_a_derived_symbol_for_the_outer_extent() -> None:
    sketch = Sketch(matmul()).declare(Tile(("t", "u"), 10, (1, 1), (10, 10)))
    sketch = sketch.apply(Split("mm_m", (T, U), ("m0", "m1", "m2")))
    golden(sketch.program, "split/symbolic")
    keeps_meaning(matmul(), sketch, samples=12)


def test_splitting_by_what_the_extent_is_a_multiple_of_is_exact() -> None:
    sketch = Sketch(matmul()).declare(Tile(("t", "u"), 10, (1, 1), (10, 10)))
    sketch = sketch.apply(Split("mm_m", (T * U,), ("m0", "m1"))).apply(Split("m1", (U,), ("m1", "m2")))
    assert [d.name for d in sketch.program.derived] == ["n_m0"]
    keeps_meaning(matmul(), sketch)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 13])
def test_every_size_can_be_split_by_every_factor(size: int) -> None:
    for factor in (1, 2, 3, 8):
        keeps_meaning(matmul(size, 3, 2), applied(matmul(size, 3, 2), Split("mm_m", (factor, 2), ("a", "b", "c"))))


def test_a_scan_keeps_its_order_when_its_loop_is_split() -> None:
    keeps_meaning(running_sum(), applied(running_sum(), Split("run_j", (4,), ("j0", "j1"))))


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (Split("nothing", (2,), ("a", "b")), "there is no loop nothing: the loops are mm_m, mm_n, mm_k"),
        (Split("mm_m", (2,), ("a", "b", "c")), "need one name more"),
        (Split("mm_m", (), ("a",)), "need one name more"),
        (Split("mm_m", (2,), ("a", "mm_n")), "mm_n is taken"),
        (Split("mm_m", (2,), ("a", "k")), "k is taken"),
        (Split("mm_m", (2,), ("a", "a")), "not all different"),
        (Split("mm_m", (0,), ("a", "b")), "not known to be at least 1"),
        (Split("mm_m", (T,), ("a", "b")), "t is not a parameter of the program: declare its variable first"),
    ],
)
def test_a_split_that_makes_no_sense_is_refused(step: Split, why: str) -> None:
    refuses(matmul(), step, why)


def test_a_fused_or_vectorized_loop_is_not_split() -> None:
    refuses(applied(matmul(), Fuse(("mm_m", "mm_n"))), Split("mm_m", (2,), ("a", "b")), "split before fusing")
    refuses(applied(matmul(), Fuse(("mm_m", "mm_n"))), Split("mm_n", (2,), ("a", "b")), "fused into loop mm_m")
    refuses(applied(matmul(), Vectorize("mm_k")), Split("mm_k", (2,), ("a", "b")), "is vectorized")


def test_a_loop_that_runs_once_needs_no_symbol_for_how_often_its_tiles_do() -> None:
    sketch = Sketch(matmul(m=1)).declare(Tile(("t",), 8, (1,), (8,)))
    sketch = sketch.apply(Split("mm_m", (Poly.symbol("t"),), ("m0", "m1")))
    assert not sketch.program.derived
    keeps_meaning(matmul(m=1), sketch)
