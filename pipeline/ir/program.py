"""The program: loop nests over blocks, with sizes that are polynomials in the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, assert_never

from pipeline.ir.annotation import Annotation, bound_annotation
from pipeline.ir.expr import Const, Expr, bind_sizes, map_children
from pipeline.ir.graph import DType
from pipeline.ir.poly import Poly

Scope = Literal["global", "shared", "local", "fragment"]
Role = Literal["input", "constant", "output", "packed", "intermediate"]
LoopKind = Literal["serial", "parallel", "vectorized", "unrolled",
                   "blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z"]  # fmt: skip
Combine = Literal["sum", "max", "min", "prod"]

PRIVATE: frozenset[Scope] = frozenset({"local", "fragment"})  # scopes of which each thread, or warp, has its own


@dataclass(frozen=True, slots=True)
class Buffer:
    """Row-major storage.

    scope   global: memory that all threads see · shared: one core's (or thread block's) scratch in L1/L2 or shared
            memory · local: a register tile · fragment: registers of a warp, spread over its lanes as tensor cores
            want them
    role    of a global buffer: an argument (input, constant, output), something made once from constants before the
            program is ever run (packed), or scratch (intermediate)
    pad     elements left free after each row (of the last dimension), so that rows begin in different banks
    swizzled  the 16-byte pieces of a row change places by the row's number, so that the same piece of eight rows lies
            in different banks. Where an element lies is all that these two say: no meaning depends on them
    """

    name: str
    shape: tuple[Poly, ...]
    dtype: DType
    scope: Scope = "global"
    role: Role = "intermediate"
    pad: Poly = field(default_factory=lambda: Poly.of(0))
    swizzled: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop variable that runs from 0 to extent - 1."""

    var: str
    extent: Poly


@dataclass(frozen=True, slots=True)
class Loop:
    """Runs its body over the product of its axes, the last one fastest.

    Several axes are a fused loop: the variables stay, so that indices below stay affine.

    The iterations of parallel, blockIdx and threadIdx loops may run at the same time: none may touch an element that
    another writes. Threads meet between nests: what one nest of threadIdx loops wrote into shared memory, the next may
    read in any thread.

    annotations   what the code generator may make use of, by name (see `annotation`)
    """

    axes: tuple[Axis, ...]
    body: Stmt
    kind: LoopKind = "serial"
    annotations: tuple[Annotation, ...] = ()

    def annotation(self, key: str) -> int | str | None:
        return dict(self.annotations).get(key)


@dataclass(frozen=True, slots=True)
class Iter:
    """An iteration variable of a block: `var` stands for `binding`, an expression over the loops around the block.

    The block does nothing at points where a binding lies outside [0, extent): this is what makes ragged tiles legal.
    kind   spatial: every value writes another element · reduce: values are combined · scan: values must come in order
    """

    var: str
    extent: Poly
    kind: Literal["spatial", "reduce", "scan"]
    binding: Expr


