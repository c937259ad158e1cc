"""Tests of the command: what it composes, what it says and its exit codes. The engine has tests of its own."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import hydra.core.utils
import pytest
from omegaconf import OmegaConf

from pipeline import cli
from pipeline.config import Config
from pipeline.errors import ModelError, PipelineError

CHECKOUT = Path(__file__).resolve().parent.parent
Command = Callable[..., int]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configurations that reached the engine, which does nothing but write a summary."""
    seen: list[Config] = []

    def run(config: Config, folder: Path) -> SimpleNamespace:
        seen.append(config)
        summary = {"verified": True, "latency_ms": {"median": 1.5}, "peers": {"other": {"ratio": 2.0}}}
        (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
        return SimpleNamespace(status="complete", verified=True)

    monkeypatch.setattr(cli.engine, "run", run)
    return seen


@pytest.fixture
def user_conf(tmp_path: Path, outsider: str) -> Path:
    """A user's own configuration folder."""
    for path, node in {
        "workload/toy.yaml": {"_target_": f"{outsider}.Workload", "n": 4, "case": None},
        "cost_model/toy.yaml": {"_target_": f"{outsider}.Cost"},
    }.items():
        file = tmp_path / "conf" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(OmegaConf.to_yaml(node), encoding="utf-8")
    return tmp_path / "conf"


@pytest.fixture
def overrides(user_conf: Path, outsider: str) -> list[str]:
    return [
        f"--config-dir={user_conf}", "cost_model=toy", f"search.strategy={{_target_: {outsider}.Strategy}}",
        f"registry.packages=[{outsider}]", "rules.schedule=[]", "rules.graph=[]", "compare.plugins={}",
    ]  # fmt: skip


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str]) -> Command:
    """Runs the command in an empty folder, with the outsider's components."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: cli.main([*overrides, *arguments])


def folders(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "outputs").iterdir())


@pytest.mark.parametrize("spelling", ["workload=toy", "+workload=toy"])
def test_both_spellings_of_the_workload_work(
    spelling: str, command: Command, runs: list[Config], tmp_path: Path
) -> None:
    assert command(spelling, "workload.n=7", "seed=3") == 0
    assert (runs[0].workload.arguments["n"], runs[0].seed) == (7, 3)
    (folder,) = folders(tmp_path)
    assert folder.name.endswith("-toy")
    assert (folder / "pipeline.log").is_file()


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(
    command: Command, runs: list[Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hydra.core.utils, "datetime", SimpleNamespace(now=lambda: datetime(2026, 1, 2, 3, 4, 5)))
    assert [command("workload=toy") for _ in range(3)] == [0, 0, 0]
    assert [command("workload=toy", "-m", "seed=0,1") for _ in range(2)] == [0, 0]
    names = [folder.name.removeprefix("2026-01-02_03-04-05-") for folder in folders(tmp_path)]
    assert names == ["sweep", "sweep-2", "toy", "toy-2", "toy-3"]
    for folder in folders(tmp_path):
        jobs = [folder] if "toy" in folder.name else [folder / "0-toy", folder / "1-toy"]
        assert all((job / "summary.json").is_file() and (job / "pipeline.log").is_file() for job in jobs)
        assert (folder / "table.json").is_file() == ("sweep" in folder.name)


def test_a_folder_that_is_named_is_used_again(command: Command, runs: list[Config], tmp_path: Path) -> None:
    assert [command("workload=toy", "hydra.run.dir=mine"), command("workload=toy", "hydra.run.dir=mine")] == [0, 0]
    assert (tmp_path / "mine" / "summary.json").is_file()
    assert not (tmp_path / "mine-2").exists()


def test_options_may_stand_anywhere(command: Command, runs: list[Config]) -> None:
    assert command("workload=toy", "-m", "seed=0,1", "workload.n=2,3") == 0
    assert [(run.seed, run.workload.arguments["n"]) for run in runs] == [(0, 2), (0, 3), (1, 2), (1, 3)]


def test_a_sweep_ends_with_one_table(
    command: Command, runs: list[Config], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert command("-m", "workload=toy", "seed=0,1") == 0
    (folder,) = folders(tmp_path)
    assert list(json.loads((folder / "table.json").read_text())) == ["0-toy", "1-toy"]


def test_a_suite_runs_each_case_in_a_folder_of_its_own(command: Command, runs: list[Config], tmp_path: Path) -> None:
    assert command("suite.toy=[1,2]", "seed=5") == 0
    assert [run.workload.arguments["case"] for run in runs] == [1, 2]
    assert {run.seed for run in runs} == {5}
    (folder,) = folders(tmp_path)
    assert list(json.loads((folder / "table.json").read_text())) == ["toy-1", "toy-2"]


def test_the_cases_of_an_experiment_keep_what_else_it_sets(
    command: Command, runs: list[Config], tmp_path: Path, user_conf: Path
) -> None:
    (user_conf / "experiment").mkdir()
    text = "# @package _global_\nsearch:\n  trials: 3\nsuite:\n  toy: [1, 2]\n"
    (user_conf / "experiment" / "mine.yaml").write_text(text, encoding="utf-8")
    assert command("experiment=mine") == 0
    assert [run.search.trials for run in runs] == [3, 3]


def test_a_case_of_a_suite_may_give_values_by_name(command: Command, runs: list[Config], tmp_path: Path) -> None:
    assert command("suite.toy=[1,{n: 7},{n: 8, search.trials: 5, .seed: 3}]") == 0
    told = [(run.workload.arguments["n"], run.search.trials, run.seed) for run in runs]
    assert told[1:] == [(7, None, 0), (8, 5, 3)]
    (folder,) = folders(tmp_path)
    assert list(json.loads((folder / "table.json").read_text())) == ["toy-1", "toy-7", "toy-8-5-3"]


def test_a_case_of_a_suite_with_an_unknown_value_is_refused_and_the_others_run(
    command: Command, runs: list[Config], caplog: pytest.LogCaptureFixture
) -> None:
    assert command("suite.toy=[{m: 7},{n: 8}]") == 2
    assert [run.workload.arguments["n"] for run in runs] == [8]


@pytest.mark.parametrize(
    "suite", ["suite=3", "suite={toy: 1}", "suite=[toy]", "suite={toy: [true]}", "suite={toy: [a]}"]
)
def test_a_suite_of_the_wrong_shape_is_refused(
    command: Command, runs: list[Config], suite: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command(suite) == 2
    said = capfd.readouterr().err
    assert "suite: " in said and "Write {workload: [case, …], …}" in said and "bert_large" in said
    assert len(said.splitlines()) == 1
    assert not runs


def test_of_a_suite_the_case_that_is_none_is_told(command: Command, capfd: pytest.CaptureFixture[str]) -> None:
    assert command("suite={toy: [1, 2, three]}") == 2
    assert "suite: toy: ['three'] is not valid here" in capfd.readouterr().err


@pytest.mark.parametrize(("given", "meant"), [("wrkload=bert", "workload"), ("experimnt=mugraphs", "experiment")])
def test_a_misspelt_choice_of_the_workload_is_guessed(
    command: Command, capsys: pytest.CaptureFixture[str], given: str, meant: str
) -> None:
    assert command(given) == 2
    assert f"no workload is chosen. Did you mean '{meant}'? Write workload=NAME" in capsys.readouterr().err


def test_an_interrupt_after_the_module_was_written_says_where_it_is(tmp_path: Path) -> None:
    """As a second Ctrl-C may come, while modules are compared or verified."""
    assert cli._interrupted(tmp_path) == cli.INTERRUPTED
    (tmp_path / "artifact").mkdir()
    (tmp_path / "artifact" / "manifest.json").write_text("{}")
    assert str(tmp_path / "artifact") in cli._interrupted(tmp_path)


def test_the_version_is_ours(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--version") == 0
    assert re.fullmatch(r"muschedule \d+\.\d+\S*\n", capsys.readouterr().out)


def test_no_workload_is_an_error_that_lists_them_and_makes_no_folder(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command() == 2
    said = capsys.readouterr().err
    assert "no workload is chosen" in said
    for path in (CHECKOUT / "conf" / "workload").glob("*.yaml"):
        assert path.stem in said
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("target=avx3", ["target=avx3", "Did you mean 'avx2'?", "native"]),
        ("search=randum", ["search=randum", "Did you mean 'random'?", "evolutionary"]),
        ("search.trails=3", ["search.trails", "Did you mean 'trials'?"]),
        ("serach=random", ["serach", "Did you mean 'search'?"]),
        ("workload.n=four", ["workload.n", "'four'", "integer"]),
        ("workload._target_=os.system", ["os.system", "outside the allowed packages", "registry.packages"]),
        ("seed=???", ["seed: missing", "seed=…"]),
        ("seed=[", ["not an override"]),
        ("seed=${nowhere}", ["nowhere"]),
        ("search=null", ["must be a string"]),
        ("target=7", ["must be a string"]),
        ("search=[1]", ["a choice is not a name", "search=random"]),
        ("registry=[1]", ["registry: a list is not valid here. Expected a mapping", "registry='{name: value}'"]),
        ("compare.plugins=[1]", ["compare.plugins: a list", "compare.plugins='{name: value}'"]),
        ("compare.plugins=1", ["1 (int)", "Expected a mapping", "compare.plugins='{name: value}'"]),
        ("compare.peers=[onxruntime]", ["no peer 'onxruntime'. Did you mean 'onnxruntime'? The peers are:", "torch"]),
        ("compare.peers={a:1}", ["compare.peers: a mapping is not valid here", "a list", "compare.peers=[value]"]),
        ("seed=1,2", ["Ambiguous value", "add -m"]),
    ],
)
def test_a_mistake_is_one_clear_error_with_exit_code_2(
    override: str, words: list[str], command: Command, runs: list[Config], capfd: pytest.CaptureFixture[str]
) -> None:
    assert command("workload=toy", override) == 2
    said = capfd.readouterr().err
    for word in words:
        assert word in said
    assert said.count("error: ") == 1
    assert len(said.splitlines()) == 1
    assert "Traceback" not in said
    assert not runs


def test_an_unknown_workload_lists_the_known_ones(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("workload=toi") == 2
    assert "there is no workload 'toi'. Did you mean 'toy'?" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "why"), [("gone", "there is no such folder"), ("file", "it is not a folder")])
def test_a_folder_of_configuration_that_is_none_is_a_mistake(
    name: str, why: str, runs: list[Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("", encoding="utf-8")
    for spelling in ([f"--config-dir={name}"], ["-cd", name]):
        assert cli.main([*spelling, "workload=bert"]) == 2
        said = capsys.readouterr().err
        assert f"{tmp_path / name}: the folder of --config-dir cannot be read. {why}. Name the folder" in said
        assert len(said.splitlines()) == 1
    assert not runs


def test_an_output_folder_that_cannot_be_made_is_a_mistake(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert command("workload=toy", f"hydra.run.dir={tmp_path}/file/run") == 2
    assert "cannot write" in capsys.readouterr().err


def test_a_folder_that_cannot_exist_is_a_mistake(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("workload=toy", "hydra.run.dir=/dev/null/run") == 2
    said = capsys.readouterr().err
    assert "cannot write" in said and "Traceback" not in said


def test_a_folder_that_was_removed_under_the_command_is_a_mistake(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert command("workload=toy") == 2
    assert "the folder that the command is started in is gone" in capsys.readouterr().err


def test_an_argument_that_is_not_text_is_a_mistake(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("workload=toy", "workload.path=m\udcff.onnx") == 2
    assert "is not text in the encoding of this terminal" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--threads=2", "there is no option '--threads'. Values are set without dashes: threads=2."),
        ("--multrun", "there is no option '--multrun'. Did you mean '--multirun'? The options are: --cfg,"),
        ("-x", "there is no option '-x'. The options are: --cfg,"),
        ("-1", "there is no option '-1'. The options are: --cfg,"),
        ("--ünder", "there is no option '--ünder'."),
        ("--cfg=", "'--cfg=' is not an option. Its value is missing: --cfg=…."),
        ("--multirun=x", "'--multirun=x' is not an option. Write --multirun alone."),
        ("--=3", "there is no option '--'."),
        ("--conf", "'--conf' fits several options. Write one of them out: --config-dir, --config-name, --config-path."),
    ],
)
def test_an_option_that_there_is_not_is_one_line(
    given: str, words: str, command: Command, runs: list[Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(given, "workload=toy") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {words}") and said.count("\n") == 1
    assert not runs and not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("given", ["--cfg", "-c", "--pac", "-cn"])
def test_an_option_without_its_value_is_one_line(
    given: str, command: Command, runs: list[Config], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("workload=toy", given) == 2
    said = capsys.readouterr().err
    assert "lacks its value" in said and said.count("\n") == 1 and not runs


def test_a_workload_by_its_name_alone_is_guessed(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("bert") == 2
    assert "no workload is chosen. Did you mean workload=bert? Write workload=NAME" in capsys.readouterr().err


def test_the_value_of_a_short_option_may_follow_at_once(
    command: Command, runs: list[Config], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("-cjob", "workload=toy") == 0
    assert "workload:" in capsys.readouterr().out and not runs


def test_a_long_option_is_known_by_its_beginning(
    command: Command, runs: list[Config], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--multi", "workload=toy", "workload.n=1,2") == 0
    assert len(runs) == 2
    assert command("--ver") == 0
    assert re.search(r"^muschedule \d", capsys.readouterr().out, re.MULTILINE)
    assert command("--he") == 0
    assert "Configuration groups" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ModelError("not an ONNX file", where="x.onnx"), 2, "x.onnx: not an ONNX file"),
        (OSError(errno.ENOSPC, "No space left on device", "outputs/x"), 2, "outputs/x: cannot write: No space left"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "outputs"),
        (PipelineError("a defect"), 1, "PipelineError: a defect"),
        (ZeroDivisionError("division by zero"), 1, "ZeroDivisionError: division by zero"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_of_the_engine_becomes_its_exit_code(
    error: BaseException, code: int, words: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def run(config: Config, folder: Path) -> SimpleNamespace:
        raise error

    monkeypatch.setattr(cli.engine, "run", run)
    assert command("workload=toy") == code
    said = capfd.readouterr().err
    assert words in said
    assert "Traceback" not in said
    log = (folders(tmp_path)[0] / "pipeline.log").read_text(encoding="utf-8")
    assert words in log
    assert ("Traceback" in log) == (code == 1)


@pytest.mark.parametrize(
    ("summary", "code"),
    [
        (SimpleNamespace(status="complete", verified=True), 0),
        (SimpleNamespace(status="interrupted", verified=True), 0),
        (SimpleNamespace(status="failed", verified=False), 1),
        (SimpleNamespace(status="failed", verified=True), 1),
    ],
)
def test_only_a_verified_result_is_a_success(
    summary: SimpleNamespace, code: int, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.engine, "run", lambda config, folder: summary)
    assert command("workload=toy") == code


def test_a_mistake_in_one_job_of_a_sweep_ends_with_2_after_the_others_have_run(
    command: Command, runs: list[Config], tmp_path: Path
) -> None:
    assert command("-m", "workload=toy", "workload.n=1,x,2") == 2
    assert [run.workload.arguments["n"] for run in runs] == [1, 2]
    assert list(json.loads((folders(tmp_path)[0] / "table.json").read_text())) == ["0-toy", "2-toy"]


@pytest.mark.parametrize(
    "options", [["--cfg", "job"], ["--cfg", "hydra"], ["--info"], ["--info", "defaults"], ["--help"]]
)
def test_the_configuration_can_be_shown_with_and_without_a_workload(
    options: list[str], command: Command, runs: list[Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*options) == 0
    assert command(*options, "workload=toy") == 0
    assert capsys.readouterr().out
    assert not runs
    assert not (tmp_path / "outputs").exists()


def test_an_error_says_the_same_after_it_has_crossed_a_process() -> None:
    error = ModelError("not an ONNX file", where="x.onnx", why="It is empty", todo="Export it again")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_command_works_from_another_folder(tmp_path: Path) -> None:
    """As `python -m` does, in a process of its own: the configuration is found by its absolute path."""
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", "--cfg", "job"],
        cwd=tmp_path, env={"PYTHONPATH": str(CHECKOUT)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "cost_model:" in done.stdout


def test_a_sweep_with_the_joblib_launcher_hands_a_mistake_back(overrides: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *overrides, "-m", "workload=toy", "workload.n=x,y",
         "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
        cwd=tmp_path, env={"PYTHONPATH": str(CHECKOUT), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "workload.n: 'x' (str) is not valid here" in done.stderr
    assert "Traceback" not in done.stderr


IMPORTING = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "hydra":  # in the middle of the imports
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""


def test_an_interrupt_while_the_command_is_imported_ends_it_with_one_line(tmp_path: Path) -> None:
    code = IMPORTING + "import runpy; runpy.run_module('pipeline', run_name='__main__', alter_sys=True)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(CHECKOUT)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 130
    assert done.stderr == cli.INTERRUPTED + "\n"


def test_an_interrupt_before_the_job_is_one_line(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.cli_overrides, "demand_workload", interrupt)
    assert command("workload=toy") == 130
    assert capsys.readouterr().err == cli.INTERRUPTED + "\n"


@pytest.mark.skipif(sys.platform == "win32", reason="there it ends a process at once")
@pytest.mark.parametrize("arguments", [["workload=toy"], ["suite.toy=[1,2]"], ["-m", "workload=toy", "seed=0,1"]])
def test_a_termination_keeps_what_there_is_and_begins_nothing_else(
    arguments: list[str], command: Command, runs: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    search = cli.engine.run

    def run(config: Config, folder: Path) -> SimpleNamespace:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("it went on")
        except KeyboardInterrupt:
            return search(config, folder)

    monkeypatch.setattr(cli.engine, "run", run)
    before = signal.getsignal(signal.SIGTERM)
    assert command(*arguments) == 0
    assert len(runs) == 1
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.skipif(sys.platform == "win32", reason="there it ends a process at once")
def test_a_termination_with_nothing_to_keep_is_one_line(
    command: Command, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli.engine, "run", lambda config, folder: os.kill(os.getpid(), signal.SIGTERM))
    assert command("workload=toy") == 130
    assert capfd.readouterr().err == f"warning: {cli.INTERRUPTED}\n"
