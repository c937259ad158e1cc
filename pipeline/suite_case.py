"""One run of a suite, as the configuration lists it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ConfigError, listed


@dataclass(frozen=True, slots=True)
class SuiteCase:
    """A workload, and values by the dotted names that they have in the configuration. `label` names its folder."""

    workload: str
    values: Mapping[str, Any]
    label: str

    def overrides(self) -> list[str]:
        """What would choose it on the command line."""
        return [f"+workload={self.workload}", *(f"++{name}={json.dumps(value)}" for name, value in self.values.items())]


def suite_cases(given: Any, workloads: Collection[str]) -> tuple[SuiteCase, ...]:
    """The runs of `suite`; none at all where the run has one workload. ConfigError where it is of another form.

    workloads  that the error names
    """
    if not given and not isinstance(given, bool | int):
        return ()
    if not isinstance(given, dict):
        raise not_a_suite(repr(given), workloads)
    found = []
    for name, cases in given.items():
        if not isinstance(cases, list):
            raise not_a_suite(f"{name}: {cases!r}", workloads)
        for case in cases or [{}]:
            made = _case(str(name), case)
            if made is None:
                raise not_a_suite(f"{name}: [{case!r}]", workloads)
            found.append(made)
    return tuple(found)


def not_a_suite(what: str, workloads: Collection[str]) -> ConfigError:
    """The error that says what a suite looks like."""
    return ConfigError(
        f"{what} is not valid here", where="suite",
        todo="Write {workload: [case, …], …}, or [] for no case; a case is a number, or values by name: "
             f"{{gmm: [{{n: 4096, m: 4096, k: 4096, dtype: float16}}]}}. The workloads are {listed(workloads)}",
    )  # fmt: skip


def _case(workload: str, given: Any) -> SuiteCase | None:
    """The number of a case, or values by name: of fields of the workload or, with a dot in the name, of anything (seed
    is .seed there); None where it is neither."""
    match given:
        case bool():
            return None
        case int():
            return SuiteCase(workload, {"workload.case": given}, f"{workload}-{given}")
        case dict() if all(isinstance(name, str) for name in given):
            label = "-".join([workload, *(f"{value}" for value in given.values())])
            values = {
                name.removeprefix(".") if "." in name else f"workload.{name}": value for name, value in given.items()
            }
            return SuiteCase(workload, values, re.sub(r"[^\w.-]+", "_", label))
        case _:
            return None
