"""Privatize: a tile in shared memory becomes registers of the threads that share it out."""

from __future__ import annotations

import pytest

from pipeline.ir.poly import Poly
from pipeline.ir.program import Alloc, Program, walk
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import (
    Bind,
    CacheWrite,
    DecomposeReduction,
    Fuse,
    Privatize,
    Reorder,
    Split,
    Step,
    TransformLayout,
    Unroll,
    Vectorize,
)
from pipeline.schedule.variables import Tile
from tests.schedule.programs import applied, golden, keeps_meaning, matmul, refuses

TILE: tuple[Step, ...] = (
    Split("mm_m", (4, 2), ("m0", "m1", "m2")),
    Split("mm_n", (2, 3, 2), ("n0", "n1", "n2", "n3")),
    Split("mm_k", (3,), ("k0", "k1")),
    Reorder(("m0", "n0", "k0", "m1", "n2", "k1", "m2", "n1", "n3")),
    Bind("m0", "blockIdx.y"),
    Bind("n0", "blockIdx.x"),
    Fuse(("m1", "n2")),
    CacheWrite("mm", "shared", "n0"),
    DecomposeReduction("mm", "k0"),
)
WRITE: tuple[Step, ...] = (
    Split("mm_w_0", (2,), ("w0", "w1")),
    Split("mm_w_1", (3, 2), ("w2", "w3", "w4")),
    Reorder(("w0", "w3", "w1", "w2", "w4")),
    Fuse(("w0", "w3")),
)
THREADS: tuple[Step, ...] = (
    Bind("m1", "threadIdx.x"), Bind("mm_i_m1", "threadIdx.x"), Bind("w0", "threadIdx.x"), Vectorize("w4"), Unroll("m2"),
)  # fmt: skip


def test_accumulators_live_in_registers_while_a_loop_around_the_nests_runs() -> None:
    program = applied(matmul(), *TILE, *WRITE, *THREADS, Privatize("C_shared"))
    golden(program, "privatize/matmul")
    keeps_meaning(matmul(), program)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (8, 12, 6), (17, 25, 4), (3, 13, 7)])
def test_ragged_tiles_keep_their_meaning(m: int, n: int, k: int) -> None:
    before = matmul(m, n, k)
    keeps_meaning(before, applied(before, *TILE, *WRITE, *THREADS, Privatize("C_shared")))


def test_registers_of_a_warp_are_fragments_whose_layout_can_be_changed() -> None:
    steps = (*TILE, *WRITE)
    program = applied(matmul(), *steps, *(Bind(name, "threadIdx.y") for name in ("m1", "mm_i_m1", "w0")))
    program = applied(program, Privatize("C_shared", "fragment"), TransformLayout("C_shared", (2, 2), (0, 1, 2, 3)))
    keeps_meaning(matmul(), program)
    (tile,) = [stmt.buffer for stmt in walk(program.body) if isinstance(stmt, Alloc)]
    assert (tile.scope, [str(n) for n in tile.shape]) == ("fragment", ["1", "2", "2", "2"])


def test_sizes_may_be_parameters() -> None:
    sketch = Sketch(matmul()).declare(Tile(("t", "r"), 13, (1, 1), (13, 13)))
    t, r = Poly.symbol("t"), Poly.symbol("r")
    for step in (
        Split("mm_n", (r, t), ("n0", "n1", "n2")), Fuse(("mm_m", "n0")), Bind("mm_m", "blockIdx.x"),
        Reorder(("mm_k", "n2", "n1")), CacheWrite("mm", "shared", "mm_m"), DecomposeReduction("mm", "mm_k"),
        Split("mm_w_1", (t,), ("w0", "w1")), Reorder(("w1", "w0")), Bind("n2", "threadIdx.x"),
        Bind("w1", "threadIdx.x"),
    ):  # fmt: skip
        sketch = sketch.apply(step)
    sketch = sketch.apply(Bind("mm_i_n2", "threadIdx.x")).apply(Privatize("C_shared"))
    keeps_meaning(matmul(), sketch)


@pytest.mark.parametrize(
    ("steps", "step", "why"),
    [
        ((), Privatize("T"), "there is no buffer T"),
        ((), Privatize("C"), "C is global: give it a scope first"),
        ((*TILE, *WRITE, *THREADS), Privatize("C_shared", "shared"), "registers are local or fragment, not shared"),
        ((*TILE, *WRITE, *THREADS[:2]), Privatize("C_shared"), "block mm_write uses C_shared outside the nests"),
        ((*TILE, *WRITE, *THREADS, Privatize("C_shared")), Privatize("C_shared"), "C_shared is local already"),
        ((*TILE, Fuse(("mm_w_0", "mm_w_1")), *THREADS[:2], Bind("mm_w_0", "threadIdx.x")), Privatize("C_shared"),
         "the nest of block mm_write has other threads"),
        ((*TILE, Split("mm_w_0", (4,), ("w0", "w1")), Split("mm_w_1", (3, 2), ("w2", "w3", "w4")),
          Reorder(("w1", "w3", "w0", "w2", "w4")), Fuse(("w1", "w3")), *THREADS[:2], Bind("w1", "threadIdx.x")),
         Privatize("C_shared"), "does not share out C_shared as the blocks before it do"),
    ],
)  # fmt: skip
def test_a_tile_that_threads_do_not_own_is_refused(steps: tuple[Step, ...], step: Step, why: str) -> None:
    refuses(applied(matmul(), *steps), step, why)


def test_an_element_that_all_threads_read_is_nobodys() -> None:
    program: Program = applied(
        matmul(), Reorder(("mm_m", "mm_k", "mm_n")), Bind("mm_m", "blockIdx.x"), CacheWrite("mm", "shared", "mm_m"),
        DecomposeReduction("mm", "mm_k"), Bind("mm_n", "threadIdx.x"), Bind("mm_i_mm_n", "threadIdx.x"),
    )  # fmt: skip
    refuses(program, Privatize("C_shared"), "block mm_write uses C_shared outside the nests")
