"""Tests of which targets LLVM is said to know."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.codegen.llvm.known_target import refuse_unknown
from pipeline.errors import UserError
from pipeline.measurement.host import detect_host
from tests.codegen.kernel_runs import described


def test_this_machine_and_the_targets_of_the_configuration_are_known() -> None:
    for target in (detect_host(), described("avx2"), described("aarch64")):
        refuse_unknown(target)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cpu": "z80"}, "'z80' is not a recognized processor"),
        ({"triple": "nowhere"}, "nowhere"),
        ({"features": ("-telepathy",)}, "'-telepathy' is not a recognized feature"),
        ({"features": ("sse2",)}, "should start with"),
    ],
)
def test_what_llvm_would_pass_over_or_abort_on_is_one_clear_error(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match="LLVM does not know the target") as caught:
        refuse_unknown(replace(detect_host(), **given))
    assert said in str(caught.value)
