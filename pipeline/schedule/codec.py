"""The JSON form of steps, variables and constraints: {"kind": class name, fields}, with polynomials as text."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pipeline.errors import UserError, listed
from pipeline.ir.poly import Poly
from pipeline.ir.program_parse import parse_poly


def encode(entry: Any) -> dict[str, Any]:
    """A frozen dataclass as plain data."""
    assert is_dataclass(entry) and not isinstance(entry, type)
    return {"kind": type(entry).__name__} | {f.name: _encode(getattr(entry, f.name)) for f in fields(entry)}


def decode(data: Mapping[str, Any], kinds: Mapping[str, type]) -> Any:
    """The dataclass of `kinds` that plain data describe."""
    kind = str(data.get("kind"))
    if kind not in kinds:
        raise UserError(f"unknown trace entry {kind!r}", where="trace", todo=f"Known kinds: {listed(kinds)}")
    hints = _hints(kinds[kind])
    if wrong := sorted((set(data) - {"kind"}) ^ set(hints)):
        why = f"missing or unknown: {', '.join(wrong)}"
        raise UserError(f"the fields of {kind} do not match", where="trace", why=why, todo=f"Expected: {listed(hints)}")
    return kinds[kind](**{name: _decode(data[name], hint, f"{kind}.{name}") for name, hint in hints.items()})


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}


def _encode(value: Any) -> Any:
    if isinstance(value, Poly):
        return str(value)
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    assert value is None or isinstance(value, (str, int, float)), f"{value!r} has no JSON form"
    return value


def _decode(value: Any, hint: Any, where: str) -> Any:
    """The value as the type hint says it; a wrong one is an error of the file that it came from."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        for option in sorted(get_args(hint), key=lambda option: option is Poly):  # a number stays a number
            if _fits(value, option):
                return _decode(value, option, where)
    elif origin is tuple and isinstance(value, (list, tuple)):
        inner = get_args(hint)
        if len(inner) == 2 and inner[1] is Ellipsis:
            return tuple(_decode(item, inner[0], where) for item in value)
        if len(inner) == len(value):
            return tuple(_decode(item, kind, where) for item, kind in zip(value, inner, strict=True))
    elif origin is Literal and value in get_args(hint):
        return value
    elif hint is Poly and isinstance(value, str):
        return parse_poly(value)
    elif _fits(value, hint):
        return value
    raise UserError(f"{where} is {value!r}", where="trace", todo=f"Expected {hint}")


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if hint is Poly:
        return isinstance(value, str)
    if origin is tuple:
        return isinstance(value, (list, tuple))
    if origin is Literal:
        return value in get_args(hint)
    if hint is type(None):
        return value is None
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(hint, type) and isinstance(value, hint)
