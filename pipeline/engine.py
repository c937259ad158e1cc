"""The run: the stages in order, from a checked configuration to a verified module and its report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.config import Config
from pipeline.errors import PipelineError


@dataclass(frozen=True, slots=True)
class Summary:
    """How a run ended. `interrupted` is a complete result too: the best so far, verified."""

    status: Literal["complete", "interrupted", "failed"]
    verified: bool


def run(config: Config, run_folder: Path) -> Summary:
    """Runs all stages; what it makes lies in `run_folder`."""
    raise PipelineError("not wired yet", where=f"engine of {config.workload.class_path}", why=f"Wanted in {run_folder}")
