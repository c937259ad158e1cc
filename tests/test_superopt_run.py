"""Runs of the engine with the superoptimizer: chosen where it is faster, off, interrupted, resumed, in a second."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import engine
from pipeline.config import parse
from pipeline.errors import UserError
from pipeline.machine import module_choice
from pipeline.report.summary import Summary
from pipeline.runtime.artifact import load_artifact
from pipeline.runtime.session import Session
from pipeline.search import contest
from pipeline.superopt.enumeration import searching
from tests.engine_runs import QUICK, artifact_is_whole, records, run, start, summary

Run = Callable[..., Summary]

NORMALISED = ("+workload=rmsnorm_linear", "workload.rows=4", "workload.hidden=64", "workload.outputs=48")
ATTENTION = ("+workload=attention", "workload.heads=2", "workload.queries=12", "workload.dim=8")
TRANSFORMER = (
    "+workload=bert", "workload.layers=1", "workload.hidden=16", "workload.heads=2", "workload.intermediate=24",
    "workload.vocabulary=11", "workload.positions=9", "workload.sequence=5",
)  # fmt: skip
FEW = ("search.trials=12", "search.batch=2", "superopt.seconds=4.0", "superopt.workers=1")


@pytest.fixture
def here(composed: Callable[..., dict[str, Any]], tmp_path: Path) -> Run:
    """Runs the engine in this process, in a folder of the test, with a store there."""

    def go(*overrides: str, **measurement: dict[str, Any]) -> Summary:
        url = f"store.url=sqlite:///{tmp_path}/store.sqlite"
        (tmp_path / "run").mkdir(exist_ok=True)
        plain = composed(*QUICK, url, "report.progress=false", "registry.packages=[tests]", *overrides)
        plain["measurement"] |= measurement
        return engine.run(parse(plain), tmp_path / "run")

    return go


def test_a_normalised_product_is_searched_proven_tuned_and_reported(
    here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contest, "NEAR", 0)  # the kernels' own times decide
    made = here(*NORMALISED, *FEW)
    assert (made.status, made.verified) == ("complete", True)
    assert made.superopt is not None
    (one,) = made.superopt.subprograms
    assert one.uses == 1 and one.search_seconds is not None and not one.known
    assert one.graphs and all(graph.bound < 1e-6 and graph.tests >= 1 for graph in one.graphs)
    assert one.statistics["proven"] == len(one.graphs) and one.statistics["topologies"] > 0
    assert sum(graph.trials for graph in one.graphs) > 0, "its kernels were measured"
    assert one.fused_ms is not None and one.ordinary_ms is not None
    assert one.chosen == (one.fused_ms < one.ordinary_ms) == (len(made.tasks) == 1)
    assert made.superopt.gained_ms is not None and (made.superopt.gained_ms > 0) == one.chosen
    assert summary(tmp_path)["superopt"]["subprograms"][0]["reason"] == one.reason
    page = (tmp_path / "run" / "mugraphs.html").read_text(encoding="utf-8")
    assert page.count("<svg") == len(one.graphs) and one.graphs[0].text.splitlines()[0].partition(" ")[0] in page


def forced(monkeypatch: pytest.MonkeyPatch, faster: bool) -> None:
    """Every alternative takes a thousandth of what was measured, or a thousand times that."""
    measured = engine.Contest.cover, engine.Contest.seconds

    def as_if(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: engine.Contest, seconds: list[float]) -> Any:
            factor = 1e-3 if faster else 1e3
            return method(self, [s * factor if t.optional else s for s, t in zip(seconds, self.states, strict=True)])

        return call

    monkeypatch.setattr(engine.Contest, "cover", as_if(measured[0]))
    monkeypatch.setattr(engine.Contest, "seconds", as_if(measured[1]))


@pytest.mark.parametrize("faster", [True, False])
def test_the_module_is_right_whichever_side_wins(
    faster: bool, here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced(monkeypatch, faster)
    made = here(*ATTENTION, *FEW, "superopt.seconds=6.0")
    assert (made.status, made.verified) == ("complete", True)
    assert made.superopt is not None
    chosen = [one for one in made.superopt.subprograms if one.chosen]
    tuned = [one for one in made.superopt.subprograms if one.fused_ms is not None]
    assert tuned, "some alternative was measured"
    # a fused kernel for the softmax alone is one more way to compute an ordinary task, and may win either way
    assert (len(made.tasks) < 3) == faster
    if faster:
        assert any(graph.full for one in chosen for graph in one.graphs), "the winner is tested at its full extents"
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, 2, 12, 8)).astype(np.float32) for _ in range(3))
    with Session(tmp_path / "run" / "artifact") as session:
        (found,) = session.run(None, {"q": q, "k": k, "v": v})
    scores = q.astype(np.float64) @ k.swapaxes(2, 3) / np.sqrt(8)
    weights = np.exp(scores - scores.max(3, keepdims=True))
    np.testing.assert_allclose(found, weights / weights.sum(3, keepdims=True) @ v, rtol=1e-4, atol=1e-5)


def test_a_second_run_searches_nothing_and_measures_nothing(here: Run, tmp_path: Path) -> None:
    first = here(*NORMALISED, *FEW)
    before = records(tmp_path)
    second = here(*NORMALISED, *FEW)
    assert records(tmp_path) == before and second.trials == 0
    assert first.superopt is not None and second.superopt is not None
    assert [one.known for one in second.superopt.subprograms] == [True]
    assert [one.graphs[0].text for one in second.superopt.subprograms] == [
        one.graphs[0].text for one in first.superopt.subprograms
    ]
    assert [graph.trials for one in second.superopt.subprograms for graph in one.graphs] == [
        graph.trials for one in first.superopt.subprograms for graph in one.graphs
    ]


@pytest.mark.parametrize("on", [True, False])
def test_queries_keys_and_values_of_a_model_are_one_product_where_the_superoptimizer_is_on(
    on: bool, here: Run, tmp_path: Path
) -> None:
    made = here(*TRANSFORMER, *FEW, "superopt.seconds=1.0", *([] if on else ["superopt=off"]))
    assert (made.status, made.verified) == ("complete", True)
    products = [task.name for task in made.tasks if task.name.startswith("contract_5x48x16")]
    assert bool(products) is on
    if on:
        assert made.superopt is not None
        (rewrite,) = made.superopt.rewrites
        assert (rewrite.name, rewrite.used) == ("MergeProducts", True)
        assert rewrite.kernels - rewrite.rewritten_kernels == 2
        assert summary(tmp_path)["superopt"]["rewrites"][0]["used"]


def test_off_there_is_no_search_and_no_section(here: Run, tmp_path: Path) -> None:
    made = here(*NORMALISED, *FEW, "superopt=off")
    assert (made.status, made.verified, made.superopt) == ("complete", True, None)
    assert len(made.tasks) == 2 and not (tmp_path / "run" / "mugraphs.html").exists()
    assert all(not record.sketch.startswith('[{"kind":"Begin"') for record in records(tmp_path).values())


def test_off_and_on_propose_the_same_for_the_ordinary_tasks(here: Run, tmp_path: Path) -> None:
    here(*NORMALISED, *FEW, "superopt=off", "search=random", "search.trials=4")
    before = records(tmp_path)
    here(*NORMALISED, *FEW, "search=random", "search.trials=12", "store.resume=false")
    assert before.keys() <= records(tmp_path).keys()


def test_with_a_second_for_everything_the_module_is_valid(here: Run, tmp_path: Path) -> None:
    made = here(*ATTENTION, "search.seconds=1.0", "superopt.seconds=1.0", "superopt.workers=1")
    assert (made.status, made.verified) == ("complete", True)
    assert artifact_is_whole(tmp_path)


@pytest.mark.parametrize("batch", [1, 3])
def test_an_interrupt_while_alternatives_are_tuned_leaves_a_valid_module(batch: int, here: Run, tmp_path: Path) -> None:
    runner = {"_target_": "tests.engine_planted.InterruptedRunner", "at": [batch]}
    made = here(*NORMALISED, *FEW, runner=runner)
    assert (made.status, made.verified) == ("interrupted", True)
    assert artifact_is_whole(tmp_path)


def test_an_interrupt_during_the_search_leaves_a_valid_module(
    here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(searching, "superoptimize", interrupted)
    made = here(*ATTENTION, *FEW)
    assert (made.status, made.verified) == ("interrupted", True)
    assert made.superopt is not None and made.superopt.subprograms == ()
    assert artifact_is_whole(tmp_path)


def called_as_if(monkeypatch: pytest.MonkeyPatch, times: list[tuple[float, float]] | None) -> list[Sequence[Path]]:
    """Modules, the first without fused kernels and the second with them, as if their calls took these times, or as if
    interrupted. Gives what is compared."""
    compared: list[Sequence[Path]] = []

    def call(artifacts: Sequence[Path], *given: object) -> list[tuple[float, float]]:
        compared.append(artifacts)
        assert [len(load_artifact(path).calls) for path in artifacts] == [2, 1]
        if times is None:
            raise KeyboardInterrupt
        return times

    forced(monkeypatch, faster=False)
    monkeypatch.setattr(contest, "LESS", 1e-9)
    monkeypatch.setattr(module_choice, "called_in_turns", call)
    return compared


@pytest.mark.parametrize(
    ("times", "used"),
    [([(2.0, 1.0), (3.0, 2.5)], True), ([(1.0, 2.0), (2.5, 3.0)], False), ([(2.0, 1.9), (2.5, 3.0)], False)],
)
def test_of_modules_about_as_fast_the_one_is_kept_whose_calls_take_less_time(
    times: list[tuple[float, float]], used: bool, here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    compared = called_as_if(monkeypatch, times)
    caplog.set_level("INFO", "pipeline")
    made = here(*NORMALISED, *FEW)
    assert len(compared) == 1 and "whole modules, called in turns" in caplog.text
    assert made.verified and made.superopt is not None
    assert [one.chosen for one in made.superopt.subprograms] == [used]
    assert (len(made.tasks) == 1) is used
    assert artifact_is_whole(tmp_path) and not (tmp_path / "run" / "artifact_other").exists()


@pytest.mark.parametrize("shown", [True, False])
def test_the_comparison_of_modules_is_shown_where_progress_is(
    shown: bool, here: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called_as_if(monkeypatch, [(2.0, 1.0)])
    here(*NORMALISED, *FEW, f"report.progress={'true' if shown else 'false'}")
    said = capsys.readouterr().err
    assert ("  0%  0/1 modules compared" in said) is (" sets of inputs, random" in said) is shown


def test_an_interrupt_while_modules_are_compared_leaves_the_one_of_the_fastest_kernels(
    here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert not called_as_if(monkeypatch, None)
    made = here(*NORMALISED, *FEW)
    assert "interrupted: other choices of fused kernels are not tried" in caplog.text
    assert made.verified and made.superopt is not None and not any(one.chosen for one in made.superopt.subprograms)
    assert made.status == "interrupted"
    assert artifact_is_whole(tmp_path) and not (tmp_path / "run" / "artifact_other").exists()


def test_a_search_that_breaks_costs_nothing_but_itself(
    here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **given: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(searching, "superoptimize", broken)
    made = here(*NORMALISED, *FEW)
    assert (made.status, made.verified) == ("complete", True)
    told = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))["superopt"]
    assert "ZeroDivisionError: planted" in told["subprograms"][0]["reason"]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("superopt.seconds=0.0", r"superopt\.seconds"),
        ("superopt.graphs=0", r"superopt\.graphs"),
        ("superopt.algebra.extra=['x + y -> x']", "axiom does not hold.*where x = "),
        ("superopt.algebra.extra=['x + ']", "axiom"),
        ("superopt.algebra.without=[no-such-axiom]", "no-such-axiom"),
        ("+superopt.speed=3", r"superopt\.speed"),
        ("superopt.algebra._target_=os.system", r"superopt\.algebra.*outside"),
        ("superopt.rewrites=[{_target_: rules.graph.none.None_}]", r"superopt\.rewrites\[0\]"),
        ("superopt.rewrites=[{_target_: rules.graph.algebra.Algebra}]", r"superopt\.rewrites\[0\]"),
    ],
)
def test_a_setting_that_makes_no_sense_is_a_mistake_of_the_user(override: str, said: str, here: Run) -> None:
    with pytest.raises(UserError, match=said):
        here(*NORMALISED, *FEW, override)


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
@pytest.mark.slow
@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_during_the_search_leaves_a_valid_module_or_nothing_broken(
    ends: signal.Signals, tmp_path: Path
) -> None:
    """Ctrl-C ends with the best so far; after a kill the next run ends as if there had been none."""
    slow = (*ATTENTION, *QUICK, "search.trials=6", "search.batch=2", "superopt.seconds=300.0", "superopt.workers=2")
    process = start(tmp_path, [*slow, "report.progress=true"])
    assert process.stdout is not None
    for line in process.stdout:
        if "subprograms, " in line:
            break
    time.sleep(3.0)  # its workers have begun
    process.send_signal(ends)
    said, _ = process.communicate(timeout=120)
    if ends is signal.SIGINT:
        assert process.returncode == 0, said
        told = summary(tmp_path)
        assert (told["status"], told["verified"]) == ("interrupted", True)
    else:
        assert process.returncode == -signal.SIGKILL
        artifact_is_whole(tmp_path)
        told = run(tmp_path, *ATTENTION, *QUICK, *FEW)
        assert (told["status"], told["verified"]) == ("complete", True)
    assert artifact_is_whole(tmp_path)
