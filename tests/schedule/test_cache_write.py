"""CacheWrite: register tiles, partial results, and what is written back."""

from __future__ import annotations

import pytest

from pipeline.ir.poly import Poly
from pipeline.ir.program import Program
from pipeline.ir.program_parse import from_text
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.steps import (
    CacheWrite,
    DecomposeReduction,
    Fuse,
    Parallel,
    Reorder,
    Split,
    Step,
    Vectorize,
)
from pipeline.schedule.variables import Tile
from tests.schedule.programs import (
    applied,
    convolution,
    feed_forward,
    golden,
    keeps_meaning,
    matmul,
    normalise,
    refuses,
    running_sum,
    stencil,
)


def tiled(order: tuple[str, ...]) -> Sketch:
    sketch = Sketch(matmul())
    for symbols, extent, multiple in ((("tm0", "tm1"), 10, 1), (("tn0", "tn1"), 13, 4), (("tk",), 7, 1)):
        ones = (1,) * (len(symbols) - 1)
        sketch = sketch.declare(Tile(symbols, extent, (*ones, multiple), (16,) * len(symbols)))
    for loop, factors in (("mm_m", ("tm0", "tm1")), ("mm_n", ("tn0", "tn1")), ("mm_k", ("tk",))):
        names = tuple(f"{loop[3:]}{i}" for i in range(len(factors) + 1))
        sketch = sketch.apply(Split(loop, tuple(Poly.symbol(f) for f in factors), names))
    return sketch.apply(Reorder(order))


def test_a_register_tile_has_the_extents_of_the_loops_inside() -> None:
    sketch = tiled(("m0", "n0", "m1", "n1", "k0", "k1", "m2", "n2")).apply(CacheWrite("mm", "local", "n1"))
    assert str(sketch.program.buffer("C_local").shape[-1]) == "tn1"
    golden(sketch.program, "cache_write/register_tile")
    keeps_meaning(matmul(), sketch, samples=12)


def test_a_tile_over_two_levels_has_their_product_as_extent() -> None:
    sketch = tiled(("m0", "n0", "k0", "m1", "n1", "k1", "m2", "n2")).apply(CacheWrite("mm", "shared", "n0"))
    assert [str(extent) for extent in sketch.program.buffer("C_shared").shape] == ["tm0*tm1", "tn0*tn1"]
    keeps_meaning(matmul(), sketch, samples=8)


def test_partial_results_are_combined_where_a_reduction_loop_is_outside() -> None:
    sketch = tiled(("m0", "n0", "k0", "m1", "n1", "k1", "m2", "n2")).apply(CacheWrite("mm", "local", "n1"))
    golden(sketch.program, "cache_write/partial")
    keeps_meaning(matmul(), sketch, samples=12)


def test_a_whole_register_tile_schedule_keeps_its_meaning() -> None:
    sketch = tiled(("m0", "n0", "m1", "n1", "k0", "k1", "m2", "n2")).apply(CacheWrite("mm", "local", "n1"))
    for step in (DecomposeReduction("mm", "k0"), Fuse(("m0", "n0")), Parallel("m0"), Vectorize("n2"),
                 Vectorize("mm_w_1"), Vectorize("mm_i_n2")):  # fmt: skip
        sketch = sketch.apply(step)
    golden(sketch.program, "cache_write/whole_schedule")
    keeps_meaning(matmul(), sketch, samples=12)


def test_partial_results_of_an_already_decomposed_reduction_are_combined() -> None:
    steps = (DecomposeReduction("mm", "mm_m"), CacheWrite("mm", "local", "mm_n"))
    keeps_meaning(matmul(), applied(matmul(), *steps))


def test_a_maximum_starts_from_minus_infinity() -> None:
    steps = (Split("top_j", (4,), ("j0", "j1")), CacheWrite("top", "local", "j0"))
    keeps_meaning(normalise(), applied(normalise(), *steps))


def test_an_initial_value_that_is_not_neutral_counts_once() -> None:
    steps = (Split("total_j", (4,), ("j0", "j1")), CacheWrite("total", "local", "j0"))
    keeps_meaning(normalise(), applied(normalise(), *steps))


def test_an_elementwise_block_is_cached_too() -> None:
    steps = (
        Split("out_j", (4,), ("j0", "j1")),
        Reorder(("j0", "out_i", "j1")),
        CacheWrite("out", "shared", "j0", "tile"),
    )
    keeps_meaning(feed_forward(), applied(feed_forward(), *steps))


def test_a_store_at_an_offset_is_written_back_there() -> None:
    steps = (Split("second_i", (4,), ("i0", "i1")), CacheWrite("second", "local", "i0"))
    keeps_meaning(stencil(), applied(stencil(), *steps))


@pytest.mark.parametrize("size", [1, 2, 5, 11])
def test_a_convolution_is_cached_at_any_size(size: int) -> None:
    steps = (Split("conv_w", (4,), ("w0", "w1")), Reorder(("w0", "conv_r", "conv_s", "conv_c", "w1", "conv_f")),
             CacheWrite("conv", "local", "w0"))  # fmt: skip
    keeps_meaning(convolution(size, size), applied(convolution(size, size), *steps))


