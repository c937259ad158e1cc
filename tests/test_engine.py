"""Tests of whole runs: killed, interrupted, resumed, with candidates that go wrong, with a rule of the user's own."""

from __future__ import annotations

import importlib
import json
import platform
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline import engine
from pipeline.config import parse
from pipeline.errors import CheckError, ConfigError, UserError
from pipeline.ir.graph import Graph
from pipeline.report.summary import Summary
from pipeline.runtime.session import Session
from pipeline.store.store import Store
from tests import engine_planted as planted
from tests.engine_runs import CHECKOUT, SMALL, artifact_is_whole, records, run, start, summary

Run = Callable[..., Summary]


@pytest.fixture
def here(composed: Callable[..., dict[str, Any]], tmp_path: Path) -> Run:
    """Runs the engine in this process, in a folder of the test, with a store there."""

    def go(*overrides: str, **measurement: dict[str, Any]) -> Summary:
        url = f"store.url=sqlite:///{tmp_path}/store.sqlite"
        (tmp_path / "run").mkdir(exist_ok=True)
        plain = composed(*SMALL, url, "report.progress=false", "registry.packages=[tests]", *overrides)
        plain["measurement"] |= measurement
        return engine.run(parse(plain), tmp_path / "run")

    return go


def test_a_run_ends_with_a_verified_artifact_and_its_summary(here: Run, tmp_path: Path) -> None:
    made = here("search.trials=4", "search.batch=2")
    assert (made.status, made.verified, made.trials, made.invalid_candidates) == ("complete", True, 4, 0)
    told = summary(tmp_path)
    assert told["tasks"][0]["trials"] == 4
    assert told["machine"]["peak_gflops"] > 0
    assert artifact_is_whole(tmp_path)
    with Session(tmp_path / "run" / "artifact") as session:
        assert [port.name for port in session.get_outputs()] == ["c"]
    with Store(f"sqlite:///{tmp_path}/store.sqlite") as store:
        assert len(store.everything()) == 4


def test_products_of_another_precision_are_another_model(here: Run, tmp_path: Path) -> None:
    assert here("search.trials=2", "search.batch=2").verified
    made = here("search.trials=2", "search.batch=2", "precision=float16")
    assert made.verified and made.trials > 0, "a record of float32 is none of float16"
    assert made.workload.endswith("products of float16")
    with Session(tmp_path / "run" / "artifact") as session:
        assert {port.type for port in (*session.get_inputs(), *session.get_outputs())} == {"tensor(float)"}


def test_measuring_on_a_gpu_for_a_cpu_is_a_mistake(here: Run) -> None:
    with pytest.raises(UserError, match=r"measures on GPUs, and the target is a CPU.*measurement=local"):
        here("search.trials=1", predicted={"_target_": "pipeline.measurement.cuda_predicted.PredictedRunner"})


@pytest.mark.parametrize("rules", ["rules=cuda", "rules.schedule=[]"])
def test_rules_that_leave_a_reduction_whole_are_a_mistake_that_is_told_before_any_trial(
    rules: str, here: Run, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"^rules\.schedule: .*contract.* no rule split.*rules=cpu for a CPU"):
        here(rules, "target=native", "search.trials=1")
    assert records(tmp_path) == {}


def test_a_dtype_that_a_workload_cannot_be_computed_in_is_a_mistake(here: Run) -> None:
    with pytest.raises(UserError, match=r"workload\.dtype: the workload cannot be computed in bool.*Choose float32"):
        here("workload.dtype=bool", "search.trials=1")


def test_a_second_run_measures_nothing_and_ends_the_same(here: Run, tmp_path: Path) -> None:
    first = here("search.trials=4", "search.batch=2")
    before = records(tmp_path)
    second = here("search.trials=4", "search.batch=2")
    assert records(tmp_path) == before
    assert (first.trials, second.trials) == (4, 0)
    assert second.verified and second.tasks[0].trials == 4
    assert second.tasks[0].best_at_trial == min(
        range(1, 5), key=lambda i: sorted(before.values(), key=lambda r: r.created)[i - 1].latency_ns or 1e18
    )


