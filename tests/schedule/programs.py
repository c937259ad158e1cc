"""Small programs as lowering makes them, for the tests of steps; sizes are arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import StepError
from pipeline.ir.interpret import interpret
from pipeline.ir.program import Program
from pipeline.ir.program_bounds import check_bounds
from pipeline.ir.program_check import check
from pipeline.ir.program_parse import from_text
from pipeline.ir.program_text import to_text
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.space import ParameterSpace
from pipeline.schedule.steps import Step


def matmul(m: int = 10, n: int = 13, k: int = 7) -> Program:
    """C = A @ B, alone."""
    return from_text(f"""program matmul():
    input A: float32[{m}, {k}]
    constant B: float32[{k}, {n}]
    output C: float32[{m}, {n}]
    body:
        for mm_m in serial({m}):
            for mm_n in serial({n}):
                for mm_k in serial({k}):
                    block mm:
                        spatial m in range({m}) = mm_m
                        spatial n in range({n}) = mm_n
                        reduce k in range({k}) = mm_k
                        init 0.0:float32
                        C[m, n] += A[m, k] * B[k, n]
""")


def feed_forward(m: int = 10, n: int = 13, k: int = 7) -> Program:
    """C = transpose(relu-like(A @ B + b)) + R, one block for each operation."""
    return from_text(f"""program feed_forward():
    input A: float32[{m}, {k}]
    constant B: float32[{k}, {n}]
    constant b: float32[{n}]
    input R: float32[{m}, {n}]
    intermediate T: float32[{m}, {n}]
    intermediate U: float32[{m}, {n}]
    intermediate V: float32[{m}, {n}]
    output C: float32[{n}, {m}]
    body:
        for mm_m in serial({m}):
            for mm_n in serial({n}):
                for mm_k in serial({k}):
                    block mm:
                        spatial m in range({m}) = mm_m
                        spatial n in range({n}) = mm_n
                        reduce k in range({k}) = mm_k
                        init 0.0:float32
                        T[m, n] += A[m, k] * B[k, n]
        for bias_i in serial({m}):
            for bias_j in serial({n}):
                block bias:
                    spatial i in range({m}) = bias_i
                    spatial j in range({n}) = bias_j
                    U[i, j] = T[i, j] + b[j]
        for act_i in serial({m}):
            for act_j in serial({n}):
                block act:
                    spatial i in range({m}) = act_i
                    spatial j in range({n}) = act_j
                    V[i, j] = U[i, j] * max(U[i, j], 0.0:float32)
        for out_i in serial({n}):
            for out_j in serial({m}):
                block out:
                    spatial i in range({n}) = out_i
                    spatial j in range({m}) = out_j
                    C[i, j] = V[j, i] + R[j, i]
""")


def convolution(h: int = 7, w: int = 5, c: int = 3, f: int = 4, r: int = 3, stride: int = 1) -> Program:
    """Y = relu(conv(pad(X), W)) along two dimensions, padding r // 2."""
    pad = r // 2
    oh, ow = (h + 2 * pad - r) // stride + 1, (w + 2 * pad - r) // stride + 1
    return from_text(f"""program convolution():
    input X: float32[{h}, {w}, {c}]
    constant W: float32[{f}, {r}, {r}, {c}]
    intermediate P: float32[{h + 2 * pad}, {w + 2 * pad}, {c}]
    intermediate T: float32[{oh}, {ow}, {f}]
    output Y: float32[{oh}, {ow}, {f}]
    body:
        for pad_h in serial({h + 2 * pad}):
            for pad_w in serial({w + 2 * pad}):
                for pad_c in serial({c}):
                    block pad:
                        spatial h in range({h + 2 * pad}) = pad_h
                        spatial w in range({w + 2 * pad}) = pad_w
                        spatial c in range({c}) = pad_c
                        P[h, w, c] = guard(h >= {pad} and h < {h + pad} and w >= {pad} and w < {w + pad}, X[h - {pad}, w - {pad}, c], 0.0:float32)
        for conv_h in serial({oh}):
            for conv_w in serial({ow}):
                for conv_f in serial({f}):
                    for conv_r in serial({r}):
                        for conv_s in serial({r}):
                            for conv_c in serial({c}):
                                block conv:
                                    spatial h in range({oh}) = conv_h
                                    spatial w in range({ow}) = conv_w
                                    spatial f in range({f}) = conv_f
                                    reduce r in range({r}) = conv_r
                                    reduce s in range({r}) = conv_s
                                    reduce c in range({c}) = conv_c
                                    init 0.0:float32
                                    T[h, w, f] += P[h * {stride} + r, w * {stride} + s, c] * W[f, r, s, c]
        for relu_h in serial({oh}):
            for relu_w in serial({ow}):
                for relu_f in serial({f}):
                    block relu:
                        spatial h in range({oh}) = relu_h
                        spatial w in range({ow}) = relu_w
                        spatial f in range({f}) = relu_f
                        Y[h, w, f] = max(T[h, w, f], 0.0:float32)
""")  # noqa: E501 (a statement of program text is one line)


