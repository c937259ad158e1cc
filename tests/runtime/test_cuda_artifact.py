"""Tests of the artifact for GPUs: what is saved is loaded again without a GPU, and what was changed is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.codegen.cuda.compile import HEADERS
from pipeline.codegen.cuda.link import link
from pipeline.errors import UserError
from pipeline.runtime.artifact import load_artifact
from pipeline.runtime.cuda_artifact import load_cuda_artifact, save_cuda
from pipeline.runtime.loading import load
from tests.codegen.cuda.small_plans import W, plan


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return save_cuda(link(plan()), tmp_path / "artifact")


def test_what_is_saved_is_loaded_again(stored: Path) -> None:
    made, found = link(plan()), load_cuda_artifact(stored, verify=True).plan
    assert found.kernels == made.kernels
    assert (found.inputs, found.outputs) == (made.inputs, made.outputs)
    assert (found.input_places, found.output_places) == (made.input_places, made.output_places)
    assert (found.prologues, found.calls, found.copies) == (made.prologues, made.calls, made.copies)
    assert (found.sizes, found.memory, found.weights) == (made.sizes, made.memory, made.weights)
    assert (found.arch, found.target, found.provenance) == ("sm_80", "sm_80", made.provenance)
    assert found.data["w"].view(np.float32).tolist() == W.tolist()


def test_the_choice_of_a_model_is_told_apart_from_that_of_a_clock(stored: Path, tmp_path: Path) -> None:
    assert load_cuda_artifact(stored).predicted
    measured = link(plan())
    measured.provenance["predicted"] = False  # type: ignore[index]
    assert not load_cuda_artifact(save_cuda(measured, tmp_path / "other")).predicted


def test_sources_are_there_to_be_read_with_the_headers_that_they_include(stored: Path) -> None:
    names = {path.name for path in (stored / "kernels").iterdir()}
    assert names == {"00_add.cu", "01_packed.cu", *HEADERS}
    assert "MS_KERNEL(32) add" in (stored / "kernels" / "00_add.cu").read_text()
    assert (stored / "cubins" / "00_add.cubin").read_bytes() == b"cubin of add"


@pytest.mark.parametrize("name", ["kernels/00_add.cu", "cubins/01_packed.cubin"])
def test_a_file_that_was_changed_is_refused(name: str, stored: Path) -> None:
    (stored / name).write_bytes((stored / name).read_bytes() + b" ")
    with pytest.raises(UserError, match="a file of the artifact was changed"):
        load_cuda_artifact(stored)


def test_changed_weights_are_refused_where_that_is_asked_for(stored: Path) -> None:
    raw = bytearray((stored / "weights.safetensors").read_bytes())
    raw[-1] ^= 1
    (stored / "weights.safetensors").write_bytes(raw)
    load_cuda_artifact(stored)
    with pytest.raises(UserError, match=r"weights.*was changed"):
        load_cuda_artifact(stored, verify=True)


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The manifest with a change, and the right hash of it."""
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    del manifest["sha256"]
    manifest["sha256"] = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(manifest))


def test_a_place_outside_its_area_is_refused(stored: Path) -> None:
    edit(stored, lambda manifest: manifest["calls"][1]["places"].update(t=["arena", 1 << 20]))
    with pytest.raises(UserError, match="a place outside its area"):
        load_cuda_artifact(stored)


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.pop("calls"),
        lambda manifest: manifest["calls"][0].update(kernel=9),
        lambda manifest: manifest["calls"][0]["places"].update(a=["nowhere", 0]),
        lambda manifest: manifest["kernels"][0]["launches"][0].update(grid=[1]),
    ],
)
def test_a_manifest_that_lacks_something_is_refused(change: Callable[[dict[str, Any]], None], stored: Path) -> None:
    edit(stored, change)
    with pytest.raises(UserError, match="the manifest is not whole"):
        load_cuda_artifact(stored)


def test_a_file_outside_the_folder_is_refused(stored: Path) -> None:
    edit(stored, lambda manifest: manifest["kernels"][0].update(cubin="../../etc/passwd"))
    with pytest.raises(UserError, match="outside the artifact"):
        load_cuda_artifact(stored)


def test_a_cpu_does_not_take_it(stored: Path) -> None:
    with pytest.raises(UserError, match="the artifact is for an NVIDIA GPU"):
        load_artifact(stored)


def test_a_gpus_artifact_is_loaded_by_the_session_for_gpus(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Found:
        def __init__(self, path: Path, **options: object) -> None:
            asked.append((path, options))

    monkeypatch.setattr("pipeline.runtime.loading.CudaSession", Found)
    load(stored, device=1)
    assert asked == [(stored, {"device": 1})]
