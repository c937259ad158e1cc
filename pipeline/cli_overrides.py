"""The command line made ready for Hydra.

`workload=bert` becomes `+workload=bert`, and a key that does not exist reaches our own check, whose words are better.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from pipeline.errors import ConfigError, listed

SHOWS_ONLY = ("--cfg", "-c", "--info", "-i", "--help", "-h", "--hydra-help", "--version", "--shell-completion", "-sc")
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


def rewritten(arguments: Sequence[str], groups: Collection[str]) -> list[str]:
    """The arguments as Hydra wants them.

    groups   the folders of the configuration: of these one chooses, they are not keys
    """
    result: list[str] = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        key, equals, _ = argument.partition("=")
        if not equals or before in TAKES_A_VALUE or not re.fullmatch(r"\w[\w.]*", key) or key.startswith("hydra."):
            result.append(argument)
        elif key == "workload":
            result.append("+" + argument)
        elif key in groups:
            result.append(argument)
        else:
            result.append("++" + argument)
    return result


def demand_workload(arguments: Sequence[str], conf: Path) -> None:
    """Raises where no workload is chosen, before a folder is made for a run that cannot be."""
    shows = any(argument.partition("=")[0] in SHOWS_ONLY for argument in arguments)
    chosen = any(re.match(r"\+{0,2}(workload|experiment|suite)(=|\.\w+=\[)", argument) for argument in arguments)
    if not shows and not chosen:
        raise no_workload(conf)


def no_workload(conf: Path) -> ConfigError:
    """The error that lists the workloads."""
    names = [path.stem for path in (conf / "workload").glob("*.yaml")]
    return ConfigError(
        "no workload is chosen", todo=f"Write workload=NAME with one of: {listed(names)}; or experiment=operators"
    )
