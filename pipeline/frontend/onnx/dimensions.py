"""The shapes of a model's inputs: what is fixed, what has a name, and what the user binds it to."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from onnx import ValueInfoProto

from pipeline.errors import ModelError, listed
from pipeline.ir.graph import Shape

Dimension = int | str | None
Bindings = Mapping[str, int | Sequence[int]]


@dataclass(frozen=True, slots=True)
class DeclaredInput:
    """An input as the file declares it: for each dimension an extent, a name (or a formula of names), or None.

    dimensions is None where not even the rank is known.
    """

    name: str
    dimensions: tuple[Dimension, ...] | None


def declared(info: ValueInfoProto) -> DeclaredInput:
    """A negative dim_value is what some exporters write for an unknown extent."""
    kind = info.type.tensor_type
    if not kind.HasField("shape"):
        return DeclaredInput(info.name, None)
    dimensions: list[Dimension] = []
    for dim in kind.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dimensions.append(dim.dim_value)
        else:
            dimensions.append(dim.dim_param or None)
    return DeclaredInput(info.name, tuple(dimensions))


def bind(inputs: Sequence[DeclaredInput], shapes: Bindings, where: str) -> dict[str, Shape]:
    """The shape of every input. `shapes` gives extents to names of dimensions, or all extents of an input."""
    sizes = named_sizes(inputs, shapes, where)
    bound: dict[str, Shape] = {}
    unbound: dict[str, list[str]] = {}
    unnamed: list[DeclaredInput] = []
    for given in inputs:
        whole = shapes.get(given.name)
        if whole is not None and given.name not in symbols(inputs):
            bound[given.name] = tuple(whole) if isinstance(whole, Sequence) else (whole,)
        elif isinstance(whole, Sequence):
            bound[given.name] = tuple(whole)
        elif given.dimensions is None or None in given.dimensions:
            unnamed.append(given)
        else:
            extents = [extent(dimension, sizes) for dimension in given.dimensions]
            for dimension in given.dimensions:
                for name in missing(dimension, sizes):
                    users = unbound.setdefault(name, [])
                    users += [given.name] if given.name not in users else []
            bound[given.name] = tuple(size for size in extents if size is not None)
            if any(size is not None and size < 0 for size in extents):
                raise ModelError(
                    f"input {given.name} gets the shape {extents}",
                    where=where,
                    why=f"its dimensions are {listing(given)}",
                    todo="Bind them with workload.shapes to sizes that leave no dimension negative",
                )
    if unbound or unnamed:
        leading = [given.dimensions[0] for given in inputs if given.dimensions]
        refuse_unbound(unbound, unnamed, leading, where)
    return bound


def named_sizes(inputs: Sequence[DeclaredInput], shapes: Bindings, where: str) -> dict[str, int]:
    """What each name stands for: said directly, or by the shape of an input that has it as a dimension."""
    names, by_name = symbols(inputs), {given.name: given for given in inputs}
    sizes: dict[str, int] = {}
    for key, value in shapes.items():
        numbers = list(value) if isinstance(value, Sequence) else [value]
        if isinstance(value, str) or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers):
            raise ModelError(
                f"workload.shapes.{key} is {value!r}",
                where=where,
                why="a dimension is bound to a whole number, an input to a list of them",
                todo=f"Write for example workload.shapes='{{{key}: 1}}'",
            )
        if key in names and not isinstance(value, Sequence):
            sizes[key] = numbers[0]
        elif key not in by_name:
            options = f"Dimensions: {listed(names) or 'none'}. Inputs: {listed(by_name) or 'none'}"
            raise ModelError(f"workload.shapes has no use for {key}", where=where, why="", todo=options)
    for key, value in shapes.items():
        if key not in by_name or (key in names and not isinstance(value, Sequence)):
            continue
        numbers = list(value) if isinstance(value, Sequence) else [value]
        dimensions = by_name[key].dimensions
        if dimensions is None:
            continue
        fits = len(numbers) == len(dimensions)
        for number, dimension in zip(numbers, dimensions, strict=False):
            if isinstance(dimension, str) and dimension in names:
                fits = fits and sizes.setdefault(dimension, number) == number
            elif isinstance(dimension, int):
                fits = fits and dimension == number
        if not fits:
            raise ModelError(
                f"workload.shapes gives input {key} the shape {numbers}",
                where=where,
                why=f"the model declares {listing(by_name[key])}" + (f", with {sizes}" if sizes else ""),
                todo="Bind the dimensions that have a name, and leave the others as they are",
            )
    return sizes


def symbols(inputs: Sequence[DeclaredInput]) -> tuple[str, ...]:
    """Every name of a dimension, in order of appearance."""
    found: dict[str, None] = {}
    for given in inputs:
        for dimension in given.dimensions or ():
            if isinstance(dimension, str):
                found.update(dict.fromkeys(free_names(dimension)))
    return tuple(found)


def free_names(text: str) -> tuple[str, ...]:
    """The names in a formula such as `past + sequence`; the text itself where it is not a formula."""
    tree = formula(text)
    if tree is None:
        return (text,)
    return tuple(dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)))


def formula(text: str) -> ast.expr | None:
    """A tree of names, whole numbers and + - * //, or None."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    allowed = (ast.BinOp, ast.Name, ast.Constant, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Load)
    nodes = list(ast.walk(tree))
    whole = all(isinstance(node.value, int) for node in nodes if isinstance(node, ast.Constant))
    return tree if whole and all(isinstance(node, allowed) for node in nodes) else None


