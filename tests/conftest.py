"""What several tests need: the configuration as the command line composes it, and a package outside the project."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import settings
from omegaconf import OmegaConf

from pipeline.cli import conf_folder

# The same examples in every run, so that the gate's answer depends on the code only.
settings.register_profile("gate", derandomize=True, deadline=None, database=None)
settings.load_profile("gate")

Compose = Callable[..., dict[str, Any]]

OUTSIDER = """
from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    n: int
    path: str | None = None
    case: int | None = None


class Strategy:
    def __init__(self, population: int = 3, rates: tuple[float, ...] = (), inner: object = None) -> None:
        self.population, self.rates, self.inner = population, rates, inner

    def propose(self) -> int:
        return self.population


class Cost:
    pass


def build(n: int) -> int:
    return n
"""


@pytest.fixture
def composed() -> Iterator[Compose]:
    """Composes `conf/` with overrides, in Hydra's own spelling, to plain data."""

    def as_plain(*overrides: str) -> dict[str, Any]:
        plain = OmegaConf.to_container(compose("config", overrides=list(overrides)), resolve=True)
        assert isinstance(plain, dict)
        plain.pop("suite")
        return {str(key): value for key, value in plain.items()}

    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        yield as_plain


@pytest.fixture
def outsider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a package that is not ours, with a workload, a strategy and a cost model that do nothing.

    The name is new for each test: an imported module outlives the test that made it."""
    name = f"outsider_{abs(hash(str(tmp_path))):x}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(OUTSIDER), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.fixture
def plain(composed: Compose, outsider: str) -> dict[str, Any]:
    """A whole valid configuration, whose components are the outsider's."""
    data = composed(f"registry.packages=[{outsider}]")
    data["workload"] = {"_target_": f"{outsider}.Workload", "n": 4}
    data["search"]["strategy"] = {"_target_": f"{outsider}.Strategy"}
    data["cost_model"] = {"_target_": f"{outsider}.Cost"}
    data["rules"] = {"schedule": [], "graph": [], "extra": []}
    data["compare"] = {**data["compare"], "peers": [], "plugins": {}}
    return data
