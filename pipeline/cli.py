"""The Hydra entry: composes the configuration, hands it to the engine checked, and turns errors into exit codes.

0: done · 1: a defect of ours, with its traceback in pipeline.log · 2: a mistake in the input ·
130: interrupted with nothing to show. Below this file there is no `DictConfig` and no environment variable.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException, SearchPathException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from pipeline import cli_overrides, engine, suite
from pipeline.config import Config, parse
from pipeline.errors import ConfigError, UserError
from pipeline.explain import unknown, unlike
from pipeline.machine.machine import VERSION
from pipeline.suite_case import SuiteCase, not_a_suite, suite_cases

log = logging.getLogger("pipeline")

DISK_ERRORS = frozenset({
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR,
    errno.ENAMETOOLONG,
})  # fmt: skip

MIXED = "Cannot merge DictConfig with ListConfig"  # OmegaConf's words, for either of them in the other's place
SHOW = "Show the configuration with --cfg job"
INTERRUPTED = "interrupted before there was anything to keep"
TERMINATED = threading.Event()  # by SIGTERM: what would come after this run, of a suite or a sweep, does not


def own_folder(path: str) -> str:
    """A folder that is made now and that no other run has: a name that is taken, by a run that began in the same second
    say, gets a number behind it. Where it cannot be made, Hydra, which makes it where it is not there, says why."""
    own, number = path, 1
    while True:
        try:
            os.makedirs(own)
            return own
        except FileExistsError:
            number += 1
            own = f"{path}-{number}"
        except OSError:
            return own


# For the configuration; here, since the processes of a launcher import this file and do not call `main`.
OmegaConf.register_new_resolver("own_folder", own_folder, use_cache=True, replace=True)


class PlainFormatter(logging.Formatter):
    """The message alone: tracebacks are for the file."""

    def format(self, record: logging.LogRecord) -> str:
        """The message, with its level where it is a warning or an error."""
        prefix = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return prefix + record.getMessage()


class JobFailed(Exception):
    """A job of a sweep has failed and said why. args: its exit code, the folder of the sweep."""


class SweepTable(Callback):
    """Prints one table when the last job of a sweep has ended."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Reads the summaries below the folder of the sweep."""
        suite.write_table(Path(config.hydra.sweep.dir))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line (without the program's name) and returns its exit code."""
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        conf = conf_folder()
        groups = tuple(folder.name for folder in conf.iterdir() if folder.is_dir() and folder.name != "hydra")
        here = os.getcwd()
        if here not in sys.path and "" not in sys.path:
            sys.path.append(here)  # a user's own rules lie there, as with `python -m`
        cli_overrides.demand_text(given)
        given = cli_overrides.options_in_full(given)
        if "--version" in given:  # Hydra would tell its own
            print(f"muschedule {VERSION}")
            return 0
        cli_overrides.demand_workload(given, conf)
        with _command_line(cli_overrides.rewritten(given, groups)), _terminable():
            hydra.main(version_base="1.3", config_path=str(conf), config_name="config")(job)()
    except JobFailed as failed:
        code, folder = failed.args
        suite.write_table(Path(folder))  # the other jobs have a result
        return int(code)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 2
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130
    except (UserError, HydraException, OmegaConfBaseException) as error:
        mistake = _as_mistake(error)
        if mistake is None:
            traceback.print_exc()
            return 1
        print(f"error: {mistake}", file=sys.stderr)
        return 2
    except ValueError as error:
        # A job hands nothing on but its exit code: this is Hydra, about a choice that is null or a number.
        print(f"error: {ConfigError(_first_line(error), todo=SHOW)}", file=sys.stderr)
        return 2
    except TypeError as error:
        mistake = ConfigError("a choice is not a name", why=_first_line(error), todo="Write search=random, say")
        print(f"error: {mistake}", file=sys.stderr)  # Hydra again, about a list of numbers
        return 2
    except OSError as error:
        print(f"error: {_disk_mistake(error)}", file=sys.stderr)  # the run's folder, or the one the command stands in
        return 2
    return 0


def conf_folder() -> Path:
    """The YAML files: inside the package when it is installed, beside it in a checkout."""
    here = Path(__file__).resolve().parent
    installed = here / "conf"
    return installed if installed.is_dir() else here.parent / "conf"


def job(composed: DictConfig) -> None:
    """One run; every failure is said once, here, and leaves as an exit code."""
    settings = HydraConfig.get()
    overrides = OmegaConf.to_container(settings.overrides.task, resolve=False)  # ${…} is for the keys, not for the list
    assert isinstance(overrides, list)
    code = _guarded(composed, Path(settings.runtime.output_dir), [str(override) for override in overrides])
    if TERMINATED.is_set():
        raise SystemExit(code)
    if code:
        # A sweep goes on after a failed job; leaving by SystemExit would end it.
        raise JobFailed(code, settings.sweep.dir) if settings.mode == RunMode.MULTIRUN else SystemExit(code)


def _interrupted(folder: Path) -> str:
    """What a run leaves that an interrupt ended before its summary, as a second Ctrl-C does."""
    if (folder / "artifact" / "manifest.json").is_file():
        return f"interrupted before the module was verified: it is in {folder / 'artifact'}, and there is no summary"
    return INTERRUPTED


def _guarded(composed: DictConfig, folder: Path, overrides: Sequence[str]) -> int:
    try:
        cases = suite_cases(_plain(composed).get("suite"), cli_overrides.workloads(conf_folder()))
        if not cases:
            return _run(configured(composed), folder)
        _refuse_absent_target(_composed(overrides, cases[0]))
        codes = []
        for number, case in enumerate(cases, 1):
            log.info("%s (%d of %d)", case.label, number, len(cases))
            codes.append(_guarded(_composed(overrides, case), folder / case.label, ()))
            if TERMINATED.is_set():
                break
        suite.write_table(folder)
        return max(codes)
    except KeyboardInterrupt:
        log.warning(_interrupted(folder))
        return 130
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(folder)  # a write says nothing of its place
        mistake = _as_mistake(error)
        if mistake is not None:
            log.error("%s", mistake)
            return 2
        said = str(error).rstrip(".") or "no message"
        log.error(
            "%s: %s. The traceback is in pipeline.log of the run's folder", type(error).__name__, said, exc_info=True
        )
        return 1


def configured(composed: DictConfig) -> Config:
    """The checked configuration of a composed one."""
    data = _plain(composed)
    data.pop("suite", None)
    if "workload" not in data:
        raise cli_overrides.no_workload(conf_folder())
    return parse(data)


def _run(config: Config, folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    summary = engine.run(config, folder)
    return 0 if summary.verified and summary.status != "failed" else 1


def _refuse_absent_target(composed: DictConfig) -> None:
    """A UserError where the target's machine is not here: once, and not for each case of a suite."""
    try:
        config = configured(composed)
    except ConfigError:
        return  # of this case: it will say so itself
    config.target.resolve()


def _composed(overrides: Sequence[str], case: SuiteCase) -> DictConfig:
    kept = [override for override in overrides if not override.lstrip("+").startswith(("suite", "workload"))]
    # The experiment would bring its suite back, so the case is told that it has none.
    return hydra.compose("config", overrides=[*kept, *case.overrides(), "++suite=null"])


def _plain(composed: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _as_mistake(error: Exception) -> UserError | None:
    """The user's mistake behind an error of Hydra, OmegaConf or the file system; None where it is none."""
    match error:
        case UserError():
            return error
        case MissingConfigException():
            return _missing_choice(error)
        case OverrideParseException():
            return ConfigError(f"'{error.override}' is not an override", why=_first_line(error), todo="Write key=value")
        case SearchPathException():
            return _missing_folder(error)
        case MissingMandatoryValue():
            key = str(error.full_key)
            return ConfigError("missing", where=key, todo=f"Give it a value: {key}=…")
        case HydraException() if str(error).startswith("Ambiguous value"):
            todo = "To run each of them add -m; a list is written as [a,b]"
            return ConfigError(_first_line(error), todo=todo)
        case HydraException() | OmegaConfBaseException():
            cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
            where = getattr(cause, "full_key", None) or ""
            if where == "suite":  # a list, which cannot be merged with what is there
                return not_a_suite("a list", cli_overrides.workloads(conf_folder()))
            if where and _first_line(cause) == MIXED:
                return unlike(str(where), getattr(cause, "object_type", dict))
            return ConfigError(_first_line(cause), where=str(where), todo=SHOW)
        case MemoryError():
            return UserError(
                "this machine has not enough memory",
                why=_first_line(error),
                todo="Choose smaller sizes, or a smaller model",
            )
        case OSError() if error.errno in DISK_ERRORS:
            return _disk_mistake(error)
        case _:
            return None


def _disk_mistake(error: OSError) -> UserError:
    if error.errno == errno.ENOENT and error.filename is None:
        return UserError("the folder that the command is started in is gone", todo="Change into one that is there")
    return UserError(
        f"cannot write: {error.strerror}",
        where=str(error.filename or ""),
        todo="Make room, or choose another folder with hydra.run.dir=…",
    )


def _missing_choice(error: MissingConfigException) -> ConfigError:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if error.options is None or not group:
        return ConfigError(_first_line(error))
    return unknown(group, name, error.options, f"{group}={name}")


def _missing_folder(error: SearchPathException) -> ConfigError:
    _, _, rest = str(error).partition("'")
    folder = Path(rest.rpartition("'")[0])
    why = "it is not a folder" if folder.exists() else "there is no such folder"
    todo = "Name the folder that holds your own YAML files, such as conf with conf/workload/mine.yaml"
    return ConfigError("the folder of --config-dir cannot be read", where=str(folder), why=why, todo=todo)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


@contextmanager
def _command_line(arguments: Sequence[str]) -> Iterator[None]:
    """Hydra reads `sys.argv`. It hands errors on only if HYDRA_FULL_ERROR is set, else it exits itself."""
    before, environment = sys.argv, dict[str, str | None](HYDRA_FULL_ERROR=os.environ.get("HYDRA_FULL_ERROR"))
    sys.argv = [before[0], *arguments]
    _set_environment({"HYDRA_FULL_ERROR": "1"})
    try:
        yield
    finally:
        sys.argv = before
        _set_environment(environment)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: with the best so far, where there is one."""

    def end(number: int, frame: FrameType | None) -> None:
        TERMINATED.set()
        raise KeyboardInterrupt

    TERMINATED.clear()
    if threading.current_thread() is not threading.main_thread():  # which gets the signals
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
