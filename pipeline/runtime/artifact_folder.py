"""The folder of an artifact: it gets its name only when it is whole, and every file in it has a hash in the manifest.

    manifest.json   a format number, the kind of machine, what each kind adds, `files`: SHA-256 by name, and `sha256` of
                    all of that

A folder without a valid manifest is no artifact. Nothing in it is run, or unpickled, when it is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pipeline.codegen.module import Port
from pipeline.errors import UserError

FORMAT = 1
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
AGAIN = "Copy or make the artifact again"
Kind = Literal["cpu", "cuda"]

Write = Callable[[Path], Mapping[str, Any]]


def write_folder(path: Path | str, kind: Kind, write: Write) -> Path:
    """Makes the folder, in place of an artifact of that name if there is one; any other folder there is refused.

    write  puts files into an empty folder with `store_file`, and gives what the manifest is to say of them
    """
    path = Path(os.path.abspath(path))
    if path.exists() and not (path / MANIFEST).is_file() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(
            "the artifact's place is taken", where=str(path), why="it is not an artifact", todo="Name another path"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            manifest: dict[str, Any] = {"format": FORMAT, "kind": kind, **write(staging)}
            manifest["sha256"] = _hash_manifest(manifest)
            store_file(staging / MANIFEST, (json.dumps(manifest, indent=1, ensure_ascii=False).encode(),))
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


def store_file(path: Path, parts: Iterable[bytes | memoryview]) -> str:
    """Writes a file to the disk; gives its hash."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for part in parts:
            digest.update(part)
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def read_manifest(path: Path) -> dict[str, Any]:
    """What the manifest of a folder says. Raises a `UserError` where it is no artifact, or one that was changed."""
    where = path / MANIFEST
    if not where.is_file():
        why = "there is no such folder" if not path.exists() else f"it holds no {MANIFEST}"
        raise UserError("this is no artifact", where=str(path), why=why, todo="Give the folder that a run has written")
    try:
        manifest = json.loads(where.read_bytes())
    except OSError as error:
        raise unreadable(where, error) from error
    except ValueError as error:
        raise UserError("the manifest is not JSON", where=str(where), why=str(error), todo=AGAIN) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise UserError(
            "the artifact has another format",
            where=str(where),
            why=f"its format is {found!r} and this version reads {FORMAT}",
            todo="Make it again with this version",
        )
    if manifest.get("sha256") != _hash_manifest(manifest):
        raise UserError("the manifest was changed", where=str(where), why="its hash does not match", todo=AGAIN)
    return manifest


def kind_of(manifest: Mapping[str, Any]) -> str:
    """Of the machine that the artifact is for. Those that do not say were made before there was a second kind."""
    return str(manifest.get("kind", "cpu"))


def refuse_kind(manifest: Mapping[str, Any], kind: Kind, path: Path) -> None:
    """Raises a `UserError` where the artifact is for another kind of machine."""
    if (found := kind_of(manifest)) != kind:
        names = {"cpu": "a CPU", "cuda": "an NVIDIA GPU"}
        raise UserError(
            f"the artifact is for {names.get(found, found)}",
            where=str(path),
            why=f"{names[kind]} was asked for",
            todo="Load it with pipeline.load, which chooses by the artifact",
        )


def not_whole(path: Path, error: Exception) -> UserError:
    """The error for a manifest that lacks something."""
    return UserError("the manifest is not whole", where=str(path / MANIFEST), why=repr(error), todo=AGAIN)


def port(record: Mapping[str, Any]) -> Port:
    """An input or output from its JSON."""
    return Port(record["name"], tuple(record["shape"]), record["dtype"])


def read_file(folder: Path, name: str, manifest: Mapping[str, Any]) -> bytes:
    """A file of the folder, whose hash is compared."""
    path = inside(folder, name)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error
    _compare(hashlib.sha256(data).hexdigest(), path, manifest["files"][name])
    return data


def verify_file(folder: Path, name: str, manifest: Mapping[str, Any]) -> None:
    """Compares the hash of a file that is too large to be held."""
    path = inside(folder, name)
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error
    _compare(found, path, manifest["files"][name])


def inside(folder: Path, name: str) -> Path:
    """The path of a file that a manifest names."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise UserError("the manifest names a file outside the artifact", where=str(folder / MANIFEST), why=name)
    return folder / name


def unreadable(path: Path, error: OSError) -> UserError:
    """The error for a file that is missing, or not ours to read."""
    return UserError("a file of the artifact cannot be read", where=str(path), why=str(error), todo=AGAIN)


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


def _hash_manifest(manifest: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _compare(found: str, path: Path, expected: str) -> None:
    if found != expected:
        raise UserError(
            "a file of the artifact was changed", where=str(path), why="its hash does not match", todo=AGAIN
        )
