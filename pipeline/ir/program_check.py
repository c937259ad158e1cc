"""What a legal program is: small named checks, run after every step in tests and at the boundaries of stages always.

Names live in two spaces that never meet: loop variables, over which the bindings and conditions of a block are written,
and the iteration variables of a block, over which its indices and its value are written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import assert_never

import numpy as np

from pipeline.errors import CheckError
from pipeline.ir.annotation import parameter_of, wrong
from pipeline.ir.expr import Const, Expr, Load, Op, Size, dtype_of, loads, variables, walk
from pipeline.ir.graph import DType, Elementwise, TensorType
from pipeline.ir.graph_types import INTEGERS, infer, numpy_dtype
from pipeline.ir.lockstep import GRID, THREADS
from pipeline.ir.poly import Poly
from pipeline.ir.program import PRIVATE, Alloc, Block, Buffer, Loop, Program, Seq, Stmt, blocks
from pipeline.ir.program_text import PLAIN, expr_text

Check = Callable[[Program], Iterator[str]]
Around = tuple[Loop | Alloc, ...]  # what encloses a statement, outermost first


def check(program: Program) -> None:
    """CheckError at the first invariant that does not hold."""
    for invariant in CHECKS:
        for complaint in invariant(program):
            raise CheckError(complaint, where=f"program {program.name}",
                             why=f"The invariant is that {invariant.__name__.replace('_', ' ')}")  # fmt: skip


def placed(program: Program) -> Iterator[tuple[Stmt, Around, bool]]:
    """Every statement with what is around it, and whether it is in the prologue."""

    def visit(stmt: Stmt, around: Around, prologue: bool) -> Iterator[tuple[Stmt, Around, bool]]:
        yield stmt, around, prologue
        match stmt:
            case Block():
                return
            case Seq(body):
                for child in body:
                    yield from visit(child, around, prologue)
            case Loop() | Alloc():
                yield from visit(stmt.body, (*around, stmt), prologue)
            case _:
                assert_never(stmt)

    yield from visit(program.prologue, (), True)
    yield from visit(program.body, (), False)


def placed_blocks(program: Program) -> Iterator[tuple[Block, Around, bool]]:
    for stmt, around, prologue in placed(program):
        if isinstance(stmt, Block):
            yield stmt, around, prologue


def block_exprs(block: Block) -> tuple[Expr, ...]:
    return (*(it.binding for it in block.iters), *block.where, *block.indices, block.value)


def all_loops(program: Program) -> list[Loop]:
    return [stmt for stmt, _, _ in placed(program) if isinstance(stmt, Loop)]


def names_are_unique(program: Program) -> Iterator[str]:
    loop_vars = [axis.var for loop in all_loops(program) for axis in loop.axes]
    kinds = (
        ("loop variable", loop_vars),
        ("block", [block.name for block in blocks(program)]),
        ("buffer", [buffer.name for buffer in program.all_buffers()]),
        ("symbol", [*program.params, *(derived.name for derived in program.derived)]),
    )
    for kind, names in kinds:
        yield from (f"{kind} {name} is there {count} times" for name, count in Counter(names).items() if count > 1)
    for block in blocks(program):
        own = [it.var for it in block.iters]
        yield from (f"block {block.name} has two iteration variables {v}" for v, n in Counter(own).items() if n > 1)
        for name in sorted(set(own) & set(loop_vars)):
            yield f"{name} is an iteration variable of block {block.name} and a loop variable"


def loops_have_axes(program: Program) -> Iterator[str]:
    if any(not loop.axes for loop in all_loops(program)):
        yield "a loop has no axes"


def symbols_are_defined_before_use(program: Program) -> Iterator[str]:
    known = set(program.params)
    for derived in program.derived:
        for name in sorted((derived.numerator.symbols() | derived.denominator.symbols()) - known):
            yield f"derived symbol {derived.name} uses {name}, which is not defined before it"
        if derived.denominator.is_constant and derived.denominator.value <= 0:
            yield f"derived symbol {derived.name} divides by {derived.denominator}"
        known.add(derived.name)
    yield from (f"the name of symbol {name!r} is not plain" for name in sorted(known) if not PLAIN.fullmatch(name))
    for loop in all_loops(program):
        for note in loop.annotations:
            if (used := parameter_of(note)) is not None and used not in known:
                yield f"annotation {note[0]} of loop {loop.axes[0].var} names {used}, which is no parameter"
    for where, poly in _sizes(program):
        for name in sorted(poly.symbols() - known):
            yield f"{where} uses symbol {name}, which is neither a parameter nor derived"
        if poly.is_constant and poly.value < 0 and not where.startswith("an expression"):
            yield f"{where} is {poly}"


def _sizes(program: Program) -> Iterator[tuple[str, Poly]]:
    for buffer in program.all_buffers():
        yield from ((f"the shape of {buffer.name}", extent) for extent in buffer.shape)
        yield f"the padding of {buffer.name}", buffer.pad
    for loop in all_loops(program):
        yield from ((f"the extent of loop {axis.var}", axis.extent) for axis in loop.axes)
    for block in blocks(program):
        yield from ((f"the extent of {it.var} in block {block.name}", it.extent) for it in block.iters)
        for expr in block_exprs(block):
            yield from ((f"an expression of block {block.name}", n.poly) for n in walk(expr) if isinstance(n, Size))


def variables_are_bound(program: Program) -> Iterator[str]:
    for block, around, _ in placed_blocks(program):
        outer = {axis.var for loop in around if isinstance(loop, Loop) for axis in loop.axes}
        own = {it.var for it in block.iters}
        for it in block.iters:
            for name in sorted(variables(it.binding) - outer):
                yield f"the binding of {it.var} in block {block.name} uses {name}, which no loop around it binds"
            if loads(it.binding):
                yield f"the binding of {it.var} in block {block.name} reads a buffer"
        for condition in block.where:
            for name in sorted(variables(condition) - outer):
                yield f"a condition of block {block.name} uses {name}, which no loop around it binds"
        for expr in (*block.indices, block.value):
            for name in sorted(variables(expr) - own):
                yield f"block {block.name} uses {name}, which is not one of its iteration variables"


def buffers_are_in_scope(program: Program) -> Iterator[str]:
    everywhere = {buffer.name: buffer for buffer in program.buffers}
    for buffer in program.buffers:
        if buffer.scope != "global":
            yield f"buffer {buffer.name} has scope {buffer.scope} but no alloc"
    for stmt, around, _ in placed(program):
        if isinstance(stmt, Alloc) and (stmt.buffer.scope == "global" or stmt.buffer.role != "intermediate"):
            yield f"allocated buffer {stmt.buffer.name} is {stmt.buffer.scope} and {stmt.buffer.role}"
        if not isinstance(stmt, Block):
            continue
        here = everywhere | {s.buffer.name: s.buffer for s in around if isinstance(s, Alloc)}
        uses: list[tuple[str, int, DType | None]] = [(stmt.buffer, len(stmt.indices), None)]
        uses += [(load.buffer, len(load.indices), load.dtype) for expr in block_exprs(stmt) for load in loads(expr)]
        for name, rank, dtype in uses:
            if name not in here:
                yield f"block {stmt.name} uses buffer {name}, which is not declared around it"
            elif len(here[name].shape) != rank:
                yield f"block {stmt.name} uses {name} with {rank} indices; it has {len(here[name].shape)} dimensions"
            elif dtype is not None and here[name].dtype != dtype:
                yield f"block {stmt.name} reads {name} as {dtype}; it is {here[name].dtype}"


def dtypes_agree(program: Program) -> Iterator[str]:
    for block, around, _ in placed_blocks(program):
        store = _declared(program, around, block.buffer)
        given = dtype_of(block.value)
        if store is not None and given != store.dtype:
            yield f"block {block.name} stores {given} into {block.buffer}, which is {store.dtype}"
        if store is not None and block.init is not None and block.init.dtype != store.dtype:
            yield f"the init of block {block.name} is {block.init.dtype}, its buffer is {store.dtype}"
        wanted: list[tuple[str, Expr, DType]] = [("index", index, "int64") for index in block.indices]
        wanted += [("binding", it.binding, "int64") for it in block.iters]
        wanted += [("condition", condition, "bool") for condition in block.where]
        for what, expr, dtype in wanted:
            if dtype_of(expr) != dtype:
                yield f"the {what} {expr_text(expr)} of block {block.name} is {dtype_of(expr)}, not {dtype}"
        for expr in (*block_exprs(block), *(() if block.init is None else (block.init,))):
            for node in walk(expr):
                yield from (f"block {block.name}: {complaint}" for complaint in _typed(node))


def _declared(program: Program, around: Around, name: str) -> Buffer | None:
    found = [stmt.buffer for stmt in around if isinstance(stmt, Alloc) and stmt.buffer.name == name]
    found += [buffer for buffer in program.buffers if buffer.name == name]
    return found[0] if found else None


def _typed(node: Expr) -> Iterator[str]:
    if isinstance(node, Const) and node.dtype in INTEGERS:
        limits = np.iinfo(numpy_dtype(node.dtype))
        if not isinstance(node.value, int) or not limits.min <= node.value <= limits.max:
            yield f"{node.value} is no {node.dtype}"
    if isinstance(node, Load):
        for index in node.indices:
            if dtype_of(index) != "int64":
                yield f"the index {expr_text(index)} of {node.buffer} is {dtype_of(index)}, not int64"
    if not isinstance(node, Op):
        return
    given = [dtype_of(arg) for arg in node.args]
    match node.fn:
        case "guard":
            if len(given) != 3 or given[0] != "bool" or not given[1] == given[2] == node.dtype:
                yield f"guard of {', '.join(given)} gives {node.dtype}"
        case "floordiv":
            if len(given) != 2 or given != [node.dtype] * 2 or node.dtype not in INTEGERS:
                yield f"floordiv of {', '.join(given)} gives {node.dtype}"
        case _:
            try:
                infer(Elementwise(node.fn), [TensorType((), dtype) for dtype in given], dtype=node.dtype)
            except CheckError as error:
                yield error.why


def blocks_combine_over_reduced_iterations_only(program: Program) -> Iterator[str]:
    """Reduced iterations do not say which element is stored. Spatial ones do, or rather the loop variables behind them:
    a block may have one spatial variable for the element of the whole and another for the element of a tile.
    """
    for block, around, _ in placed_blocks(program):
        reduced = {it.var for it in block.iters if it.kind == "reduce"}
        stored = frozenset[str]().union(*(variables(index) for index in block.indices))
        if block.combine is None and (reduced or block.init is not None):
            what = "an init" if block.init is not None else "reduced iterations"
            yield f"block {block.name} has {what} but no combine"
        for name in sorted(reduced & stored):
            yield f"block {block.name} reduces over {name} and uses it in the indices of its store"
        bindings = {it.var: it.binding for it in block.iters}
        behind = frozenset[str]().union(*(variables(bindings[name]) for name in stored if name in bindings))
        counted = _counted(around, block.buffer)
        for it in block.iters:
            small = it.extent.is_constant and it.extent.value <= 1
            for name in sorted((variables(it.binding) & counted) - behind):
                if it.kind == "spatial" and not small:
                    yield f"loop {name}, behind {it.var} in block {block.name}, is not in the indices of its store"


def _counted(around: Around, buffer: str) -> frozenset[str]:
    """The variables of the loops around a block that run while its buffer lives, more often than once. Where each
    thread has a buffer of its own, those of threads do not count."""
    found: set[str] = set()
    private = False
    for stmt in around:
        if isinstance(stmt, Loop):
            if private and stmt.kind in THREADS:
                continue
            found |= {a.var for a in stmt.axes if not (a.extent.is_constant and a.extent.value <= 1)}
        elif stmt.buffer.name == buffer:
            found, private = set(), stmt.buffer.scope in PRIVATE
    return frozenset(found)


def parallel_loops_are_outermost(program: Program) -> Iterator[str]:
    """Parallel loops are regions, grid loops nest in nothing but one another, thread loops not in their own kind."""
    for stmt, around, _ in placed(program):
        if not isinstance(stmt, Loop):
            continue
        name = f"{stmt.kind} loop {stmt.axes[0].var if stmt.axes else ''}"
        kinds = [outer.kind if isinstance(outer, Loop) else "alloc" for outer in around]
        if stmt.kind == "parallel" and around:
            yield f"{name} is not the outermost of its region"
        if stmt.kind in GRID and any(kind not in GRID or kind in ("parallel", stmt.kind) for kind in kinds):
            yield f"{name} is not the outermost of its region"
        if stmt.kind in THREADS and stmt.kind in kinds:
            yield f"{name} is inside another one"


def vectorized_loops_are_innermost(program: Program) -> Iterator[str]:
    for stmt, around, _ in placed(program):
        if isinstance(stmt, Loop):
            for outer in around:
                if isinstance(outer, Loop) and outer.kind == "vectorized":
                    yield f"loop {stmt.axes[0].var} is inside the vectorized loop {outer.axes[0].var}"


def annotations_are_known(program: Program) -> Iterator[str]:
    """Each has a meaning, is there once, and is on a loop that it can be true of."""
    for loop, around, _ in placed(program):
        if not isinstance(loop, Loop):
            continue
        name = f"loop {loop.axes[0].var if loop.axes else ''}"
        serial = {outer.axes[0].var for outer in around if isinstance(outer, Loop) and outer.kind == "serial"}
        for key, value in loop.annotations:
            if key == "prefetch_next" and value not in serial:
                yield f"{name} asks for the next iteration of {value!r}, which is no serial loop around it"
            if (reason := wrong(key, value)) is not None:
                yield f"{name}: {reason}"
            if loop.kind != "serial" or len(loop.axes) != 1:
                yield f"{name} has the annotation {key}, but is no serial loop of one axis"
        counts = Counter(key for key, _ in loop.annotations)
        yield from (f"{name} has {count} annotations {key}" for key, count in counts.items() if count > 1)


def units_are_whole(program: Program) -> Iterator[str]:
    """The loops of a unit are one perfect nest of known extents, the innermost one around a single block."""
    for stmt, around, _ in placed(program):
        if not isinstance(stmt, Loop) or (head := stmt.annotation("blockize")) is None:
            continue
        outer = around[-1] if around else None
        first = stmt.axes[0].var == head
        if not first and not (isinstance(outer, Loop) and outer.annotation("blockize") == head):
            yield f"loop {stmt.axes[0].var} belongs to the unit {head}, but the loop around it does not"
        below = stmt.body
        if not isinstance(below, Block) and not (isinstance(below, Loop) and below.annotation("blockize") == head):
            yield f"the body of loop {stmt.axes[0].var}, of the unit {head}, is neither its next loop nor a block"
        if not all(axis.extent.is_constant for axis in stmt.axes):
            yield f"the extent of loop {stmt.axes[0].var}, of the unit {head}, is not a number"


def roles_are_kept(program: Program) -> Iterator[str]:
    """Inputs and constants are never written, packed buffers only by the prologue, which reads nothing but constants,
    packed and its own buffers; every output and packed buffer is written."""
    roles = {buffer.name: buffer.role for buffer in program.buffers}
    written: set[tuple[str, bool]] = set()
    for block, _, prologue in placed_blocks(program):
        written.add((block.buffer, prologue))
        role = roles.get(block.buffer)
        if role in ("input", "constant"):
            yield f"block {block.name} writes {block.buffer}, which is {role}"
        elif role is not None and prologue != (role == "packed"):
            part = "prologue" if prologue else "body"
            yield f"block {block.name} of the {part} writes {block.buffer}, which is {role}"
        for load in (load for expr in block_exprs(block) for load in loads(expr)):
            if prologue and roles.get(load.buffer, "packed") not in ("constant", "packed"):
                yield f"block {block.name} of the prologue reads {load.buffer}, which is {roles[load.buffer]}"
    for name, role in roles.items():
        if role in ("output", "packed") and (name, role == "packed") not in written:
            yield f"nothing writes {name}, which is {role}"


CHECKS: tuple[Check, ...] = (
    names_are_unique,
    loops_have_axes,
    symbols_are_defined_before_use,
    variables_are_bound,
    buffers_are_in_scope,
    dtypes_agree,
    blocks_combine_over_reduced_iterations_only,
    parallel_loops_are_outermost,
    vectorized_loops_are_innermost,
    annotations_are_known,
    units_are_whole,
    roles_are_kept,
)

__all__ = ["CHECKS", "Check", "check", "placed", "placed_blocks"]
