"""Rows in blocks: where products follow one another, what they hand on holds one block of rows."""

from __future__ import annotations

import re

import pytest

from pipeline.ir.poly import Poly
from pipeline.ir.program import Alloc, Loop, Program, Stmt, walk
from pipeline.ir.program_parse import from_text
from pipeline.superopt.lowering.lower import lower_mugraph
from pipeline.superopt.lowering.row_blocks import RowBlocks
from tests.codegen.kernel_runs import native
from tests.superopt.lowered_cases import ALL, attention
from tests.superopt.lowered_runs import names_of

T, N = Poly.symbol("t"), Poly.symbol("n")


def program(case: str = "attention") -> Program:
    spec, graph = ALL[case]() if case != "attention" else attention(2, 40, 50, 24, 33)
    return lower_mugraph(spec, graph, case, names_of(spec), native()).program


def over_blocks(made: Program) -> list[Loop]:
    return [stmt for stmt in walk(made.body) if isinstance(stmt, Loop) and re.search(r"_b\d+$", stmt.axes[0].var)]


def test_the_scores_of_attention_are_of_one_block_of_rows() -> None:
    """The accumulators hold all rows of the tile, for they live on from one tile of keys to the next."""
    made = program()
    loops = over_blocks(made)
    assert len(loops) == 2  # before the loop over the keys, and in it
    tiles = {stmt.buffer.name: stmt.buffer for loop in loops for stmt in walk(loop) if isinstance(stmt, Alloc)}
    block = Poly.symbol("k0_i_t1") * Poly.symbol("k0_i_t0")
    assert tiles and all(tile.shape[0] == block for tile in tiles.values())
    others = [stmt.buffer for stmt in walk(made.body) if isinstance(stmt, Alloc) and stmt.buffer.name not in tiles]
    assert others and all(tile.shape[0] == Poly.symbol("k0_i_t2") * block for tile in others)


@pytest.mark.parametrize("case", ["gated_mlp", "rmsnorm_linear", "ntrans"])
def test_without_a_product_of_a_product_there_are_no_blocks(case: str) -> None:
    assert not over_blocks(program(case))


def statements(text: str) -> list[Stmt]:
    lines = "\n".join(" " * 12 + line for line in text.strip("\n").splitlines())
    made = from_text(f"""program p(t, n):
    derived m = ceildiv(64, n*t)
    input x: float32[64, 8]
    output y: float32[64, 8]
    intermediate s: float32[n*t, 8]
    intermediate w: float32[8]
    body:
        for g in parallel(m):
{lines}
""")
    outer = made.body.body[0]
    assert isinstance(outer, Loop)
    return list(outer.body.body if hasattr(outer.body, "body") else [outer.body])


ROWS = """
for a in serial(n*t):
    for b in serial(8):
        block first:
            spatial la in range(n*t) = a
            spatial ga in range(64) = g * {n*t} + a
            spatial lb in range(8) = b
            s[la, lb] = x[ga, lb] * 2.0:float32
"""
LAST = """
for c in serial(n*t):
    for d in serial(8):
        block last:
            spatial lc in range(n*t) = c
            spatial gc in range(64) = g * {n*t} + c
            spatial ld in range(8) = d
            y[gc, ld] = s[lc, ld] + w[ld]
"""
WEIGHTS = """
for e in serial(8):
    block weights:
        spatial le in range(8) = e
        w[le] = x[0, le]
"""


def blocks() -> RowBlocks:
    return RowBlocks("g", N * T, T, N)


def test_what_has_no_rows_goes_before_them_where_nothing_is_in_the_way() -> None:
    made = blocks().fused(statements(ROWS + WEIGHTS + LAST))
    assert [stmt.axes[0].var for stmt in made if isinstance(stmt, Loop)] == ["e", "g_b1"]


def test_what_needs_rows_that_came_before_keeps_its_place() -> None:
    needy = WEIGHTS.replace("x[0, le]", "s[0, le]")
    given = statements(ROWS + needy + LAST)
    assert blocks().fused(given) == given


def test_one_statement_alone_needs_no_blocks() -> None:
    given = statements(WEIGHTS + LAST)
    assert blocks().fused(given) == given


def test_a_sum_over_the_rows_is_not_taken_apart() -> None:
    total = ROWS.replace("spatial la", "reduce la").replace("spatial ga", "reduce ga")
    total = total.replace("s[la, lb] =", "w[lb] +=")
    given = statements(total.replace("block first", "block total") + LAST)
    assert blocks().fused(given) == given
