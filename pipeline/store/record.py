"""A tuning record: one candidate, and what became of it on one target with one version of the compiler."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Literal

Status = Literal["ok", "failed"]


def candidate_key(task_key: str, sketch: str, values: Mapping[str, int]) -> str:
    """The name of a candidate: the same for the same task, steps and parameter values, in every process."""
    text = json.dumps([task_key, sketch, sorted(values.items())], separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Record:
    """task_key    sha256 of the task's text
    sketch      text of the trace
    values      one integer for each parameter
    target      fingerprint of the machine
    version     of the compiler
    predicted   the time is a model's and not a clock's
    reason      why it failed; empty where it did not
    samples     every measured time, in nanoseconds
    inner       calls that each sample is the mean of
    latency_ns  what stands for the samples (`measurement.sampling.typical`); None where it failed
    max_error   largest |got - want| of the output that came nearest to what is allowed, and `tolerance` is what was
                allowed there; None where nothing was compared
    seed        of the search that proposed it
    created     in UTC
    """

    task_key: str
    task_name: str
    sketch: str
    values: Mapping[str, int]
    target: str
    version: str
    status: Status
    created: datetime
    predicted: bool = False
    reason: str = ""
    samples: tuple[float, ...] = ()
    inner: int = 1
    latency_ns: float | None = None
    max_error: float | None = None
    tolerance: float | None = None
    seed: int = 0

    @property
    def candidate_key(self) -> str:
        return candidate_key(self.task_key, self.sketch, self.values)

    def why_invalid(self) -> str | None:
        """What contradicts itself in this record, or None."""
        if self.status not in ("ok", "failed"):
            return f"status is {self.status!r}, not ok or failed"
        if self.status == "ok" and not (self.latency_ns is not None and self.latency_ns > 0):
            return f"status is ok but the latency is {self.latency_ns}"
        if self.status == "ok" and not self.predicted and not self.samples:
            return "status is ok but there is no sample"
        if self.status == "failed" and not self.reason:
            return "status is failed but there is no reason"
        if self.created.tzinfo is None:
            return "the time has no zone"
        return None


def to_json(record: Record) -> str:
    """One line of JSON."""
    data = asdict(record) | {"created": record.created.astimezone(UTC).isoformat()}
    return json.dumps(data, sort_keys=True)  # an infinite error is written as Infinity, which json reads back


def from_json(line: str) -> Record:
    """The record of one line. Raises ValueError where it is not one."""
    data = json.loads(line)
    if not isinstance(data, dict):
        raise ValueError("it is not an object")
    known = {field.name for field in fields(Record)}
    if unknown := sorted(set(data) - known):
        raise ValueError(f"unknown keys {', '.join(unknown)}")
    try:
        record = Record(
            **data
            | {
                "values": {str(name): int(value) for name, value in data["values"].items()},
                "samples": tuple(float(sample) for sample in data.get("samples", ())),
                "created": datetime.fromisoformat(data["created"]).astimezone(UTC),
            }
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"missing or mistyped: {error}") from None
    if (reason := record.why_invalid()) is not None:
        raise ValueError(reason)
    return record
