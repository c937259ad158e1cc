"""The summary of a run for programs: what summary.json holds."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.errors import UserError


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="null")


class MaxError(_Part):
    """Of the whole module against float64; `tolerance` is what was allowed where it came nearest to it."""

    absolute: float | None
    relative: float | None
    tolerance: float | None


class Latency(_Part):
    """Of one run of the whole module, in milliseconds. samples: how many there were; 0: it is a model's."""

    median: float
    min: float
    p90: float
    samples: int

    @classmethod
    def of(cls, samples_ms: tuple[float, ...] | list[float]) -> Latency:
        """From the samples, of which there is one at least; p90 is a measured one, not between two."""
        ordered = sorted(samples_ms)
        middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
        return cls(
            median=middle,
            min=ordered[0],
            p90=ordered[max(0, math.ceil(0.9 * len(ordered)) - 1)],
            samples=len(ordered),
        )


class KernelFacts(_Part):
    """What is known of a GPU's kernel.

    bound          the pipe that it waits for most
    of_peak        the share of that pipe's rate that it reaches, as the model says
    registers      of a thread, the most of its launches; spill_bytes, shared_bytes (of a block) likewise
    launches       in one call
    """

    bound: str
    of_peak: float
    registers: int
    spill_bytes: int
    shared_bytes: int
    launches: int


class TaskSummary(_Part):
    """One task. weight: how often the model runs it · best_at_trial: which trial found its best, from 1; 0: untuned.
    kernel: of a GPU's."""

    name: str
    weight: int
    flops: float
    bytes: float
    latency_ms: float | None
    roofline_ms: float
    sketches: int
    trials: int
    best_at_trial: int
    kernel: KernelFacts | None = None


class PeerSummary(_Part):
    """Another runtime.

    median_ms   of its calls; ours_ms: of ours, in turns with them
    ratio       its time over ours, above 1 we are faster: the median over rounds (`compare.paired_ratio`)
    status      and reason: why it may have none of them
    """

    median_ms: float | None
    ratio: float | None
    ours_ms: float | None = None
    status: str = "ok"
    reason: str = ""


class Machine(_Part):
    """peak_gflops and bandwidth_gbs were measured in the run, all cores together; those of a GPU are its maker's."""

    cpu: str
    cores: int
    vector_bits: int
    peak_gflops: float | None
    bandwidth_gbs: float | None


class MuGraphSummary(_Part):
    """A µGraph that was proven to compute a subprogram.

    text          of the µGraph, as it parses back
    predicted_ms  by the roofline model that ranks them
    tests         over finite fields that it passed; `bound` is on the probability that one wrong element passes them,
                  under the assumptions
    full          a test at the full extents was passed too
    sketches      of it that were tuned, over so many trials
    latency_ms    of its best candidate as measured; None where none was
    """

    text: str
    predicted_ms: float
    tests: int
    bound: float
    assumptions: tuple[str, ...]
    full: bool
    sketches: int
    trials: int
    latency_ms: float | None


class SubprogramSummary(_Part):
    """A part of the model for which a fused kernel was looked for.

    uses            how often the model has it; chosen_uses: in how many of these places the fused kernel is used
    specification   its text
    search_seconds  that the search took, in an earlier run where `known`; None: it was not searched
    complete        all was enumerated
    statistics      of the search: enumerated, pruned by each method, proven
    fused_ms        of the best fused kernel
    ordinary_ms     of the tasks that fall away where it is used, for one use
    chosen          the fused kernel is in the module
    reason          why it is or is not
    """

    name: str
    uses: int
    chosen_uses: int
    specification: str
    search_seconds: float | None
    known: bool
    complete: bool
    statistics: dict[str, int]
    graphs: tuple[MuGraphSummary, ...]
    fused_ms: float | None
    ordinary_ms: float | None
    chosen: bool
    reason: str


class RewriteSummary(_Part):
    """A rule that makes fewer kernels of the whole graph, used where the roofline finds that faster.

    kernels, roofline_ms                      of the graph without it
    rewritten_kernels, rewritten_roofline_ms  and with it
    """

    name: str
    used: bool
    kernels: int
    rewritten_kernels: int
    roofline_ms: float
    rewritten_roofline_ms: float


class SuperoptSummary(_Part):
    """What the superoptimizer did.

    seconds    of the whole search
    gained_ms  by the fused kernels that it found, of the kernels alone
    rewrites   of the whole graph that would have changed it
    """

    seconds: float
    gained_ms: float | None
    subprograms: tuple[SubprogramSummary, ...]
    rewrites: tuple[RewriteSummary, ...] = ()


class Summary(_Part):
    """summary.json. latency_ms is None where the run did not get as far as measuring the module.

    unchecked    what `verified` says nothing of; "" where there is nothing
    superopt     None where it was off
    roofline_ms  of the whole model in one piece: its arithmetic at the measured peak, or its inputs, constants and
                 outputs, each moved once, at the measured bandwidth, whichever takes longer
    """

    workload: str
    target: str
    seed: int
    status: Literal["complete", "interrupted", "failed"]
    verified: bool
    unchecked: str = ""
    max_error: MaxError | None
    latency_ms: Latency | None
    predicted: bool
    untuned_ms: float | None
    roofline_ms: float | None = None
    tuning_seconds: float
    trials: int
    invalid_candidates: int
    failed_candidates: dict[str, int]
    tasks: tuple[TaskSummary, ...]
    superopt: SuperoptSummary | None = None
    peers: dict[str, PeerSummary]
    machine: Machine
    versions: dict[str, str]
    artifact: str | None


def write_summary(summary: Summary, path: Path) -> None:
    """Write the file whole or not at all: a reader never sees half of it."""
    text = json.dumps(_finite(summary.model_dump(mode="python")), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UserError(
            "cannot write the summary",
            where=str(path),
            why=str(error.strerror),
            todo="Make the folder of the run writable, or set hydra.run.dir to another place",
        ) from None


def read_summary(path: Path) -> Summary:
    """The summary of an earlier run."""
    try:
        return Summary.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError("cannot read the summary", where=str(path), why=str(error.strerror)) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UserError("this is not a summary", where=str(path), why=f"{place}: {first['msg']}") from None


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: they become null."""
    match value:
        case Mapping():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value
