"""Parameter spaces: only valid rows, for everything that a search asks."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.errors import StepError
from pipeline.ir.poly import Poly
from pipeline.ir.program import Loop, instantiate
from pipeline.schedule.constraint import AtMost, Divides, MultipleOf
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.space import ParameterSpace
from pipeline.schedule.steps import Split
from pipeline.schedule.variables import Choice, Tile
from tests.schedule.programs import matmul

A, B, C = (Poly.symbol(name) for name in "abc")


def sketch() -> Sketch:
    found = Sketch(matmul(1000, 900, 800)).declare(Tile(("a", "b"), 1000, (1, 1), (1000, 64)))
    found = found.declare(Choice("c", (1, 2, 4, 8, 16)))
    return found.apply(Split("mm_m", (A, B), ("m0", "m1", "m2"))).apply(Split("mm_n", (C,), ("n0", "n1")))


def constrained() -> ParameterSpace:
    found = sketch().require(AtMost("registers", B * C, 24)).require(MultipleOf("even", A * B, 2))
    return ParameterSpace.of(found.require(Divides("divides", C, 8)).require(AtMost("tiles", Poly.symbol("n_m0"), 50)))


def test_the_columns_are_the_symbols_of_the_variables_in_order() -> None:
    assert ParameterSpace.of(sketch()).columns == ("a", "b", "c")


def test_every_drawn_row_is_valid() -> None:
    space = constrained()
    rows = space.draw(500, np.random.default_rng(0))
    assert rows.shape == (500, 3) and rows.dtype == np.int64
    values = space.environment(rows)
    assert (values["b"] * values["c"] <= 24).all() and (values["a"] * values["b"] % 2 == 0).all()
    assert (8 % values["c"] == 0).all() and (values["n_m0"] <= 50).all()
    assert len(space.unique(rows)) > 100


def test_a_limit_that_few_draws_meet_is_met_by_repair() -> None:
    space = ParameterSpace.of(sketch().require(AtMost("tiny", A * B * C, 3)))
    rows = space.draw(300, np.random.default_rng(1))
    assert space.valid(rows).all() and len(space.unique(rows)) >= 5


def test_mutation_and_crossover_stay_valid_and_change_something() -> None:
    space, rng = constrained(), np.random.default_rng(2)
    rows = space.draw(300, rng)
    mutated = space.mutate(rows, rng)
    assert space.valid(mutated).all() and (mutated != rows).any(axis=1).mean() > 0.9
    children = space.crossover(rows, rows[::-1].copy(), rng)
    assert space.valid(children).all() and (children != rows).any(axis=1).mean() > 0.2
    assert (rows == space.draw(300, np.random.default_rng(2))).all(), "rows were changed in place"


def test_neighbours_are_valid_and_differ_in_one_variable() -> None:
    space = constrained()
    row = space.draw(1, np.random.default_rng(3))[0]
    near = space.neighbours(row)
    assert len(near) and space.valid(near).all()
    assert ((near[:, :2] != row[:2]).any(axis=1) ^ (near[:, 2] != row[2])).all()


def test_derived_symbols_have_the_values_of_the_concrete_program() -> None:
    space = ParameterSpace.of(sketch())
    rows = space.draw(20, np.random.default_rng(4))
    values = space.environment(rows)
    for number, row in enumerate(rows):
        concrete = instantiate(sketch().program, space.values(row))
        outer = concrete.body.body[0]
        assert isinstance(outer, Loop) and outer.axes[0].extent.value == values["n_m0"][number]
    assert all(array.dtype == np.float64 for array in space.environment(rows, np.float64).values())


def test_equal_seeds_give_equal_rows() -> None:
    first, second = (constrained().draw(50, np.random.default_rng(5)) for _ in range(2))
    assert (first == second).all()


def test_an_empty_space_says_which_constraint_holds_how_often() -> None:
    space = ParameterSpace.of(sketch().require(Divides("impossible", 3 * C, 8)))
    with pytest.raises(StepError, match="impossible holds for 0"):
        space.draw(4, np.random.default_rng(6))
    with pytest.raises(StepError, match="the parameter space is empty"):
        ParameterSpace.of(sketch().require(AtMost("none", A, 0))).draw(1, np.random.default_rng(6))


def test_a_sketch_without_parameters_has_one_row() -> None:
    space, rng = ParameterSpace.of(Sketch(matmul())), np.random.default_rng(7)
    rows = space.draw(3, rng)
    assert rows.shape == (3, 0) and space.valid(rows).all() and len(space.mutate(rows, rng)) == 3
    assert space.crossover(rows, rows, rng).shape == (3, 0) and space.values(rows[0]) == {}
    assert len(space.neighbours(rows[0])) == 0 and space.bounds()[0].shape == (0,)


def test_a_large_product_does_not_overflow_a_limit() -> None:
    big = AtMost("big", Poly(((("a",) * 9, 1),)), 10)
    assert not big.holds({"a": np.array([1000, 2000])}).any() and big.holds({"a": np.array([1])}).all()


def test_unique_rows_keep_their_order() -> None:
    rows = np.array([[3, 1, 1], [1, 1, 1], [3, 1, 1], [2, 1, 1]], np.int64)
    assert ParameterSpace.of(sketch()).unique(rows)[:, 0].tolist() == [3, 1, 2]
