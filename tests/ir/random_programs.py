"""Hypothesis strategies that make polynomials, expressions and programs: any at all, and such as can be run."""

from __future__ import annotations

import itertools
from typing import get_args

import numpy as np
from hypothesis import strategies as st

from pipeline.ir.expr import Const, Expr, Load, Op, Size, Var, add, mul, size
from pipeline.ir.graph import ELEMENTWISE, DType
from pipeline.ir.poly import Poly
from pipeline.ir.program import (
    Alloc,
    Axis,
    Block,
    Buffer,
    Derived,
    Iter,
    Loop,
    LoopKind,
    Program,
    Role,
    Scope,
    Seq,
    Stmt,
)

DTYPES: tuple[DType, ...] = get_args(DType)
NAMES = st.sampled_from(
    ["i", "j0", "x_1", "max", "where", "for", "inf", "and", "a/b.c", "", "ö", 'quo"te', "line\nbreak"]
)
SYMBOLS = st.sampled_from(["t", "u", "n0", "for", "a_very_long_symbol"])

polys = st.lists(st.tuples(st.lists(SYMBOLS, max_size=3), st.integers(-9, 9)), max_size=4).map(
    lambda terms: sum((_monomial(names) * c for names, c in terms), Poly.of(0))
)


def _monomial(names: list[str]) -> Poly:
    total = Poly.of(1)
    for name in names:
        total = total * Poly.symbol(name)
    return total


def consts() -> st.SearchStrategy[Const]:
    floats = st.floats() | st.sampled_from([0.0, -0.0, float("inf"), float("nan"), 1e-45, 1e22])
    values = st.integers(-(2**63), 2**64 - 1) | floats | st.booleans()
    return st.builds(Const, values, st.sampled_from(DTYPES)) | st.integers(-9, 9).map(Const)


