"""One run of a suite, as the configuration lists it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SuiteCase:
    """A workload, and values by the dotted names that they have in the configuration. `label` names its folder."""

    workload: str
    values: Mapping[str, Any]
    label: str

    def overrides(self) -> list[str]:
        """What would choose it on the command line."""
        return [f"+workload={self.workload}", *(f"++{name}={json.dumps(value)}" for name, value in self.values.items())]


def suite_cases(given: Any) -> tuple[SuiteCase, ...]:
    """The runs of `suite`; none at all where the run has one workload. ConfigError where it is of another form."""
    found: list[SuiteCase | None] = [None]
    if isinstance(given, dict) and all(isinstance(cases, list) for cases in given.values()):
        found = [_case(str(name), case) for name, cases in given.items() for case in (cases or [{}])]
    elif not given and not isinstance(given, bool | int):
        return ()
    cases = tuple(case for case in found if case is not None)
    if len(cases) < len(found):
        raise ConfigError(
            f"{given!r} is not valid here", where="suite",
            todo="Write {workload: [case, …], …}, or [] for no case; a case is a number, or values by name: "
                 "{gmm: [{n: 4096, m: 4096, k: 4096, dtype: float16}]}",
        )  # fmt: skip
    return cases


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