def normalise(m: int = 6, n: int = 11) -> Program:
    """Y = (X - max) ** 2 / (1 + sum of those) along rows: a softmax whose values are exact."""
    return from_text(f"""program normalise():
    input X: float32[{m}, {n}]
    intermediate M: float32[{m}]
    intermediate E: float32[{m}, {n}]
    intermediate S: float32[{m}]
    output Y: float32[{m}, {n}]
    body:
        for top_i in serial({m}):
            for top_j in serial({n}):
                block top:
                    spatial i in range({m}) = top_i
                    reduce j in range({n}) = top_j
                    init -inf:float32
                    M[i] max= X[i, j]
        for square_i in serial({m}):
            for square_j in serial({n}):
                block square:
                    spatial i in range({m}) = square_i
                    spatial j in range({n}) = square_j
                    E[i, j] = (X[i, j] - M[i]) * (X[i, j] - M[i])
        for total_i in serial({m}):
            for total_j in serial({n}):
                block total:
                    spatial i in range({m}) = total_i
                    reduce j in range({n}) = total_j
                    init 1.0:float32
                    S[i] += E[i, j]
        for out_i in serial({m}):
            for out_j in serial({n}):
                block out:
                    spatial i in range({m}) = out_i
                    spatial j in range({n}) = out_j
                    Y[i, j] = E[i, j] / S[i]
""")


def stencil(n: int = 17) -> Program:
    """Z = D[i] + D[i + 1] + D[i + 2], from D = 2 * X; also D itself, squared, beside it in one output of two parts."""
    return from_text(f"""program stencil():
    input X: float32[{n + 2}]
    intermediate D: float32[{n + 2}]
    intermediate Q: float32[{n}]
    output Z: float32[{2 * n + 2}]
    body:
        for double_i in serial({n + 2}):
            block double:
                spatial i in range({n + 2}) = double_i
                D[i] = X[i] * 2.0:float32
        for blur_i in serial({n}):
            block blur:
                spatial i in range({n}) = blur_i
                Q[i] = D[i] + D[i + 1] + D[i + 2]
        for first_i in serial({n}):
            block first:
                spatial i in range({n}) = first_i
                Z[i] = Q[i] + 1.0:float32
        for second_i in serial({n + 2}):
            block second:
                spatial i in range({n + 2}) = second_i
                Z[i + {n}] = D[i] * D[i]
""")


def running_sum(m: int = 4, n: int = 9) -> Program:
    """Y[i, j] = X[i, 0] + … + X[i, j]."""
    return from_text(f"""program running_sum():
    input X: float32[{m}, {n}]
    output Y: float32[{m}, {n}]
    body:
        for run_i in serial({m}):
            for run_j in serial({n}):
                block run:
                    spatial i in range({m}) = run_i
                    scan j in range({n}) = run_j
                    Y[i, j] = X[i, j] + guard(j >= 1, Y[i, j - 1], 0.0:float32)
""")


def whole_sum(m: int = 5, n: int = 6) -> Program:
    """Y = (X + 1) ** 2 / sum of X, through other shapes: a reduction without kept axes, and reshapes."""
    return from_text(f"""program whole_sum():
    input X: float32[{m}, {n}]
    intermediate S: float32[]
    intermediate F: float32[{m * n}]
    intermediate G: float32[{n}, {m}]
    output Y: float32[{m * n}]
    body:
        for sum_i in serial({m}):
            for sum_j in serial({n}):
                block sum:
                    reduce i in range({m}) = sum_i
                    reduce j in range({n}) = sum_j
                    init 100.0:float32
                    S[] += X[i, j]
        for flat_i in serial({m * n}):
            block flat:
                spatial i in range({m * n}) = flat_i
                F[i] = X[i // {n}, i % {n}] + 1.0:float32
        for turn_i in serial({n}):
            for turn_j in serial({m}):
                block turn:
                    spatial i in range({n}) = turn_i
                    spatial j in range({m}) = turn_j
                    G[i, j] = F[i * {m} + j] * F[j + i * {m}]
        for out_i in serial({m * n}):
            block out:
                spatial i in range({m * n}) = out_i
                Y[i] = G[i // {m}, i % {m}] / S[]
""")


