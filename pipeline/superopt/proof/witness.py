"""The search for inputs on which floating point shows that a µGraph does not compute its specification."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.ir.algebra import FloatAlgebra
from pipeline.ir.graph import DType, Graph, TensorType
from pipeline.ir.graph_types import FLOATS, numpy_dtype
from pipeline.superopt.mugraph.graph import MuGraph
from pipeline.superopt.mugraph.interpret import run_mugraph
from pipeline.superopt.proof.proof import CounterExample, Witness
from pipeline.verification.graph_algebra import run_graph

CLEAR = 1e-6  # of the largest element of a result: what it must differ by
MAGNITUDES = (1.0, 0.1, 5.0, 30.0)
SMALLEST, LARGEST = 1e-290, 1e290  # beyond them float64 has lost digits, or is about to


@dataclass(frozen=True, slots=True)
class WatchedFloats(FloatAlgebra):
    """Floating point that notices when a value leaves the range in which it is accurate.

    left    not empty when one did: the result may then differ from a right one
    """

    left: list[str] = field(default_factory=list)

    def elementwise(self, fn: str, *operands: np.ndarray, dtype: DType | None = None) -> np.ndarray:
        return self._watched(FloatAlgebra.elementwise(self, fn, *operands, dtype=dtype), fn)

    def contract(self, subscripts: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return self._watched(FloatAlgebra.contract(self, subscripts, a, b), subscripts)

    def fold(self, kind: str, x: np.ndarray, axes: Sequence[int], keep: int = 1) -> np.ndarray:
        return self._watched(FloatAlgebra.fold(self, kind, x, axes, keep), kind)

    def _watched(self, x: np.ndarray, what: str) -> np.ndarray:
        if x.dtype.kind == "f":
            size = abs(x)
            lost = (size > 0) | (what == "exp")  # a power that vanishes is lost digits, another zero may be exact
            if (((size < SMALLEST) & lost) | (size > LARGEST)).any():
                self.left.append(what)
        return x


def find_witness(
    spec: Graph, graph: MuGraph, inputs: Mapping[str, TensorType], extents: Mapping[str, int] | None,
    rng: np.random.Generator,
) -> CounterExample | None:  # fmt: skip
    """Random inputs for which the two clearly differ in float64, where both are finite; None if none is found."""
    for feeds in float_feeds(inputs, rng):
        algebra = WatchedFloats()
        values = {name: algebra.constant(x) for name, x in feeds.items()}
        expected = run_graph(spec, values, algebra).values()
        found = run_mugraph(graph, values, algebra, extents)
        for number, (want, have) in enumerate(zip(expected, found, strict=False)):
            if want.shape != have.shape:
                return CounterExample(number, (), None)
            index = clear_difference(want, have)
            if index is not None and not algebra.left:
                return CounterExample(number, index, None, Witness(feeds, float(want[index]), float(have[index])))
    return None


def find_undefined(
    spec: Graph, graph: MuGraph, inputs: Mapping[str, TensorType], extents: Mapping[str, int] | None,
    rng: np.random.Generator,
) -> CounterExample | None:  # fmt: skip
    """Inputs for which the µGraph gives no number where the specification gives one, and nothing overflows.

    Modulo a prime every number has a root, up to its sign: that sqrt(-x^2) is undefined shows only here.
    """
    for feeds in itertools.islice(float_feeds(inputs, rng), 2):
        algebra = WatchedFloats()
        values = {name: algebra.constant(x) for name, x in feeds.items()}
        expected = run_graph(spec, values, algebra).values()
        found = run_mugraph(graph, values, algebra, extents)
        for number, (want, have) in enumerate(zip(expected, found, strict=True)):
            undefined = np.isfinite(want) & np.isnan(have)
            if undefined.any() and not algebra.left:
                index = tuple(int(i) for i in np.argwhere(undefined)[0])
                return CounterExample(number, index, None, Witness(feeds, float(want[index]), float(have[index])))
    return None


def clear_difference(want: np.ndarray, have: np.ndarray) -> tuple[int, ...] | None:
    """Where two results differ most, if that is no rounding; elements that are not finite in both do not count."""
    both = np.isfinite(want) & np.isfinite(have)
    gap = np.where(both, abs(np.where(both, want, 0) - np.where(both, have, 0)), 0)
    if gap.size == 0 or gap.max() <= CLEAR * np.where(both, abs(want), 0).max() + SMALLEST:
        return None
    return tuple(int(i) for i in np.unravel_index(gap.argmax(), gap.shape))


def float_feeds(inputs: Mapping[str, TensorType], rng: np.random.Generator) -> Iterator[dict[str, np.ndarray]]:
    """Inputs of several magnitudes, positive ones too (for roots and logarithms)."""
    for magnitude, positive in itertools.product(MAGNITUDES, (False, True)):
        feeds = {}
        for name, kind in inputs.items():
            if kind.dtype == "bool":
                feeds[name] = rng.integers(0, 2, kind.shape).astype(bool)
            elif kind.dtype in FLOATS:
                x = rng.standard_normal(kind.shape) * magnitude
                feeds[name] = abs(x) if positive else x
            else:
                feeds[name] = rng.integers(0, 8, kind.shape).astype(numpy_dtype(kind.dtype))
        yield feeds
