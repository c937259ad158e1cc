"""The artifact folder: whole or not there, checked when it is read, refused with a reason."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import pipeline
from pipeline.codegen.llvm.link import link
from pipeline.errors import UserError
from pipeline.measurement.host import MEMORY_LIMITS, memory_of_host
from pipeline.runtime import weights_file
from pipeline.runtime.artifact import load_artifact, save
from pipeline.runtime.artifact_folder import MANIFEST, WEIGHTS
from pipeline.runtime.cpu_features import needed, refuse_unfit
from pipeline.runtime.session import Session
from tests.codegen.hand_kernels import add_plan, native
from tests.codegen.test_module import matmul_plan

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return save(link(matmul_plan()), tmp_path / "model")


def forge(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes the manifest and gives it a hash that fits."""
    manifest = json.loads((path / MANIFEST).read_text())
    change(manifest)
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    manifest["sha256"] = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    (path / MANIFEST).write_text(json.dumps(manifest))


def test_what_was_saved_is_what_is_loaded(stored: Path) -> None:
    module = link(matmul_plan())
    artifact = load_artifact(stored, verify=True)
    assert (artifact.inputs, artifact.outputs, artifact.calls) == (module.inputs, module.outputs, module.calls)
    assert (artifact.threads, artifact.slots, artifact.memory) == (module.threads, module.slots, module.memory)
    for weight in module.weights:
        data = module.data[weight.name]
        found = artifact.constants[weight.offset : weight.offset + data.nbytes].view(data.dtype).reshape(weight.shape)
        np.testing.assert_array_equal(found, data)


def test_the_weights_file_is_read_by_the_safetensors_library(stored: Path) -> None:
    module = link(matmul_plan())
    tensors = safetensors.numpy.load_file(stored / WEIGHTS)
    for weight in module.weights:
        np.testing.assert_array_equal(tensors[weight.name], module.data[weight.name])


def test_the_constants_area_is_aligned_whether_mapped_or_copied(stored: Path) -> None:
    mapped, copied = load_artifact(stored, copy=False), load_artifact(stored, copy=True)
    assert mapped.constants.ctypes.data % 64 == 0
    assert copied.constants.ctypes.data % 64 == 0
    np.testing.assert_array_equal(mapped.constants, copied.constants)


def system(root: Path, *, huge: str | None = "always [madvise] never", limit: str = "max") -> Path:
    """The files of a system with or without huge pages, and of a container."""
    pages = root / "sys/kernel/mm/transparent_hugepage/enabled"
    for path, text in ((pages, huge), (root / MEMORY_LIMITS[0], limit)):
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            path.write_text(text)
    return root