@dataclass(frozen=True, slots=True)
class Block:
    """A unit of computation: buffer[indices] = value, or = combine(buffer[indices], value) where `combine` is set.

    Bindings and conditions are over the variables of the loops around it, indices and value over its own iteration
    variables; the two have no names in common. A block without a point does nothing: a reduction over nothing leaves
    its elements as they are, so that whoever makes one stores the initial value in a block of its own.

    where    further conditions under which it runs, in order: one is not evaluated where an earlier one, or the
             iteration domain, says no
    init     with `combine`: the value that the element has before the first combination; None: it is there already
             (a block that was decomposed)
    """

    name: str
    iters: tuple[Iter, ...]
    buffer: str
    indices: tuple[Expr, ...]
    value: Expr
    combine: Combine | None = None
    init: Const | None = None
    where: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Seq:
    """Statements in order."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Alloc:
    """A buffer of scope shared, local or fragment that lives while its body runs; nothing is in it at first.

    It is inside the parallel loop or the grid of its region, so that each core has its own. Of scope local or fragment,
    each thread of the threadIdx loops in its body has its own too; a warp is a thread of a threadIdx.y or .z loop
    without a threadIdx.x loop inside.
    """

    buffer: Buffer
    body: Stmt


Stmt = Loop | Block | Seq | Alloc


@dataclass(frozen=True, slots=True)
class Derived:
    """A symbol with a value of its own formula: ceil(numerator / denominator)."""

    name: str
    numerator: Poly
    denominator: Poly


@dataclass(frozen=True, slots=True)
class Program:
    """A loop nest with its global buffers, its free parameters and the symbols derived from them.

    The top level is a `Seq` of regions. Regions run one after another; all threads have finished one before the next
    begins.
    `prologue` regions read only constants and run once, before the program is ever run: they make the packed buffers.
    """

    name: str
    buffers: tuple[Buffer, ...]
    body: Seq
    prologue: Seq = Seq(())
    params: tuple[str, ...] = ()
    derived: tuple[Derived, ...] = ()

    def buffer(self, name: str) -> Buffer:
        for found in self.all_buffers():
            if found.name == name:
                return found
        raise KeyError(name)

    def all_buffers(self) -> Iterator[Buffer]:
        """The global ones, then the allocated ones in program order."""
        yield from self.buffers
        for stmt in walk(Seq((self.prologue, self.body))):
            if isinstance(stmt, Alloc):
                yield stmt.buffer


def map_statements(stmt: Stmt, fn: Callable[[Stmt], Stmt]) -> Stmt:
    """The statement with fn applied to its direct children; the same object where nothing changes."""
    match stmt:
        case Block():
            return stmt
        case Loop() | Alloc():
            body = fn(stmt.body)
            return stmt if body is stmt.body else replace(stmt, body=body)
        case Seq():
            new = tuple(fn(child) for child in stmt.body)
            return stmt if all(a is b for a, b in zip(new, stmt.body, strict=True)) else sequence(new)
        case _:
            assert_never(stmt)


def sequence(stmts: tuple[Stmt, ...] | list[Stmt]) -> Seq:
    """A Seq without nested or empty ones."""
    flat: list[Stmt] = []
    for stmt in stmts:
        flat.extend(stmt.body if isinstance(stmt, Seq) else (stmt,))
    return Seq(tuple(flat))


def walk(stmt: Stmt) -> Iterator[Stmt]:
    """The statement and everything below it, parents first, in program order."""
    yield stmt
    match stmt:
        case Block():
            return
        case Loop() | Alloc():
            yield from walk(stmt.body)
        case Seq():
            for child in stmt.body:
                yield from walk(child)
        case _:
            assert_never(stmt)


def blocks(program: Program) -> list[Block]:
    """All blocks of the body and the prologue, in program order (prologue last)."""
    return [s for part in (program.body, program.prologue) for s in walk(part) if isinstance(s, Block)]


def map_block_exprs(block: Block, fn: Callable[[Expr], Expr]) -> Block:
    """The block with fn applied to every expression in it (bindings, indices, value, conditions)."""
    iters = tuple(it if (new := fn(it.binding)) is it.binding else replace(it, binding=new) for it in block.iters)
    return replace(
        block,
        iters=iters,
        indices=tuple(fn(index) for index in block.indices),
        value=fn(block.value),
        where=tuple(fn(condition) for condition in block.where),
    )


def instantiate(program: Program, values: Mapping[str, int]) -> Program:
    """The concrete program at one value for each parameter; loops of extent one stay."""
    numbers = dict(values)
    for derived in program.derived:
        above, below = derived.numerator.evaluate(numbers), derived.denominator.evaluate(numbers)
        numbers[derived.name] = -(-above // below)

    def shape(buffer: Buffer) -> Buffer:
        shape = tuple(extent.substitute(numbers) for extent in buffer.shape)
        return replace(buffer, shape=shape, pad=buffer.pad.substitute(numbers))

    def bind(expr: Expr) -> Expr:
        return bind_sizes(expr, numbers)

    def visit(stmt: Stmt) -> Stmt:
        match stmt:
            case Loop(axes, body):
                bound = tuple(Axis(axis.var, axis.extent.substitute(numbers)) for axis in axes)
                notes = tuple(bound_annotation(note, numbers) for note in stmt.annotations)
                return replace(stmt, axes=bound, body=visit(body), annotations=notes)
            case Alloc(buffer, body):
                return Alloc(shape(buffer), visit(body))
            case Seq(body):
                return Seq(tuple(visit(child) for child in body))
            case Block():
                block = map_block_exprs(stmt, bind)
                iters = tuple(replace(it, extent=it.extent.substitute(numbers)) for it in block.iters)
                return replace(block, iters=iters)
            case _:
                assert_never(stmt)

    body, prologue = visit(program.body), visit(program.prologue)
    assert isinstance(body, Seq) and isinstance(prologue, Seq)
    return Program(program.name, tuple(shape(b) for b in program.buffers), body, prologue)


__all__ = [
    "PRIVATE", "Alloc", "Axis", "Block", "Buffer", "Combine", "Derived", "Iter", "Loop", "LoopKind", "Program", "Role",
    "Scope", "Seq", "Stmt", "blocks", "instantiate", "map_block_exprs", "map_children", "map_statements",
    "sequence", "walk",
]  # fmt: skip