def test_without_resuming_nothing_is_taken_from_the_store(here: Run, tmp_path: Path) -> None:
    here("search=random", "search.trials=3", "search.batch=3")
    again = here("search=random", "search.trials=3", "search.batch=3", "store.resume=false")
    assert again.trials == 3
    assert len(records(tmp_path)) == 3, "the same seed proposes the same candidates, which keep their first record"


PLANTED_KINDS = [
    kind for kind in planted.REASONS if sys.platform.startswith("linux") or "exhaust" not in kind
]  # the memory limit needs Linux


@pytest.mark.timeout(600)
def test_each_candidate_that_goes_wrong_costs_one_trial_and_the_run_completes(here: Run, tmp_path: Path) -> None:
    kinds = PLANTED_KINDS
    made = here(
        f"search.trials={len(kinds) + 3}", f"search.batch={len(kinds) + 1}", "measurement.runner.timeout_s=6.0",
        "measurement.runner.memory_mb=512",
        builder={"_target_": "tests.engine_planted.PlantedBuilder", "kinds": kinds},
    )  # fmt: skip
    assert (made.status, made.verified, made.trials) == ("complete", True, len(kinds) + 3)
    expected = Counter(planted.REASONS[kind] for kind in kinds)
    assert made.failed_candidates == dict(expected)
    stored = list(records(tmp_path).values())
    assert len(stored) == made.trials
    failed = [record for record in stored if record.status == "failed"]
    assert Counter(record.reason.partition(":")[0] for record in failed) == expected
    assert all(len(record.reason) > len("crash: ") for record in failed), "each says what happened"
    assert all(record.samples == () and record.latency_ns is None for record in failed)
    assert artifact_is_whole(tmp_path)


def test_a_task_of_which_nothing_works_ends_the_run_with_the_reasons(here: Run, tmp_path: Path) -> None:
    builder = {"_target_": "tests.engine_planted.PlantedBuilder", "kinds": ["build raises"] * 100}
    with pytest.raises(engine.PipelineError, match="no candidate of a task works") as error:
        here("search.trials=3", "search.batch=3", builder=builder)
    assert "ValueError: planted" in str(error.value)
    assert not (tmp_path / "run" / "artifact").exists()
    assert not (tmp_path / "run" / "summary.json").exists()


def test_limits_that_no_candidate_stays_within_are_named(here: Run) -> None:
    with pytest.raises(UserError, match="no candidate of a task stays within the limits") as error:
        here("search.trials=2", "search.batch=2", "measurement.builder.timeout_s=0.001")
    assert "measurement.builder.timeout_s" in str(error.value) and "not finished after 0.001 s" in str(error.value)


def test_an_interrupt_while_known_kernels_are_built_again_keeps_them(here: Run, tmp_path: Path) -> None:
    small = ("search=random", "search.trials=3", "search.batch=3")
    here(*small)
    builder = {"_target_": "tests.engine_planted.InterruptedBuilder", "at": [1]}
    made = here(*small, builder=builder)
    assert (made.status, made.verified, made.trials) == ("interrupted", True, 0)
    assert artifact_is_whole(tmp_path)
    builder["at"] = [1, 2]
    with pytest.raises(KeyboardInterrupt):
        here(*small, builder=builder)


