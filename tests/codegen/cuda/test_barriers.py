"""Tests of barriers: one where a thread may touch what another wrote, none elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.codegen.cuda.build import emit_kernel
from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.ir.program import Program
from pipeline.ir.program_parse import from_text
from tests.codegen.cuda.gpu_runs import run_on_host
from tests.codegen.cuda.gpu_targets import gpu_target

HEAD = """
program p():
    input x: float32[8, 64]
    output y: float32[8, 64]
    body:
        for row in blockIdx.x(8):
            alloc s: float32[64] in shared:
                seq:
"""
FILL = """
                    for {t} in threadIdx.x(64):
                        block fill_{t}:
                            spatial r in range(8) = row
                            spatial c in range(64) = {t}
                            s[{to}] = x[r, c] * {factor}:float32
"""
READ = """
                    for {t} in threadIdx.x(64):
                        block read_{t}:
                            spatial r in range(8) = row
                            spatial c in range(64) = {t}
                            y[r, c] = {value}
"""
ADD = """
                    for {t} in threadIdx.x(64):
                        block add_{t}:
                            spatial r in range(8) = row
                            spatial c in range(64) = {t}
                            y[r, c] += {value}
"""


def program(*parts: str) -> Program:
    return from_text(HEAD + "".join(parts))


def meetings(program: Program) -> int:
    return emit_kernel(program, gpu_target()).source.count("ms::sync();")


def computed(program: Program) -> np.ndarray:
    x = np.arange(512, dtype=np.float32).reshape(8, 64)
    return run_on_host(program, {"x": x})["y"] - x


def fill(t: str, to: str = "c", factor: float = 1.0) -> str:
    return FILL.format(t=t, to=to, factor=factor)


def read(t: str, value: str = "s[c]") -> str:
    return READ.format(t=t, value=value)


def add(t: str, value: str = "s[c]") -> str:
    return ADD.format(t=t, value=value)


def test_a_thread_that_reads_what_it_wrote_itself_does_not_wait() -> None:
    p = program(fill("t"), read("u"))
    assert meetings(p) == 0
    assert not computed(p).any()


def test_a_thread_that_reads_what_another_wrote_waits() -> None:
    p = program(fill("t"), read("u", "s[63 - c]"))
    assert meetings(p) == 1
    assert computed(p)[0].tolist() == (63 - 2 * np.arange(64)).tolist()


def test_a_thread_that_writes_what_another_read_waits() -> None:
    p = program(fill("t"), read("u", "s[63 - c]"), fill("v", factor=2.0), add("w", "s[c]"))
    assert meetings(p) == 2
    x = np.arange(512, dtype=np.float32).reshape(8, 64)
    np.testing.assert_array_equal(computed(p), x[:, ::-1] + x)


def test_two_nests_that_read_wait_once() -> None:
    assert meetings(program(fill("t"), read("u", "s[63 - c]"), add("v", "s[mod(c + 1, 64)]"))) == 1


def test_nests_of_other_shapes_wait_although_they_touch_the_same_elements() -> None:
    reading = read("u").replace("for u in threadIdx.x(64)", "for u, v in threadIdx.x(8, 8)").replace("= u", "= u*8 + v")
    assert meetings(program(fill("t"), reading)) == 1


def test_what_the_end_of_a_loop_reads_its_beginning_waits_for() -> None:
    def inside(part: str) -> str:
        return "".join(f"        {line}\n" for line in part.splitlines() if line.strip())

    looped = "                    for k in serial(3):\n                        seq:\n"
    reading = add("u", "s[63 - c]").replace(
        "y[r, c] +=", "reduce z in range(3) = k\n                            y[r, c] +="
    )
    p = program(read("a", "0.0:float32"), looped, inside(fill("t")), inside(reading))
    assert meetings(p) == 2
    x = np.arange(512, dtype=np.float32).reshape(8, 64)
    np.testing.assert_array_equal(computed(p), 3 * x[:, ::-1] - x)


def test_one_thread_that_works_alone_is_waited_for() -> None:
    alone = """
                    block total:
                        spatial r in range(8) = row
                        s[0] = x[r, 0] * 2.0:float32
