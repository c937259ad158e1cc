"""Tests of the program's own functions: instantiation, walks, maps that keep what does not change."""

from __future__ import annotations

import pytest

from pipeline.ir.expr import Const, Load, Op, Size, Var, substitute, walk
from pipeline.ir.poly import Poly
from pipeline.ir.program import (
    Alloc,
    Block,
    Loop,
    Seq,
    Stmt,
    blocks,
    instantiate,
    map_block_exprs,
    map_statements,
    sequence,
)
from pipeline.ir.program import walk as walk_statements
from pipeline.ir.program_parse import from_text

PROGRAM = from_text("""\
program scale(t, u):
    derived n = ceildiv(101, t*u)
    derived m = ceildiv(n, 2)
    constant w: float32[t, u]
    packed p: float32[t, u]
    output y: float32[101]
    prologue:
        for a, b in serial(t, u):
            block pack:
                spatial i in range(t) = a
                spatial j in range(u) = b
                p[i, j] = w[i, j]
    body:
        for i0 in parallel(m):
            alloc s: float32[2*t] in shared:
                for i1 in serial(2):
                    for i2, i3 in serial(t, u):
                        block scale:
                            spatial v in range(101) = i0 * {2*t*u} + i1 * {t*u} + i2 * {u} + i3
                            spatial c in range(t) = i2
                            spatial d in range(u) = i3
                            y[v] = p[c, d] * cast(v % {u}):float32
""")


def test_instantiating_leaves_no_symbol() -> None:
    concrete = instantiate(PROGRAM, {"t": 3, "u": 5})
    assert concrete.params == () and concrete.derived == ()
    loops = {s.axes[0].var: s for s in walk_statements(concrete.body) if isinstance(s, Loop)}
    assert loops["i0"].axes[0].extent == Poly.of(4)  # ceil(101 / 15) = 7, ceil(7 / 2) = 4
    assert [axis.extent.value for axis in loops["i2"].axes] == [3, 5]
    assert concrete.buffer("s").shape == (Poly.of(6),)
    assert concrete.buffer("p").shape == (Poly.of(3), Poly.of(5))
    for block in blocks(concrete):
        exprs = (*block.indices, block.value, *block.where, *(it.binding for it in block.iters))
        assert not [node for expr in exprs for node in walk(expr) if isinstance(node, Size)]


def test_instantiating_keeps_the_structure() -> None:
    concrete = instantiate(PROGRAM, {"t": 1, "u": 1})
    kinds = [type(stmt) for stmt in walk_statements(concrete.body)]
    assert kinds == [type(stmt) for stmt in walk_statements(PROGRAM.body)]
    assert [block.name for block in blocks(concrete)] == ["scale", "pack"]


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(KeyError):
        instantiate(PROGRAM, {"t": 1})


def test_a_buffer_is_found_wherever_it_is_declared() -> None:
    assert PROGRAM.buffer("y").role == "output"
    assert PROGRAM.buffer("s").scope == "shared"
    with pytest.raises(KeyError):
        PROGRAM.buffer("z")
    assert [buffer.name for buffer in PROGRAM.all_buffers()] == ["w", "p", "y", "s"]


def test_maps_keep_what_does_not_change() -> None:
    def rebuilt(stmt: Stmt) -> Stmt:
        return map_statements(stmt, rebuilt)

    assert rebuilt(PROGRAM.body) is PROGRAM.body
    block = blocks(PROGRAM)[0]
    assert map_block_exprs(block, lambda expr: expr) == block


def test_maps_reach_every_statement() -> None:
    def doubled(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Block):
            return Seq((stmt, stmt))
        return map_statements(stmt, doubled)

    twice = doubled(PROGRAM.body)
    assert [stmt.name for stmt in walk_statements(twice) if isinstance(stmt, Block)] == ["scale", "scale"]
    assert isinstance(next(s for s in walk_statements(twice) if isinstance(s, Alloc)).body, Loop)


def test_a_sequence_has_no_sequence_in_it() -> None:
    block = blocks(PROGRAM)[0]
    assert sequence([Seq(()), block, Seq((block, block))]) == Seq((block, block, block))


def test_block_expressions_are_mapped_everywhere() -> None:
    where = (Op("lt", (Var("v"), Const(3)), "bool"),)
    block = Block("b", (), "y", (Var("v"),), Load("x", (Var("v"),), "float32"), where=where)
    moved = map_block_exprs(block, lambda expr: substitute(expr, {"v": Var("w")}))
    assert moved.indices == (Var("w"),)
    assert moved.value == Load("x", (Var("w"),), "float32")
    assert moved.where == (Op("lt", (Var("w"), Const(3)), "bool"),)