@pytest.mark.parametrize("stage", ["pipeline.machine.running.verify_module", "pipeline.machine.cpu.time_runs"])
def test_an_interrupt_after_the_search_leaves_a_verified_module(
    stage: str, here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the result needs is done once more, as shortly as it can be; a second interrupt ends the run."""
    asked = interrupted_first(stage, 1, monkeypatch)
    made = here("search.trials=2", "search.batch=2")
    assert (made.status, made.verified, len(asked)) == ("interrupted", True, 2)
    assert artifact_is_whole(tmp_path)
    if "verify" in stage:
        assert (asked[1]["rounds"], asked[1]["hostile"], len(asked[1]["usual"])) == (0, (), 1)
    monkeypatch.undo()
    interrupted_first(stage, 2, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        here("search.trials=2", "search.batch=2")


def test_an_interrupt_while_runtimes_are_compared_leaves_them_out(here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted_first("pipeline.machine.cpu.time_runs", 1, monkeypatch)
    interrupted_first("pipeline.engine.compare", 1, monkeypatch)
    made = here("search.trials=2", "search.batch=2", "compare.peers=[torch]")
    assert (made.status, made.verified) == ("interrupted", True)
    assert (made.peers["torch"].status, made.peers["torch"].reason) == ("skipped", "interrupted")


def interrupted_first(stage: str, times: int, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The user presses Ctrl-C in the first calls of a function; gives what each call was asked."""
    room, _, name = stage.rpartition(".")
    whole, asked = getattr(importlib.import_module(room), name), list[dict[str, Any]]()

    def pressed(*args: object, **given: Any) -> object:
        asked.append(given)
        if len(asked) <= times:
            raise KeyboardInterrupt
        return whole(*args, **given)

    monkeypatch.setattr(stage, pressed)
    return asked


def interrupted_at(*batches: int) -> dict[str, Any]:
    """A runner on which the user presses Ctrl-C at these batches."""
    return {"_target_": "tests.engine_planted.InterruptedRunner", "at": list(batches)}


@pytest.mark.parametrize("batch", [1, 3])
def test_an_interrupt_ends_the_run_with_the_best_so_far(batch: int, here: Run, tmp_path: Path) -> None:
    made = here("search.trials=20", "search.batch=2", runner=interrupted_at(batch))
    assert (made.status, made.verified) == ("interrupted", True)
    assert made.trials == len(records(tmp_path)) < 20
    assert summary(tmp_path)["status"] == "interrupted"
    assert artifact_is_whole(tmp_path)


def test_a_second_interrupt_ends_the_run_at_once(here: Run, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        here("search.trials=20", "search.batch=2", runner=interrupted_at(1, 2))
    assert not (tmp_path / "run" / "summary.json").exists()
    assert not (tmp_path / "run" / "artifact").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
def test_ctrl_c_in_a_terminal_ends_with_exit_code_0_and_a_summary(tmp_path: Path) -> None:
    process = start(tmp_path, [*SMALL, "search.trials=100000", "search.batch=2", "search.patience=100000"])
    wait_for(lambda: len(records(tmp_path)) >= 2, process)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    told = summary(tmp_path)
    assert (told["status"], told["verified"]) == ("interrupted", True)
    assert 0 <= told["trials"] - len(records(tmp_path)) <= 2, "a batch that was being written may be lost"
    assert artifact_is_whole(tmp_path)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120.0) -> None:
    """Until it holds; fails where the process ends before."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, "it has taken too long"
        time.sleep(0.05)


def kill_and_rerun(folder: Path, kills: int, seed: int) -> None:
    """Kills the run at random moments, each time looks at what is left, and lets the last one end."""
    rng = random.Random(seed)
    known = records(folder)
    endless = [*SMALL, "search.trials=1000000", "search.batch=2", "search.patience=1000000"]
    for number in range(kills):
        process = start(folder, endless)
        if number % 3:  # some die while they start, most while they measure
            before = len(known) + rng.randint(0, 6)
            wait_for(lambda enough=before: len(records(folder)) > enough, process)  # type: ignore[misc]
            time.sleep(rng.uniform(0.0, 0.5))
        else:
            time.sleep(rng.uniform(0.1, 4.0))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        left = records(folder)
        assert known.items() <= left.items(), "a committed record was lost or changed"
        known = left
        artifact_is_whole(folder)
    told = run(folder, *SMALL, f"search.trials={len(known) + 4}", "search.batch=2", "search.patience=1000000")
    left = records(folder)
    assert known.items() <= left.items()
    assert len(left) == len(known) + 4
    assert (told["trials"], told["tasks"][0]["trials"]) == (4, len(left))
    assert (told["status"], told["verified"], told["invalid_candidates"]) == ("complete", True, 0)
    assert artifact_is_whole(folder)
    assert not list((folder / "run").glob(".artifact.*")), "no half-written artifact is left"


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
@pytest.mark.timeout(600)
def test_a_run_that_is_killed_three_times_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    kill_and_rerun(tmp_path, kills=3, seed=1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
@pytest.mark.timeout(1200)
def test_a_run_that_is_killed_ten_times_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    kill_and_rerun(tmp_path, kills=10, seed=2)


def readme_rule() -> tuple[str, str, list[str]]:
    """File name, source and command of the README's example of a rule."""
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Add a rule\n")[2].partition("\n## ")[0]
    name = re.search(r"`(my_rules/\w+\.py)`", section)
    source = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    command = re.search(r"```sh\nmuschedule (.*?)```", section, re.DOTALL)
    assert name and source and command, "the README has a section 'Add a rule' with its file, class and command"
    return name[1], source[1], shlex.split(command[1].replace("\\\n", " "))


def test_the_rule_of_the_readme_changes_the_space_and_is_used_by_a_run(tmp_path: Path) -> None:
    name, source, command = readme_rule()
    file = tmp_path / name
    file.parent.mkdir()
    file.write_text(source, encoding="utf-8")
    small = [
        "workload.h=8", "workload.w=8", "workload.ci=4", "workload.co=8", "search.trials=12", "search.batch=12",
        *SMALL[4:],
    ]  # fmt: skip
    assert any(word.startswith("registry.packages=") for word in command)
    extra = [word for word in command if word.startswith("rules.extra=")]
    assert len(extra) == 1
    without = run(tmp_path, *(word for word in command if word not in extra), *small)
    (tmp_path / "store.sqlite").unlink()
    told = run(tmp_path, *command, *small, "search=random")
    counts = [{task["name"]: task["sketches"] for task in each["tasks"]} for each in (without, told)]
    grown = [task for task in counts[0] if counts[1][task] > counts[0][task]]
    assert grown and counts[0].keys() == counts[1].keys()
    assert told["verified"]
    unrolled = [json.loads(record.sketch)[-1] for record in records(tmp_path).values()]
    assert any(step["kind"] == "Unroll" and "loop" in step for step in unrolled), "none of its sketches was measured"


@pytest.mark.parametrize("given", [{"n": 10**20}, {"n": 10**6, "m": 10**6}, {"k": 10**12}])
def test_a_model_that_no_memory_holds_is_a_mistake_of_the_user(
    given: dict[str, int], here: Run, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="too large for this machine"):
        here(*(f"workload.{name}={size}" for name, size in given.items()))
    assert not (tmp_path / "run" / "artifact").exists()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("target=aarch64", "this machine cannot run code for the target|LLVM does not know|lacks features"),
        ("target.triple=nowhere-at-all", "this machine cannot run code for the target"),
        ("target.features=[+telepathy]", "has no telepathy"),
        ("target.cpu=z80", "'z80' is not a recognized processor"),
    ],
)
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the first may be this machine")
def test_a_target_that_this_machine_cannot_run_is_a_mistake_of_the_user(override: str, said: str, here: Run) -> None:
    with pytest.raises(UserError, match=said):
        here(override)


@dataclass(frozen=True)
class GraphSays:
    """A graph rule that gives or raises the same for every graph."""

    answer: object

    def apply(self, graph: Graph) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ValueError("no luck"), "ValueError: no luck"),
        (None, "it gave None where a Graph was expected"),
        (Graph((), (("y", 3),), {}), "the graph is not legal"),
    ],
)
def test_what_goes_wrong_in_a_graph_rule_is_told_with_its_name(answer: object, said: str) -> None:
    with pytest.raises(CheckError, match=r"rules\.graph\[2\]: the rule \S+\.GraphSays does not work") as caught:
        engine.rewritten(GraphSays(answer), Graph((), (), {}), "rules.graph[2]")
    assert said in str(caught.value)
