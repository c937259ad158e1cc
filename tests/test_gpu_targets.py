"""Tests of the GPUs in `conf/target`: complete, as fast as their makers say, and choosing what is made for GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
import yaml

from pipeline import cli
from pipeline.cli import conf_folder
from pipeline.cli_overrides import rewritten
from pipeline.config import GpuSettings, parse
from pipeline.errors import ConfigError, UserError
from pipeline.ir.target import Gpu
from pipeline.measurement.host import akin, detect_host, fingerprint
from tests.known_gpus import GPUS, gpu

# TFLOPS (int8: TOPS) of float32, float16 and int8, from the makers' data sheets
SHEETS = {
    "t4": (8.1, 65.0, 130.0), "a100": (19.5, 312.0, 624.0), "a10": (31.2, 125.0, 250.0),
    "rtx3090": (35.6, 71.0, 284.0), "l4": (30.3, 121.0, 242.0), "rtx4090": (82.6, 165.2, 660.6),
    "h100": (66.9, 989.4, 1978.9), "h200": (66.9, 989.4, 1978.9), "b200": (75.0, 2250.0, 4500.0),
}  # fmt: skip
OPT_IN_KIB = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227}
RESIDENT = {75: (1024, 16), 80: (2048, 32), 86: (1536, 16), 89: (1536, 24), 90: (2048, 32), 100: (2048, 32)}


def composed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What the command would run with."""
    assert cli.main([*arguments, "--cfg", "job"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert isinstance(shown, dict)
    return shown


def capability(name: str) -> int:
    facts = gpu(name).gpu
    assert facts is not None
    return facts.capability


def group(name: str, choice: str) -> Any:
    return yaml.safe_load((conf_folder() / name / f"{choice}.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_is_as_fast_as_its_data_sheet_says(name: str) -> None:
    target = gpu(name)
    for size, tera in zip((4, 2, 1), SHEETS[name], strict=True):
        assert target.peak_gflops(size) == pytest.approx(tera * 1e3, rel=0.01)


@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_has_the_limits_of_its_architecture(name: str) -> None:
    target = gpu(name)
    assert target.gpu is not None and target.kind == "cuda"
    facts, capability = target.gpu, target.gpu.capability
    assert facts.shared_per_block == OPT_IN_KIB[capability] * 1024
    assert (facts.threads, facts.blocks) == RESIDENT[capability]
    assert facts.shared_per_block + facts.shared_reserved <= facts.shared_bytes
    assert (facts.registers, facts.registers_per_thread, facts.threads_per_block) == (65536, 255, 1024)
    assert target.cores == facts.multiprocessors


@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_has_the_features_of_the_architectures_up_to_its_own(name: str) -> None:
    target = gpu(name)
    assert target.features[0] == "+sm_75" and target.features[-1] == f"+{target.cpu}"
    assert ("+sm_80" in target.features) == (target.gpu is not None and target.gpu.capability >= 80)


def test_every_gpu_has_a_fingerprint_of_its_own_which_a_clock_changes(capsys: pytest.CaptureFixture[str]) -> None:
    assert len({fingerprint(gpu(name)) for name in GPUS}) == len(GPUS)
    node = composed(capsys, "workload=gmm", "target=a100", "target.clock_ghz=1.2")["target"]
    slower = GpuSettings.model_validate(node, strict=False).resolve()
    assert slower.clock_ghz == 1.2 and fingerprint(slower) != fingerprint(gpu("a100"))


@pytest.mark.parametrize("fact", [field.name for field in fields(Gpu) if field.name not in ("arch", "memory_bytes")])
def test_whatever_a_prediction_depends_on_changes_the_fingerprint(fact: str) -> None:
    target = gpu("a100")
    assert target.gpu is not None
    was = getattr(target.gpu, fact)
    now = {**was, "float32": 7.0} if isinstance(was, Mapping) else was + 1
    other = fingerprint(replace(target, gpu=replace(target.gpu, **{fact: now})))
    assert other != fingerprint(target) and akin(other, fingerprint(target))


@pytest.mark.parametrize("change", [{"clock_ghz": 1.0}, {"bandwidth_gbs": 1.0}, {"name": "another"}, {"cores": 7}])
def test_a_gpu_with_other_limits_has_another_fingerprint_of_the_same_architecture(change: dict[str, Any]) -> None:
    other = fingerprint(replace(gpu("a100"), **change))
    assert other != fingerprint(gpu("a100")) and akin(other, fingerprint(gpu("a100")))


def test_a_fingerprint_hangs_on_facts_and_not_on_how_they_are_written() -> None:
    target = gpu("a100")
    assert target.gpu is not None
    turned = replace(target.gpu, fma=dict(reversed(target.gpu.fma.items())), memory_bytes=1)
    assert fingerprint(replace(target, gpu=turned)) == fingerprint(target)


def test_gpus_of_one_architecture_are_akin_and_others_are_not() -> None:
    kin = {name: {other for other in GPUS if akin(fingerprint(gpu(name)), fingerprint(gpu(other)))} for name in GPUS}
    for name, found in kin.items():
        assert found == {other for other in GPUS if capability(other) == capability(name)}
    assert kin["a10"] == {"a10", "rtx3090"}
    assert not akin(fingerprint(detect_host()), fingerprint(gpu("a100")))


@pytest.mark.parametrize("workload", ["workload=gmm", "+workload=gmm"])
def test_a_gpu_brings_its_rules_code_and_runner(capsys: pytest.CaptureFixture[str], workload: str) -> None:
    config = composed(capsys, workload, "target=a100")
    assert config["target"]["arch"] == "sm_80"
    for name in ("rules", "codegen", "measurement"):
        assert config[name] == group(name, "cuda")


def test_a_cpu_keeps_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    config = composed(capsys, "workload=gmm", "target=avx2")
    assert config["rules"] == group("rules", "cpu") and config["measurement"] == group("measurement", "local")


@pytest.mark.parametrize(
    "order", [["target=a100", "rules=cpu", "measurement=local"], ["measurement=local", "rules=cpu", "target=a100"]]
)
def test_what_the_user_chooses_wins_over_what_a_gpu_brings(
    capsys: pytest.CaptureFixture[str], order: list[str]
) -> None:
    config = composed(capsys, "workload=gmm", *order)
    assert config["rules"] == group("rules", "cpu") and config["measurement"] == group("measurement", "local")
    assert config["codegen"] == group("codegen", "cuda") and config["target"]["kind"] == "cuda"


def test_an_experiment_and_a_gpu_both_have_their_say(capsys: pytest.CaptureFixture[str]) -> None:
    config = composed(capsys, "workload=gmm", "experiment=smoke", "target=t4")
    assert config["rules"] == group("rules", "cuda") and config["search"]["trials"] == 8


def test_a_workload_may_be_written_with_a_plus() -> None:
    for spelling in ("workload=bert", "+workload=bert"):
        assert rewritten([spelling, "target=a100"], ("workload", "target")) == ["+workload=bert", "target=a100"]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("multiprocesors", 3, ["target.multiprocesors:", "Did you mean 'multiprocessors'?"]),
        ("cores", 3, ["target.cores: unknown key", "multiprocessors"]),
        ("mma_share", 1.5, ["target.mma_share:", "less than or equal to 1"]),
        ("arch", "ampere", ["target.arch:", "'ampere'"]),
        ("clock_ghz", -1.0, ["target.clock_ghz:", "greater than 0"]),
        ("fma", {"float32": 0.0}, ["target.fma.float32:", "greater than 0"]),
        ("shared_bytes", None, ["target:", "detect: false", "shared_bytes"]),
    ],
)  # fmt: skip
def test_a_wrong_fact_of_a_gpu_is_named(composed_plain: Any, key: str, value: object, words: list[str]) -> None:
    data = composed_plain("a100")
    data["target"][key] = value
    with pytest.raises(ConfigError) as caught:
        parse(data)
    for word in words:
        assert word in str(caught.value)


def test_a_target_without_a_gpu_here_says_what_needs_none(composed_plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named '{name}'")

    target = parse(composed_plain("cuda")).target
    monkeypatch.setattr("pipeline.codegen.cuda.driver.importlib.import_module", missing)
    with pytest.raises(UserError, match="a100") as caught:
        target.resolve()
    assert str(caught.value).count(", ") >= len(GPUS) - 1 and "pip install" in str(caught.value)


def test_the_detected_gpu_offers_every_described_one(composed_plain: Any) -> None:
    described = {path.stem for path in (conf_folder() / "target").glob("*.yaml") if "gpu/any" in path.read_text()}
    assert set(composed_plain("cuda")["target"]["instead"]) == described - {"cuda"} == set(GPUS)


@pytest.fixture
def composed_plain(composed: Any, plain: dict[str, Any]) -> Any:
    """A valid configuration with a GPU."""

    def with_gpu(name: str) -> dict[str, Any]:
        data = composed(f"target={name}")
        return {**plain, "target": data["target"], "codegen": data["codegen"]}

    return with_gpu
