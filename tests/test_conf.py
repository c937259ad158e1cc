"""Tests of `conf/`: every file composes, passes the check, and names only classes that are there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.cli import conf_folder
from pipeline.config import Config, parse
from pipeline.frontend.workloads.workload import Workload
from pipeline.registry import Component, Registry
from pipeline.suite_case import suite_cases

CONF = conf_folder()
CHECKED_BY_HYDRA = ("hydra",)
NOT_KEYS = ("experiment", *CHECKED_BY_HYDRA)
FILES = sorted(path.relative_to(CONF) for path in CONF.rglob("*.yaml"))
GROUPS = sorted({path.parts[0] for path in FILES if len(path.parts) > 1})
CHOICES = [(path.parts[0], path.stem) for path in FILES if len(path.parts) == 2]
ANY_WORKLOAD = "gmm"
OF_ONE_KIND = ("target", "codegen")  # for a CPU, or for a GPU

Compose = Callable[..., dict[str, Any]]
Isolate = Callable[[str, dict[str, Any]], dict[str, Any]]


@pytest.fixture
def isolated(plain: dict[str, Any]) -> Isolate:
    """All but one group replaced by trivial ones, so that a broken file fails the tests of its own group only."""

    def isolate(group: str, data: dict[str, Any]) -> dict[str, Any]:
        return {**plain, **{one: data[one] for one in (OF_ONE_KIND if group in OF_ONE_KIND else (group,))}}

    return isolate


def override(group: str, name: str) -> list[str]:
    if group == "workload":
        return [f"+workload={name}"]
    if (group, name) == ("codegen", "cuda"):
        return [f"+workload={ANY_WORKLOAD}", "target=a100", "codegen=cuda"]
    return [f"+workload={ANY_WORKLOAD}", f"+{group}={name}" if group == "experiment" else f"{group}={name}"]


def targets(node: object, where: str = "") -> list[tuple[str, Component]]:
    """Every node with a class path, with its place."""
    found: list[tuple[str, Component]] = []
    match node:
        case dict():
            if isinstance(node.get("_target_"), str):
                found.append((where, Component.model_validate(node)))
            for key, value in node.items():
                found += targets(value, f"{where}.{key}")
        case list():
            for i, value in enumerate(node):
                found += targets(value, f"{where}[{i}]")
    return found


@pytest.mark.parametrize(("group", "name"), [choice for choice in CHOICES if choice[0] != "experiment"])
def test_every_choice_of_every_group_passes_the_check(
    group: str, name: str, composed: Compose, isolated: Isolate
) -> None:
    assert isinstance(parse(isolated(group, composed(*override(group, name)))), Config)


@pytest.mark.parametrize("name", ["", *(name for group, name in CHOICES if group == "experiment")])
def test_the_defaults_and_every_experiment_pass_the_check(name: str, composed: Compose) -> None:
    chosen = override("experiment", name) if name else [f"+workload={ANY_WORKLOAD}"]
    assert isinstance(parse(composed(*chosen)), Config)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_every_class_path_leads_to_a_class(path: Path) -> None:
    for where, component in targets(yaml.safe_load((CONF / path).read_text(encoding="utf-8"))):
        assert callable(Registry().find(component.class_path, f"{path}{where}"))


def test_every_group_is_a_key_of_the_configuration_and_has_a_default_or_is_chosen(composed: Compose) -> None:
    assert {group for group in GROUPS if group not in NOT_KEYS} <= set(Config.model_fields)
    assert set(composed(f"+workload={ANY_WORKLOAD}")) == set(Config.model_fields)


@pytest.mark.parametrize("path", [path for path in FILES if path.parts[0] == "workload"], ids=str)
def test_every_workload_says_what_it_is(path: Path, composed: Compose, isolated: Isolate) -> None:
    config = parse(isolated("workload", composed(f"+workload={path.stem}")))
    if path.stem == "onnx":
        return  # has nothing to say without a file
    assert config.plugins.build(Workload, config.workload, "workload").describe()


@pytest.mark.parametrize("path", [path for path in FILES if path.parts[0] == "experiment"], ids=str)
def test_every_case_of_an_experiment_is_a_workload(path: Path, composed: Compose, isolated: Isolate) -> None:
    suite = yaml.safe_load((CONF / path).read_text(encoding="utf-8")).get("suite", {})
    for case in suite_cases(suite, ()):
        config = parse(isolated("workload", composed(*case.overrides(), f"+experiment={path.stem}")))
        assert config.plugins.build(Workload, config.workload, "workload").describe()


@pytest.mark.parametrize("path", FILES, ids=str)
def test_every_file_begins_by_saying_what_it_is(path: Path) -> None:
    lines = (CONF / path).read_text(encoding="utf-8").splitlines()
    said = [line for line in lines[:2] if line.startswith("# ") and not line.startswith("# @package")]
    assert said, "begin with a comment"
