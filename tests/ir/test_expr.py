"""Tests of expressions: constants, normal forms, substitution, text."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.ir.expr import (
    ONE,
    ZERO,
    Affine,
    Const,
    Expr,
    Load,
    Op,
    Size,
    Var,
    add,
    affine,
    bind_sizes,
    floordiv,
    from_affine,
    map_children,
    mod,
    mul,
    size,
    sub,
    substitute,
    variables,
)
from pipeline.ir.poly import Poly
from pipeline.ir.program_parse import ParseError, parse_expr
from pipeline.ir.program_text import expr_text
from tests.ir.random_programs import exprs

A, B, T = Var("i"), Var("j"), Size(Poly.symbol("t"))


def number(expr: Expr, values: dict[str, int]) -> int:
    """The value of an index expression, by Python's own integers."""
    match expr:
        case Const(value):
            return int(value)
        case Var(name):
            return values[name]
        case Size(poly):
            return int(poly.evaluate(values))
        case Op(fn, (a, b)):
            x, y = number(a, values), number(b, values)
            return {"add": lambda: x + y, "sub": lambda: x - y, "mul": lambda: x * y, "floordiv": lambda: x // y,
                    "mod": lambda: x % y}[fn]()  # fmt: skip
    raise AssertionError(expr)


def indices() -> st.SearchStrategy[tuple[Expr, Expr]]:
    """An index expression as it is written, and the same in normal form."""
    leaves = st.sampled_from([A, B, T, ZERO, ONE, Const(-3), Const(6)]).map(lambda leaf: (leaf, leaf))

    def above(inner: st.SearchStrategy[tuple[Expr, Expr]]) -> st.SearchStrategy[tuple[Expr, Expr]]:
        pairs = st.tuples(inner, inner)
        makers = {"add": add, "sub": sub, "mul": mul}
        plain = st.sampled_from(sorted(makers)).flatmap(
            lambda fn: pairs.map(lambda p: (Op(fn, (p[0][0], p[1][0])), makers[fn](p[0][1], p[1][1])))
        )
        by = st.sampled_from([1, 2, 3, 6, -2])
        divided = st.tuples(inner, by).map(lambda p: (Op("floordiv", (p[0][0], Const(p[1]))), floordiv(p[0][1], p[1])))
        rest = st.tuples(inner, by).map(lambda p: (Op("mod", (p[0][0], Const(p[1]))), mod(p[0][1], p[1])))
        return plain | divided | rest

    return st.recursive(leaves, above, max_leaves=6)


@given(indices(), st.integers(-7, 7), st.integers(-7, 7), st.integers(1, 5))
def test_the_normal_form_of_an_index_has_its_value(pair: tuple[Expr, Expr], i: int, j: int, t: int) -> None:
    values = {"i": i, "j": j, "t": t}
    assert number(pair[1], values) == number(pair[0], values)


@given(indices(), st.integers(-7, 7), st.integers(-7, 7), st.integers(1, 5))
def test_substituting_numbers_leaves_the_number(pair: tuple[Expr, Expr], i: int, j: int, t: int) -> None:
    bound = bind_sizes(substitute(pair[1], {"i": Const(i), "j": Const(j)}), {"t": t})
    assert bound == Const(number(pair[0], {"i": i, "j": j, "t": t}))


def test_affine_indices_have_one_form() -> None:
    assert add(mul(A, Const(2)), add(B, A)) == add(B, mul(Const(3), A))
    assert sub(A, A) == ZERO
    assert mul(A, T) == mul(T, A)


def test_a_tile_index_has_polynomial_coefficients() -> None:
    form = affine(add(mul(add(mul(A, T), B), Const(4)), ONE))
    assert form == Affine((("i", Poly.symbol("t") * 4), ("j", Poly.of(4))), Poly.of(1))
    assert form.coefficient("k") == Poly.of(0)
    assert affine(from_affine(form)) == form


@pytest.mark.parametrize("expr", [mul(A, B), floordiv(A, 2), Load("x", (A,), "int64"), Const(1.0, "float32"),
                                  Op("add", (Load("x", (), "float32"),) * 2, "float32")])  # fmt: skip
