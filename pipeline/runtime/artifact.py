"""The artifact of a model for CPUs: a folder that holds a linked model, and nothing that is run when it is read.

manifest.json         what the model takes and gives, what it needs, the SHA-256 of every file, where it came from
objects/*.o           relocatable code: the kernels, the main function, the thread team
weights.safetensors   constants as the kernels read them, ready to be mapped
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.codegen.module import LinkedCall, LinkedModule, MemoryFigures, Port
from pipeline.errors import UserError
from pipeline.runtime.artifact_folder import (
    WEIGHTS,
    not_whole,
    port,
    read_file,
    read_manifest,
    refuse_kind,
    store_file,
    unreadable,
    verify_file,
    write_folder,
)
from pipeline.runtime.cpu_features import needed, refuse_unfit
from pipeline.runtime.weights_file import area_bytes, chunks, map_area, worth_a_copy


@dataclass(frozen=True, slots=True, eq=False)
class Artifact:
    """A loaded folder: objects in memory, the constants area mapped or read, the rest as values."""

    path: Path
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    calls: tuple[LinkedCall, ...]
    threads: int
    slots: int
    barriers: int
    memory: MemoryFigures
    objects: Mapping[str, bytes]
    constants: np.ndarray[Any, np.dtype[np.uint8]]
    target: Mapping[str, Any]
    provenance: Mapping[str, Any]


def save(module: LinkedModule, path: Path | str) -> Path:
    """Writes the folder, in place of an artifact of that name if there is one; any other folder there is refused."""
    return write_folder(path, "cpu", lambda folder: _write(module, folder))


def _constants(path: Path, nbytes: int, copy: bool | None) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The constants area; mapped where a copy that nobody asked for finds no room."""
    try:
        try:
            return map_area(path, nbytes, copy=worth_a_copy(nbytes) if copy is None else copy)
        except MemoryError:
            if copy:
                raise
            return map_area(path, nbytes, copy=False)
    except OSError as error:
        raise unreadable(path, error) from error
    except MemoryError as error:
        raise UserError(
            "there is no memory for the weights",
            where=str(path),
            why=f"They take {nbytes} bytes",
            todo="Load with copy=False, which maps them",
        ) from error


def load_artifact(path: Path | str, *, verify: bool = False, copy: bool | None = False) -> Artifact:
    """Reads the folder.

    verify  hash the weights too, which is the slow part
    copy    read them instead of mapping the file; None: where that is worth it (`weights_file.worth_a_copy`)
    """
    path = Path(path)
    manifest = read_manifest(path)
    refuse_kind(manifest, "cpu", path)
    try:
        target, memory = manifest["target"], MemoryFigures(**manifest["memory"])
        inputs, outputs = (tuple(port(each) for each in manifest[key]) for key in ("inputs", "outputs"))
        calls = tuple(LinkedCall(**call) for call in manifest["calls"])
        threads, slots, barriers = (int(manifest[key]) for key in ("threads", "slots", "barriers"))
        names, nbytes, provenance = (
            list(manifest["files"]),
            int(manifest["constants_bytes"]),
            dict(manifest["provenance"]),
        )
        refuse_unfit(target["triple"], target["needs"], str(path))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise not_whole(path, error) from error
    objects = {Path(name).name: read_file(path, name, manifest) for name in names if name != WEIGHTS}
    if verify and WEIGHTS in names:
        verify_file(path, WEIGHTS, manifest)
    constants = _constants(path / WEIGHTS, nbytes, copy)
    return Artifact(
        path, inputs, outputs, calls, threads, slots, barriers, memory, objects, constants, target, provenance
    )


def _write(module: LinkedModule, folder: Path) -> dict[str, Any]:
    (folder / "objects").mkdir()
    files: dict[str, str] = {}
    for name, code in module.objects.items():
        files[f"objects/{name}"] = store_file(folder / "objects" / name, (code,))
    files[WEIGHTS] = store_file(folder / WEIGHTS, chunks(module.weights, module.data))
    target = module.target
    return {
        "inputs": [asdict(port) for port in module.inputs],
        "outputs": [asdict(port) for port in module.outputs],
        "target": {
            "name": target.name,
            "triple": target.triple,
            "cpu": target.cpu,
            "vector_bits": target.vector_bits,
            "needs": needed(target),
        },
        "threads": module.threads,
        "slots": module.slots,
        "barriers": module.barriers,
        "memory": asdict(module.memory),
        "constants_bytes": area_bytes(module.weights),
        "weights": [asdict(weight) for weight in module.weights],
        "calls": [asdict(call) for call in module.calls],
        "provenance": dict(module.provenance),
        "files": files,
    }
