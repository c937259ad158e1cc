"""A specification at any extents is the graph that its formula says."""

from __future__ import annotations

import numpy as np

from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import AffineDim
from pipeline.superopt.spec import Apply, Number, Product, Reduction, Spec, SpecInput, SpecNode, spec_graph

M, K, N = 0, 1, 2
ROWS, COLUMNS = (AffineDim(((M, 1),)), AffineDim(((K, 1),))), (AffineDim(((K, 1),)), AffineDim(((N, 1),)))

RMSNORM_LINEAR = Spec(
    extents=(8, 64, 96),
    inputs=(SpecInput("x", (M, K), "float32", (8, 64), ROWS), SpecInput("w", (K, N), "float32", (64, 96), COLUMNS)),
    nodes=(
        SpecNode(Apply("mul"), (0, 0), (M, K)),
        SpecNode(Reduction("sum", (K,)), (2,), (M,)),
        SpecNode(Number(64.0), (), ()),
        SpecNode(Apply("div"), (3, 4), (M,)),
        SpecNode(Apply("sqrt"), (5,), (M,)),
        SpecNode(Apply("div"), (0, 6), (M, K)),
        SpecNode(Product((K,)), (7, 1), (M, N)),
    ),
    output=8,
    shape=(8, 96),
    store=(AffineDim(((M, 1),)), AffineDim(((N, 1),))),
)


def test_a_specification_is_a_graph_at_its_own_and_at_shrunken_extents() -> None:
    rng = np.random.default_rng(1)
    for extents in (RMSNORM_LINEAR.extents, (2, 6, 5), (1, 1, 1)):
        m, k, n = extents
        x, w = (rng.normal(size=s).astype(np.float32) for s in ((m, k), (k, n)))
        (found,) = evaluate(spec_graph(RMSNORM_LINEAR, extents), {"x": x, "w": w}).values()
        x, w = x.astype(np.float64), w.astype(np.float64)
        wanted = (x / np.sqrt((x * x).sum(1, keepdims=True) / 64)) @ w
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