def extent(dimension: Dimension, sizes: Mapping[str, int]) -> int | None:
    """The size of a dimension, or None where a name has none yet."""
    if not isinstance(dimension, str):
        return dimension
    if dimension in sizes:
        return sizes[dimension]
    tree = formula(dimension)
    return None if tree is None or missing(dimension, sizes) else value(tree, sizes)


def value(tree: ast.expr, sizes: Mapping[str, int]) -> int:
    match tree:
        case ast.Name(id=name):
            return sizes[name]
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left=left, op=op, right=right):
            a, b = value(left, sizes), value(right, sizes)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case _:
                    return a // b if b else 0
        case _:
            raise AssertionError(f"not a formula: {ast.dump(tree)}")


def missing(dimension: Dimension, sizes: Mapping[str, int]) -> tuple[str, ...]:
    if not isinstance(dimension, str) or dimension in sizes:
        return ()
    return tuple(name for name in free_names(dimension) if name not in sizes)


def refuse_unbound(
    unbound: Mapping[str, list[str]], unnamed: Sequence[DeclaredInput], leading: Sequence[Dimension], where: str
) -> NoReturn:
    """One error for all of them, with a binding to copy."""
    parts = [f"{name} (of {', '.join(users)})" for name, users in unbound.items()]
    parts += [f"unnamed dimensions of {given.name} {listing(given)}" for given in unnamed]
    example = [f"{quoted(name)}: {likely(name, first=name in leading)}" for name in unbound]
    for given in unnamed:
        extents = [d if isinstance(d, int) else likely(d or "", not i) for i, d in enumerate(given.dimensions or (1,))]
        example.append(f"{quoted(given.name)}: {extents}")
    raise ModelError(
        "dimensions of the model have no size",
        where=where,
        why=f"a program is made for fixed sizes, and these are open: {'; '.join(parts)}",
        todo=f"Bind them, for example workload.shapes='{{{', '.join(example)}}}'",
    )


def listing(given: DeclaredInput) -> str:
    if given.dimensions is None:
        return "of unknown rank"
    return "[" + ", ".join("?" if dimension is None else str(dimension) for dimension in given.dimensions) + "]"


def quoted(name: str) -> str:
    return name if name.isidentifier() else f'"{name}"'


def likely(name: str, first: bool) -> int:
    """A size to show in an example: a first dimension is usually the batch."""
    lower = name.lower()
    return 224 if lower in ("height", "width", "h", "w") else 1 if first or "batch" in lower else 128
