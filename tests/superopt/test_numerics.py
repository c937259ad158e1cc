"""A part of `python -m tests.superopt.numerics`: masks, large logits, what is not finite, and random shapes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.superopt.mugraph.builder import MuGraphBuilder
from pipeline.superopt.spec import Spec
from pipeline.verification.tolerance import Reference
from tests.codegen.kernel_runs import native
from tests.superopt.lowered_cases import Case, attention, rmsnorm_linear, split_attention
from tests.superopt.lowered_runs import drawn
from tests.superopt.numerics import ROUTINES, built, hostile, hostile_attention, main, random_case, unsound


@pytest.mark.parametrize(
    "case",
    [attention(2, 3, 19, 4, 5, scale=0.125, mask="add"), split_attention(1, 3, 29, 4, 9, mask=True)],
    ids=["in one kernel", "split over the keys"],
)
def test_attention_gives_what_float64_gives_whatever_the_logits_and_the_mask(case: Case) -> None:
    rng = np.random.default_rng(0)
    kernel = built(case, native(), rng)
    for what, feeds in hostile_attention(case[0], rng):
        verdict = kernel.verdict(feeds)
        assert verdict.ok, f"{what}: {verdict.reason}"


@pytest.mark.parametrize("name", sorted({*ROUTINES} - {"attention"}))
def test_what_is_not_finite_and_what_is_large_give_what_float64_gives(name: str) -> None:
    rng = np.random.default_rng(1)
    case = ROUTINES[name]()
    kernel = built(case, native(), rng)
    for what, feeds in hostile(case[0], rng):
        verdict = kernel.verdict(feeds)
        assert verdict.ok, f"{what}: {verdict.reason}"


@pytest.mark.parametrize("name", ROUTINES)
def test_the_error_is_within_the_derived_tolerance_at_random_shapes(name: str) -> None:
    rng = np.random.default_rng(2)
    for _ in range(3):
        what, case = random_case(name, rng)
        verdict = built(case, native(), rng).verdict(_normal(case[0], rng))
        assert verdict.ok, f"{what}: {verdict.reason}"


def test_a_softmax_without_its_maximum_is_caught() -> None:
    """exp of a logit of 100 is beyond float32."""
    spec, _ = attention(1, 2, 9, 4, 5)
    b = MuGraphBuilder()
    q, k, v = (b.input(name, 3) for name in "qkv")
    with b.kernel(grid={"b": None}, loops={"j": None}) as g:
        p = g.exp(g.contract("bid,bjd->bij", g.load(q, {"b": 0}), g.load(k, {"b": 0}, {"j": 1})))
        above = g.accumulate("sum", g.contract("bij,bje->bie", p, g.load(v, {"b": 0}, {"j": 1})))
        y = g.store(above / g.accumulate("sum", g.fold("sum", p, axis=2)), omap={"b": 0})
    rng = np.random.default_rng(3)
    kernel = built((spec, b.finish(y)), native(), rng)
    normal = _normal(spec, rng)
    assert kernel.verdict(normal).ok
    large = normal | {"q": np.full_like(normal["q"], 5), "k": np.full_like(normal["k"], 5)}
    assert not kernel.verdict(large).ok


def test_what_has_no_bound_is_compared_all_the_same() -> None:
    free = np.full(3, np.inf)
    want = Reference(np.array([1.0, np.nan, 2.0]), free)
    assert unsound(want, np.array([1.0, np.nan, 2.0])) == ""
    assert "NaN or infinite at other places" in unsound(want, np.array([np.nan, np.nan, 2.0]))
    assert "NaN or infinite at other places" in unsound(want, np.array([1.0, 0.0, 2.0]))
    assert "off by 0.1" in unsound(want, np.array([1.1, np.nan, 2.0]))
    assert unsound(replace(want, bound=np.zeros(3)), np.array([1.1, np.nan, 2.0])) == "", "its bound judges it"


def test_the_command_says_what_was_wrong(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["numerics", "--shapes", "1", "--only", "ntrans"])
    assert main() == 0
    assert "ntrans, random shapes            1 runs, 0 wrong" in capsys.readouterr().out
    spec, _ = rmsnorm_linear()
    monkeypatch.setitem(ROUTINES, "ntrans", lambda *_: (spec, rmsnorm_linear(hidden=36)[1]))
    assert main() == 1
    assert "WRONG ntrans" in capsys.readouterr().out


def _normal(spec: Spec, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return drawn(spec, seed=int(rng.integers(1 << 30)))
