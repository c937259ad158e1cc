"""A task's reference as files, which a worker maps into its memory instead of getting copies through a pipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.ir.graph import DType
from pipeline.ir.graph_types import dtype_name, numpy_dtype
from pipeline.measurement.protocol import Case, Reference

_TINY = 65536


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """One .npy file. A dtype that NumPy's format does not know (bfloat16) is stored as the integers of its bits."""

    path: str
    dtype: DType

    def load(self) -> np.ndarray:
        """The array, read-only, mapped where it is not tiny."""
        stored: np.ndarray = np.load(self.path, mmap_mode=None if Path(self.path).stat().st_size < _TINY else "r")
        return stored.view(numpy_dtype(self.dtype))


Files = tuple[tuple[str, ArrayFile], ...]


@dataclass(frozen=True, slots=True)
class CaseFiles:
    """The files of one `Case`."""

    inputs: Files
    expected: Files
    tolerance: Files


@dataclass(frozen=True, slots=True)
class ReferenceFiles:
    """The files of one `Reference`: small, and the same for every candidate of the task."""

    task_id: str
    constants: Files
    cases: tuple[CaseFiles, ...]
    fed: frozenset[str] = frozenset()


def write(reference: Reference, folder: Path) -> ReferenceFiles:
    """Write all arrays into the folder, which is made."""
    folder.mkdir(parents=True)

    def save(arrays: Mapping[str, np.ndarray], what: str) -> Files:
        files = []
        for number, (name, array) in enumerate(arrays.items()):
            path = folder / f"{what}-{number}.npy"
            plain = np.asarray(array, order="C")
            dtype = dtype_name(plain.dtype)
            np.save(path, plain if dtype != "bfloat16" else plain.view(np.uint16))
            files.append((name, ArrayFile(str(path), dtype)))
        return tuple(files)

    return ReferenceFiles(
        reference.task_id,
        save(reference.constants, "constant"),
        tuple(
            CaseFiles(
                save(case.inputs, f"input-{number}"),
                save(case.expected, f"expected-{number}"),
                save(case.tolerance, f"tolerance-{number}"),
            )
            for number, case in enumerate(reference.cases)
        ),
        reference.fed,
    )


def read(files: ReferenceFiles) -> Reference:
    """The reference again, its arrays mapped."""

    def load(part: Files) -> dict[str, np.ndarray]:
        return {name: file.load() for name, file in part}

    cases = tuple(Case(load(case.inputs), load(case.expected), load(case.tolerance)) for case in files.cases)
    return Reference(files.task_id, load(files.constants), cases, files.fed)
