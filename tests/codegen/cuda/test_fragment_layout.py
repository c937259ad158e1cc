"""Tests of how fragments lie in registers: by the formulas of the PTX manual, and as units want them."""

from __future__ import annotations

from collections import Counter

import pytest

from pipeline.codegen.cuda.fragment_layout import (
    GROUP,
    LANE,
    PLACE,
    Layout,
    fragment_layouts,
    load_layout,
    product_layout,
)
from pipeline.errors import CodegenError
from pipeline.ir.expr import Const, Expr, Var, add, affine, mul, substitute
from pipeline.ir.program import Program
from pipeline.ir.program_parse import from_text
from pipeline.ir.program_text import to_text
from pipeline.schedule.intrinsics import MMA
from tests.codegen.cuda.tensor_programs import FORMS, GEMM, Case, tensor_product

PRODUCTS = [unit.name for unit in MMA if unit.kind == "product"]
LAYOUTS = [product_layout(name, operand) for name in PRODUCTS for operand in "ABC"]
LAYOUTS += [Layout("rows", "float32"), Layout("lanes", "float32"), Layout("one", "int32")]


def value(expr: Expr, lane: int) -> int:
    given = {LANE: lane, GROUP: lane // 4, PLACE: lane % 4}
    form = affine(substitute(expr, {name: Const(number) for name, number in given.items()}))
    assert form is not None and not form.terms
    return form.constant.value


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_element_of_a_tile_is_held_by_as_many_lanes_as_any_other(layout: Layout) -> None:
    held = Counter(tuple(value(index, lane) for index in place) for lane in range(32) for _, place in layout.elements())
    count = 1
    for extent in layout.shape:
        count *= extent
    assert len(held) == count
    assert len(set(held.values())) == 1
    assert all(0 <= n < extent for place in held for n, extent in zip(place, layout.shape, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_slot_of_an_element_is_where_it_is(layout: Layout) -> None:
    slots = [(slot, place) for slot, place in layout.elements()]
    assert [layout.slot(place) for _, place in slots] == [slot for slot, _ in slots]
    assert len(slots) == layout.registers * layout.per


# "groupID = %laneid >> 2, threadID_in_group = %laneid % 4": row and column of element i, of the sections on
# mma.m16n8k16 (.f16, .bf16), mma.m16n8k8 (.f16; .tf32) and mma.m16n8k32 (.s8)
MANUAL = {
    ("mma.m16n8k16_f16f16f32", "A"): lambda g, t, i: (
        g if i < 2 or 4 <= i < 6 else g + 8, t * 2 + (i & 1) + (0 if i < 4 else 8)),
    ("mma.m16n8k16_f16f16f32", "B"): lambda g, t, i: (t * 2 + (i & 1) + (0 if i < 2 else 8), g),
    ("mma.m16n8k16_f16f16f32", "C"): lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    ("mma.m16n8k16_f16f16f16", "C"): lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    ("mma.m16n8k8_f16f16f32", "A"): lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    ("mma.m16n8k8_f16f16f32", "B"): lambda g, t, i: (t * 2 + i, g),
    ("mma.m16n8k8_tf32", "A"): lambda g, t, i: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4),
    ("mma.m16n8k8_tf32", "B"): lambda g, t, i: (t if i == 0 else t + 4, g),
    ("mma.m16n8k32_s8s8s32", "A"): lambda g, t, i: (
        g if i < 4 or 8 <= i < 12 else g + 8, t * 4 + (i & 3) + (0 if i < 8 else 16)),
    ("mma.m16n8k32_s8s8s32", "B"): lambda g, t, i: (t * 4 + (i & 3) + (0 if i < 4 else 16), g),
    ("mma.m16n8k32_s8s8s32", "C"): lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
}  # fmt: skip


@pytest.mark.parametrize(("unit", "operand"), MANUAL)
def test_elements_lie_where_the_manual_says(unit: str, operand: str) -> None:
    layout = product_layout(unit, operand)
    for lane in range(32):
        found = [tuple(value(index, lane) for index in place) for _, place in layout.elements()]
        assert found == [MANUAL[unit, operand](lane >> 2, lane % 4, i) for i in range(len(found))]


def test_an_element_that_another_lane_holds_has_no_slot() -> None:
    accumulator, left = Layout("accumulator", "float32"), product_layout("mma.m16n8k8_tf32", "A")
    row, columns = Var(GROUP), add(mul(Var(PLACE), Const(2)), Const(1))
    assert accumulator.slot((row, columns)) is not None
    assert accumulator.slot((columns, row)) is None
    assert accumulator.slot((row, Var(PLACE))) is None
    assert accumulator.slot((add(row, Const(4)), columns)) is None
    assert left.slot((row, columns)) is None
    assert Layout("rows", "float32").slot((Var(PLACE),)) is None
    assert Layout("lanes", "float32").slot((row,)) is None


def test_a_left_factor_of_halves_holds_two_accumulators_where_they_lie() -> None:
    left = product_layout("mma.m16n8k16_f16f16f32", "A")
    for half in range(2):
        for slot, (row, column) in Layout("accumulator", "float32").elements():
            found = left.slot((row, add(column, Const(8 * half))))
            assert isinstance(slot.register, Const) and found is not None
            assert (found.register, found.part) == (Const(slot.register.value // 2 + 2 * half), slot.register.value % 2)


def test_the_units_of_a_product_say_how_its_fragments_lie() -> None:
    for name, form in FORMS.items():
        program = tensor_product(Case(name))
        found = fragment_layouts(program.body, {buffer.name: buffer for buffer in program.buffers})
        assert found == {fragment: product_layout(form.product, operand)
                         for fragment, operand in (("Af", "A"), ("Bf", "B"), ("Cf", "C"))}  # fmt: skip
    assert load_layout("mma.load_b_32x8_s8") == Layout("right", "int8", 2)


def layouts(program: Program) -> dict[str, Layout]:
    return fragment_layouts(program.body, {buffer.name: buffer for buffer in program.buffers})


def test_two_units_that_want_a_fragment_in_two_ways_are_refused() -> None:
    text = to_text(GEMM)
    text = text.replace("mma.load_b_16x8_f16", "mma.load_a_16x8_f16").replace("_trans", "")
    with pytest.raises(CodegenError, match=r"the fragment Bf cannot lie as two units want it.*a left factor"):
        layouts(from_text(text))


def test_a_nest_that_is_another_unit_is_refused() -> None:
    text = to_text(GEMM).replace("mma.m16n8k16_f16f16f32", "mma.m16n8k16_bf16bf16f32")
    with pytest.raises(CodegenError, match=r"loop i2 is not what mma.m16n8k16_bf16bf16f32 computes"):
        layouts(from_text(text))
    with pytest.raises(CodegenError, match=r"a warp has no unit mma.none.*Its units are mma.m16n8k16_f16f16f32"):
        layouts(from_text(to_text(GEMM).replace("mma.m16n8k16_f16f16f32", "mma.none")))
