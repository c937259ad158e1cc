"""Tests of the house rules: who may import whom, what a file is called and what it begins with."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import sys
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parent.parent

# Lowest first. A room imports itself and the rooms of lower rows, and no neighbour in its own row.
LAYERS = (
    ("errors", "progress"),
    ("ir",),
    ("schedule",),
    ("frontend", "verification", "space"),
    ("superopt",),
    ("codegen",),
    ("store",),
    ("measurement",),
    ("search",),
    ("runtime",),
    ("report",),
    ("explain",),
    ("registry",),
    ("config",),
    ("machine",),
    ("engine", "suite", "suite_case"),
    ("cli_overrides",),
    ("cli",),
    ("__main__",),
)
LEVEL = {room: level for level, row in enumerate(LAYERS) for room in row}
DOOR = ("cli", "cli_overrides", "__main__")
RULES_MAY_IMPORT = ("errors", "ir", "schedule")
NAMES_OF_NOTHING = {"util", "utils", "helper", "helpers", "common", "misc", "shared", "stuff"}
THINK_AT, STOP_AT = 400, 700

SOURCES = sorted([*(HOUSE / "pipeline").rglob("*.py"), *(HOUSE / "rules").rglob("*.py")])
TESTS = sorted((HOUSE / "tests").rglob("*.py"))
NAMED_FOR_THEIR_CLASS = [
    path
    for folder in ("rules/schedule", "rules/graph", "pipeline/schedule/steps")
    for path in sorted((HOUSE / folder).glob("*.py"))
    if path.name != "__init__.py"
]


def name(path: Path) -> str:
    return path.relative_to(HOUSE).as_posix()


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything that is imported anywhere below `node`."""
    for inner in ast.walk(node):
        match inner:
            case ast.Import(names=names):
                yield from ((inner.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=str(module), level=0, names=names):
                yield from ((inner.lineno, f"{module}.{alias.name}") for alias in names)
            case ast.ImportFrom():
                yield inner.lineno, "." * inner.level


def room(path: Path) -> str:
    """`pipeline/ir/expr.py` -> ir, `pipeline/config.py` -> config, `pipeline/__init__.py` -> the roof, above all."""
    parts = path.relative_to(HOUSE / "pipeline").parts
    return parts[0].removesuffix(".py")


def trespasses(path: Path) -> list[str]:
    """The imports of a file of `pipeline/` that its layer does not allow."""
    own = room(path)
    level = len(LAYERS) if own == "__init__" else LEVEL[own]
    found = []
    for line, imported in imports(tree(path)):
        top, *rest = imported.split(".")
        if imported.startswith("."):
            found.append(f"{name(path)}:{line} imports relatively")
        elif top == "rules":
            found.append(f"{name(path)}:{line} imports {imported}: the pipeline knows no rules")
        elif top == "pipeline" and rest and rest[0] != own and LEVEL.get(rest[0], len(LAYERS)) >= level:
            found.append(f"{name(path)}:{line} imports {imported}: {rest[0]} is not below {own}")
    return found


@pytest.mark.parametrize("path", [path for path in SOURCES if path.is_relative_to(HOUSE / "pipeline")], ids=name)
def test_imports_of_the_pipeline_go_down_only(path: Path) -> None:
    assert not trespasses(path)


def test_every_room_has_its_layer() -> None:
    rooms = {room(path) for path in (HOUSE / "pipeline").rglob("*.py")} - {"__init__"}
    assert rooms <= set(LEVEL), f"add to LAYERS: {rooms - set(LEVEL)}"


@pytest.mark.parametrize("path", [path for path in SOURCES if path.is_relative_to(HOUSE / "rules")], ids=name)
def test_a_rule_imports_no_more_of_ours_than_a_users_rule_would(path: Path) -> None:
    for line, imported in imports(tree(path)):
        top, *rest = imported.split(".")
        assert not imported.startswith("."), f"line {line} imports relatively"
        if top == "pipeline":
            assert rest and rest[0] in RULES_MAY_IMPORT, f"line {line} imports {imported}"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_no_function_imports_our_own_code(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inside = [(line, what) for line, what in imports(node) if what.split(".")[0] in ("pipeline", "rules", "")]
            assert not inside, "an import inside a function is a cycle in hiding"


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=name)
def test_a_file_begins_with_one_sentence_that_says_what_it_is(path: Path) -> None:
    text = ast.get_docstring(tree(path))
    assert text, "no docstring"
    first = " ".join(text.partition("\n\n")[0].split())
    assert first[0].isupper() or not first[0].isalpha(), f"begins in lower case: {first}"
    assert first.endswith((".", ":")), f"not a sentence: {first}"


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=name)
def test_a_file_is_named_for_a_concept(path: Path) -> None:
    words = set(re.split(r"[_/.]", path.relative_to(HOUSE).as_posix()))
    assert not words & NAMES_OF_NOTHING


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_is_not_too_long(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    if lines > THINK_AT:
        warnings.warn(f"{name(path)} has {lines} lines: think about two files at {THINK_AT}", stacklevel=1)
    assert lines <= STOP_AT


@pytest.mark.parametrize("path", NAMED_FOR_THEIR_CLASS, ids=name)
def test_a_rule_or_step_file_is_named_for_its_class_and_is_tested(path: Path) -> None:
    classes = [
        node.name for node in tree(path).body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    if not classes:
        return  # what several of them ask, as functions
    expected = "".join(word.capitalize() for word in path.stem.split("_"))
    assert expected in classes, f"{name(path)} holds {classes}"
    assert any(re.search(rf"\b{expected}\b", test.read_text(encoding="utf-8")) for test in TESTS), "no test names it"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_configuration_and_environment_stop_at_the_door(path: Path) -> None:
    if path.stem in DOOR:
        return
    module = tree(path)
    tops = {imported.split(".")[0] for _, imported in imports(module)}
    assert not tops & {"hydra", "omegaconf"}
    for node in ast.walk(module):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "getenv" | "putenv"):
                pytest.fail(f"line {node.lineno} reads the environment")


def is_interpreter(path: Path) -> bool:
    """Its classes are memory and machines, which change; they are no nodes."""
    return path.name.startswith("interpret")


@pytest.mark.parametrize(
    "path", [path for path in sorted((HOUSE / "pipeline" / "ir").rglob("*.py")) if not is_interpreter(path)], ids=name
)
def test_values_of_the_ir_are_frozen(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.ClassDef):
            continue
        for decorator in node.decorator_list:
            if ast.unparse(decorator).startswith("dataclass"):
                given = {word.arg: ast.unparse(word.value) for word in getattr(decorator, "keywords", [])}
                assert given.get("frozen") == "True" and given.get("slots") == "True", f"{node.name} is not frozen"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_public_class_says_what_it_is(path: Path) -> None:
    for node in tree(path).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} has no docstring"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_every_library_is_a_declared_dependency(path: Path) -> None:
    needed, optional = declared()
    installed = providers()
    module = tree(path)
    # A library of an extra is imported where it is used, so that its absence is noticed there and not before.
    definitions = (ast.FunctionDef, ast.ClassDef)
    at_the_top = {
        imported for node in module.body if not isinstance(node, definitions) for _, imported in imports(node)
    }
    for _, imported in imports(module):
        top = imported.split(".")[0]
        if top in sys.stdlib_module_names or top in ("pipeline", "rules", ""):
            continue
        homes = {distribution(home) for home in installed.get(top, [top])}
        allowed = needed if imported in at_the_top else needed | optional
        assert homes & allowed, f"{imported} is of {homes}, which pyproject.toml does not name"


