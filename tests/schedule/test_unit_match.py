"""Tensorize of what a warp computes together: units are matched by what they do to fragments, and others refused."""

from __future__ import annotations

import pytest

from pipeline.ir.program import Loop, Program, walk
from pipeline.ir.program_parse import from_text
from pipeline.ir.program_text import to_text
from pipeline.ir.target import Target
from pipeline.schedule.intrinsics import INTRINSICS, MMA
from pipeline.schedule.steps import Blockize, Tensorize
from pipeline.schedule.unit_match import UnitMatch, match_unit
from tests.codegen.cuda.gpu_targets import gpu_target
from tests.schedule.programs import applied, refuses


def unit(loops: dict[str, int], statement: str, buffers: str, reduced: str = "", binding: str = "{}") -> Program:
    """One nest called i, j, q in a nest of warps, over fragments that are declared as lines `name: dtype[…]`."""
    lines = ["program p():"]
    lines += [f"    {line}" for line in buffers.splitlines() if line.startswith(("input", "output"))]
    lines += ["    body:", "        for w in threadIdx.y(2):"]
    indent = " " * 12
    for line in (line for line in buffers.splitlines() if not line.startswith(("input", "output"))):
        lines.append(f"{indent}alloc {line}:")
        indent += "    "
    for var, extent in loops.items():
        lines.append(f"{indent}for {var} in serial({extent}):")
        indent += "    "
    lines.append(f"{indent}block b:")
    for var, extent in loops.items():
        kind = "reduce" if var in reduced else "spatial"
        lines.append(f"{indent}    {kind} v{var} in range({extent}) = {binding.format(var)}")
    lines.append(f"{indent}    {statement}")
    return from_text("\n".join(lines) + "\n")


TILE, SQUARE = {"i": 16, "j": 8}, {"i": 16, "q": 16}
ACCUMULATOR = "C: float32[2, 16, 8] in fragment"
ROWS = "R: float32[2, 16] in fragment"
LANES = "L: float32[2, 32] in fragment\nT: float32[1] in fragment"

FITTING = [
    ("mma.fill_16x8_f32", unit(TILE, "C[1, vi, vj] = -inf:float32", ACCUMULATOR)),
    ("mma.map_16x8", unit(TILE, "C[0, vi, vj] *= R[1, vi]", f"{ACCUMULATOR}\n{ROWS}")),
    ("mma.map_16x8", unit(TILE, "y[vj, vi] = exp(C[0, vi, vj] + x[vj])",
                          f"{ACCUMULATOR}\ninput x: float32[8]\noutput y: float32[8, 16]")),
    ("mma.row_max_16x8", unit(TILE, "R[0, vi] max= C[1, vi, vj]", f"{ACCUMULATOR}\n{ROWS}", "j")),
    ("mma.row_sum_16x8", unit(TILE, "R[0, vi] += exp(C[1, vi, vj] - M[vi])",
                               f"{ACCUMULATOR}\n{ROWS}\nM: float32[16] in fragment", "j")),
    ("mma.map_rows_16", unit({"i": 16}, "R[0, vi] = R[1, vi] * 2.0:float32", ROWS)),
    ("warp.map_32", unit({"i": 32}, "L[0, vi] += x[vi] * T[0]", f"{LANES}\ninput x: float32[32]")),
    ("warp.sum_32", unit({"i": 32}, "T[0] += L[1, vi]", LANES, "i")),
    ("warp.max_32", unit({"i": 32}, "y[0] max= L[1, vi]", f"{LANES}\noutput y: float32[1]", "i")),
    ("mma.load_a_16x16_f16", unit({"i": 16, "q": 16}, "A[vi, vq] = guard(vi < 9, x[vq, vi], 0.0:float16)",
                                  "A: float16[16, 16] in fragment\ninput x: float16[16, 16]")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "program"), FITTING, ids=[name for name, _ in FITTING])
def test_what_a_unit_computes_becomes_one(name: str, program: Program) -> None:
    found = applied(program, Blockize("i"), Tensorize("i", name))
    assert f'for i in serial({INTRINSICS[name].extents[0]}) with blockize="i", tensorize="{name}"' in to_text(found)


def test_a_match_says_how_each_fragment_is_reached() -> None:
    program = FITTING[4][1]
    loop = next(stmt for stmt in walk(program.body) if isinstance(stmt, Loop) and stmt.axes[0].var == "i")
    found = match_unit(loop, INTRINSICS["mma.row_sum_16x8"], program.buffer)
    assert isinstance(found, UnitMatch) and found.variables == ("i", "j")
    assert found.forms == {"R": "rows", "C": "tile", "M": "rows"}