@pytest.mark.parametrize(
    ("before", "step", "why"),
    [
        ((), CacheWrite("x", "local", "mm_m"), "there is no block x"),
        ((), CacheWrite("mm", "local", "x"), "there is no loop x"),
        ((), CacheWrite("mm", "global", "mm_m"), "local or shared"),
        ((), CacheWrite("mm", "local", "mm_m", "A"), "there is a buffer A already"),
        ((CacheWrite("mm", "local", "mm_m"),), CacheWrite("mm", "local", "mm_n"), "which is a cache already"),
        ((CacheWrite("mm", "local", "mm_m"),), CacheWrite("mm", "local", "mm_w_0"), "is not around block mm"),
        ((Vectorize("mm_k"),), CacheWrite("mm", "local", "mm_k"), "loop mm_k is vectorized"),
        ((DecomposeReduction("mm", "mm_k"),), CacheWrite("mm", "local", "mm_m"), "block mm_init uses C"),
        (
            (Split("mm_m", (5,), ("m0", "m1")), Split("m1", (2,), ("m1", "m2"))),
            CacheWrite("mm", "local", "m1"),
            "a condition of block mm is on loop m2",
        ),
        (
            (Split("mm_m", (2, 3), ("m0", "m1", "m2")), Reorder(("m2", "m0", "m1"))),
            CacheWrite("mm", "local", "m0"),
            "leaves gaps along m",
        ),
    ],
)
def test_writes_that_cannot_be_cached_are_refused(before: tuple[Step, ...], step: CacheWrite, why: str) -> None:
    refuses(applied(matmul(), *before), step, why)


# ---------------------------------------------------------------------- tiles in scratch


def scratch(moves: str = "o * 4 + i", init: str = "init 5.0:float32") -> Program:
    """The rows of A summed, in tiles of four that lie in scratch, of which the last one has two."""
    return from_text(f"""program scratch():
    input A: float32[10, 7]
    output C: float32[10]
    body:
        for o in parallel(3):
            alloc S: float32[4] in shared:
                for z in serial(4):
                    block zero:
                        spatial l in range(4) = z
                        S[l] = 1.0:float32
                for i in serial(4):
                    for r in serial(7):
                        block sum:
                            spatial l in range(4) = i
                            spatial g in range(10) = {moves}
                            reduce k in range(7) = r
                            {init}
                            S[l] += A[g, k]
                for w in serial(4):
                    block out:
                        spatial l in range(4) = w
                        spatial g in range(10) = o * 4 + w
                        C[g] = S[l] * 2.0:float32
""")


INNER = (Split("i", (2,), ("i0", "i1")), Reorder(("i0", "r", "i1")))


def test_a_tile_in_scratch_has_a_register_tile_of_its_own_and_ends_where_the_tensor_does() -> None:
    program = applied(scratch(), *INNER, CacheWrite("sum", "local", "i0"))
    golden(program, "cache_write/scratch")
    keeps_meaning(scratch(), program)


@pytest.mark.parametrize("tile", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("init", ["init 5.0:float32", ""], ids=["with an initial value", "combined"])
def test_a_tile_in_scratch_is_cached_at_any_size(tile: int, init: str) -> None:
    steps = (Split("i", (tile,), ("i0", "i1")), Reorder(("r", "i0", "i1")), CacheWrite("sum", "local", "i0"))
    keeps_meaning(scratch(init=init), applied(scratch(init=init), *steps))


def test_a_tile_is_cached_while_its_size_is_a_parameter() -> None:
    sketch = Sketch(scratch()).declare(Tile(("t",), 4, (1,), (4,))).apply(Split("i", (Poly.symbol("t"),), ("i0", "i1")))
    for step in (Reorder(("i0", "r", "i1")), CacheWrite("sum", "local", "i0"), DecomposeReduction("sum", "r")):
        sketch = sketch.apply(step)
    keeps_meaning(scratch(), sketch)


OVER_TILES = """program over_tiles():
    input A: float32[10]
    output C: float32[4]
    body:
        for p in parallel(1):
            alloc S: float32[4] in shared:
                for z in serial(4):
                    block zero:
                        spatial l in range(4) = z
                        S[l] = 0.0:float32
                for o in serial(3):
                    for i in serial(4):
                        block sum:
                            spatial l in range(4) = i
                            reduce g in range(10) = o * 4 + i
                            S[l] += A[g]
                for w in serial(4):
                    block out:
                        spatial l in range(4) = w
                        C[l] = S[l]
"""


@pytest.mark.parametrize(
    ("program", "step", "why"),
    [
        (scratch(), CacheWrite("sum", "shared", "i"), "writes S, which is a cache already"),
        (scratch("o * 4 + i * 2"), CacheWrite("sum", "local", "o"), "iteration g of block sum leaves out points"),
        (applied(scratch(), CacheWrite("sum", "local", "o")), CacheWrite("sum", "local", "i"), "is a cache already"),
        (from_text(OVER_TILES), CacheWrite("sum", "local", "o"), "loop i is spatial and reduced at once"),
    ],
)
def test_tiles_that_could_not_be_written_back_are_refused(program: Program, step: CacheWrite, why: str) -> None:
    refuses(program, step, why)


def test_a_scan_is_not_cached() -> None:
    refuses(running_sum(), CacheWrite("run", "local", "run_i"), "block run is a scan")
