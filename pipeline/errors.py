"""The one error family: every error says what, where, why and what to do; and how lists and counts are written."""

from __future__ import annotations

from collections.abc import Iterable


class PipelineError(Exception):
    """What went wrong, where, why, and what the reader can do about it.

    what   one clause, without a full stop
    where  the file, node, config path, step or task that it concerns
    why    the cause, with the offending value
    todo   what to do next, with the options listed
    """

    def __init__(self, what: str, *, where: str = "", why: str = "", todo: str = "") -> None:
        super().__init__(what)  # unpickling calls with `args`, then restores the fields: errors cross processes
        self.what, self.where, self.why, self.todo = what, where, why, todo

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        rest = [part.rstrip(".") + "." for part in (self.why, self.todo) if part]
        return " ".join([head.rstrip(".") + ".", *rest])


class UserError(PipelineError):
    """A mistake in the input or the configuration: no traceback, exit code 2."""


class ConfigError(UserError):
    """A wrong key, type, value or class path in the configuration."""


class ModelError(UserError):
    """A model that cannot be read, or that holds what the front end does not support."""


class StepError(PipelineError):
    """A schedule step that is not legal on the program that it was given."""


class CheckError(PipelineError):
    """An invariant of `ir/` that does not hold: always a defect of ours, or of a rule."""


class CodegenError(PipelineError):
    """A program that the code generator cannot lower."""


class MeasureError(PipelineError):
    """A candidate that failed while it was built, run or checked."""


def listed(options: Iterable[object]) -> str:
    """The options of an error message, sorted, separated by commas."""
    return ", ".join(sorted(str(option) for option in options))


def counted(count: int, nouns: str) -> str:
    """A count and what is counted, given in the plural with -s: 1 task, 2 tasks."""
    return f"{count} {nouns.removesuffix('s') if count == 1 else nouns}"
