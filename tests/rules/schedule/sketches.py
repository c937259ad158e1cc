"""Small programs for the tests of schedule rules, and what a sketch of one must keep: its meaning and its trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_types import numpy_dtype
from pipeline.ir.interpret import interpret
from pipeline.ir.program import Block, Loop, Program, blocks, walk
from pipeline.ir.program_bounds import check_bounds
from pipeline.ir.program_check import check
from pipeline.ir.program_text import to_text
from pipeline.ir.target import Target
from pipeline.schedule.rule import Rule
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.space import ParameterSpace
from pipeline.schedule.trace import from_json, replay, to_json
from pipeline.space.generate import generate
from pipeline.space.lower import lower
from tests.search.spaces import TARGET

GOLDEN = Path(__file__).parent / "golden"


def lowered(graph: Graph, *constants: str) -> Program:
    """The program that the rules get to see."""
    return lower(graph, "p", constants)


def product(n: int = 9, m: int = 13, k: int = 5, *, bias: bool = False, gelu: bool = False) -> Graph:
    """a (n, k) times b (k, m), with what often follows."""
    g = GraphBuilder()
    c = g.matmul(g.input("a", (n, k), "float32"), g.input("b", (k, m), "float32"))
    if bias:
        c = g.elementwise("add", c, g.broadcast(g.input("bias", (m,), "float32"), (n, m)))
    return g.finish([("c", g.gelu(c) if gelu else c)])


def convolution(ci: int = 3, co: int = 5, size: int = 7, window: int = 3, stride: int = 1, groups: int = 1) -> Graph:
    """A convolution in two dimensions over a padded image."""
    g = GraphBuilder()
    x = g.input("x", (1, ci, size, size), "float32")
    w = g.input("w", (co, ci // groups, window, window), "float32")
    low = [window // 2] * 2
    y = g.conv(x, w, strides=[stride] * 2, pads_low=low, pads_high=low, dilations=[1, 1], groups=groups)
    return g.finish([("y", y)])


def softmax(rows: int = 5, columns: int = 17) -> Graph:
    """One softmax over the last axis."""
    g = GraphBuilder()
    return g.finish([("y", g.softmax(g.input("x", (rows, columns), "float32"), 1))])


def layer_norm(rows: int = 5, columns: int = 17) -> Graph:
    """One normalisation over the last axis, with scale and shift."""
    g = GraphBuilder()
    x = g.input("x", (rows, columns), "float32")
    gamma, beta = g.input("gamma", (columns,), "float32"), g.input("beta", (columns,), "float32")
    return g.finish([("y", g.layer_norm(x, [1], gamma, beta, 1e-5))])


def sum_over(axis: int, rows: int = 6, columns: int = 11, kind: str = "sum") -> Graph:
    """A matrix summed over one axis."""
    g = GraphBuilder()
    return g.finish([("y", g.reduce(kind, g.input("x", (rows, columns), "float32"), [axis]))])


def elementwise(rows: int = 6, columns: int = 11, fn: str = "tanh") -> Graph:
    """A function of each element, then a product with another tensor."""
    g = GraphBuilder()
    x, y = g.input("x", (rows, columns), "float32"), g.input("y", (rows, columns), "float32")
    return g.finish([("z", g.elementwise("mul", g.elementwise(fn, x), y))])


def transposed(rows: int = 6, columns: int = 11) -> Graph:
    """A copy with its axes exchanged."""
    g = GraphBuilder()
    return g.finish([("y", g.transpose(g.input("x", (rows, columns), "float32"), [1, 0]))])


def through(rule: Rule, program: Program, target: Target = TARGET) -> tuple[Sketch, ...]:
    """What one rule alone makes of a program."""
    return generate(program, [rule], target)


def says_nothing(rule: Rule, program: Program, target: Target = TARGET) -> bool:
    """Does the rule leave every block of the program as it is?"""
    return all(rule.apply(Sketch(program), block.name, target) == [] for block in blocks(program))


def feeds(program: Program, seed: int) -> dict[str, np.ndarray]:
    """Small whole numbers of every dtype: sums and products of them are exact, in any order."""
    rng = np.random.default_rng(seed)
    return {
        buffer.name: rng.integers(-3, 4, tuple(extent.value for extent in buffer.shape)).astype(
            numpy_dtype(buffer.dtype)
        )
        for buffer in program.buffers
        if buffer.role in ("input", "constant")
    }


def keeps(program: Program, sketch: Sketch, samples: int = 4, seed: int = 0) -> None:
    """At random values the sketch computes what the program computes, within its bounds; its trace replays."""
    check(sketch.program)
    given = feeds(program, seed)
    wanted = interpret(program, given, precision="float64")
    space = ParameterSpace.of(sketch)
    for row in space.unique(space.draw(samples if space.columns else 1, np.random.default_rng(seed))):
        concrete = sketch.candidate(space.values(row))
        check(concrete)
        check_bounds(concrete)
        found = interpret(concrete, given, precision="float64")
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-9, atol=1e-12, err_msg=f"{name} at {row}")
    again = replay(program, from_json(to_json(sketch.trace)))
    assert to_text(again.program) == to_text(sketch.program)
    assert (again.variables, again.constraints) == (sketch.variables, sketch.constraints)


def golden(program: Program, name: str) -> None:
    """The program's text is the one that was read and agreed upon."""
    assert to_text(program) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def kinds(program: Program, block: str) -> list[str]:
    """The kinds of the loops around a block, outermost first; those of one iteration left out."""
    return [kind for loop, kind in _around(program, block)]


def loops(program: Program, block: str) -> list[str]:
    """The names of the loops around a block, outermost first."""
    return [loop for loop, _ in _around(program, block)]


def _around(program: Program, block: str) -> list[tuple[str, str]]:
    found = []
    for stmt in (*walk(program.body), *walk(program.prologue)):
        if isinstance(stmt, Loop) and any(isinstance(s, Block) and s.name == block for s in walk(stmt.body)):
            found += [(axis.var, stmt.kind) for axis in stmt.axes if str(axis.extent) != "1"]
    return found