def test_weights_are_copied_where_they_get_huge_pages_and_leave_room_for_others(tmp_path: Path) -> None:
    usual = system(tmp_path / "usual")
    worth = weights_file.worth_a_copy
    assert not worth(0, usual) and not worth((1 << 22) - 1, usual) and worth(1 << 22, usual)
    assert worth(memory_of_host(usual) // 16, usual) and not worth(memory_of_host(usual) // 16 + 1, usual)
    assert not worth(1 << 22, system(tmp_path / "never", huge="always madvise [never]"))
    assert not worth(1 << 22, system(tmp_path / "none", huge=None))


def test_a_container_counts_its_own_memory(tmp_path: Path) -> None:
    small = system(tmp_path / "small", limit=f"{1 << 28}\n")
    assert memory_of_host(small) == 1 << 28 and memory_of_host(system(tmp_path / "usual")) > 1 << 28
    assert weights_file.worth_a_copy(1 << 24, small) and not weights_file.worth_a_copy((1 << 24) + 1, small)


@pytest.mark.parametrize("copy", [None, True])
def test_where_there_is_no_room_for_a_copy_weights_are_mapped_unless_it_was_asked_for(
    stored: Path, monkeypatch: pytest.MonkeyPatch, copy: bool | None
) -> None:
    def full(*given: object) -> None:
        raise MemoryError("Unable to allocate")

    monkeypatch.setattr("pipeline.runtime.artifact.worth_a_copy", lambda nbytes: True)
    monkeypatch.setattr(weights_file.np, "empty", full)
    if copy is None:
        assert load_artifact(stored, copy=copy).constants.nbytes > 0
    else:
        with pytest.raises(UserError, match=r"there is no memory for the weights.*copy=False"):
            load_artifact(stored, copy=copy)


def test_copy_is_true_or_false(stored: Path) -> None:
    with pytest.raises(UserError, match="copy is neither true nor false"):
        Session(stored, copy="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("worth", [True, False])
def test_who_does_not_ask_gets_what_is_worth_it(stored: Path, monkeypatch: pytest.MonkeyPatch, worth: bool) -> None:
    asked: list[bool] = []
    real = weights_file.map_area

    def area(path: Path, nbytes: int, *, copy: bool) -> np.ndarray:
        asked.append(copy)
        return real(path, nbytes, copy=copy)

    monkeypatch.setattr("pipeline.runtime.artifact.map_area", area)
    monkeypatch.setattr("pipeline.runtime.artifact.worth_a_copy", lambda nbytes: worth)
    for copy in (None, True, False):
        load_artifact(stored, copy=copy)
    assert asked == [worth, True, False]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
def test_copied_weights_are_in_private_memory_which_alone_gets_huge_pages(stored: Path) -> None:
    address = load_artifact(stored, copy=True).constants.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, access, *_, inode_or_path = line.split()
        first, last = (int(end, 16) for end in span.split("-"))
        if first <= address < last:
            assert access.endswith("p") and not inode_or_path.startswith("/")
            return
    raise AssertionError("the weights are in no mapping")


def test_weights_behind_a_header_of_odd_length_are_copied_to_aligned_memory(stored: Path, tmp_path: Path) -> None:
    raw = (stored / WEIGHTS).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    (tmp_path / "odd").write_bytes(
        (length + 9).to_bytes(8, "little") + raw[8 : 8 + length] + b" " * 9 + raw[8 + length :]
    )
    area = weights_file.map_area(tmp_path / "odd", len(raw) - 8 - length)
    assert area.ctypes.data % 64 == 0
    np.testing.assert_array_equal(area, load_artifact(stored).constants)


def test_saving_again_replaces_the_artifact_and_leaves_nothing_behind(stored: Path) -> None:
    save(link(add_plan()), stored)
    assert [port.name for port in load_artifact(stored).inputs] == ["a", "b"]
    assert [entry.name for entry in stored.parent.iterdir()] == ["model"]


def test_a_folder_that_is_no_artifact_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="place is taken"):
        save(link(add_plan()), tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_failed_write_leaves_no_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        save(link(add_plan()), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_an_artifact_that_cannot_be_replaced_stays(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if (self / MANIFEST).is_file() and self.parent == stored.parent and self != stored:
            raise OSError(13, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(UserError, match="Permission denied"):
        save(link(add_plan()), stored)
    assert [port.name for port in load_artifact(stored).inputs] == ["x"]
    assert [entry.name for entry in stored.parent.iterdir()] == ["model"]


def test_a_place_below_a_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        save(link(add_plan()), tmp_path / "file" / "model")


def test_a_missing_folder_and_an_empty_one_are_no_artifacts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such folder"):
        load_artifact(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"holds no manifest\.json"):
        load_artifact(tmp_path)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a changed object": (lambda p: _flip(p / "objects" / "main.o"), "was changed"),
    "a missing object": (lambda p: (p / "objects" / "team.o").unlink(), "cannot be read"),
    "a truncated weights file": (lambda p: os.truncate(p / WEIGHTS, 200), "weights are not whole"),
    "missing weights": (lambda p: (p / WEIGHTS).unlink(), "cannot be read"),
    "an edited manifest": (
        lambda p: (p / MANIFEST).write_text((p / MANIFEST).read_text().replace("bias", "bios")),
        "manifest was changed",
    ),
    "a truncated manifest": (lambda p: os.truncate(p / MANIFEST, 100), "not JSON"),
    "a manifest that is a list": (lambda p: (p / MANIFEST).write_text("[]"), "another format"),
    "a newer format": (lambda p: forge(p, lambda m: m.update(format=99)), "its format is 99"),
    "a manifest without calls": (lambda p: forge(p, lambda m: m.pop("calls")), "not whole"),
    "a path that leads outside": (
        lambda p: forge(p, lambda m: m["files"].update({"../x": ""})),
        "outside the artifact",
    ),
    "a foreign CPU": (
        lambda p: forge(p, lambda m: m["target"].update(needs=["teleport", "avx9"])),
        "lacks features.*has no teleport, avx9",
    ),
    "a foreign machine": (lambda p: forge(p, lambda m: m["target"].update(triple="s390x-linux")), "made for s390x"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_one_clear_error(stored: Path, name: str) -> None:
    damage, message = DAMAGE[name]
    damage(stored)
    with pytest.raises(UserError, match=message):
        load_artifact(stored)


def test_changed_weights_are_found_when_asked_to_look(stored: Path) -> None:
    _flip(stored / WEIGHTS)
    load_artifact(stored)
    with pytest.raises(UserError, match="was changed"):
        load_artifact(stored, verify=True)


def test_only_features_that_code_can_use_are_needed() -> None:
    target = replace(native(), features=("+avx2", "+fma", "+sha", "+prefer-256-bit", "-avx512f", "+newfangled"))
    assert needed(target) == ("avx2", "fma", "newfangled")


def test_this_machine_fits_itself() -> None:
    refuse_unfit(native().triple, needed(native()), "here")


def test_loading_in_a_fresh_process_needs_no_onnx_and_gives_right_values(stored: Path) -> None:
    code = (
        "import sys, numpy as np, pipeline\n"
        "assert 'pipeline.runtime' not in sys.modules\n"
        f"s = pipeline.load({str(stored)!r})\n"
        "y = s.run(['y2'], {'x': np.zeros((5, 9), np.float32)})[0]\n"
        "print(y.shape, [m for m in ('onnx', 'catboost', 'sqlalchemy', 'hydra', 'pydantic') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "(5, 7) []", done.stderr


def test_importing_the_package_alone_loads_nothing_of_it() -> None:
    assert pipeline.load.__module__ == "pipeline.runtime.loading"
    with pytest.raises(AttributeError, match="lod"):
        _ = pipeline.lod
