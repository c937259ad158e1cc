"""The text of a specification says each axis, where each tensor lies, and what is computed."""

from __future__ import annotations

from dataclasses import replace

from pipeline.ir.graph import AffineDim
from pipeline.superopt.label import specify
from pipeline.superopt.spec import Spec
from pipeline.superopt.spec_text import to_text
from tests.superopt.stage_cases import normalised

TEXT = """
axes a: 16, b: 48, c: 64
x[ac] = tensor 0 at [a, c] of float32[16, 64]
w[bc] = tensor 1 at [c, b] of float32[64, 48]
v2[ac] = mul(x[ac], x[ac])
v3[a] = sum over c of v2[ac]
v5[a] = mul(v3[a], 0.015625)
v6[a] = rsqrt(v5[a])
v7[ac] = mul(x[ac], v6[a])
v8[ab] = sum over c of v7[ac] * w[bc]
return v8[ab] at [a, b] of [16, 48]
"""


def test_the_text_is_what_one_would_write() -> None:
    made = specify(normalised())
    assert isinstance(made, Spec)
    assert to_text(made) == TEXT.strip()


def test_an_index_of_several_axes_and_an_offset_is_a_sum() -> None:
    made = specify(normalised())
    assert isinstance(made, Spec)
    access = (AffineDim(((0, 64), (2, 1)), 5), AffineDim(()))
    moved = replace(made, inputs=(replace(made.inputs[0], access=access), made.inputs[1]))
    assert "x[ac] = tensor 0 at [64*a + c + 5, 0] of" in to_text(moved)
