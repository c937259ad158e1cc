"""The match of a nest with what an intrinsic computes: which of its buffers are which operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pipeline.ir.expr import Expr, Load, Op, affine
from pipeline.ir.poly import Poly, product
from pipeline.ir.program import Block, Buffer, Loop, Stmt
from pipeline.schedule.intrinsics import Intrinsic
from pipeline.schedule.nest import over_loops

COMMUTATIVE = frozenset({"add", "mul"})
Strides = Callable[[str], tuple[Poly, ...]]


@dataclass(frozen=True, slots=True)
class Operand:
    """A place in a buffer, over the iterations of the block; the operand begins where all loops of the nest are 0."""

    buffer: str
    indices: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class TensorMatch:
    """The block of the nest, the loop variables of the nest (outermost first), and the operands by the names that they
    have in the description of the intrinsic."""

    block: Block
    variables: tuple[str, ...]
    operands: Mapping[str, Operand]


def row_major(buffer: Buffer) -> tuple[Poly, ...]:
    """How far apart neighbours along each dimension are, in elements."""
    return tuple(product(buffer.shape[dim + 1 :]) for dim in range(len(buffer.shape)))


def match_intrinsic(loop: Loop, intrinsic: Intrinsic, strides: Strides) -> TensorMatch | str:
    """The match, or why the nest is not what the intrinsic computes. `strides` are those of the buffers in memory."""
    variables, extents, stmt = unit_nest(loop)
    _, wanted, _ = unit_nest(intrinsic.loop)
    if not isinstance(stmt, Block):
        return f"loop {variables[0]} is not a perfect nest around one block"
    if extents != wanted:
        shape, needed = (" x ".join(map(str, sizes)) for sizes in (extents, wanted))
        return f"the loops from {variables[0]} on are {shape}; {intrinsic.name} takes {needed}"
    model = intrinsic.block
    if stmt.combine != model.combine:
        return f"block {stmt.name} does not combine by {model.combine}, as {intrinsic.name} does"
    if stmt.init is not None:
        return f"block {stmt.name} has an initial value: decompose the reduction first"
    complaint: str | None = None
    for found in _unified(model.value, stmt.value, {}):
        if stmt.buffer in {operand.buffer for operand in found.values()}:
            return f"block {stmt.name} reads {stmt.buffer}, which it writes"
        operands = {**found, model.buffer: Operand(stmt.buffer, stmt.indices)}
        reason = _other_steps(stmt, variables, operands, intrinsic, strides)
        if reason is None:
            return TensorMatch(stmt, variables, operands)
        complaint = complaint or reason
    return complaint or f"the value of block {stmt.name} is not the one that {intrinsic.name} adds"


def _other_steps(
    block: Block,
    variables: tuple[str, ...],
    operands: Mapping[str, Operand],
    intrinsic: Intrinsic,
    strides: Strides,
) -> str | None:
    """Why operands do not lie in memory as the intrinsic wants them."""
    model, (wanted_variables, _, _) = intrinsic.block, unit_nest(intrinsic.loop)
    needed_at = {load.buffer: load.indices for load in _loads(model.value)} | {model.buffer: model.indices}
    for name, operand in operands.items():
        given = _steps(block, operand.indices, strides(operand.buffer), variables)
        layout = row_major(intrinsic.description.buffer(name))
        needed_steps = _steps(model, needed_at[name], layout, wanted_variables)
        if given != needed_steps:
            moves = "in a way that is not affine" if given is None else f"by {', '.join(map(str, given))} elements"
            return (f"{operand.buffer} is stepped through {moves} along {', '.join(variables)}; "
                    f"{intrinsic.name} needs {', '.join(map(str, needed_steps or ()))}")  # fmt: skip
    return None


def unit_nest(loop: Loop) -> tuple[tuple[str, ...], tuple[Poly, ...], Stmt]:
    """The variables and extents of a perfect nest, and what is inside."""
    variables: list[str] = []
    extents: list[Poly] = []
    stmt: Stmt = loop
    while isinstance(stmt, Loop):
        variables += [axis.var for axis in stmt.axes]
        extents += [axis.extent for axis in stmt.axes]
        stmt = stmt.body
    return tuple(variables), tuple(extents), stmt


def _steps(
    block: Block, indices: tuple[Expr, ...], strides: tuple[Poly, ...], variables: tuple[str, ...]
) -> tuple[Poly, ...] | None:
    """How many elements an access moves by with each of the loop variables; None where that is not known."""
    forms = [affine(over_loops(block, index)) for index in indices]
    total = [Poly.of(0)] * len(variables)
    for form, stride in zip(forms, strides, strict=True):
        if form is None:
            return None
        total = [sum_ + form.coefficient(var) * stride for sum_, var in zip(total, variables, strict=True)]
    return tuple(total)


def _loads(expr: Expr) -> list[Load]:
    match expr:
        case Load():
            return [expr]
        case Op(_, args, _):
            return [load for arg in args for load in _loads(arg)]
        case _:
            return []


def _unified(model: Expr, given: Expr, found: Mapping[str, Operand]) -> Iterator[Mapping[str, Operand]]:
    """The operands with which the model is the given expression, in every order in which that is so."""
    match model, given:
        case Load(name, _, dtype), Load(buffer, indices, other):
            operand = Operand(buffer, indices)
            if dtype == other and found.get(name, operand) == operand:
                yield {**found, name: operand}
        case Op(fn, args, dtype), Op(other_fn, others, other):
            if fn != other_fn or dtype != other or len(args) != len(others):
                return
            orders = [others, others[::-1]] if fn in COMMUTATIVE else [others]
            for order in orders:
                ways: list[Mapping[str, Operand]] = [found]
                for arg, given_arg in zip(args, order, strict=True):
                    ways = [way for known in ways for way in _unified(arg, given_arg, known)]
                yield from ways
        case _:
            if model == given:
                yield found