"""
    p = program(fill("t"), alone, read("u", "s[c]"))
    source = emit_kernel(p, gpu_target()).source
    assert source.count("ms::sync();") == 2 and "if (thread == 0)" in source
    assert not computed(p)[:, 1:].any()


def test_buffers_that_lie_in_one_place_at_different_times_are_waited_for() -> None:
    text = HEAD.replace("            alloc s: float32[64] in shared:\n                seq:\n", "            seq:\n")
    for name in ("s", "q"):
        part = fill(f"t{name}") + read(f"u{name}", "s[63 - c]" if name == "s" else "y[r, c] + s[63 - c]")
        text += f"                alloc {name}: float32[64] in shared:\n                    seq:\n"
        text += "".join(f"    {line}\n" for line in part.replace("s[", f"{name}[").splitlines() if line.strip())
    p = from_text(text)
    source = emit_kernel(p, gpu_target())
    assert source.launches[0].shared_bytes == 256 and source.source.count("ms::sync();") == 3
    assert computed(p).any()


@pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")
def test_without_its_barriers_the_machine_finds_a_race() -> None:
    p = program(fill("t"), read("u", "s[63 - c]"))
    assert computed(p) is not None
    with pytest.raises(AssertionError, match=r"race|unwritten"):
        run_on_host(p, {"x": np.zeros((8, 64), np.float32)}, without="ms::sync();")


WARPS = """
program p():
    input x: float32[8, {rows}, 32]
    output y: float32[8, {rows}, 32]
    body:
        for row in blockIdx.x(8):
            alloc s: float32[{rows}, 32] in shared:
                seq:
                    for w0 in threadIdx.y({rows}):
                        for l0 in threadIdx.x(32):
                            block fill:
                                spatial r in range(8) = row
                                spatial w in range({rows}) = w0
                                spatial c in range(32) = l0
                                s[w, c] = x[r, w, c]
                    for w1 in threadIdx.y({rows}):
                        for l1 in threadIdx.x(32):
                            block turn:
                                spatial r in range(8) = row
                                spatial w in range({rows}) = w1
                                spatial c in range(32) = l1
                                y[r, w, c] = s[{place}]
"""


@pytest.mark.parametrize(
    ("rows", "place", "meeting"),
    [
        (4, "w, 31 - c", "ms::sync_warp();"),
        (4, "3 - w, c", "ms::sync();"),
        (1, "w, 31 - c", "ms::sync_warp();"),
        (4, "w, c", None),
    ],
)
def test_lanes_of_one_warp_wait_for_one_another_alone(rows: int, place: str, meeting: str | None) -> None:
    p = from_text(WARPS.format(rows=rows, place=place))
    source = emit_kernel(p, gpu_target()).source
    assert [line.strip() for line in source.splitlines() if "ms::sync" in line] == ([meeting] if meeting else [])
    x = np.random.default_rng(0).standard_normal((8, rows, 32)).astype(np.float32)
    want = x[:, ::-1] if "3 - w" in place else x[:, :, ::-1] if "31" in place else x
    np.testing.assert_array_equal(run_on_host(p, {"x": x})["y"], want)


def test_a_thread_is_known_by_variables_that_together_decide_an_element() -> None:
    reading = read("u").replace("for u in threadIdx.x(64)", "for u, v in threadIdx.x(8, 8)").replace("= u", "= u*8 + v")
    filling = fill("t").replace("for t in threadIdx.x(64)", "for t, z in threadIdx.x(8, 8)").replace("= t", "= t*8 + z")
    assert meetings(program(filling, reading)) == 0
    turned = reading.replace("= u*8 + v", "= v*8 + u")
    assert meetings(program(filling, turned)) == 1
