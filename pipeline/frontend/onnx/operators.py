"""The table of operators: name and since-version to the function that writes the operator's meaning as primitives."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.tensor import Value

Result = Value | tuple[Value | None, ...]
Meaning = Callable[[Call], Result]

_TABLE: dict[tuple[str, str], dict[int, Meaning]] = {}


def operator(name: str, *since: int, domain: str = "") -> Callable[[Meaning], Meaning]:
    """Registers a function as the meaning of `name` for the versions of the operator that `since` lists."""

    def register(meaning: Meaning) -> Meaning:
        versions = _TABLE.setdefault((domain, name), {})
        for version in since:
            assert version not in versions, f"{name}-{version} is registered twice"
            versions[version] = meaning
        return meaning

    return register


def meaning_of(domain: str, name: str, since: int) -> Meaning | None:
    """The function for that version of the operator, or None where the table has none."""
    return _TABLE.get((domain, name), {}).get(since)


def newest_since(domain: str, name: str, opset: int) -> int:
    """The newest version in the table that is not newer than `opset`; 0 where there is none."""
    return max((since for since in _TABLE.get((domain, name), {}) if since <= opset), default=0)


def registered() -> dict[tuple[str, str], tuple[int, ...]]:
    """Every operator of the table with its versions, for tests and reports."""
    return {key: tuple(sorted(versions)) for key, versions in sorted(_TABLE.items())}
