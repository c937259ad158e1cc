"""What warps compute together: the source runs on this host and gives what the program means; the PTX has the units."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pipeline.codegen.cuda.build import emit_kernel
from pipeline.codegen.cuda.compile import compile_ptx, compile_source
from pipeline.codegen.cuda.execute import execute
from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.errors import CheckError, CodegenError
from pipeline.ir.interpret import interpret
from pipeline.ir.program import Program
from pipeline.ir.program_check import check
from pipeline.ir.program_parse import from_text
from pipeline.ir.program_text import to_text
from tests.codegen.cuda.gpu_runs import run_on_host
from tests.codegen.cuda.gpu_targets import gpu_target
from tests.codegen.cuda.tensor_programs import FORMS, GEMM, Case, feeds_of, tensor_product

FOLDER = Path(__file__).parent
runs = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")


def program(name: str) -> Program:
    return from_text((FOLDER / f"{name}.txt").read_text(encoding="utf-8"))


def emitted(which: Program, arch: str = "sm_80") -> str:
    check(which)
    return emit_kernel(which, gpu_target(arch)).source


def joined(source: str) -> str:
    """The text without its line breaks."""
    return " ".join(source.split())


def agrees(which: Program, arch: str = "sm_80", tolerance: float = 0.0) -> None:
    """The source compiles for the GPU, and gives on this host what the interpreter does."""
    check(which)
    feeds = feeds_of(which)
    found = run_on_host(which, feeds, gpu_target(arch), compiled=True)
    for name, want in interpret(which, feeds).items():
        wide = want.astype(np.float64)
        np.testing.assert_allclose(found[name].astype(np.float64), wide, rtol=0, atol=tolerance * np.abs(wide).max())


BIAS = "input bias: float32[{n}]\ninput old: float16[{m}, {n}]"
RELU = "cast(max({C} + bias[gj] + cast(old[gi, gj]):float32, 0.0:float32)):{out}"
CASES = [
    Case("f16"),
    Case("f16", m=50, n=38, k=40, left="km", right="nk", place="swizzled"),
    Case("f16", m=33, n=37, place="padded(8)", transposed=True),
    Case("f16", m=50, inputs=BIAS.format(m=50, n=64), epilogue=RELU, out="float16"),
    Case("bf16", k=32, right="nk", out="bfloat16"),
    Case("f16 of depth 8", m=40, left="km"),
    Case("f16 of depth 8", right="nk", place="swizzled"),
    Case("s8", right="nk", out="int32"),
    Case("s8", n=40, left="km", inputs="input scale: float32[40]", epilogue="cast({C}):float32 * scale[gj]"),
]


@runs
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_product_is_what_the_program_means(case: Case) -> None:
    agrees(tensor_product(case), FORMS[case.form].arch, 1e-6)


@runs
@pytest.mark.parametrize(("left", "right", "place"), [("mk", "nk", "swizzled"), ("km", "kn", "")])
def test_factors_of_float32_are_rounded_to_ten_bits(left: str, right: str, place: str) -> None:
    product = tensor_product(Case("tf32", left=left, right=right, place=place, k=32))
    agrees(product, tolerance=2e-3)
    with pytest.raises(AssertionError):
        agrees(product, tolerance=1e-5)


@runs
def test_sums_in_float16_are_less_exact() -> None:
    product = tensor_product(Case("f16 in f16", out="float16"))
    agrees(product, tolerance=1e-2)
    with pytest.raises(AssertionError):
        agrees(product, tolerance=1e-4)


@runs
def test_scores_become_factors_and_rows_are_reduced_in_registers() -> None:
    attention = program("tensor_attention")
    agrees(attention, tolerance=1e-3)
    source = joined(emitted(attention))
    assert "Pf[n8 * 2] = ms::pack<ms::f16>(Sf[n8][0], Sf[n8][1]);" in source
    assert source.count("ms::quad_max") == source.count("ms::quad_sum") == 2  # once for all tiles of a row
    assert "Qf[k0][0] = ms::load_word(Q, " in source


@runs
def test_the_lanes_of_a_warp_reduce_rows() -> None:
    agrees(program("warp_rows"), tolerance=1e-3)
    source = emitted(program("warp_rows"))
    assert "ms::warp_sum" in source and "ms::warp_max" in source


def test_neighbouring_fragments_are_loaded_by_one_instruction() -> None:
    source = joined(emitted(GEMM))
    assert re.search(r"ms::ldmatrix_x4\(Af\[0\], As, .*ms::swizzled<32, 2>\(lane % 16", source)
    assert "ms::ldmatrix_x4_trans(Bf[0], Bf[1], Bs, " in source


def test_neighbouring_elements_are_stored_and_read_together() -> None:
    case = Case("f16", inputs=BIAS.format(m=64, n=64), epilogue=RELU)
    source = joined(emitted(tensor_product(case)))
    assert "ms::store<2>(C, " in source and "C[" not in source
    assert "ms::load<2>(bias, " in source and "ms::load<2>(old, " in source
    odd = emitted(tensor_product(Case("f16", n=37)))
    assert "ms::store<2>(C, " not in odd
    turned = emitted(tensor_product(Case("f16", transposed=True)))
    assert "ms::store<2>(C, " not in turned


@runs
def test_lanes_exchange_halves_so_that_they_store_whole_sectors() -> None:
    case = Case("f16", m=50, inputs=BIAS.format(m=50, n=64), epilogue=RELU, out="float16")
    source = emit_kernel(tensor_product(case), gpu_target())
    text = joined(source.source)
    assert text.count("ms::store_exchanged(C, ") == 2 and "ms::store<2>" not in text and "C[" not in text
    (counts,) = execute(source, feeds_of(tensor_product(case))).counts
    assert counts.stores["C"].sector_use == 1.0
    for other in (Case("f16", out="float16", n=72), Case("f16", out="float16", transposed=True)):
        assert "ms::store_exchanged" not in emitted(tensor_product(other))


MMA = {
    "f16": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "bf16": "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    "f16 in f16": "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16",
    "f16 of depth 8": "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32",
    "tf32": "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
    "s8": "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32",
}
LOADS = {  # of left factors by rows and by columns, of right factors by columns and by rows
    "f16": ("x4.shared", "x4.trans.shared", "x4.shared", "x4.trans.shared"),
    "f16 of depth 8": ("x2.shared", "x2.trans.shared", "x2.shared", "x2.trans.shared"),
    "tf32": ("x4.shared", "", "x4.shared", ""),
    "s8": ("x4.shared", "", "x4.shared", ""),
}


@pytest.mark.parametrize("form", MMA)
def test_the_ptx_has_the_unit(form: str) -> None:
    ptx = compile_ptx(emitted(tensor_product(Case(form)), FORMS[form].arch), FORMS[form].arch)
    assert f"{MMA[form]} " in ptx
    assert ("cvt.rna.tf32.f32" in ptx) == (form == "tf32")


@pytest.mark.parametrize("form", LOADS)
def test_matrices_are_loaded_whole_where_their_rows_are_contiguous(form: str) -> None:
    arch = FORMS[form].arch
    for left, right in (("mk", "nk"), ("km", "kn")):
        ptx = compile_ptx(emitted(tensor_product(Case(form, left=left, right=right)), arch), arch)
        found = set(re.findall(r"ldmatrix\.sync\.aligned\.m8n8\.(\S+)\.b16", ptx))
        wanted = {LOADS[form][left == "km"], LOADS[form][2 + (right == "kn")]}
        assert found == wanted - {""}


@pytest.mark.parametrize(("registers", "tiles"), [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)])
@pytest.mark.parametrize("turned", ["", "_trans"])
def test_as_many_tiles_are_loaded_at_once_as_four_registers_hold(registers: int, tiles: int, turned: str) -> None:
    name = f"x{registers * tiles}"
    targets = ", ".join(f"r[{tile}]" for tile in range(tiles))
    ptx = compile_ptx(
        f"""#include "muschedule.cuh"
