"""The command line made ready for Hydra.

`workload=bert` becomes `+workload=bert`, and a key that does not exist reaches our own check, whose words are better.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from pipeline.errors import ConfigError, listed
from pipeline.explain import did_you_mean

SHOWS_ONLY = ("--cfg", "-c", "--info", "-i", "--help", "-h", "--hydra-help", "--shell-completion", "-sc")
# Groups without a default, which Hydra adds but does not replace.
CHOSEN = ("workload", "experiment")
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
TAKES_A_VALUE = (
    "--cfg",
    "-c",
    "--package",
    "-p",
    "--config-path",
    "-cp",
    "--config-name",
    "-cn",
    "--config-dir",
    "-cd",
)


SWITCHES = ("--version", "--resolve", "--run", "-r", "--multirun", "-m", "--experimental-rerun")


def rewritten(arguments: Sequence[str], groups: Collection[str]) -> list[str]:
    """The arguments as Hydra wants them: its own options first, then the overrides.

    groups   the folders of the configuration: of these one chooses, they are not keys
    """
    options: list[str] = []
    overrides: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("-"):
            overrides.append(_override(argument, groups))
            continue
        options.append(argument)
        if argument in TAKES_A_VALUE and rest:
            options.append(rest.pop(0))
        elif argument in ("--info", "-i"):
            options.append(rest.pop(0) if rest and rest[0] in INFO else "all")
    return options + overrides


def _override(argument: str, groups: Collection[str]) -> str:
    key, equals, _ = argument.partition("=")
    if not equals or not re.fullmatch(r"\w[\w.]*", key) or key.startswith("hydra."):
        return argument
    if key in CHOSEN:
        return "+" + argument
    return argument if key in groups else "++" + argument


def demand_text(arguments: Sequence[str]) -> None:
    """Raises where an argument holds bytes that are no text in the encoding of the terminal."""
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise ConfigError(
                f"{argument!a} is not text in the encoding of this terminal",
                todo="Set LC_ALL=C.UTF-8, or rename the file",
            )


def demand_options(arguments: Sequence[str]) -> None:
    """Raises where an option is none of Hydra's. It knows a long one by its beginning too, and a short one by its own,
    as in -cjob."""
    known = {*SHOWS_ONLY, *TAKES_A_VALUE, *SWITCHES}
    short = tuple(option for option in known if not option.startswith("--"))
    values = {place + 1 for place, argument in enumerate(arguments) if argument in TAKES_A_VALUE}
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if place in values or not argument.startswith("-") or argument == "--":
            continue
        if any(option.startswith(name) for option in known) if name.startswith("--") else name.startswith(short):
            continue
        if equals:
            todo = f"Values are set without dashes: {name.lstrip('-')}={value}"
        else:
            todo = did_you_mean(name, known) + f"The options are: {listed(known)}; all else is set by key=value"
        raise ConfigError(f"there is no option '{name}'", todo=todo)


def demand_workload(arguments: Sequence[str], conf: Path) -> None:
    """Raises where no workload is chosen, before a folder is made for a run that cannot be."""
    shows = any(argument.partition("=")[0] in SHOWS_ONLY for argument in arguments)
    chosen = any(re.match(r"\+{0,2}(workload|experiment|suite)(=|\.\w+=\[)", argument) for argument in arguments)
    if not shows and not chosen:
        names = [argument.lstrip("+").partition("=")[0] for argument in arguments if "=" in argument]
        guesses = (did_you_mean(name, ("workload", "experiment", "suite")) for name in names)
        raise no_workload(conf, next(filter(None, guesses), ""))


def no_workload(conf: Path, guess: str = "") -> ConfigError:
    """The error that lists the workloads."""
    todo = f"{guess}Write workload=NAME with one of: {listed(workloads(conf))}; or experiment=operators"
    return ConfigError("no workload is chosen", todo=todo)


def workloads(conf: Path) -> list[str]:
    """The names of those that are built in."""
    return [path.stem for path in (conf / "workload").glob("*.yaml")]
