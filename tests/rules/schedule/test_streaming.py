"""What rules ask about a machine's balance of arithmetic and memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rules.schedule.streaming import balance
from tests.search.spaces import TARGET


@pytest.mark.parametrize("noise", [0.8, 1.0, 1.25])
def test_a_peak_that_is_measured_a_little_faster_or_slower_changes_no_structure(noise: float) -> None:
    assert balance(replace(TARGET, bandwidth_gbs=noise * TARGET.bandwidth_gbs)) == 16.0


def test_a_machine_of_another_balance_has_another() -> None:
    assert balance(replace(TARGET, bandwidth_gbs=TARGET.peak_gflops() / 4)) == 4.0
    assert balance(replace(TARGET, bandwidth_gbs=2 * TARGET.peak_gflops())) == 1.0
