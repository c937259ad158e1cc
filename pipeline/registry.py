"""From a class path in YAML to an object: the list of allowed packages, and the check of the arguments."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import pkgutil
import traceback
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, is_dataclass
from types import ModuleType
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from pipeline.errors import ConfigError, PipelineError, listed
from pipeline.explain import did_you_mean, dotted, explain, unknown

OWN_PACKAGES = ("pipeline", "rules")

Role = TypeVar("Role")


class Component(BaseModel):
    """A class path (`_target_` in YAML) and the arguments of its constructor."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)

    class_path: str = Field(alias="_target_")

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name, as plain data."""
        return dict(self.model_extra or {})

    @property
    def name(self) -> str:
        """The last part of the class path."""
        return self.class_path.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Registry:
    """Finds, checks and builds what the configuration names.

    packages   those, beside `pipeline` and `rules`, whose classes may be named (`registry.packages`)
    """

    packages: tuple[str, ...] = ()

    def find(self, class_path: str, where: str) -> Callable[..., Any]:
        """The class or function of that path. Nothing outside the allowed packages is imported, or handed out."""
        self._allow(class_path, where)
        module_path, name = _split(class_path, where)
        module = _import(module_path, class_path, where)
        found = getattr(module, name, None)
        public = {
            key: value
            for key, value in vars(module).items()
            if not key.startswith("_") and callable(value) and self._allowed(getattr(value, "__module__", None) or "")
        }
        if found is None:
            raise unknown(f"class in {module_path} named", name, public, where)
        if name not in public:
            raise ConfigError(
                f"'{class_path}' is not a class of an allowed package",
                where=where,
                why=f"It is {_described(found)}",
                todo=_how_to_allow(self.packages),
            )
        return typing.cast(Callable[..., Any], found)

    def check(self, component: Component, where: str, given: Collection[str] = ()) -> None:
        """Raises a `ConfigError` where the class is not there or does not take these arguments.

        given   names of the arguments that the caller offers when it builds
        """
        make = self.find(component.class_path, where)
        self._bind(make, component.arguments, where, frozenset(given), build=False)

    def build(self, role: type[Role], component: Component, where: str, **given: Any) -> Role:
        """The object that `component` describes, which must have what `role` (a class or a protocol) demands.

        given   arguments that the caller offers; a constructor takes those that it names
        """
        make = self.find(component.class_path, where)
        arguments = self._bind(make, component.arguments, where, frozenset(given), build=True)
        offered = {name: value for name, value in given.items() if _takes(make, name)}
        try:
            made = make(**arguments, **offered)
        except PipelineError:
            raise
        except Exception as error:
            raise ConfigError(
                f"'{component.class_path}' cannot be made",
                where=where,
                why=_said(error),
                todo="Check its arguments here, and its constructor",
            ) from error
        missing = _missing(role, made)
        if missing:
            raise ConfigError(
                f"'{component.class_path}' is not a {role.__name__}",
                where=where,
                why=f"It has no {listed(missing)}",
                todo=f"A class named here needs: {listed(_members(role))}",
            )
        return typing.cast(Role, made)

    def _allowed(self, path: str) -> bool:
        return any(path == package or path.startswith(package + ".") for package in OWN_PACKAGES + self.packages)

    def _allow(self, class_path: str, where: str) -> None:
        if not all(part.isidentifier() for part in class_path.split(".")):
            raise ConfigError(f"'{class_path}' is not a class path", where=where, todo="Write package.module.Class")
        if any(part.startswith("_") for part in class_path.split(".")):
            raise ConfigError(f"'{class_path}' names something private", where=where, todo="Name a public class")
        if not self._allowed(class_path):
            package = class_path.split(".")[0]
            raise ConfigError(
                f"class path '{class_path}' is outside the allowed packages",
                where=where,
                todo=f"{_how_to_allow(self.packages)}: registry.packages=[{','.join((*self.packages, package))}]",
            )

    def _bind(
        self,
        make: Callable[..., Any],
        arguments: Mapping[str, Any],
        where: str,
        given: frozenset[str],
        *,
        build: bool,
    ) -> dict[str, Any]:
        """The arguments, each checked against its annotation; components among them are built, or only checked."""
        parameters = inspect.signature(make).parameters.values()
        open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        mine = {
            parameter.name: parameter
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            and parameter.name not in given
        }
        called = f"{make.__module__}.{make.__qualname__}"
        for name in arguments:
            if name not in mine and (not open_ended or name in given):
                raise ConfigError(
                    f"unknown key '{name}'",
                    where=dotted(where, (name,)),
                    why=f"{called} has no such argument here",
                    todo=did_you_mean(name, mine) + (f"It takes: {listed(mine)}" if mine else "It takes none"),
                )
        for name, parameter in mine.items():
            if parameter.default is parameter.empty and name not in arguments:
                raise ConfigError(
                    "missing",
                    where=dotted(where, (name,)),
                    why=f"{called} needs this argument",
                    todo="Give it a value",
                )
        hints = _hints(make)
        return {
            name: self._value(value, hints.get(name, Any), dotted(where, (name,)), build=build)
            for name, value in arguments.items()
        }

    def _value(self, value: object, hint: Any, where: str, *, build: bool) -> Any:
        match value:
            case {"_target_": str()}:
                nested = Component.model_validate(value)
                if build:
                    return self.build(object, nested, where)
                return self.check(nested, where)
            case list() if any(isinstance(item, Mapping) and "_target_" in item for item in value):
                return tuple(self._value(item, Any, f"{where}[{i}]", build=build) for i, item in enumerate(value))
            case dict() if isinstance(hint, type) and is_dataclass(hint):
                # Pydantic would pass over the keys that a dataclass has not.
                arguments = self._bind(hint, value, where, frozenset(), build=build)
                return hint(**arguments) if build else None
            case _:
                return _validated(value, hint, where)


def _split(class_path: str, where: str) -> tuple[str, str]:
    module_path, _, name = class_path.rpartition(".")
    if not module_path:
        raise ConfigError(f"'{class_path}' is not a class path", where=where, todo="Write package.module.Class")
    return module_path, name


def _import(module_path: str, class_path: str, where: str) -> ModuleType:
    """The module, or an error that names the first part of its path that is not there, and its neighbours."""
    parts = module_path.split(".")
    for end in range(1, len(parts) + 1):
        path = ".".join(parts[:end])
        try:
            spec = importlib.util.find_spec(path)
        except ModuleNotFoundError as error:
            if error.name is None or not (path == error.name or path.startswith(error.name + ".")):
                raise _not_importable(path, where, error) from error
            spec = None
        except Exception as error:  # what a user's package says while it is imported can be anything
            raise _not_importable(path, where, error) from error
        if spec is None:
            if end == 1:
                raise ConfigError(
                    f"package '{path}' is not installed",
                    where=where,
                    why=f"'{class_path}' names it",
                    todo="Install it, or run from the folder that holds it",
                )
            parent = importlib.import_module(".".join(parts[: end - 1]))
            siblings = [module.name for module in pkgutil.iter_modules(getattr(parent, "__path__", ()))]
            raise unknown(f"module in {parent.__name__} named", parts[end - 1], siblings, where)
    try:
        return importlib.import_module(module_path)
    except Exception as error:
        raise _not_importable(module_path, where, error) from error


def _not_importable(path: str, where: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"'{path}' cannot be imported",
        where=where,
        why=_said(error),
        todo="Install what it needs" if isinstance(error, ImportError) else "Correct that module",
    )


def _said(error: Exception) -> str:
    """The error's kind and first line, and the line of code that raised it."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}, line {error.lineno})"
    text = str(error).strip().partition("\n")[0]
    frames = traceback.extract_tb(error.__traceback__)
    at = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{at}"


