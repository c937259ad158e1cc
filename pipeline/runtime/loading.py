"""From the folder of an artifact to a session on the kind of machine that it was made for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.runtime.artifact_folder import kind_of, read_manifest
from pipeline.runtime.cuda_session import CudaSession
from pipeline.runtime.session import Session


def load(path: Path | str, **options: Any) -> Session | CudaSession:
    """A session over the artifact in that folder; the options are those of `Session`, or of `CudaSession`."""
    if not isinstance(path, str | os.PathLike):
        why = f"{type(path).__name__} was given"
        raise UserError("the artifact's path is no path", why=why, todo="Give the folder that a run has written")
    if kind_of(read_manifest(Path(path))) == "cuda":
        return CudaSession(path, **options)
    return Session(path, **options)