def test_what_is_not_affine_has_no_affine_form(expr: Expr) -> None:
    assert affine(expr) is None


def test_division_takes_out_whole_multiples() -> None:
    assert floordiv(add(mul(A, Const(8)), B), 4) == Op("add", (mul(A, Const(2)), Op("floordiv", (B, Const(4)))))
    assert mod(add(mul(A, Const(8)), B), 4) == Op("mod", (B, Const(4)))
    assert mod(add(mul(A, Const(8)), Const(5)), 4) == ONE


@pytest.mark.parametrize("fn", [floordiv, mod])
def test_division_by_zero_is_left_alone(fn: object) -> None:
    assert callable(fn)
    assert fn(A, 0).args == (A, ZERO)
    assert fn(Const(3), 0).args == (Const(3), ZERO)


def test_constants_take_the_type_of_their_dtype() -> None:
    assert Const(1, "float32") == Const(1.0, "float32") == Const(np.float32(1), "float32")
    assert type(Const(np.int64(3)).value) is int
    assert Const(1, "bool") == Const(True, "bool") != Const(1)
    assert Const(1, "float32") != Const(1, "float64")


def test_nan_equals_itself_and_zeros_differ_by_sign() -> None:
    assert Const(math.nan, "float32") == Const(float("nan"), "float32")
    assert hash(Const(math.nan, "float32")) == hash(Const(float("nan"), "float32"))
    assert Const(0.0, "float32") != Const(-0.0, "float32")
    assert pickle.loads(pickle.dumps(Const(math.nan, "float32"))) == Const(math.nan, "float32")


def test_what_does_not_change_is_the_same_object() -> None:
    expr = Op("exp", (Load("x", (A, B), "float32"),), "float32")
    assert map_children(expr, lambda child: child) is expr
    assert substitute(expr, {"k": ONE}) is expr
    assert bind_sizes(expr, {"t": 3}) is expr
    assert variables(expr) == {"i", "j"}


def test_a_size_that_is_a_number_is_a_constant() -> None:
    assert size(3) == Const(3)
    assert bind_sizes(mul(A, T), {"t": 3}) == mul(A, Const(3))
    assert bind_sizes(mul(A, T), {"t": Poly.symbol("u") * 2}) == mul(A, Size(Poly.symbol("u") * 2))


@given(exprs())
def test_the_text_of_an_expression_parses_back(expr: Expr) -> None:
    text = expr_text(expr)
    assert parse_expr(text) == expr
    assert expr_text(parse_expr(text)) == text


def test_the_text_of_an_expression_is_readable() -> None:
    half = Op("mul", (Load("x", (add(A, ONE),), "float32"), Const(0.5, "float32")), "float32")
    expr = Op("guard", (Op("lt", (A, T), "bool"), half, Const(-math.inf, "float32")), "float32")
    assert expr_text(expr, {"x": "float32"}) == "guard(i < {t}, x[i + 1] * 0.5:float32, -inf:float32)"


def test_parentheses_stand_only_where_the_tree_needs_them() -> None:
    assert expr_text(Op("sub", (Op("sub", (A, B)), A))) == "i - j - i"
    assert expr_text(Op("sub", (A, Op("sub", (B, A))))) == "i - (j - i)"
    assert expr_text(Op("mul", (Op("add", (A, B)), A))) == "(i + j) * i"


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [("i +", 4, "an expression"), ("x[i]", 5, "':' and the dtype of x, which is not declared before"),
     ("f(i,", 5, "an expression"), ("1.5", 4, "':' and the dtype of the number"), ("x[i:", 4, "',' or ']'"),
     ("1:float31", 3, "a dtype"), ("cast(i)", 8, "':' and the dtype of cast"),
     ("{t + }", 6, "a number, a symbol or '('"),
     ("i < j < i", 7, "parentheses around one of two comparisons"), ("- i", 3, "a number")],
)  # fmt: skip
def test_text_that_is_no_expression_is_refused_with_its_place(text: str, column: int, expected: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_expr(text)
    assert (caught.value.line, caught.value.column) == (1, column)
    assert caught.value.expected.startswith(expected)
