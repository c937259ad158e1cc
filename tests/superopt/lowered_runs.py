"""Runs of lowered µGraphs, interpreted and compiled, and their comparison with the specification in float64."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pipeline.codegen.llvm.build import build_kernel
from pipeline.ir.graph_types import numpy_dtype
from pipeline.ir.interpret import interpret
from pipeline.ir.program import Program
from pipeline.ir.program_bounds import check_bounds
from pipeline.ir.program_check import check
from pipeline.ir.target import Target
from pipeline.schedule.sketch import Sketch
from pipeline.search.candidates import SketchSpace
from pipeline.space.generate import generate
from pipeline.space.lower import argument_name
from pipeline.superopt.lowering.lower import lower_mugraph
from pipeline.superopt.mugraph.check import check as check_mugraph
from pipeline.superopt.mugraph.graph import MuGraph
from pipeline.superopt.spec import Spec, SpecInput, spec_graph
from pipeline.verification.tolerance import Reference, evaluate_with_bound
from pipeline.verification.verdict import Verdict, compare
from tests.codegen.kernel_runs import cpu_rules, native, run_kernel
from tests.superopt.spec_agreement import addresses, seen

Feeds = Mapping[str, np.ndarray]
LINUX = sys.platform == "linux"  # there, inputs end where memory does


def names_of(spec: Spec) -> tuple[str, ...]:
    return tuple(tensor.name for tensor in spec.inputs)


def changed(spec: Spec, name: str, **values: object) -> Spec:
    """The specification with another access, shape, dtype or key of one input."""
    inputs = tuple(replace(one, **values) if one.name == name else one for one in spec.inputs)  # type: ignore[arg-type]
    return replace(spec, inputs=inputs)


def constants(spec: Spec, *names: str) -> Spec:
    """The specification with these inputs known at compile time."""
    for name in names:
        spec = changed(spec, name, key=name)
    return spec


def drawn(spec: Spec, arguments: Sequence[str] = (), seed: int = 0) -> dict[str, np.ndarray]:
    """Random tensors as they lie in memory, by the names of the arguments."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray] = {}
    for name, tensor in zip(arguments or names_of(spec), spec.inputs, strict=True):
        if name not in feeds:
            values = rng.normal(size=tensor.shape)
            feeds[name] = values > 0 if tensor.dtype == "bool" else values.astype(numpy_dtype(tensor.dtype))
    return feeds


def reference(spec: Spec, feeds: Feeds, arguments: Sequence[str] = ()) -> Reference:
    """The result by the definition, with the bound that rounding explains, over the labels of the output."""
    views = {
        tensor.name: seen(tensor, feeds[name], spec.extents)
        for name, tensor in zip(arguments or names_of(spec), spec.inputs, strict=True)
    }
    return evaluate_with_bound(spec_graph(spec), views)["out"]


def at_labels(spec: Spec, got: np.ndarray) -> np.ndarray:
    """A result in memory over the labels of the output."""
    return got[addresses(spec.store, spec.labels(spec.output), spec.extents)]


def sketches(spec: Spec, graph: MuGraph, target: Target, arguments: Sequence[str] = ()) -> tuple[Sketch, ...]:
    """The sketches that conf/rules/cpu.yaml makes of a µGraph."""
    check_mugraph(graph, {one.name: len(one.labels) for one in spec.inputs})
    start = lower_mugraph(spec, graph, "p", list(arguments or names_of(spec)), target)
    check(start.program)
    return generate(start, cpu_rules(), target)


def programs(
    spec: Spec, graph: MuGraph, target: Target, rows: int, arguments: Sequence[str] = (), seed: int = 0
) -> Iterator[tuple[str, Program]]:
    """Of each sketch some candidates, with what to call them."""
    rng = np.random.default_rng(seed)
    for number, sketch in enumerate(sketches(spec, graph, target, arguments)):
        space = SketchSpace(number, sketch, target)
        found = space.space.unique(space.draw(rows, rng))
        assert len(found), f"sketch {number} has no candidate"
        for row in found:
            program = space.program(row)
            check(program)
            check_bounds(program)
            yield f"sketch {number}, {dict(zip(space.space.columns, row.tolist(), strict=True))}", program


def judged(spec: Spec, want: Reference, got: np.ndarray) -> Verdict:
    return compare(at_labels(spec, got), want)


def assert_lowered(
    spec: Spec, graph: MuGraph, *, rows: int = 2, arguments: Sequence[str] = (), feeds: Feeds | None = None,
    target: Target | None = None, seed: int = 0, interpreted: bool = True, compiled: bool = True,
) -> int:  # fmt: skip
    """Every drawn candidate of every sketch is right, by the interpreter and compiled; how many there were."""
    feeds = drawn(spec, arguments, seed) if feeds is None else feeds
    want = reference(spec, feeds, arguments)
    given = {argument_name(name): array for name, array in feeds.items()}
    target = target or native()
    count = 0
    for what, program in programs(spec, graph, target, rows, arguments, seed):
        if interpreted:
            with np.errstate(all="ignore"):
                verdict = judged(spec, want, interpret(program, given)["out0"])
            assert verdict.ok, f"interpreted: {what}: {verdict.reason}"
        if compiled:
            kernel = build_kernel(program, target)
            verdict = judged(spec, want, run_kernel(kernel, given, target, page_ends=LINUX)["out0"])
            assert verdict.ok, f"compiled: {what}: {verdict.reason}"
        count += 1
    return count


def transposed(tensor: SpecInput) -> SpecInput:
    """The tensor stored with its last two dimensions exchanged."""
    *rest, a, b = tensor.access
    *outer, n, m = tensor.shape
    return replace(tensor, shape=(*outer, m, n), access=(*rest, b, a))
