"""The export as a shared library: it runs from C and from ctypes, and shows nothing but its header."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.codegen.llvm.link import link
from pipeline.codegen.module import ModulePlan
from pipeline.errors import UserError
from pipeline.runtime.artifact import save
from pipeline.runtime.c_library import COMPILERS, export_shared_library
from tests.codegen.hand_kernels import add_plan
from tests.codegen.test_module import chain, matmul_plan

CC = next(filter(None, map(shutil.which, COMPILERS)), None)
needs_compiler = pytest.mark.skipif(CC is None, reason="no C compiler")


def exported(plan: ModulePlan, folder: Path, name: str = "tiny") -> Path:
    export_shared_library(save(link(plan), folder / f"{name}_artifact"), folder / f"lib{name}.so")
    return folder / f"lib{name}.so"


class Model:
    """The three functions through ctypes."""

    def __init__(self, path: Path, name: str = "tiny", threads: int = 0) -> None:
        library = ctypes.CDLL(str(path))
        create, self._run, self._destroy = (getattr(library, f"{name}_{f}") for f in ("create", "run", "destroy"))
        create.restype, create.argtypes = ctypes.c_void_p, [ctypes.c_int]
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        self._destroy.argtypes = [ctypes.c_void_p]
        self.handle = create(threads)

    def run(self, inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
        pointers = [np.array([a.ctypes.data for a in arrays], np.int64) for arrays in (inputs, outputs)]
        assert self._run(self.handle, pointers[0].ctypes.data, pointers[1].ctypes.data) == 0

    def close(self) -> None:
        self._destroy(self.handle)


@needs_compiler
@pytest.mark.parametrize("threads", [0, 1, 2])
def test_the_library_computes_what_the_model_does(tmp_path: Path, threads: int) -> None:
    plan = matmul_plan()
    model = Model(exported(plan, tmp_path), threads=threads)
    assert model.handle
    x = np.random.default_rng(0).standard_normal((5, 9)).astype(np.float32)
    outputs = [np.zeros((5, 7), np.float32) for _ in range(3)]
    for _ in range(10):
        model.run([x], outputs)
    np.testing.assert_allclose(outputs[2], x @ plan.constants["w2"] + plan.constants["bias"], rtol=1e-5, atol=1e-5)
    model.close()


@needs_compiler
def test_more_threads_than_the_model_was_made_for_give_no_runner(tmp_path: Path) -> None:
    path = exported(add_plan(parallel=True), tmp_path)
    assert not Model(path, threads=3).handle
    assert not Model(path, threads=-1).handle


@needs_compiler
def test_two_models_and_two_runners_of_one_live_side_by_side(tmp_path: Path) -> None:
    one, other = exported(chain(), tmp_path, "one"), exported(add_plan(100, parallel=True), tmp_path, "other")
    a, b = np.random.default_rng(0).standard_normal((2, 100)).astype(np.float32)
    models = [Model(one, "one"), Model(one, "one"), Model(other, "other")]

    def work(model: Model, outputs: list[np.ndarray]) -> None:
        for _ in range(50):
            model.run([a, b], outputs)

    shapes = [((100,), np.float32), ((50, 2), np.float32), ((100,), np.float32), ((3,), np.int64), ((100,), np.float32)]
    results = [[np.zeros(s, d) for s, d in shapes], [np.zeros(s, d) for s, d in shapes], [np.zeros(100, np.float32)]]
    threads = [threading.Thread(target=work, args=pair) for pair in zip(models, results, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for outputs in results[:2]:
        np.testing.assert_array_equal(outputs[0], (a + b)[::-1] - a * b)
        np.testing.assert_array_equal(outputs[3], [1, 2, 3])
    np.testing.assert_array_equal(results[2][0], a + b)
    for model in models:
        model.close()


@needs_compiler
def test_only_the_functions_of_the_header_are_visible(tmp_path: Path) -> None:
    library = ctypes.CDLL(str(exported(add_plan(), tmp_path)))
    assert library.tiny_run
    for hidden in ("muschedule_main", "muschedule_run", "add", "muschedule_constants"):
        with pytest.raises(AttributeError):
            getattr(library, hidden)


MAIN = """
#include <stdio.h>
#include "libtiny.h"
int main(void) {
    float a[64], b[64], y[64];
    for (int i = 0; i < 64; i++) { a[i] = i; b[i] = 2 * i; }
    const void *inputs[TINY_INPUTS] = {a, b};
    void *outputs[TINY_OUTPUTS] = {y};
    tiny *model = tiny_create(0);
    if (model == NULL || tiny_run(model, inputs, outputs) != 0) return 1;
    tiny_destroy(model);
    tiny_destroy(NULL);
    printf("%g %g", y[1], y[63]);
    return 0;
}
"""


@needs_compiler
def test_a_c_program_runs_the_model(tmp_path: Path) -> None:
    path = exported(add_plan(parallel=True), tmp_path)
    (tmp_path / "main.c").write_text(MAIN)
    build = [
        CC,
        "-std=c99",
        "-pedantic",
        "-Wall",
        "-Werror",
        "main.c",
        str(path),
        f"-Wl,-rpath,{tmp_path}",
        "-o",
        "main",
    ]
    subprocess.run([str(part) for part in build], cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout == "3 189"


@needs_compiler
def test_names_of_tensors_cannot_break_the_header(tmp_path: Path) -> None:
    plan = add_plan()
    buffers = (replace(plan.buffers[0], name="a*/ int main(){}"), *plan.buffers[1:])
    calls = (replace(plan.calls[0], buffers=("a*/ int main(){}", "b", "y")),)
    path = exported(replace(plan, buffers=buffers, calls=calls, inputs=("a*/ int main(){}", "b")), tmp_path)
    assert path.with_suffix(".h").read_text().count("*/") == 4


def test_without_a_compiler_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = save(link(add_plan()), tmp_path / "model")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"no C compiler.*cc, gcc, clang"):
        export_shared_library(artifact, tmp_path / "x.so")
    with pytest.raises(UserError, match="cannot be started"):
        export_shared_library(artifact, tmp_path / "x.so", compiler=str(tmp_path / "nothing"))
    assert not (tmp_path / "x.so").exists()


def test_a_failing_compiler_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    artifact = save(link(add_plan()), tmp_path / "model")
    with pytest.raises(UserError, match="the C compiler failed"):
        export_shared_library(artifact, tmp_path / "x.so", compiler="false")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model"]


def test_a_name_that_is_none_in_c_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no name in C"):
        export_shared_library(save(link(add_plan()), tmp_path / "model"), tmp_path / "1.so", compiler="false")
