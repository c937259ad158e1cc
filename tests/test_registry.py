"""Tests of the registry: only allowed packages, only the arguments that the class has."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

import pytest

from pipeline.errors import ConfigError
from pipeline.registry import Component, Registry


class Proposer(Protocol):
    """A role for these tests."""

    def propose(self) -> int:
        """Any number."""
        ...


def component(class_path: str, **arguments: object) -> Component:
    return Component.model_validate({"_target_": class_path, **arguments})


def test_a_class_of_an_allowed_package_is_built_with_its_arguments(outsider: str) -> None:
    registry = Registry((outsider,))
    made = registry.build(Proposer, component(f"{outsider}.Strategy", population=7, rates=[0.5, 1]), "search.strategy")
    assert made.propose() == 7
    assert vars(made)["rates"] == (0.5, 1.0)


def test_what_the_caller_gives_is_neither_missing_nor_a_key(outsider: str) -> None:
    registry = Registry((outsider,))
    made = registry.build(object, component(f"{outsider}.Workload"), "workload", n=3)
    assert vars(made)["n"] == 3
    with pytest.raises(ConfigError, match=r"workload\.n: unknown key"):
        registry.check(component(f"{outsider}.Workload", n=3), "workload", given=("n",))


def test_what_the_caller_offers_and_the_class_does_not_name_is_left_out(outsider: str) -> None:
    made = Registry((outsider,)).build(object, component(f"{outsider}.Workload", n=1), "workload", seed=3)
    assert vars(made)["n"] == 1
    assert "seed" not in vars(made)


def test_a_component_inside_a_component_is_built_too(outsider: str) -> None:
    nested = {"_target_": f"{outsider}.Strategy", "population": 2}
    made = Registry((outsider,)).build(Proposer, component(f"{outsider}.Strategy", inner=nested), "search.strategy")
    assert vars(made)["inner"].propose() == 2


def test_a_component_inside_a_component_is_checked_too(outsider: str) -> None:
    nested = {"_target_": f"{outsider}.Strategy", "size": 2}
    with pytest.raises(ConfigError, match=r"s\.inner\.size: unknown key"):
        Registry((outsider,)).check(component(f"{outsider}.Strategy", inner=nested), "s")


def test_a_function_is_as_good_as_a_class(outsider: str) -> None:
    assert Registry((outsider,)).build(int, component(f"{outsider}.build", n=3), "workload") == 3


def test_a_package_that_is_not_listed_is_not_even_imported(outsider: str) -> None:
    with pytest.raises(ConfigError, match=rf"outside the allowed packages.*registry\.packages=\[{outsider}\]"):
        Registry().find(f"{outsider}.Strategy", "search.strategy")
    assert outsider not in sys.modules


@pytest.mark.parametrize(
    "class_path", ["os.system", "subprocess.Popen", "builtins.eval", "pipelines.x.Y", "rulesets.Z"]
)
def test_a_path_outside_is_refused_also_where_its_name_begins_like_ours(class_path: str) -> None:
    with pytest.raises(ConfigError, match="outside the allowed packages"):
        Registry().find(class_path, "cost_model")


@pytest.mark.parametrize(
    "class_path", ["pipeline.registry.importlib", "pipeline.registry.dataclass", "pipeline.cli.os"]
)
def test_what_an_allowed_module_has_imported_is_refused(class_path: str) -> None:
    with pytest.raises(ConfigError, match="not a class of an allowed package"):
        Registry().find(class_path, "cost_model")


@pytest.mark.parametrize("class_path", ["pipeline.cli.os.system", "pipeline.registry.importlib.import_module"])
def test_a_path_through_a_module_into_another_is_refused(class_path: str) -> None:
    with pytest.raises(ConfigError):
        Registry().find(class_path, "cost_model")


@pytest.mark.parametrize("class_path", ["", "Strategy", "pipeline..x", "pipeline.a-b", "pipeline.registry._import"])
def test_a_path_that_is_none_is_refused(class_path: str) -> None:
    with pytest.raises(ConfigError):
        Registry().find(class_path, "cost_model")


def test_a_missing_module_names_its_neighbours() -> None:
    with pytest.raises(ConfigError, match=r"no module in pipeline named 'registri'\. Did you mean 'registry'\?"):
        Registry().find("pipeline.registri.Registry", "cost_model")


def test_a_missing_class_names_its_neighbours() -> None:
    with pytest.raises(
        ConfigError, match=r"no class in pipeline\.registry named 'Registri'\. Did you mean 'Registry'\?"
    ):
        Registry().find("pipeline.registry.Registri", "cost_model")


def test_a_listed_package_that_is_not_installed_is_an_error_of_its_own() -> None:
    with pytest.raises(ConfigError, match="package 'no_such_package' is not installed"):
        Registry(("no_such_package",)).find("no_such_package.x.Y", "cost_model")


def test_a_class_that_lacks_what_the_role_demands_is_refused(outsider: str) -> None:
    with pytest.raises(ConfigError, match=r"Cost' is not a Proposer\. It has no propose"):
        Registry((outsider,)).build(Proposer, component(f"{outsider}.Cost"), "search.strategy")


@pytest.mark.parametrize("value", ["7", 7.5, None, True, [7]])
def test_an_argument_of_the_wrong_type_is_refused(outsider: str, value: object) -> None:
    with pytest.raises(ConfigError, match=r"s\.population: .*integer"):
        Registry((outsider,)).check(component(f"{outsider}.Strategy", population=value), "s")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import absent_of_all", "ModuleNotFoundError: No module named 'absent_of_all'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def broken(:", "SyntaxError"),
        ("from sys import absent", "ImportError: cannot import name 'absent'"),
    ],
)
@pytest.mark.parametrize("deep", [False, True])
def test_what_is_wrong_in_a_module_of_the_user_is_told(
    code: str, said: str, deep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"broken_{abs(hash((str(tmp_path), code, deep))):x}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("" if deep else code)
    (tmp_path / name / "rule.py").write_text(code if deep else "class Mine: ...")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        Registry((name,)).check(component(f"{name}.rule.Mine"), "rules.extra[0]")
    assert f"rules.extra[0]: '{name}" in str(caught.value) and "cannot be imported" in str(caught.value)
    assert said in str(caught.value) and str(tmp_path) in str(caught.value)


def test_a_constructor_that_raises_is_told_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"raising_{abs(hash(str(tmp_path))):x}"
    (tmp_path / f"{name}.py").write_text("class Mine:\n    def __init__(self, n: int): raise ValueError(f'bad {n}')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=rf"rules\.extra\[0\]: '{name}\.Mine' cannot be made\. ValueError: bad 3"):
        Registry((name,)).build(object, component(f"{name}.Mine", n=3), "rules.extra[0]")


@pytest.mark.parametrize("value", [1.5, "abc", True, [1]])
def test_an_argument_that_a_class_inherits_from_another_module_is_checked_too(value: object) -> None:
    with pytest.raises(ConfigError, match=r"w\.dim: .* is not valid here"):
        Registry(()).check(component("pipeline.frontend.workloads.gqa.Gqa", dim=value), "w")