def middle(m: int = 3, k: int = 7, n: int = 5) -> Program:
    """Y[i, 0, j] = max over k of X[i, k, j] + 1, with an axis of extent 1 that stays, and both halves side by side."""
    return from_text(f"""program middle():
    input X: float32[{m}, {k}, {n}]
    intermediate M: float32[{m}, 1, {n}]
    intermediate C: float32[{m}, {2 * n}]
    output Y: float32[{2 * n}, {m}]
    body:
        for top_i in serial({m}):
            for top_o in serial(1):
                for top_j in serial({n}):
                    for top_k in serial({k}):
                        block top:
                            spatial i in range({m}) = top_i
                            spatial o in range(1) = top_o
                            spatial j in range({n}) = top_j
                            reduce k in range({k}) = top_k
                            init -inf:float32
                            M[i, o, j] max= X[i, k, j]
        for left_i in serial({m}):
            for left_j in serial({n}):
                block left:
                    spatial i in range({m}) = left_i
                    spatial j in range({n}) = left_j
                    C[i, j] = M[i, 0, j] + 1.0:float32
        for right_i in serial({m}):
            for right_j in serial({n}):
                block right:
                    spatial i in range({m}) = right_i
                    spatial j in range({n}) = right_j
                    C[i, j + {n}] = M[i, 0, j] * 2.0:float32
        for out_i in serial({2 * n}):
            for out_j in serial({m}):
                block out:
                    spatial i in range({2 * n}) = out_i
                    spatial j in range({m}) = out_j
                    Y[i, j] = C[j, i] * C[j, i]
""")


ALL: dict[str, Callable[..., Program]] = {
    "matmul": matmul,
    "feed_forward": feed_forward,
    "convolution": convolution,
    "normalise": normalise,
    "stencil": stencil,
    "running_sum": running_sum,
    "whole_sum": whole_sum,
    "middle": middle,
}


def golden(program: Program, name: str) -> None:
    """The program's text is the one that was read and agreed upon, and parses back."""
    text = to_text(program)
    assert text == (Path(__file__).parent / "golden" / f"{name}.txt").read_text()
    assert from_text(text) == program


def refuses(program: Program, step: Step, why: str) -> None:
    """The step is not legal on the program, and says so."""
    reason = step.why_not(program)
    assert reason is not None, f"{step} is legal"
    assert why in reason, reason
    with pytest.raises(StepError, match="is not legal"):
        Sketch(program).apply(step)


def applied(program: Program, *steps: Step) -> Program:
    """The program after some steps, each of them legal."""
    sketch = Sketch(program)
    for step in steps:
        sketch = sketch.apply(step)
    return sketch.program


def feeds(program: Program, seed: int = 0) -> dict[str, np.ndarray]:
    """Small whole numbers: sums and products of them are exact, in any order."""
    rng = np.random.default_rng(seed)
    return {
        buffer.name: rng.integers(-3, 4, tuple(extent.value for extent in buffer.shape)).astype(np.float32)
        for buffer in program.buffers
        if buffer.role in ("input", "constant")
    }


def keeps_meaning(before: Program, sketch: Sketch | Program, samples: int = 4, seed: int = 0) -> None:
    """The program is legal, and at some values of its parameters computes what the other one computes."""
    sketch = sketch if isinstance(sketch, Sketch) else Sketch(sketch)
    check(sketch.program)
    given = feeds(before)
    wanted = interpret(before, given)
    space = ParameterSpace.of(sketch)
    for row in space.unique(space.draw(samples if space.columns else 1, np.random.default_rng(seed))):
        concrete = sketch.candidate(space.values(row))
        check(concrete)
        check_bounds(concrete)
        found = interpret(concrete, given)
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-6, atol=0, err_msg=f"{name} at {space.values(row)}")
