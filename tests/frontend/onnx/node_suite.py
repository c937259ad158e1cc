"""ONNX's own backend suite of single operators, run through the import and the reference evaluation."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper
from onnx.backend.test.case.node import collect_testcases

from pipeline.errors import ModelError
from pipeline.frontend.onnx.model import graph_of
from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import Graph, Input

# Results in halves are compared to a unit in the last place or so: their rounding order is not part of the definition.
HALF_TOLERANCE = {"float16": (1e-2, 4e-3), "bfloat16": (1e-2, 4e-3)}

SCALE_TOLERANCE = 2e-7


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one case. operator is what the case is about, with a mark on the expanded form."""

    case: str
    operator: str
    kind: Literal["right", "refused", "wrong"]
    why: str = ""


@functools.cache
def outcomes() -> tuple[Outcome, ...]:
    """All cases, in the order of the suite; an exception that is not a ModelError is not caught."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the suite computes infinities on purpose
        cases = collect_testcases(None)
    subjects = {case.name: case.model.graph.node[0].op_type for case in cases if len(case.model.graph.node) == 1}
    return tuple(outcome for case in cases for outcome in run_case(case, subject_of(case, subjects)))


def subject_of(case: Any, subjects: Mapping[str, str]) -> str:
    base = case.name.partition("_expanded")[0]
    if "_expanded" in case.name and base in subjects:
        return f"{subjects[base]} expanded"
    return subjects.get(case.name, "several")


def run_case(case: Any, operator: str) -> Iterator[Outcome]:
    for inputs, outputs in case.data_sets:
        names = [info.name for info in case.model.graph.input]
        feeds = {name: stored(value) for name, value in zip(names, inputs, strict=True)}
        try:
            graph = imported(case.model, feeds)
        except ModelError as error:
            yield Outcome(case.name, operator, "refused", str(error))
            continue
        expected = [stored(value) for value in outputs]
        wanted = feeds_of(graph, feeds)
        why = difference(graph, evaluate(graph, wanted, precision="native"), expected, case.rtol, case.atol)
        if "differs" in why:  # by rounding alone, if float64 agrees
            why = difference(graph, evaluate(graph, wanted), expected, case.rtol, case.atol)
        yield Outcome(case.name, operator, "wrong" if why else "right", why)


def stored(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def imported(model: ModelProto, feeds: Mapping[str, Any]) -> Graph:
    """As it is; where a shape depends on an input, with the inputs after the first, or all, known at import."""
    names = [info.name for info in model.graph.input]
    for known in ((), names[1:], names):
        try:
            return graph_of(with_constants(model, feeds, known), {}, "the model")
        except ModelError as error:
            if known is names or not any(f"{verb} on the data" in str(error) for verb in ("depend", "depends")):
                raise
    raise AssertionError("unreachable")


def feeds_of(graph: Graph, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
    names = [node.op.name for node in graph.nodes if isinstance(node.op, Input)]
    return {name: np.asarray(feeds[name]) for name in names}


def with_constants(model: ModelProto, feeds: Mapping[str, Any], names: Sequence[str]) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    for name in names:
        copy.graph.initializer.append(numpy_helper.from_array(np.asarray(feeds[name]), name))
    return copy


def difference(
    graph: Graph, results: Mapping[str, np.ndarray], expected: Sequence[Any], rtol: float, atol: float
) -> str:
    """In words, or "" where there is none."""
    for (name, value), wanted in zip(graph.outputs, map(np.asarray, expected), strict=True):
        result, kind = results[name], graph.nodes[value].type
        if kind.shape != wanted.shape or kind.dtype != wanted.dtype.name:
            return f"output {name} is {kind.dtype}{kind.shape}, not {wanted.dtype}{wanted.shape}"
        relative, absolute = HALF_TOLERANCE.get(wanted.dtype.name, (rtol, atol))
        left, right = result.astype(np.float64), wanted.astype(np.float64)
        # an element in which large terms cancel is as exact as the weights, which are in float32
        finite = np.abs(right[np.isfinite(right)])
        absolute = max(absolute, SCALE_TOLERANCE * float(finite.max(initial=0)))
        if not np.allclose(left, right, rtol=relative, atol=absolute, equal_nan=True):
            return f"output {name} differs by {np.nanmax(np.abs(left - right))}"
    return ""
