"""Tests of how fragments may be used: by units, in nests of warps, each tile a register."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.errors import CheckError
from pipeline.ir.program_check import check
from pipeline.ir.program_parse import from_text
from pipeline.ir.program_text import to_text
from pipeline.schedule.fragment_check import FRAGMENT_CHECKS, check_fragments
from tests.codegen.cuda.tensor_programs import FORMS, GEMM, Case, tensor_product
from tests.schedule.programs import matmul

FOLDER = Path(__file__).parent.parent / "codegen" / "cuda"
TEXT = to_text(GEMM)
ROWS = (FOLDER / "warp_rows.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["tensor_gemm", "tensor_attention", "warp_rows", "simt_gemm"])
def test_programs_of_warps_are_legal(name: str) -> None:
    program = from_text((FOLDER / f"{name}.txt").read_text(encoding="utf-8"))
    check(program)
    check_fragments(program)


@pytest.mark.parametrize("form", FORMS)
def test_products_of_all_kinds_of_numbers_are_legal(form: str) -> None:
    check_fragments(tensor_product(Case(form)))


def test_a_program_without_fragments_is_legal() -> None:
    check_fragments(matmul())


def without(unit: str, text: str = TEXT) -> str:
    """The text in which one unit is an ordinary nest."""
    assert f', tensorize="{unit}"' in text
    return text.replace(f', tensorize="{unit}"', "")


def lines_inserted(after: str, new: str, text: str = TEXT) -> str:
    """A line put after the first one that holds `after`, at the same depth."""
    found = re.search(rf"^( *)[^\n]*{re.escape(after)}[^\n]*\n", text, re.MULTILINE)
    assert found is not None
    return text[: found.end()] + "".join(f"{found[1]}{line}\n" for line in new.splitlines()) + text[found.end() :]


WRONG = {
    "a block in no unit": (without("mma.map_16x8"), "block store touches the fragment Cf, but is in no unit"),
    "a fill in no unit": (without("mma.fill_16x8_f32"), "block zero touches the fragment Cf, but is in no unit"),
    "a unit of another name": (TEXT.replace("mma.fill_16x8_f32", "mma.map_rows_16"), "loop i0 is no mma.map_rows_16"),
    "a unit of one lane": (
        TEXT.replace("for wi2, wj2 in threadIdx.y(2, 2)", "for wi2, wj2 in threadIdx.x(2, 2)"),
        "the unit i3 (mma.map_16x8) is in no loop over threadIdx.y",
    ),
    "a unit inside lanes": (
        TEXT.replace("for m3 in unrolled(1)", "for m3 in threadIdx.x(1)"),
        "the unit i3 (mma.map_16x8) is in a loop over threadIdx.x",
    ),
    "a tile chosen by the warp": (
        TEXT.replace("spatial vn in range(2) = n3", "spatial vn in range(2) = wj2"),
        "block store chooses a tile of Cf by wj2, the variable of a threadIdx.y loop",
    ),
    "a tile chosen by a long loop": (
        re.sub(r"n3 in unrolled\(2\)", "n3 in serial(65)", TEXT),
        "block store chooses a tile of Cf by n3, the variable of a serial loop",
    ),
    "vectors among warps": (
        ROWS.replace("for k in serial(4)", "for k in vectorized(4)"),
        "loop k, in a nest of warps, is vectorized",
    ),
    "what one lane has": (
        ROWS.replace("total: float32[1] in fragment", "total: float32[1] in local"),
        "block clear, in a nest of warps, touches the local buffer total",
    ),
    "an element of a lane in no unit": (
        ROWS.replace("total[0] = 0.0:float32", "part[0] = 0.0:float32"),
        "block clear touches the fragment part, but is in no unit",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_other_uses_of_fragments_are_refused(name: str) -> None:
    text, why = WRONG[name]
    with pytest.raises(CheckError, match=re.escape(why)):
        check_fragments(from_text(text))


def test_every_check_says_what_it_is_about() -> None:
    names = [invariant.__name__ for invariant in FRAGMENT_CHECKS]
    assert len(set(names)) == len(names) >= 5
    with pytest.raises(CheckError, match="For fragments it has to hold that fragments are touched by units only"):
        check_fragments(from_text(without("mma.map_16x8")))
