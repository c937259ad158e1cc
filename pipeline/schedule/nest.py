"""Where things are in a program: finding loops and blocks by name, and putting statements in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import assert_never

from pipeline.ir.expr import Affine, Expr, Load, affine, loads, substitute
from pipeline.ir.poly import Poly
from pipeline.ir.program import Alloc, Axis, Block, Buffer, Loop, Program, Seq, Stmt, map_statements, sequence, walk


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A statement and where it is: what is around it (outermost first), the number of its region, and which part."""

    stmt: Stmt
    path: tuple[Stmt, ...]
    region: int
    prologue: bool

    @property
    def root(self) -> Stmt:
        """The whole region that it is in."""
        return self.path[0] if self.path else self.stmt

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops around it, outermost first, itself not included."""
        return tuple(stmt for stmt in self.path if isinstance(stmt, Loop))

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(axis for loop in self.loops for axis in loop.axes)

    def inside(self, loop: Loop) -> tuple[Loop, ...]:
        """The loops around it that are inside `loop`."""
        around = self.loops
        return around[[found is loop for found in around].index(True) + 1 :]


def places(program: Program) -> Iterator[Place]:
    """Every statement of the prologue, then every one of the body, in the order in which they run."""
    for prologue, part in ((True, program.prologue), (False, program.body)):
        for number, root in enumerate(part.body):
            yield from _below(root, (), number, prologue)


def _below(stmt: Stmt, path: tuple[Stmt, ...], region: int, prologue: bool) -> Iterator[Place]:
    yield Place(stmt, path, region, prologue)
    match stmt:
        case Block():
            return
        case Loop() | Alloc():
            yield from _below(stmt.body, (*path, stmt), region, prologue)
        case Seq():
            for child in stmt.body:
                yield from _below(child, (*path, stmt), region, prologue)
        case _:
            assert_never(stmt)


def find_loop(program: Program, name: str) -> Place | None:
    """The loop whose first axis is `name`."""
    for place in places(program):
        if isinstance(place.stmt, Loop) and place.stmt.axes[0].var == name:
            return place
    return None


def find_block(program: Program, name: str) -> Place | None:
    for place in places(program):
        if isinstance(place.stmt, Block) and place.stmt.name == name:
            return place
    return None


def loop_at(program: Program, name: str) -> tuple[Loop, Place]:
    """The loop, which is there."""
    place = find_loop(program, name)
    assert place is not None and isinstance(place.stmt, Loop), f"no loop {name}"
    return place.stmt, place


def block_at(program: Program, name: str) -> tuple[Block, Place]:
    """The block, which is there."""
    place = find_block(program, name)
    assert place is not None and isinstance(place.stmt, Block), f"no block {name}"
    return place.stmt, place


def no_loop(program: Program, name: str) -> str | None:
    """Why there is no loop of that name."""
    if find_loop(program, name) is not None:
        return None
    names = [place.stmt.axes[0].var for place in places(program) if isinstance(place.stmt, Loop)]
    for place in places(program):
        if isinstance(place.stmt, Loop) and name in (axis.var for axis in place.stmt.axes):
            return f"{name} is fused into loop {place.stmt.axes[0].var}: name that loop"
    return f"there is no loop {name}: the loops are {', '.join(names)}"


def no_block(program: Program, name: str) -> str | None:
    """Why there is no block of that name."""
    if find_block(program, name) is not None:
        return None
    return f"there is no block {name}: the blocks are {', '.join(block.name for block, _ in all_blocks(program))}"


def no_loop_around(program: Program, block: str, loop: str) -> str | None:
    """Why the block is not inside the loop."""
    reason = no_block(program, block) or no_loop(program, loop)
    if reason is not None:
        return reason
    found, place = loop_at(program, loop)[0], block_at(program, block)[1]
    if any(around is found for around in place.loops):
        return None
    around = ", ".join(outer.axes[0].var for outer in place.loops) or "none"
    return f"loop {loop} is not around block {block}: the loops around it are {around}"


def all_blocks(program: Program) -> list[tuple[Block, Place]]:
    """Every block with its place, in the order in which they run."""
    return [(place.stmt, place) for place in places(program) if isinstance(place.stmt, Block)]


def blocks_in(stmt: Stmt) -> list[Block]:
    return [found for found in walk(stmt) if isinstance(found, Block)]


def writers(program: Program, buffer: str) -> list[tuple[Block, Place]]:
    return [(block, place) for block, place in all_blocks(program) if block.buffer == buffer]


def readers(program: Program, buffer: str) -> list[tuple[Block, Place]]:
    """The blocks that load from it; combining into it is not counted."""
    return [(block, place) for block, place in all_blocks(program) if buffer in reads(block)]


def reads(block: Block) -> frozenset[str]:
    """The buffers that a block loads from."""
    return frozenset(load.buffer for load in loads_of(block))


def loads_of(block: Block) -> list[Load]:
    """Every load of a block: in its value, its indices, its conditions and its bindings."""
    exprs = (block.value, *block.indices, *block.where, *(it.binding for it in block.iters))
    return [load for expr in exprs for load in loads(expr)]


def find_buffer(program: Program, name: str) -> Buffer | None:
    for buffer in program.all_buffers():
        if buffer.name == name:
            return buffer
    return None


def no_room(loop: Loop) -> str | None:
    """Why no loops can be put into a loop."""
    if (unit := loop.annotation("blockize")) is not None:
        return f"loop {loop.axes[0].var} is part of the unit {unit}, which stays whole: choose a loop around it"
    if loop.kind != "vectorized":
        return None
    return f"loop {loop.axes[0].var} is vectorized, and nothing but lanes fits in it: choose a loop around it"


def settled(loop: Loop, what: str) -> str | None:
    """Why a loop is not changed any more: its annotations are about the loop as it is."""
    name = loop.axes[0].var
    if (unit := loop.annotation("blockize")) is not None:
        return f"loop {name} is part of the unit {unit}, which stays whole: it cannot be {what}"
    if loop.annotations:
        return f"loop {name} has the annotation {loop.annotations[0][0]}: it has to be {what} before that"
    return None


def awaited(loop: Loop, what: str) -> str | None:
    """Why a loop is not changed any more: one inside it asks for what its next iteration reads."""
    name = loop.axes[0].var
    for inner in walk(loop.body):
        if isinstance(inner, Loop) and inner.annotation("prefetch_next") == name:
            return (
                f"loop {inner.axes[0].var} asks for the next iteration of loop {name}: it has to be {what} before that"
            )
    return None


def in_unit(place: Place) -> str | None:
    """Why a block is not moved: it is in a unit."""
    return next((settled(loop, "taken apart") for loop in place.loops if loop.annotation("blockize") is not None), None)


def no_buffer(program: Program, name: str) -> str | None:
    """Why there is no buffer of that name."""
    if find_buffer(program, name) is not None:
        return None
    return f"there is no buffer {name}: the buffers are {', '.join(b.name for b in program.all_buffers())}"


def over_loops(block: Block, expr: Expr) -> Expr:
    """An expression of a block over the loops around it: its iteration variables replaced by their bindings."""
    return substitute(expr, {it.var: it.binding for it in block.iters})


def indices_over_loops(block: Block, indices: Iterable[Expr]) -> tuple[Expr, ...]:
    return tuple(over_loops(block, index) for index in indices)


def affine_over_loops(block: Block, expr: Expr) -> Affine | None:
    return affine(over_loops(block, expr))


def extents(axes: Iterable[Axis]) -> dict[str, Poly]:
    return {axis.var: axis.extent for axis in axes}


def axes_of(loops: Iterable[Loop]) -> tuple[Axis, ...]:
    return tuple(axis for loop in loops for axis in loop.axes)


def axes_in(stmt: Stmt) -> tuple[Axis, ...]:
    """The axes of every loop at or below a statement."""
    return axes_of(found for found in walk(stmt) if isinstance(found, Loop))


def put(program: Program, old: Stmt, new: Stmt | None) -> Program:
    """The program with `old` (found by identity) replaced, or taken out with the loops that it leaves empty."""

    def part(seq: Seq) -> Seq:
        kept = [swapped for child in seq.body if (swapped := swapped_in(child, old, new)) is not None]
        same = len(kept) == len(seq.body) and all(a is b for a, b in zip(kept, seq.body, strict=True))
        return seq if same else sequence(kept)

    return replace(program, body=part(program.body), prologue=part(program.prologue))


def swapped_in(stmt: Stmt, old: Stmt, new: Stmt | None) -> Stmt | None:
    """The statement with `old` replaced; None where nothing is left of it."""
    if stmt is old:
        return new
    match stmt:
        case Block():
            return stmt
        case Loop() | Alloc():
            body = swapped_in(stmt.body, old, new)
            return None if body is None else stmt if body is stmt.body else replace(stmt, body=body)
        case Seq():
            kept = [swapped for child in stmt.body if (swapped := swapped_in(child, old, new)) is not None]
            if len(kept) == len(stmt.body) and all(a is b for a, b in zip(kept, stmt.body, strict=True)):
                return stmt
            return several(kept) if kept else None
        case _:
            assert_never(stmt)


def several(stmts: Iterable[Stmt]) -> Stmt:
    """One statement as itself, more of them as a Seq."""
    flat = sequence(tuple(stmts))
    return flat.body[0] if len(flat.body) == 1 else flat


def map_blocks(stmt: Stmt, fn: Callable[[Block], Block]) -> Stmt:
    if isinstance(stmt, Block):
        return fn(stmt)
    return map_statements(stmt, lambda child: map_blocks(child, fn))


def map_program_blocks(program: Program, fn: Callable[[Block], Block]) -> Program:
    body, prologue = map_blocks(program.body, fn), map_blocks(program.prologue, fn)
    assert isinstance(body, Seq) and isinstance(prologue, Seq)
    return replace(program, body=body, prologue=prologue)


def nest(loops: Iterable[Loop], body: Stmt) -> Stmt:
    """`body` inside copies of the loops, which are given outermost first."""
    for loop in reversed(tuple(loops)):
        body = replace(loop, body=body)
    return body


def through_allocs(stmt: Stmt) -> tuple[tuple[Buffer, ...], Stmt]:
    """The buffers that a body allocates before anything else, and what comes below."""
    buffers: list[Buffer] = []
    while isinstance(stmt, Alloc):
        buffers.append(stmt.buffer)
        stmt = stmt.body
    return tuple(buffers), stmt


def with_allocs(buffers: Iterable[Buffer], body: Stmt) -> Stmt:
    for buffer in reversed(tuple(buffers)):
        body = Alloc(buffer, body)
    return body


def statement_of(body: Stmt, block: str) -> Stmt:
    """The direct statement of a loop body (below its allocations) that the block is in."""
    _, below = through_allocs(body)
    children = below.body if isinstance(below, Seq) else (below,)
    for child in children:
        if any(found.name == block for found in blocks_in(child)):
            return child
    raise AssertionError(f"no block {block} in the body")


def beside(
    body: Stmt,
    child: Stmt,
    before: tuple[Stmt, ...] = (),
    after: tuple[Stmt, ...] = (),
    new: Stmt | None = None,
    allocs: tuple[Buffer, ...] = (),
) -> Stmt:
    """A loop body with statements put around its direct statement `child` (or `new` for it), and buffers allocated."""
    buffers, below = through_allocs(body)
    children = below.body if isinstance(below, Seq) else (below,)
    stmts: list[Stmt] = []
    for stmt in children:
        stmts.extend((*before, stmt if new is None else new, *after) if stmt is child else (stmt,))
    return with_allocs((*allocs, *buffers), several(stmts))


def clash(
    program: Program, *, variables: Iterable[str] = (), blocks: Iterable[str] = (), buffers: Iterable[str] = ()
) -> str | None:
    """Why one of these names cannot be new in the program."""
    symbols = {*program.params, *(d.name for d in program.derived)}
    used = symbols | {axis.var for part in (program.prologue, program.body) for axis in axes_in(part)}
    used |= {it.var for block, _ in all_blocks(program) for it in block.iters}
    variables = tuple(variables)
    for name in variables:
        if name in used:
            return f"the name {name} is taken already: choose another one"
    if len(set(variables)) != len(variables):
        return f"the names {', '.join(variables)} are not all different: choose others"
    for name in blocks:
        if find_block(program, name) is not None:
            return f"there is a block {name} already: choose another name"
    for name in buffers:
        if find_buffer(program, name) is not None:
            return f"there is a buffer {name} already: choose another name"
    return None


def unknown_symbols(program: Program, symbols: Iterable[str]) -> str | None:
    """Why these symbols cannot be used: nothing declares one of them."""
    known = {*program.params, *(d.name for d in program.derived)}
    missing = sorted(set(symbols) - known)
    return f"{', '.join(missing)} is not a parameter of the program: declare its variable first" if missing else None


def map_allocs(program: Program, name: str, fn: Callable[[Buffer], Buffer]) -> Program:
    """The program with the declaration of an allocated buffer replaced."""

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Alloc) and stmt.buffer.name == name:
            return replace(stmt, buffer=fn(stmt.buffer))
        return map_statements(stmt, visit)

    body, prologue = visit(program.body), visit(program.prologue)
    assert isinstance(body, Seq) and isinstance(prologue, Seq)
    return replace(program, body=body, prologue=prologue)


def drop_buffer(program: Program, name: str) -> Program:
    """The program without the declaration of a buffer, global or allocated."""

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Alloc) and stmt.buffer.name == name:
            return visit(stmt.body)
        return map_statements(stmt, visit)

    def part(seq: Seq) -> Seq:
        return sequence(tuple(visit(child) for child in seq.body))

    kept = tuple(buffer for buffer in program.buffers if buffer.name != name)
    return replace(program, buffers=kept, body=part(program.body), prologue=part(program.prologue))


def insert_region(program: Program, before: Place | None, stmt: Stmt) -> Program:
    """The program with one more region: before the one of a place, or at the end of the prologue."""
    if before is None:
        return replace(program, prologue=sequence((*program.prologue.body, stmt)))
    part = program.prologue if before.prologue else program.body
    seq = sequence((*part.body[: before.region], stmt, *part.body[before.region :]))
    return replace(program, prologue=seq) if before.prologue else replace(program, body=seq)


def fresh_iter(program: Program, name: str) -> str:
    """A name for an iteration variable that nothing else in the program has."""
    taken = {axis.var for part in (program.prologue, program.body) for axis in axes_in(part)}
    taken |= {it.var for block, _ in all_blocks(program) for it in block.iters}
    taken |= {*program.params, *(d.name for d in program.derived)}
    while name in taken:
        name += "_"
    return name
