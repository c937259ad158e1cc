"""Tests of whole runs for a GPU that is not here: compiled, executed on this CPU, checked, predicted and said so."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import engine
from pipeline.codegen.cuda import compile as cuda_compile
from pipeline.codegen.cuda.driver import why_absent
from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.config import parse
from pipeline.errors import UserError
from pipeline.report.summary import Summary
from pipeline.runtime.cuda_artifact import load_cuda_artifact
from pipeline.runtime.host_module import HostModule
from pipeline.runtime.loading import load
from pipeline.store.store import Store

ABSENT = why_absent("sm_80")
pytestmark = pytest.mark.skipif(ABSENT is None, reason="an A100 is here, and runs are measured")

GMM = ("+workload=gmm", "workload.n=48", "workload.m=40", "workload.k=24")
SOFTMAX = ("+workload=softmax", "workload.m=24", "workload.n=20")
QUICK = (
    "target=a100", "superopt=off", "search=random", "cost_model=roofline", "search.candidates=64", "search.batch=2",
    "measurement.workers=1", "verification.random_inputs=1", "verification.hostile=false", "report.progress=false",
)  # fmt: skip
Run = Callable[..., Summary]


@pytest.fixture
def here(composed: Callable[..., dict[str, Any]], tmp_path: Path) -> Run:
    """Runs the engine in this process, in a folder of the test, with a store there."""

    def go(*overrides: str) -> Summary:
        (tmp_path / "run").mkdir(exist_ok=True)
        plain = composed(*QUICK, f"store.url=sqlite:///{tmp_path}/store.sqlite", *overrides)
        return engine.run(parse(plain), tmp_path / "run")

    return go


def records(folder: Path) -> list[Any]:
    with Store(f"sqlite:///{folder}/store.sqlite") as store:
        return store.everything()


def test_a_product_is_tuned_verified_and_told_as_predicted(
    here: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    made = here(*GMM, "search.trials=2")
    assert (made.status, made.verified, made.predicted, made.trials) == ("complete", True, True, 2)
    assert made.latency_ms is not None and made.latency_ms.samples == 0
    assert made.machine.cpu.startswith("NVIDIA A100")
    assert "nvrtc" in made.versions
    assert (made.unchecked == "") == (find_compiler() is not None)
    kernel = made.tasks[0].kernel
    assert kernel is not None
    assert kernel.registers > 0 and kernel.launches >= 1 and kernel.spill_bytes == 0
    assert str(ABSENT) in caplog.text and "times are predicted" in caplog.text
    assert "predicted" in caplog.messages[-3]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["predicted"] is True
    (listing,) = (tmp_path / "run" / "kernels").glob("*.cu")
    assert "MS_KERNEL" in listing.read_text()
    (chosen,) = load_cuda_artifact(tmp_path / "run" / "artifact").plan.kernels
    assert listing.read_text().partition("\n")[2] == chosen.program.source
    assert all(record.predicted for record in records(tmp_path))


def test_the_artifact_is_loaded_without_a_gpu_and_gives_right_values(here: Run, tmp_path: Path) -> None:
    here(*SOFTMAX, "search.trials=2")
    artifact = load_cuda_artifact(tmp_path / "run" / "artifact", verify=True)
    assert artifact.predicted and artifact.plan.arch == "sm_80"
    assert all(kernel.cubin[:4] == b"\x7fELF" for kernel in artifact.plan.kernels)
    port = artifact.plan.inputs[0]
    x = np.random.default_rng(0).normal(size=port.shape).astype(np.float32)
    (y,) = HostModule(artifact.plan).run(None, {port.name: x})
    np.testing.assert_allclose(y, np.exp(x) / np.exp(x).sum(-1, keepdims=True), rtol=1e-5)


def test_a_session_without_a_gpu_says_what_it_needs(here: Run, tmp_path: Path) -> None:
    here(*GMM, "search.trials=2")
    with pytest.raises(UserError, match=r"GPU|driver"):
        load(tmp_path / "run" / "artifact")


def test_a_second_run_predicts_nothing_again(here: Run, tmp_path: Path) -> None:
    first = here(*GMM, "search.trials=2")
    before = records(tmp_path)
    second = here(*GMM, "search.trials=2")
    assert (first.trials, second.trials) == (2, 0)
    assert records(tmp_path) == before
    assert second.verified


def test_what_was_predicted_at_one_clock_is_not_resumed_at_another(here: Run, tmp_path: Path) -> None:
    here(*GMM, "search.trials=2")
    (fast,) = {record.target for record in records(tmp_path)}
    again = here(*GMM, "search.trials=2", "target.clock_ghz=0.7")
    assert again.trials == 2
    (slow,) = {record.target for record in records(tmp_path)} - {fast}
    assert slow != fast


def test_what_was_measured_is_not_taken_for_a_prediction(here: Run, tmp_path: Path) -> None:
    """As the store of a machine with a GPU holds it, where the same candidates were predicted before."""
    here(*GMM, "search.trials=2")
    with Store(f"sqlite:///{tmp_path}/store.sqlite") as store:
        measured = [
            replace(r, predicted=False, samples=(1.0,), latency_ns=1.0, created=datetime.now(UTC))
            for r in store.everything()
        ]
        assert store.add(measured) == 2
    again = here(*GMM, "search.trials=2")
    assert again.trials == 0
    assert again.tasks[0].latency_ms is not None and again.tasks[0].latency_ms > 1e-4, "a nanosecond was measured"


def test_a_peer_is_not_compared_with_a_prediction(here: Run) -> None:
    made = here(*GMM, "search.trials=2", "compare.peers=[onnxruntime]")
    peer = made.peers["onnxruntime"]
    assert (peer.status, peer.median_ms, peer.ratio) == ("skipped", None, None)
    assert "a prediction is compared with nothing" in peer.reason


def test_without_the_compiler_the_package_to_install_is_named(here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_compile.load_nvrtc.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    try:
        with pytest.raises(UserError, match="pip install nvidia-cuda-nvrtc"):
            here(*GMM, "search.trials=2")
    finally:
        cuda_compile.load_nvrtc.cache_clear()


def test_a_check_without_a_cpp_compiler_is_not_called_a_whole_one(
    here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("PATH", str(tmp_path))
    made = here(*SOFTMAX, "search.trials=2")
    assert made.verified and made.unchecked == "the emitted source, for want of a C++ compiler"
    assert "verified, but not the emitted source" in caplog.text
    assert "their source is run" not in caplog.text


@pytest.mark.parametrize(
    ("size", "said", "trials"), [(283, "inputs, constants and outputs", 0), (284, "module keeps", 2)]
)
def test_a_model_that_the_memory_of_the_gpu_does_not_hold_is_refused_as_early_as_that_is_known(
    size: int, said: str, trials: int, here: Run, tmp_path: Path
) -> None:
    small = ("+workload=gmm", "workload.n=3", "workload.m=5", "workload.k=7")  # 284 bytes, more where each is aligned
    with pytest.raises(UserError, match="the model is too large for this GPU") as caught:
        here(*small, "search.trials=2", f"target.memory_bytes={size}")
    assert said in caught.value.why and "target.memory_bytes" in caught.value.why
    assert len(records(tmp_path)) == trials
    assert not (tmp_path / "run" / "artifact").exists()


def test_a_runner_that_needs_a_device_is_refused_where_there_is_none(here: Run) -> None:
    with pytest.raises(UserError, match=r"measurement\.predicted"):
        here(*GMM, "search.trials=2", "measurement.predicted=null")
