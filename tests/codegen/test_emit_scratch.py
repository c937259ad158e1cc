"""Scratch that lives through a serial loop: tiles that are read, changed and read again, at ragged ends too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.codegen.llvm.build import emit_kernel
from pipeline.codegen.llvm.compile import assembly
from pipeline.ir.interpret import interpret
from pipeline.ir.program import Program
from pipeline.ir.program_check import check
from pipeline.ir.program_parse import from_text
from tests.codegen.kernel_runs import avx512, described, native, run_program

LOWEST = float(np.finfo(np.float32).min)
ATTENTION = from_text((Path(__file__).parent / "attention_primes.txt").read_text(encoding="utf-8"))
"""softmax(Q K + mask) V for 2 heads, 5 queries and 19 keys of 3 and 7 dimensions, in tiles of 4 queries and 8 keys.

The maximum, the sum (4 partial ones) and the output of each query are carried from tile to tile of the keys.
"""

MASKED_LANES = """
program tail():
    input x: float32[{n}]
    output y: float32[16]
    body:
        alloc t: float32[16] in local:
            for a in vectorized(16):
                block fill:
                    spatial i in range(16) = a
                    t[i] = 1.0:float32
            for k in serial(3):
                for b in vectorized({extent}):
                    block grow:
                        spatial j in range({n}) = b
                        spatial i in range(16) = b
                        scan r in range(3) = k
                        t[i] = t[i] * x[j]
            for c in vectorized(16):
                block put:
                    spatial i in range(16) = c
                    y[i] = t[i]
"""


def attention_feeds(mask: np.ndarray) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    shapes = {"Q": (2, 5, 3), "K": (2, 3, 19), "V": (2, 19, 7)}
    return {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()} | {"mask": mask}


def attended(feeds: dict[str, np.ndarray]) -> np.ndarray:
    """What the program is to compute, in float64."""
    q, k, v, mask = (feeds[name].astype(np.float64) for name in ("Q", "K", "V", "mask"))
    scores = q @ k + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True) @ v)


MASKS = {
    "nothing": np.zeros(19),
    "some keys": np.where(np.arange(19) % 3 == 0, -np.inf, 0.0),
    "the first tile": np.where(np.arange(19) < 8, -np.inf, 0.0),
    "the last tile": np.where(np.arange(19) >= 16, -np.inf, 0.0),
    "all, by the lowest number": np.full(19, LOWEST),
    "scores of hundreds": np.linspace(-300.0, 300.0, 19),
}


@pytest.mark.parametrize("name", MASKS)
def test_online_softmax_in_scratch_is_attention_at_primes(name: str) -> None:
    check(ATTENTION)
    given = attention_feeds(MASKS[name].astype(np.float32))
    wanted = attended(given)
    np.testing.assert_allclose(interpret(ATTENTION, given)["out"], wanted, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(run_program(ATTENTION, given, native())["out"], wanted, rtol=2e-5, atol=1e-6)


def test_a_row_that_is_masked_with_infinity_is_no_number_as_in_the_reference() -> None:
    given = attention_feeds(np.full(19, -np.inf, np.float32))
    with np.errstate(invalid="ignore"):
        assert np.isnan(attended(given)).all()
    assert np.isnan(run_program(ATTENTION, given, native())["out"]).all()


def masked_lanes(n: int, extent: int) -> Program:
    program = from_text(MASKED_LANES.format(n=n, extent=extent))
    check(program)
    return program


@pytest.mark.parametrize(("n", "extent"), [(5, 16), (5, 5), (13, 16), (16, 16), (7, 11)])
def test_the_lanes_of_a_tile_that_a_block_leaves_out_keep_their_values(n: int, extent: int) -> None:
    x = np.arange(2, n + 2, dtype=np.float32)
    wanted = np.ones(16, np.float32)
    wanted[:n] = x**3
    program = masked_lanes(n, extent)
    for found in (interpret(program, {"x": x})["y"], run_program(program, {"x": x}, native())["y"]):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("target", ["avx512", "avx2", "aarch64"])
def test_a_tile_with_lanes_that_are_left_out_stays_in_registers(target: str) -> None:
    machine = avx512() if target == "avx512" else described(target)
    code = assembly(emit_kernel(masked_lanes(13, 16), machine).text, machine)
    assert "rsp" not in code and "[sp" not in code
