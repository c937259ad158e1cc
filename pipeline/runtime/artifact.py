"""The artifact: a folder that holds a linked model, and nothing that is run when it is read.

    manifest.json         what the model takes and gives, what it needs, the SHA-256 of every file, where it came from
    objects/*.o           relocatable code: the kernels, the main function, the thread team
    weights.safetensors   constants as the kernels read them, mapped and not copied

A folder without a valid manifest is no artifact, and it gets its name only when it is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.codegen.module import LinkedCall, LinkedModule, MemoryFigures, Port
from pipeline.errors import UserError
from pipeline.runtime.cpu_features import needed, refuse_unfit
from pipeline.runtime.weights_file import area_bytes, chunks, map_area

FORMAT = 1
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
_AGAIN = "Copy or make the artifact again"


@dataclass(frozen=True, slots=True, eq=False)
class Artifact:
    """A loaded folder: objects in memory, the constants area mapped, the rest as values."""

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
    path = Path(os.path.abspath(path))
    if path.exists() and not (path / MANIFEST).is_file() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(
            "the artifact's place is taken", where=str(path), why="it is not an artifact", todo="Name another path"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            _write(module, staging)
            _put(staging, path)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise UserError(
            "the artifact cannot be written",
            where=str(path),
            why=str(error),
            todo="Name a folder that is writable and has room",
        ) from error
    return path


def load_artifact(path: Path | str, *, verify: bool = False, copy: bool = False) -> Artifact:
    """Reads the folder. verify: hash the weights too, which is the slow part. copy: read them instead of mapping."""
    path = Path(path)
    manifest = _manifest(path)
    try:
        target, memory = manifest["target"], MemoryFigures(**manifest["memory"])
        inputs, outputs = (tuple(_port(port) for port in manifest[key]) for key in ("inputs", "outputs"))
        calls = tuple(LinkedCall(**call) for call in manifest["calls"])
        threads, slots, barriers = (int(manifest[key]) for key in ("threads", "slots", "barriers"))
        names, nbytes, provenance = (
            list(manifest["files"]),
            int(manifest["constants_bytes"]),
            dict(manifest["provenance"]),
        )
        refuse_unfit(target["triple"], target["needs"], str(path))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            "the manifest is not whole", where=str(path / MANIFEST), why=repr(error), todo=_AGAIN
        ) from error
    objects = {}
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise UserError("the manifest names a file outside the artifact", where=str(path / MANIFEST), why=name)
        if name != WEIGHTS:
            objects[Path(name).name] = _checked(path / name, manifest["files"][name])
        elif verify:
            _compare(_hash_file(path / name), path / name, manifest["files"][name])
    try:
        constants = map_area(path / WEIGHTS, nbytes, copy=copy)
    except OSError as error:
        raise _unreadable(path / WEIGHTS, error) from error
    return Artifact(
        path, inputs, outputs, calls, threads, slots, barriers, memory, objects, constants, target, provenance
    )


def _write(module: LinkedModule, folder: Path) -> None:
    (folder / "objects").mkdir()
    files: dict[str, str] = {}
    for name, code in module.objects.items():
        files[f"objects/{name}"] = _store(folder / "objects" / name, (code,))
    files[WEIGHTS] = _store(folder / WEIGHTS, chunks(module.weights, module.data))
    target = module.target
    manifest = {
        "format": FORMAT,
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
    manifest["sha256"] = _hash_manifest(manifest)
    _store(folder / MANIFEST, (json.dumps(manifest, indent=1, ensure_ascii=False).encode(),))


def _put(staging: Path, path: Path) -> None:
    """Gives the finished folder its name. An older artifact steps aside first; at no time is a part of one there."""
    staging.chmod(0o755)
    if not path.exists():
        staging.rename(path)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    try:
        path.rename(aside / "old")
        try:
            staging.rename(path)
        except OSError:
            (aside / "old").rename(path)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _store(path: Path, parts: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for part in parts:
            digest.update(part)
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _manifest(path: Path) -> dict[str, Any]:
    where = path / MANIFEST
    if not where.is_file():
        why = "there is no such folder" if not path.exists() else f"it holds no {MANIFEST}"
        raise UserError("this is no artifact", where=str(path), why=why, todo="Give the folder that a run has written")
    try:
        manifest = json.loads(where.read_bytes())
    except OSError as error:
        raise _unreadable(where, error) from error
    except ValueError as error:
        raise UserError("the manifest is not JSON", where=str(where), why=str(error), todo=_AGAIN) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise UserError(
            "the artifact has another format",
            where=str(where),
            why=f"its format is {found!r} and this version reads {FORMAT}",
            todo="Make it again with this version",
        )
    if manifest.get("sha256") != _hash_manifest(manifest):
        raise UserError("the manifest was changed", where=str(where), why="its hash does not match", todo=_AGAIN)
    return manifest


def _hash_manifest(manifest: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _port(record: Mapping[str, Any]) -> Port:
    return Port(record["name"], tuple(record["shape"]), record["dtype"])


def _checked(path: Path, expected: str) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    _compare(hashlib.sha256(data).hexdigest(), path, expected)
    return data


def _hash_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error


def _compare(found: str, path: Path, expected: str) -> None:
    if found != expected:
        raise UserError(
            "a file of the artifact was changed", where=str(path), why="its hash does not match", todo=_AGAIN
        )


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError("a file of the artifact cannot be read", where=str(path), why=str(error), todo=_AGAIN)
