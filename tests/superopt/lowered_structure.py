"""What any µGraph computes once it is lowered, beside what it computes by its own interpreter, both in float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from pipeline.ir.algebra import FloatAlgebra
from pipeline.ir.graph import AffineDim, Shape
from pipeline.ir.interpret import interpret
from pipeline.ir.program_bounds import check_bounds
from pipeline.ir.program_check import check
from pipeline.schedule.sketch import Sketch
from pipeline.search.candidates import SketchSpace
from pipeline.space.generate import generate
from pipeline.superopt.lowering.lower import lower_mugraph
from pipeline.superopt.mugraph.graph import Axis, BlockGraph, MuGraph
from pipeline.superopt.mugraph.interpret import run_mugraph
from pipeline.superopt.mugraph.shapes import shapes
from pipeline.superopt.spec import Labels, Number, Spec, SpecInput, SpecNode
from tests.codegen.kernel_runs import cpu_rules, native, run_program


def with_extents(graph: MuGraph, extents: Mapping[str, int | None]) -> MuGraph:
    """The µGraph with these extents of its axes, by name; what is not named becomes a parameter."""
    nodes = []
    for node in graph.nodes:
        if isinstance(node.op, BlockGraph):
            grid, loops = (
                tuple(Axis(one.name, extents.get(one.name)) for one in axes) for axes in (node.op.grid, node.op.loops)
            )
            node = replace(node, op=replace(node.op, grid=grid, loops=loops))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def outline(graph: MuGraph, inputs: Mapping[str, Shape], extents: Mapping[str, int] | None = None) -> Spec:
    """A specification with the inputs and the output of the µGraph, a label for each dimension. It says nothing about
    what is computed: lowering does not ask."""
    sizes: list[int] = []

    def labels(shape: Shape) -> Labels:
        sizes.extend(shape)
        return tuple(range(len(sizes) - len(shape), len(sizes)))

    def access(own: Labels) -> tuple[AffineDim, ...]:
        return tuple(AffineDim(((label, 1),)) for label in own)

    found = []
    for name in graph.inputs:
        own = labels(inputs[name])
        found.append(SpecInput(name, own, "float32", inputs[name], access(own)))
    shape = shapes(graph, inputs, extents).tensors[graph.outputs[0]]
    own = labels(shape)
    return Spec(tuple(sizes), tuple(found), (SpecNode(Number(0.0), (), own),), len(found), shape, access(own))


def feeds_of(inputs: Mapping[str, Shape], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in inputs.items()}


def lowered(graph: MuGraph, inputs: Mapping[str, Shape], extents: Mapping[str, int] | None = None) -> Sketch:
    sketch = lower_mugraph(outline(graph, inputs, extents), graph, "p", list(graph.inputs), native())
    check(sketch.program)
    return sketch


def assert_kept(
    graph: MuGraph, inputs: Mapping[str, Shape], *, rules: bool = False, compiled: bool = False, seed: int = 0
) -> None:
    """The lowered µGraph, all of whose extents are fixed, computes what the µGraph does, and so does what the rules
    make of it."""
    feeds = feeds_of(inputs, seed)
    wide = {name: array.astype(np.float64) for name, array in feeds.items()}
    (want,) = run_mugraph(graph, wide, FloatAlgebra())
    start = lowered(graph, inputs)
    made = [start, *generate(start, cpu_rules(), native())] if rules or compiled else [start]
    for number, sketch in enumerate(made):
        space = SketchSpace(number, sketch, native())
        for row in space.draw(1, np.random.default_rng(seed)):
            program = space.program(row)
            check(program)
            check_bounds(program)
            np.testing.assert_allclose(interpret(program, feeds, precision="float64")["out0"], want, 1e-9, 1e-9)
            if compiled and number:
                size = np.abs(want[np.isfinite(want)]).max(initial=1.0)
                np.testing.assert_allclose(run_program(program, feeds, native())["out0"], want, 1e-3, 1e-3 * size)
