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


def options_in_full(arguments: Sequence[str]) -> list[str]:
    """The arguments with each long option written out, which argparse knows by its beginning too. Raises where an
    option is none of Hydra's, may be several, lacks its value or has one too many; a short one may have its value at
    once, as in -cjob."""
    known = {*SHOWS_ONLY, *TAKES_A_VALUE, *SWITCHES}
    short = tuple(option for option in known if not option.startswith("--"))
    found: list[str] = []
    waiting = ""
    for argument in arguments:
        if waiting or not argument.startswith("-") or argument == "--":
            found.append(argument)
            waiting = ""
            continue
        name, equals, value = argument.partition("=")
        meant = sorted(option for option in known if name.startswith("--") and option.startswith(name) and name != "--")
        if name in known or len(meant) == 1:
            name = name if name in known else meant[0]
            if (equals and not value) or (equals and name not in TAKES_A_VALUE):
                todo = f"Its value is missing: {name}=…" if name in TAKES_A_VALUE else f"Write {name} alone"
                raise ConfigError(f"'{argument}' is not an option", todo=todo)
            waiting = name if name in TAKES_A_VALUE and not equals else ""
            found.append(name + equals + value)
        elif not name.startswith("--") and name.startswith(short):
            found.append(argument)
        else:
            raise _ambiguous(name, meant) if meant else _no_option(name, equals, value, known)
    if waiting:
        raise ConfigError(f"the option '{waiting}' lacks its value", todo="Show all options with --help")
    return found


def _ambiguous(name: str, meant: Collection[str]) -> ConfigError:
    return ConfigError(f"'{name}' fits several options", todo=f"Write one of them out: {listed(meant)}")


def _no_option(name: str, equals: str, value: str, options: Collection[str]) -> ConfigError:
    if equals:
        return ConfigError(
            f"there is no option '{name}'", todo=f"Values are set without dashes: {name.lstrip('-')}={value}"
        )
    todo = did_you_mean(name, options) + f"The options are: {listed(options)}; all else is set by key=value"
    return ConfigError(f"there is no option '{name}'", todo=todo)


def demand_workload(arguments: Sequence[str], conf: Path) -> None:
    """Raises where no workload is chosen, before a folder is made for a run that cannot be."""
    shows = any(argument.partition("=")[0] in SHOWS_ONLY for argument in arguments)
    chosen = any(re.match(r"\+{0,2}(workload|experiment|suite)(=|\.\w+=\[)", argument) for argument in arguments)
    if not shows and not chosen:
        names = [argument.lstrip("+").partition("=")[0] for argument in arguments if "=" in argument]
        guesses = (did_you_mean(name, ("workload", "experiment", "suite")) for name in names)
        named = (f"Did you mean workload={name}? " for name in arguments if name in workloads(conf))
        raise no_workload(conf, next(filter(None, (*named, *guesses)), ""))


def no_workload(conf: Path, guess: str = "") -> ConfigError:
    """The error that lists the workloads."""
    todo = f"{guess}Write workload=NAME with one of: {listed(workloads(conf))}; or experiment=operators"
    return ConfigError("no workload is chosen", todo=todo)


def workloads(conf: Path) -> list[str]:
    """The names of those that are built in."""
    return [path.stem for path in (conf / "workload").glob("*.yaml")]
