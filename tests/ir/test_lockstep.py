"""Tests of which loops may run in lockstep: those whose iterations are independent, and no others."""

from __future__ import annotations

import pytest

from pipeline.ir.lockstep import lockstep_loops
from pipeline.ir.program import Loop, walk
from pipeline.ir.program_parse import from_text

CASES = {
    "tiles_that_touch": (
        """
        for i in serial(4):
            for j in serial(2):
                block b:
                    spatial v in range(8) = 2*i + j
                    y[v] = y[v] + 1.0:float32
        """, "i j"),
    "tiles_that_overlap": (
        """
        for i in serial(3):
            for j in serial(3):
                block b:
                    spatial v in range(8) = 2*i + j
                    y[v] = y[v] * 2.0:float32 + 1.0:float32
        """, "j"),
    "tiles_that_interleave": (
        """
        for i in serial(2):
            for j in serial(4):
                block b:
                    spatial v in range(8) = i + 2*j
                    y[v] = y[v] + 1.0:float32
        """, "j"),  # the strides tell that j differs, but only both together that i does
    "a_read_of_the_element_before": (
        """
        for i in serial(7):
            for j in serial(2):
                block b:
                    scan v in range(8) = i + 1
                    spatial w in range(2) = j
                    z[v, w] = z[v - 1, w]
        """, "j"),
    "a_combination_of_one_block": (
        """
        for i in serial(8):
            for j in serial(2):
                block b:
                    reduce v in range(8) = i
                    reduce w in range(2) = j
                    y[0] += z[v, w]
        """, "i j"),
    "a_combination_whose_order_an_inner_loop_would_change": (
        """
        for i in serial(2):
            for k in serial(7):
                block sum:
                    reduce v in range(7) = k
                    reduce w in range(2) = i
                    y[0] += z[v, w]
                block chain:
                    scan v in range(8) = k + 1
                    spatial w in range(2) = i
                    z[v, w] = z[v - 1, w] + 1.0:float32
        """, ""),
    "a_combination_that_another_block_reads": (
        """
        for i in serial(8):
            block sum:
                reduce v in range(8) = i
                y[0] += z[v, 0]
            block use:
                spatial v in range(8) = i
                z[v, 1] = y[0]
        """, ""),
    "scratch_that_every_iteration_has_for_itself": (
        """
        for i in serial(8):
            alloc t: float32[1] in local:
                block set:
                    spatial v in range(8) = i
                    t[0] = z[v, 0]
                block use:
                    spatial v in range(8) = i
                    z[v, 1] = t[0]
        """, "i"),
    "scratch_that_all_iterations_share": (
        """
        alloc t: float32[1] in local:
            for i in serial(8):
                block set:
                    spatial v in range(8) = i
                    t[0] = z[v, 0]
                block use:
                    spatial v in range(8) = i
                    z[v, 1] = t[0]
        """, ""),
    "registers_that_every_thread_has_for_itself": (
        """
        alloc t: float32[1] in local:
            for i in threadIdx.x(8):
                block set:
                    spatial v in range(8) = i
                    t[0] = z[v, 0]
                block use:
                    spatial v in range(8) = i
                    z[v, 1] = t[0]
        """, "i"),
    "a_scattered_store": (
        """
        for i in serial(8):
            block b:
                spatial v in range(8) = i
                y[p[v]] = z[v, 0]
        """, ""),
    "a_scattered_combination": (
        """
        for i in serial(8):
            block b:
                reduce v in range(8) = i
                y[p[v]] += z[v, 0]
        """, "i"),
    "a_fused_loop_of_tiles": (
        """
        for i, j in serial(4, 2):
            block b:
                spatial v in range(8) = 2*i + j
                y[v] = y[v] + 1.0:float32
        """, "i"),
    "a_fused_loop_in_the_other_order": (
        """
        for j, i in serial(2, 4):
            block b:
                spatial v in range(8) = 2*i + j
                y[v] = y[v] + 1.0:float32
        """, ""),
    "a_grid_around_threads": (
        """
        for i in blockIdx.x(4):
            for j in threadIdx.x(2):
                block b:
                    spatial v in range(8) = 2*i + j
                    y[v] = 1.0:float32
        """, "j"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_loops_in_lockstep_with(name: str) -> None:
    lines, expected = CASES[name]
    declared = "    input p: int64[8]\n    output y: float32[8]\n    output z: float32[8, 2]\n"
    program = from_text(f"program p():\n{declared}    body:\n{lines}")
    found = lockstep_loops(program)
    names = [stmt.axes[0].var for stmt in walk(program.body) if isinstance(stmt, Loop) and id(stmt) in found]
    assert " ".join(names) == expected
