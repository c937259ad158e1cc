"""Tests of the checked configuration: what is wrong is named by its dotted path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pipeline.config import parse
from pipeline.errors import ConfigError
from pipeline.measurement.host import detect_host


def changed(data: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """`data` with another value at the dotted path."""
    *parents, last = path.split(".")
    node = data
    for parent in parents:
        node = node[parent]
    node[last] = value
    return data


def test_a_valid_configuration_is_accepted_and_frozen(plain: dict[str, Any]) -> None:
    config = parse(plain)
    assert config.workload.arguments == {"n": 4}
    assert config.search.batch == plain["search"]["batch"]
    with pytest.raises(Exception, match="frozen"):
        config.seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("seed", "zero", ["seed:", "'zero' (str)", "Expected a valid integer"]),
        ("seed", -1, ["seed:", "-1", "greater than or equal to 0"]),
        ("seed", True, ["seed:", "True (bool)", "integer"]),
        ("search.trials", "12", ["search.trials:", "'12' (str)", "integer"]),
        ("search.trials", 1.5, ["search.trials:", "1.5 (float)"]),
        ("search.seconds", -3.0, ["search.seconds:", "-3.0"]),
        ("search.batch", None, ["search.batch:", "None"]),
        ("search.seconds", float("inf"), ["search.seconds:", "inf", "finite"]),
        ("search.min_gain", float("nan"), ["search.min_gain:", "nan", "finite"]),
        ("target.cores", 1_000_000, ["target.cores:", "1000000", "1024"]),
        ("target.features", ["avx2"], ["target.features[0]:", "'avx2'", "[+-]"]),
        ("measurement.runner.timeout_s", 0.0, ["measurement.runner.timeout_s:", "greater than 0"]),
        ("measurement.builder.memory_mb", -1, ["measurement.builder.memory_mb:", "greater than 0"]),
        ("measurement.runner.policy", {"samples": 0}, ["measurement.runner.policy.samples:", "greater than 0"]),
        ("target.vector_bits", 300, ["target.vector_bits:", "300", "256"]),
        ("target.kind", "tpu", ["target.kind:", "'tpu'", "'cpu'"]),
        ("target.caches", [{"level": "I", "size": 1, "ways": 1, "shared_by": 1}], ["target.caches[0].level:", "'I'"]),
        ("verification.hostile", "maybe", ["verification.hostile:", "boolean"]),
        ("codegen.level", 4, ["codegen.level:", "4"]),
        ("measurement.finalists", 0, ["measurement.finalists:", "greater than 0"]),
        ("measurement.runner.policy", {"samples": "few"}, ["measurement.runner.policy.samples:", "'few'"]),
        ("compare.peers", "onnxruntime", ["compare.peers:", "Expected a list"]),
        ("compare.peers", ["tvm"], ["compare:", "'tvm'", "The peers are:"]),
        ("workload.n", "four", ["workload.n:", "'four' (str)", "integer"]),
    ],
)  # fmt: skip
def test_a_wrong_value_names_its_path_itself_and_what_was_expected(
    plain: dict[str, Any], path: str, value: object, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(changed(plain, path, value))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("sead", ["sead:", "unknown key 'sead'", "Did you mean 'seed'?", "verification"]),
        ("search.trails", ["search.trails:", "Did you mean 'trials'?", "patience"]),
        ("target.core", ["target.core:", "Did you mean 'cores'?"]),
        ("search.strategy.populaton", ["search.strategy.populaton:", "Did you mean 'population'?"]),
        ("measurement.runner.policy.sample", ["measurement.runner.policy.sample:", "Did you mean 'samples'?"]),
        ("measurement.runner.target", ["measurement.runner.target:", "It takes: memory_mb, policy, timeout_s"]),
        ("workload.m", ["workload.m:", "It takes: case, n, path"]),
        ("cost_model.depth", ["cost_model.depth:", "It takes none"]),
    ],
)
def test_a_misspelt_key_names_the_nearest_and_the_valid_ones(
    plain: dict[str, Any], path: str, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(changed(plain, path, 1))
    for word in words:
        assert word in str(caught.value)


def test_a_key_inside_a_list_is_named_with_its_position(plain: dict[str, Any]) -> None:
    cache = {"level": 1, "size": 1024, "ways": 8, "shared_by": 1, "colour": "red"}
    with pytest.raises(ConfigError, match=r"target\.caches\[0\]\.colour: unknown key 'colour'.*level, shared_by"):
        parse(changed(plain, "target.caches", [cache]))


@pytest.mark.parametrize("arch", ["sm_70", "sm_999"])
def test_an_architecture_that_there_is_no_code_for_is_named_with_those_that_there_is(
    arch: str, composed: Callable[..., dict[str, Any]]
) -> None:
    with pytest.raises(ConfigError, match=rf"^target\.arch: .*'{arch}'.*sm_75, .*sm_120"):
        parse(composed("+workload=gmm", "target=a100", f"target.arch={arch}"))


@pytest.mark.parametrize("target", ["native", "avx2", "aarch64", "cuda", "a100"])
@pytest.mark.parametrize("codegen", ["llvm", "cuda"])
def test_code_for_another_kind_of_target_is_refused_with_the_choices(
    target: str, codegen: str, composed: Callable[..., dict[str, Any]]
) -> None:
    asked = composed("+workload=gmm", f"target={target}", f"codegen={codegen}")
    if (codegen == "cuda") == (target in ("cuda", "a100")):
        parse(asked)
        return
    with pytest.raises(
        ConfigError, match=r"^codegen: .* for a [CG]PU, .* is a [CG]PU.*codegen=llvm for a CPU, codegen="
    ):
        parse(asked)


@pytest.mark.parametrize("arch", ["sm_75", "sm_87", "sm_90a", "sm_121"])
def test_relatives_of_the_known_architectures_can_be_chosen(arch: str, composed: Callable[..., dict[str, Any]]) -> None:
    target = parse(composed("+workload=gmm", "target=a100", f"target.arch={arch}")).target.resolve()
    assert target.gpu is not None and target.cpu == target.gpu.arch == arch


def test_all_wrong_paths_are_named_at_once(plain: dict[str, Any]) -> None:
    plain["search"]["trials"] = "many"
    plain["codegen"]["level"] = 9
    with pytest.raises(ConfigError, match=r"search\.trials: .*Also wrong: codegen\.level"):
        parse(plain)


def test_a_missing_key_is_named(plain: dict[str, Any]) -> None:
    del plain["store"]["url"]
    with pytest.raises(ConfigError, match=r"store\.url: missing"):
        parse(plain)


def test_a_missing_argument_of_a_component_is_named(plain: dict[str, Any]) -> None:
    del plain["workload"]["n"]
    with pytest.raises(ConfigError, match=r"workload\.n: missing"):
        parse(plain)


def test_a_component_without_a_class_path_is_refused(plain: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"cost_model\._target_: missing"):
        parse(changed(plain, "cost_model", {"depth": 3}))


def test_a_search_without_an_end_is_refused(plain: dict[str, Any]) -> None:
    plain["search"]["seconds"] = None
    with pytest.raises(ConfigError, match="search: one of trials and seconds must be given"):
        parse(plain)


def test_an_integer_is_good_for_a_number_of_seconds(plain: dict[str, Any]) -> None:
    assert parse(changed(plain, "search.seconds", 5)).search.seconds == 5.0


def test_the_rules_are_checked_one_by_one(plain: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"rules\.extra\[1\]: class path 'os\.system' is outside"):
        parse(changed(plain, "rules.extra", [{"_target_": plain["cost_model"]["_target_"]}, {"_target_": "os.system"}]))


def test_the_native_target_is_this_machine_with_what_is_given_in_its_place(plain: dict[str, Any]) -> None:
    assert parse(plain).target.resolve() == detect_host()
    plain["target"] |= {"cores": 1, "vector_bits": 128}
    target = parse(plain).target.resolve()
    assert (target.cores, target.vector_bits) == (1, 128)
    assert target.cpu == detect_host().cpu


def test_a_target_that_is_not_this_machine_must_be_complete(plain: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"detect: false.*vector_registers"):
        parse(changed(plain, "target.detect", False))


def test_a_value_that_fits_no_branch_of_a_union_is_named_once(plain: dict[str, Any]) -> None:
    path = "pipeline.frontend.onnx.model.OnnxModel"
    plain["workload"] = {"_target_": path, "path": "m.onnx", "shapes": {"batch": "one"}}
    with pytest.raises(ConfigError) as caught:
        parse(plain)
    assert "workload.shapes.batch: 'one' (str)" in str(caught.value)
    assert "Also wrong" not in str(caught.value)