def _takes(make: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(make).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _hints(make: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of the arguments of a class or function, resolved where they can be."""
    function = make.__init__ if inspect.isclass(make) else make  # type: ignore[misc]
    # A dataclass names what the modules of its bases import; its constructor knows only its own module.
    for source in (function, make) if is_dataclass(make) else (function,):
        try:
            return typing.get_type_hints(source, include_extras=True)  # Annotated: a bound
        except NameError:
            continue
    # A name that exists only for the type checker: the constructor has the last word on these arguments.
    return {}


def _validated(value: object, hint: Any, where: str) -> Any:
    """`value` (plain data) as the annotation wants it; strict, but a list may be a tuple, and a dict a dataclass."""
    try:
        adapter = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False))
    except PydanticUserError:
        adapter = TypeAdapter(hint)  # dataclasses and models bring a configuration of their own
    try:
        return adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise explain(error, hint, where) from error


def _members(role: type) -> tuple[str, ...]:
    return tuple(
        name
        for name in (*dir(role), *getattr(role, "__annotations__", {}))
        if not name.startswith("_") and not hasattr(object, name)
    )


def _missing(role: type, made: object) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in _members(role) if not hasattr(made, name)))


def _described(found: object) -> str:
    if inspect.ismodule(found):
        return "a module"
    module = getattr(found, "__module__", None)
    return f"from {module}" if callable(found) and module else f"a value of type {type(found).__name__}"


def _how_to_allow(packages: tuple[str, ...]) -> str:
    return f"Allowed now: {', '.join(OWN_PACKAGES + packages)}. To allow another, list it in registry.packages"
