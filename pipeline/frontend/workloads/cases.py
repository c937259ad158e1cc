"""The numbered cases of an operator family, with sizes that the user may give instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pipeline.errors import UserError


class Cased(Protocol):
    """A workload with numbered cases; it has an attribute for each column, None where the case's size holds."""

    @property
    def name(self) -> str: ...

    @property
    def case(self) -> int: ...


def choose(workload: Cased, columns: Sequence[str], cases: Sequence[Sequence[int]]) -> dict[str, int]:
    """The sizes of the workload's case by name; each that it has itself (not None) takes the case's place.

    Only padding may be 0.
    """
    family, case = workload.name, workload.case
    if not 0 <= case < len(cases):
        options = " · ".join(f"{i}: {','.join(map(str, row))}" for i, row in enumerate(cases))
        raise UserError(f"there is no case {case}", where=f"workload.case of {family}",
                        todo=f"The cases ({','.join(columns)}) are {options}")  # fmt: skip
    given = {column: getattr(workload, column) for column in columns}
    sizes = dict(zip(columns, cases[case], strict=True))
    sizes |= {name: size for name, size in given.items() if size is not None}
    require_positive(family, **{name: size + (name == "p") for name, size in sizes.items()})
    return sizes


def require_positive(family: str, **sizes: int) -> None:
    """A UserError for the first size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise UserError("the size is not positive", where=f"workload.{name} of {family}",
                            todo=f"Give positive whole numbers for {', '.join(sizes)}")  # fmt: skip