def exprs() -> st.SearchStrategy[Expr]:
    """Any expression, well typed or not."""
    leaves = consts() | st.builds(Var, NAMES) | st.builds(Size, polys)
    functions = st.sampled_from(sorted(ELEMENTWISE | {"floordiv", "guard", "odd name"}))

    def above(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        args = st.lists(inner, max_size=3).map(tuple)
        infix = st.sampled_from(["add", "sub", "mul", "div", "floordiv", "mod", "lt", "eq", "and", "or"])
        return (
            st.builds(Op, functions, args, st.sampled_from(DTYPES))
            | st.builds(Op, infix, st.tuples(inner, inner), st.sampled_from(["int64", "bool"]))
            | st.builds(Load, NAMES, args, st.sampled_from(DTYPES))
        )

    return st.recursive(leaves, above, max_leaves=8)


def any_programs() -> st.SearchStrategy[Program]:
    """Programs of every shape, most of them illegal."""
    expr, several = exprs(), 2
    axes = st.builds(Axis, NAMES, polys)
    iters = st.builds(Iter, NAMES, polys, st.sampled_from(["spatial", "reduce", "scan"]), expr)
    combine = st.sampled_from([None, "sum", "max", "min", "prod"])
    blocks = st.builds(Block, NAMES, st.lists(iters, max_size=1).map(tuple), NAMES,
                       st.lists(expr, max_size=several).map(tuple), expr, combine, st.none() | consts(),
                       st.lists(expr, max_size=1).map(tuple))  # fmt: skip
    buffers = st.builds(Buffer, NAMES, st.lists(polys, max_size=several).map(tuple), st.sampled_from(DTYPES),
                        st.sampled_from(get_args(Scope)), st.sampled_from(get_args(Role)))  # fmt: skip

    notes = st.lists(st.tuples(NAMES, st.integers(0, 99) | NAMES), max_size=several).map(tuple)

    def above(inner: st.SearchStrategy[Stmt]) -> st.SearchStrategy[Stmt]:
        return (
            st.builds(Loop, st.lists(axes, max_size=several).map(tuple), inner,
                      st.sampled_from(get_args(LoopKind)), notes)
            | st.builds(Alloc, buffers, inner)
            | st.lists(inner, max_size=several).map(lambda body: Seq(tuple(body)))
        )  # fmt: skip

    stmts: st.SearchStrategy[Stmt] = st.recursive(blocks, above, max_leaves=2)
    regions = st.lists(stmts, max_size=1).map(lambda body: Seq(tuple(body)))
    symbols = st.lists(SYMBOLS, max_size=several).map(tuple)
    derived = st.lists(st.builds(Derived, SYMBOLS, polys, polys), max_size=1).map(tuple)
    return st.builds(Program, NAMES, st.lists(buffers, max_size=1).map(tuple), regions, regions, symbols, derived)


OUT, OTHER, TILE = (Buffer(n, (Poly.of(5), Poly.of(4)), "float32", role=r) for n, r in
                    (("y", "output"), ("z", "output"), ("w", "intermediate")))  # fmt: skip
GIVEN = Buffer("x", (Poly.of(5), Poly.of(4)), "float32", role="input")
PICK = Buffer("p", (Poly.of(5),), "int64", role="input")
KINDS: tuple[LoopKind, ...] = ("serial", "vectorized", "unrolled", "threadIdx.x", "threadIdx.y")


def feeds(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((5, 4)).astype(np.float32), "p": rng.integers(-1, 6, 5)}


@st.composite
def runnable_programs(draw: st.DrawFn) -> Program:
    """Concrete programs over small buffers: reductions, scans, gathers, guards, tiles, races and errors."""
    fresh = itertools.count()
    regions = [_filled(buffer, fresh) for buffer in (OUT, OTHER, TILE)]
    if draw(st.integers(0, 9)) == 0:
        regions.pop()
    regions += [_nest(draw, fresh, (), (), 0) for _ in range(draw(st.integers(1, 2)))]
    return Program("random", (GIVEN, PICK, OUT, OTHER, TILE), Seq(tuple(regions)))


def _filled(buffer: Buffer, fresh: itertools.count[int]) -> Stmt:
    names = [f"l{next(fresh)}" for _ in buffer.shape]
    own = [f"v{next(fresh)}" for _ in buffer.shape]
    iters = tuple(Iter(v, e, "spatial", Var(n)) for v, n, e in zip(own, names, buffer.shape, strict=True))
    value = Op("cast", (add(mul(Var(own[0]), Const(7)), Var(own[1])),), buffer.dtype)
    block = Block(f"b{next(fresh)}", iters, buffer.name, tuple(map(Var, own)), value)
    return Loop(tuple(Axis(n, e) for n, e in zip(names, buffer.shape, strict=True)), block)


def _nest(draw: st.DrawFn, fresh: itertools.count[int], around: tuple[Axis, ...], tiles: tuple[Buffer, ...],
          depth: int) -> Stmt:  # fmt: skip
    choice = 9 - draw(st.integers(0, 9))  # the smallest program is the shallowest
    if choice < (6 if depth < 3 else 2) or not around:
        axes = tuple(Axis(f"l{next(fresh)}", Poly.of(draw(st.integers(0 if depth else 1, 4))))
                     for _ in range(draw(st.sampled_from([1, 1, 1, 2]))))  # fmt: skip
        kinds: tuple[LoopKind, ...] = KINDS if around else ("serial", "serial", "parallel", "blockIdx.x")
        return Loop(axes, _nest(draw, fresh, around + axes, tiles, depth + 1), draw(st.sampled_from(kinds)))
    if choice == 6 and depth < 4:
        return Seq(tuple(_nest(draw, fresh, around, tiles, depth + 1) for _ in range(2)))
    if choice == 7 and depth < 4:
        scope: Scope = draw(st.sampled_from(["local", "shared"]))
        tile = Buffer(f"t{next(fresh)}", (Poly.of(5), Poly.of(4)), "float32", scope)
        rest = _nest(draw, fresh, around, (*tiles, tile), depth + 1)
        return Alloc(tile, Seq((_filled(tile, fresh), rest)) if draw(st.booleans()) else rest)
    return _block(draw, fresh, around, tiles)


def _block(draw: st.DrawFn, fresh: itertools.count[int], around: tuple[Axis, ...], tiles: tuple[Buffer, ...]) -> Block:
    def binding() -> Expr:
        chosen = draw(st.lists(st.sampled_from(around), min_size=1, max_size=2, unique=True))
        total: Expr = Const(draw(st.sampled_from([0, 0, 0, 1, -1])))
        for axis in chosen:
            total = add(total, mul(Var(axis.var), Const(draw(st.sampled_from([1, 1, 1, 2, 3, -1])))))
        return total

    combine = draw(st.sampled_from([None, None, "sum", "sum", "max", "prod"]))
    kinds = ["spatial", "spatial", "scan"] if combine is None else ["spatial", "spatial", "reduce"]
    iters = [Iter(f"v{next(fresh)}", Poly.of(4), draw(st.sampled_from(kinds)), binding())
             for _ in range(draw(st.integers(1, 3)))]  # fmt: skip
    scan = any(it.kind == "scan" for it in iters)
    stored = [it.var for it in iters if it.kind != "reduce"]

    def index(names: list[str], rows: int) -> Expr:
        kind = draw(st.integers(0, 9))
        if not names or kind == 0:
            return Const(draw(st.integers(0, rows - 1)))
        var: Expr = Var(draw(st.sampled_from(names)))
        if kind == 1:
            return Op("mod", (add(var, Const(3)), Const(rows)))
        if kind == 2:
            return Op("mod", (Load("p", (var,), "int64"), Const(rows)))
        return add(var, Const(1)) if kind == 3 and rows == 5 else var

    def load() -> Expr:
        name = draw(st.sampled_from(["x", "x", "x", "w", "y", *(tile.name for tile in tiles)] + ["y"] * scan))
        names = [it.var for it in iters]
        found: Expr = Load(name, (index(names, 5), index(names, 4)), "float32")
        if draw(st.integers(0, 3)) == 0:
            before = Load(name, (Op("sub", (Var(names[0]), size(1))), index(names, 4)), "float32")
            found = Op("guard", (Op("lt", (Const(0), Var(names[0])), "bool"), before, found), "float32")
        return found

    value = load()
    for _ in range(draw(st.integers(0, 2))):
        value = Op(draw(st.sampled_from(["add", "mul", "max"])), (value, load()), "float32")
    where = ()
    if draw(st.integers(0, 4)) == 0:
        where = (Op("lt", (binding(), Const(draw(st.integers(1, 4)))), "bool"),)
    buffer = draw(st.sampled_from(["y", "y", "z", "w", *(tile.name for tile in tiles), *(tile.name for tile in tiles)]))
    init = Const(draw(st.sampled_from([0.0, 1.5])), "float32") if combine and draw(st.booleans()) else None
    indices = (index(stored, 5), index(stored, 4))
    return Block(f"b{next(fresh)}", tuple(iters), buffer, indices, value, combine, init, where)