extern "C" MS_KERNEL(32) load(MS_OUT(unsigned) C) {{
    MS_SHARED(ms::f16, S, 0, 1024);
    unsigned r[{tiles}][{registers}];
    ms::ldmatrix_{name}{turned}({targets}, S, ms::lane() * 8);
    C[ms::lane()] = r[{tiles - 1}][{registers - 1}];
}}
""",
        "sm_75",
    )
    assert f"ldmatrix.sync.aligned.m8n8.{name}{turned.replace('_', '.')}.shared.b16" in ptx


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_every_architecture_has_its_units(arch: str) -> None:
    for form in FORMS.values():
        if int(form.arch[3:]) <= int(arch[3:]):
            name = next(name for name, other in FORMS.items() if other is form)
            source = emit_kernel(tensor_product(Case(name)), gpu_target(arch))
            (resources,) = compile_source(source.source, arch)[1].values()
            assert resources.spill_stores == resources.stack == 0


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("for wi2, wj2 in threadIdx.y(2, 2)", "for wi2, wj2 in threadIdx.x(2, 2)", "mma.map_16x8.* threadIdx.y"),
        ('tensorize="mma.map_16x8"', 'tensorize="mma.map_8x8"', "store touches the fragment Cf, but is in no unit"),
        (
            "Cf[vm, vn, vi, vj] = 0.0:float32",
            "Cf[vm, vn, vi, vj] = C[vi, vj]:float32",
            "loop i0 is no mma.fill_16x8_f32: block zero stores more than one",
        ),
        (', tensorize="mma.map_16x8"', "", "store touches the fragment Cf"),
    ],
)
def test_units_that_are_none_are_refused(old: str, new: str, why: str) -> None:
    text = to_text(GEMM)
    assert old in text
    with pytest.raises((CheckError, CodegenError), match=why):
        emit_kernel(from_text(text.replace(old, new)), gpu_target())


def clipped(*iterations: str) -> Program:
    """The product whose block has further iterations, that clip it."""
    text = to_text(GEMM)
    last = re.search(r"^( *)reduce vq in range\(16\) = q3\n", text, re.MULTILINE)
    assert last is not None
    return from_text(text[: last.end()] + "".join(f"{last[1]}{it}\n" for it in iterations) + text[last.end() :])


ROW = "spatial ci in range(90) = bi*32 + wi1*16 + m2*16 + i2"
COLUMN = "spatial cj in range(91) = bj*32 + wj1*16 + n2*8 + j2"
TERM = "reduce ck in range(53) = k0*32 + k1*16 + q3"
TILE = "reduce ct in range(3) = k0*2 + k1"


@runs
def test_points_of_a_product_that_conditions_leave_out_are_left_out() -> None:
    agrees(clipped(ROW, COLUMN, TERM, TILE), tolerance=1e-3)
    source = joined(emitted(clipped(ROW, TERM, TILE)))
    assert "if (k0 * 2 + k1 < 3) {" in source
    assert "Af_kept[0] = ms::pack<ms::f16>(k0 * 32 + k1 * 16 + lane % 4 * 2 < 53 ? " in source
    assert "ms::mma_m16n8k16_f16f16f32(total, Af_kept, Bf_kept);" in source
    assert "if (bi * 32 + lane / 4 + wi1 * 16 < 90) Cf[0][n2][0] = total[0];" in source


def test_conditions_on_single_terms_of_single_elements_are_refused() -> None:
    with pytest.raises(
        CodegenError, match=r"a condition leaves out single terms of mma.m16n8k16.*Fill what its factors"
    ):
        emit_kernel(clipped("reduce ck in range(20) = i2 + q3"), gpu_target())


CONVERSION = """
program conversion():
    input x: int8[16, 32]
    output y: int32[16, 8]
    body:
        for w in threadIdx.y(1):
            alloc P: int8[16, 32] in fragment:
                alloc B: int8[32, 8] in fragment:
                    alloc S: int32[4, 16, 8] in fragment:
                        seq:
                            for n in unrolled(4):
                                for i0 in serial(16) with blockize="i0", tensorize="mma.fill_16x8_s32":
                                    for j0 in serial(8) with blockize="i0":
                                        block zero:
                                            spatial vn in range(4) = n
                                            spatial vi in range(16) = i0
                                            spatial vj in range(8) = j0
                                            S[vn, vi, vj] = 0:int32
                            for m in unrolled(4):
                                for i1 in serial(16) with blockize="i1", tensorize="mma.map_16x8":
                                    for j1 in serial(8) with blockize="i1":
                                        block convert:
                                            spatial wn in range(4) = m
                                            spatial wi in range(16) = i1
                                            spatial wj in range(8) = j1
                                            spatial column in range(32) = m*8 + j1
                                            P[wi, column] = cast(S[wn, wi, wj]):int8
                            for i2 in serial(16) with blockize="i2", tensorize="mma.m16n8k32_s8s8s32":
                                for j2 in serial(8) with blockize="i2":
                                    for q2 in serial(32) with blockize="i2":
                                        block multiply:
                                            spatial ui in range(16) = i2
                                            spatial uj in range(8) = j2
                                            reduce uq in range(32) = q2
                                            S[0, ui, uj] += cast(P[ui, uq]):int32 * cast(B[uq, uj]):int32
"""


def test_accumulators_do_not_lie_as_factors_of_eight_bits_do() -> None:
    with pytest.raises(
        CodegenError, match=r"a lane needs an element of P that another lane holds.*a left factor \(16 x 32"
    ):
        emit_kernel(from_text(CONVERSION), gpu_target())
