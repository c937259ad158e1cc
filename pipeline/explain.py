"""The words for a value that pydantic refused: its dotted path, what was expected, and the nearest valid key."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError

from pipeline.errors import ConfigError, listed

LONGEST_VALUE = 80
BRANCHES = frozenset({"int", "float", "str", "bool", "none"})
MAPPINGS = frozenset({"dict_type", "mapping_type", "model_type", "model_attributes_type"})  # pydantic's words


def did_you_mean(name: str, options: Iterable[object]) -> str:
    """`Did you mean x? ` for the option nearest to `name`, or nothing."""
    near = difflib.get_close_matches(name, [str(option) for option in options], n=1, cutoff=0.6)
    return f"Did you mean '{near[0]}'? " if near else ""


def unknown(what: str, name: str, options: Iterable[object], where: str) -> ConfigError:
    """The error for a name that is none of `options`; `what` says what it should name, in the singular."""
    options = tuple(options)
    choose = f"Choose one of: {listed(options)}" if options else "There is none to choose"
    return ConfigError(f"there is no {what} '{name}'", where=where, todo=did_you_mean(name, options) + choose)


def explain(error: ValidationError, model: Any, where: str = "") -> ConfigError:
    """One error for everything that pydantic found; `where` is the dotted path of the validated value."""
    found = error.errors(include_url=False, include_context=False)
    first = found[0]
    loc = _without_branches(first["loc"])
    path = dotted(where, loc)
    match first["type"]:
        case "extra_forbidden":
            keys = _keys(model, first["loc"][:-1])
            what, why = f"unknown key '{loc[-1]}'", ""
            todo = did_you_mean(str(loc[-1]), keys) + (f"The valid keys are: {listed(keys)}" if keys else "")
        case "missing":
            what, why, todo = "missing", "", "Give it a value"
        case "value_error":
            what, why, todo = _lowered(first["msg"]), "", ""
        case _:
            what = f"{_shown(first['input'])} is not valid here"
            told = dict.fromkeys(_lowered(e["msg"]) for e in found if _without_branches(e["loc"]) == loc)
            why, todo = " or ".join(told), example(path, dict) if first["type"] in MAPPINGS else ""
    others = dict.fromkeys(dotted(where, _without_branches(entry["loc"])) for entry in found)
    others.pop(path, None)
    if others:
        todo = f"{todo}. " if todo else ""
        todo += f"Also wrong: {', '.join(others)}"
    return ConfigError(what, where=path, why=why, todo=todo)


def unlike(where: str, expected: type) -> ConfigError:
    """The error for a list where a mapping is expected, or the reverse."""
    given, wanted = ("list", "mapping") if expected is dict else ("mapping", "list")
    return ConfigError(f"a {given} is not valid here", where=where, why=f"Expected a {wanted}",
                       todo=example(where, expected))  # fmt: skip


def example(where: str, expected: type) -> str:
    """How a mapping or a list is written on the command line."""
    return f"Write for example {where}=" + ("'{name: value}'" if expected is dict else "[value]")


def dotted(where: str, loc: Sequence[object]) -> str:
    """`search` and ("mutators", 0, "rate") -> `search.mutators[0].rate`."""
    path = where
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else str(part)
    return path


def _without_branches(loc: Sequence[int | str]) -> tuple[int | str, ...]:
    """The path without the names that pydantic puts in for the branches of a union."""
    return tuple(part for part in loc if part not in BRANCHES and not ("[" in str(part) and str(part).endswith("]")))


def _shown(value: object) -> str:
    text = repr(value)
    if len(text) > LONGEST_VALUE:
        text = text[: LONGEST_VALUE - 1] + "…"
    return f"{text} ({type(value).__name__})"


def _lowered(message: str) -> str:
    message = message.removeprefix("Value error, ").replace("Input should be", "Expected", 1)
    message = message.replace("a valid array", "a list").replace("an object", "a mapping")  # YAML's words, not JSON's
    return message if message.startswith("Expected") else message[:1].lower() + message[1:]


def _keys(model: Any, loc: Sequence[int | str]) -> tuple[str, ...]:
    """The keys that are valid at `loc` below `model`."""
    for part in loc:
        branch = _branch(model, part)
        model = branch or _model_of(model)
        if branch is None and isinstance(part, str) and isinstance(model, type) and issubclass(model, BaseModel):
            by_name = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
            model = by_name.get(part)
    model = _model_of(model)
    if isinstance(model, type) and issubclass(model, BaseModel):
        return tuple(field.alias or name for name, field in model.model_fields.items())
    return ()


def _branch(annotation: Any, name: object) -> Any:
    """The branch of a union that has this tag; None where there is none."""
    for inner in get_args(annotation):
        if any(isinstance(note, Tag) and note.tag == name for note in getattr(inner, "__metadata__", ())):
            return inner
    return None


def _model_of(annotation: Any) -> Any:
    """The model inside `Model | None`, `tuple[Model, ...]` or `dict[str, Model]`."""
    origin = get_origin(annotation)
    if origin in (Annotated, Union, types.UnionType, tuple, list, dict):
        for inner in get_args(annotation):
            found = _model_of(inner)
            if isinstance(found, type) and issubclass(found, BaseModel):
                return found
    return annotation