@functools.cache
def declared() -> tuple[frozenset[str], frozenset[str]]:
    """The distributions that are always installed, and those that an extra adds."""
    project = tomllib.loads((HOUSE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    return (
        frozenset(distribution(line) for line in project["dependencies"]),
        frozenset(distribution(line) for lines in extras for line in lines),
    )


@functools.cache
def providers() -> Mapping[str, Sequence[str]]:
    """The distributions of each importable name."""
    return importlib.metadata.packages_distributions()


def distribution(requirement: str) -> str:
    """`nvidia_cuda-nvrtc>=13; …` -> nvidia-cuda-nvrtc."""
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None
    return re.sub(r"[-_.]+", "-", match[0]).lower()


@pytest.mark.parametrize("path", [path for path in TESTS if path.name.startswith("test_")], ids=name)
def test_the_name_of_a_test_is_a_sentence(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            assert len(node.name.split("_")) >= 4, f"{node.name} says too little"


def test_tests_are_no_packages() -> None:
    assert not list((HOUSE / "tests").rglob("__init__.py"))


def test_a_trespass_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule itself: an upward import, a neighbour's, one of the rules, and a relative one."""
    monkeypatch.setattr(sys.modules[__name__], "HOUSE", tmp_path)
    (tmp_path / "pipeline" / "space").mkdir(parents=True)
    path = tmp_path / "pipeline" / "space" / "x.py"
    path.write_text(
        "import pipeline.search.x\nfrom pipeline.verification import y\nimport rules\nfrom . import z\n"
        "from pipeline.ir import graph\nfrom pipeline import errors, space\n",
        encoding="utf-8",
    )
    assert len(trespasses(path)) == 4
