"""Tests of the folders for what is compiled for this host: one for each process, none left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pipeline.codegen.cuda import scratch_folder
from pipeline.codegen.cuda.scratch_folder import PREFIX, sweep

CODE = "from pipeline.codegen.cuda.scratch_folder import scratch_folder; print(scratch_folder(), flush=True); input()"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is compiled for the host there")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def begun(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has made its folder, and waits."""
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", CODE], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_killed_process_leaves_a_folder_that_the_next_sweep_removes(temporary: Path) -> None:
    process, made = begun(temporary)
    assert made.parent == temporary and made.is_dir()
    sweep()
    assert made.is_dir(), "its process lives"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert made.is_dir()
    sweep()
    assert not made.exists()


def test_a_process_that_ends_takes_its_folder_along(temporary: Path) -> None:
    process, made = begun(temporary)
    process.communicate("\n")
    assert process.returncode == 0 and not made.exists()


def test_what_is_no_scratch_folder_stays(temporary: Path) -> None:
    for name in (f"{PREFIX}without-lock", "mine"):
        (temporary / name).mkdir()
    sweep()
    assert {path.name for path in temporary.iterdir()} == {f"{PREFIX}without-lock", "mine"}


def test_a_process_has_one_folder() -> None:
    assert scratch_folder.scratch_folder() is scratch_folder.scratch_folder()