MEMORY = "input x: float32[16, 8]\noutput y: float32[16, 8]"
FACTOR = "A: float16[16, 16] in fragment\ninput x: float16[16, 16]"
WRONG = [
    ("mma.fill_16x8_f32", unit({"i": 8, "j": 16}, "C[0, vj, vi] = 0.0:float32", ACCUMULATOR),
     "the loops from i on are 8 x 16; mma.fill_16x8_f32 takes 16 x 8"),
    ("mma.fill_16x8_f32", unit(TILE, "C[0, vi, vj] += 1.0:float32", ACCUMULATOR), "combines into C"),
    ("mma.fill_16x8_f32", unit(TILE, "C[0, vi, vj] = x[vi, vj]", f"{ACCUMULATOR}\n{MEMORY}"),
     "stores more than one number"),
    ("mma.fill_16x8_f32", unit(TILE, "y[vi, vj] = 0.0:float32", MEMORY),
     "writes y, but mma.fill_16x8_f32 writes a tile of a"),
    ("mma.fill_16x8_f32", unit(TILE, "C[vi, vj] = 0.0:float32", "C: float32[32, 8] in fragment"),
     "C is not made of tiles of 16 x 8 of float32"),
    ("mma.fill_16x8_f16", unit(TILE, "C[0, vi, vj] = 0.0:float32", ACCUMULATOR),
     "C is not made of tiles of 16 x 8 of float16"),
    ("mma.map_16x8", unit(TILE, "y[vi, vj] = C[0, vj, vi]", f"{ACCUMULATOR}\n{MEMORY}"),
     "reaches C in a way in which mma.map_16x8 reaches no fragment"),
    ("mma.map_16x8", unit(TILE, "y[vi, vj] = C[0, vi, vj] + C[0, 0, 0]", f"{ACCUMULATOR}\n{MEMORY}"),
     "reaches a tile of C and one element of it"),
    ("mma.map_16x8", unit(TILE, "C[0, vi, vj] = R[0, vj]", f"{ACCUMULATOR}\n{ROWS}"), "reaches R in a way in which"),
    ("mma.map_rows_16", unit({"i": 16}, "R[vi, 0] = 0.0:float32", "R: float32[16, 2] in fragment"),
     "reaches R in a way in which"),
    ("mma.row_sum_16x8", unit(TILE, "R[0, vi] max= C[1, vi, vj]", f"{ACCUMULATOR}\n{ROWS}", "j"),
     "does not combine by sum"),
    ("mma.row_sum_16x8", unit(TILE, "C[0, vi, vj] += C[1, vi, vj]", ACCUMULATOR),
     "writes C, but mma.row_sum_16x8 writes the rows"),
    ("mma.row_sum_16x8", unit(TILE, "R[0, vi] += C[1, vi, vj] * R[0, vi]", f"{ACCUMULATOR}\n{ROWS}", "j"),
     "reads R, into which it combines"),
    ("warp.sum_32", unit({"i": 32}, "L[0, vi] += L[1, vi]", LANES), "writes L, but warp.sum_32 writes one element of"),
    ("warp.map_32", unit({"i": 16}, "L[0, vi] = 0.0:float32", LANES), "the loops from i on are 16; warp.map_32 takes"),
    ("mma.load_a_16x16_f16", unit(SQUARE, "A[vi, vq] = x[vi, vq]", FACTOR.replace("[16, 16] in", "[16, 32] in")),
     "A is not made of tiles of 16 x 16"),
    ("mma.load_a_16x16_f16", unit(SQUARE, "A[vi, vq] = B[vi, vq]", f"{FACTOR}\nB: float16[16, 16] in fragment"),
     "reads a tile of B; mma.load_a_16x16_f16 takes its"),
    ("mma.load_a_16x16_f16", unit(SQUARE, "x2[vi, vq] = x[vi, vq]", f"{FACTOR}\noutput x2: float16[16, 16]"),
     "writes x2, but mma.load_a_16x16_f16 writes a tile"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "program", "why"), WRONG)
def test_what_no_unit_computes_is_refused(name: str, program: Program, why: str) -> None:
    refuses(applied(program, Blockize("i")), Tensorize("i", name), why)


PRODUCT = "A: float16[2, 16, 16] in fragment\nB: float16[16, 8] in fragment\nC: float32[16, 8] in fragment"
SUM = "C[vi, vj] += cast({}):float32 * cast({}):float32"


@pytest.mark.parametrize(
    ("buffers", "left", "right", "why"),
    [
        (PRODUCT, "A[0, vi, vq]", "B[vq, vj]", None),
        (PRODUCT, "A[1, vi, vq]", "B[vq, vj]", None),
        (PRODUCT.replace("B: float16[16, 8] in fragment", "B: float16[16, 8] in shared"), "A[0, vi, vq]", "B[vq, vj]",
         "B is no fragment"),
        (PRODUCT, "A[0, vq, vi]", "B[vq, vj]", "A is stepped through by 1, 0, 16"),
        (PRODUCT.replace("[2, 16, 16]", "[16, 32]"), "A[vi, vq]", "B[vq, vj]", "A is stepped through by 32, 0, 1"),
        (PRODUCT.replace("[2, 16, 16]", "[32, 16]"), "A[vi + 8, vq]", "B[vq, vj]",
         "reaches into A where no tile begins"),
        (PRODUCT.replace("B: float16", "B: bfloat16"), "A[0, vi, vq]", "B[vq, vj]", "is not the one that"),
    ],
)  # fmt: skip
def test_a_product_takes_whole_tiles_of_fragments(buffers: str, left: str, right: str, why: str | None) -> None:
    program = unit({"i": 16, "j": 8, "q": 16}, SUM.format(left, right), buffers, "q")
    step = Tensorize("i", "mma.m16n8k16_f16f16f32")
    if why is None:
        applied(program, Blockize("i"), step)
    else:
        refuses(applied(program, Blockize("i")), step, why)


@pytest.mark.parametrize(("arch", "lacking"), [("sm_75", "+sm_80"), ("sm_80", ""), ("sm_90", ""), ("sm_100", "")])
def test_a_gpu_has_the_units_of_its_architecture_and_of_older_ones(arch: str, lacking: str) -> None:
    target = gpu_target(arch)
    for intrinsic in MMA:
        reason = intrinsic.lacking(target)
        assert (reason is not None) == (bool(lacking) and lacking in intrinsic.features[0])
        assert reason is None or lacking in reason


def test_a_cpu_has_no_units_of_warps() -> None:
    cpu = Target("cpu", "any", "x86_64-unknown-linux-gnu", "any", ("+avx512f",), 1, 512, 32, 1.0, 4, 1.0, 1.0, ())
    assert all(intrinsic.lacking(cpu) for intrinsic in MMA)
