"""The last test of a µGraph before its kernel is used: over finite fields, at the extents of its specification."""

from __future__ import annotations

import math

import numpy as np

from pipeline.errors import CheckError
from pipeline.superopt.enumeration.finding import Proven
from pipeline.superopt.mugraph.graph import block_graphs
from pipeline.superopt.proof.proof import Proof
from pipeline.superopt.proof.prove import prove_full
from pipeline.superopt.spec import Product, Spec

MOST_ELEMENTS = 1 << 26  # of one value: beyond it a test takes too much memory
MOST_PRODUCTS = 1 << 34  # multiplications of one product: beyond it a test takes too long


def full_proof(spec: Spec, proven: Proven, rng: np.random.Generator) -> Proof:
    """One more test, at the extents of the specification, the axes cut as the model likes best.

    Where that does not cut into equal pieces, nothing is cut. "not provable" where the specification is too large.
    """
    values = range(len(spec.inputs) + len(spec.nodes))
    largest = max(math.prod(spec.extents[label] for label in spec.labels(value)) for value in values)
    if largest > MOST_ELEMENTS or max(map(math.prod, _products(spec)), default=0) > MOST_PRODUCTS:
        return Proof("not provable", reason="it is too large for a test at its full extents")
    try:
        return prove_full(spec, proven.graph, extents=proven.extents, rng=rng)
    except CheckError:
        whole = {axis.name: 1 for block in block_graphs(proven.graph) for axis in (*block.grid, *block.loops)}
        return prove_full(spec, proven.graph, extents=whole, rng=rng)


def _products(spec: Spec) -> list[list[int]]:
    """The extents of each product, those that it sums over too."""
    return [
        [spec.extents[label] for label in {*node.labels, *node.op.over}]
        for node in spec.nodes if isinstance(node.op, Product)
    ]  # fmt: skip
