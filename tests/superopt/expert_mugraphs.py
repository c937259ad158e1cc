"""Hand-written µGraphs for the tests, as an expert writes them: one for each kind of thing that a block can do."""

from __future__ import annotations

from pipeline.ir.graph import Shape
from pipeline.superopt.mugraph.builder import MuGraphBuilder
from pipeline.superopt.mugraph.graph import MuGraph


def rmsnorm_linear(width: float = 4096.0, loop: int | None = None) -> MuGraph:
    """x (m, k) divided by its root mean square, times w (k, n): the division after the product, in one kernel."""
    b = MuGraphBuilder()
    x, w = b.input("x", rank=2), b.input("w", rank=2)
    with b.kernel(grid={"n": None}, loops={"k": loop}) as k:
        tx, tw = k.load(x, fmap={"k": 1}), k.load(w, imap={"n": 1}, fmap={"k": 0})
        ss = k.accumulate("sum", k.fold("sum", tx * tx, axis=1))
        acc = k.accumulate("sum", k.contract("mk,kn->mn", tx, tw))
        y = k.store(acc / k.sqrt(ss / width), omap={"n": 1})
    return b.finish(y)


def gated_mlp() -> MuGraph:
    """silu(x @ u) * (x @ v): both products share the tile of x."""
    b = MuGraphBuilder()
    x, u, v = b.input("x", rank=2), b.input("u", rank=2), b.input("v", rank=2)
    with b.kernel(grid={"n": None}, loops={"k": None}) as k:
        tx = k.load(x, fmap={"k": 1})
        gate, up = (k.contract("mk,kn->mn", tx, k.load(w, imap={"n": 1}, fmap={"k": 0})) for w in (u, v))
        y = k.store(k.silu(k.accumulate("sum", gate)) * k.accumulate("sum", up), omap={"n": 1})
    return b.finish(y)


def online_attention() -> MuGraph:
    """softmax(q kᵀ) v of q (h, m, d), k (h, n, d), v (h, n, d), the keys in a loop with a running maximum."""
    b = MuGraphBuilder()
    q, key, value = b.input("q", rank=3), b.input("k", rank=3), b.input("v", rank=3)
    with b.kernel(grid={"h": None, "m": None}, loops={"n": None}) as k:
        tq = k.load(q, imap={"h": 0, "m": 1})
        tk, tv = (k.load(t, imap={"h": 0}, fmap={"n": 1}) for t in (key, value))
        s = k.contract("hmd,hnd->hmn", tq, tk)
        top = k.running(k.fold("max", s, axis=2))
        p = k.exp(s - top)
        below = k.rescaled_sum(k.fold("sum", p, axis=2), top)
        above = k.rescaled_sum(k.contract("hmn,hnd->hmd", p, tv), top)
        y = k.store(above / below, omap={"h": 0, "m": 1})
    return b.finish(y)


def split_product() -> MuGraph:
    """x (m, k) @ w (k, n) with k split over the grid, the parts added up where they are written."""
    b = MuGraphBuilder()
    x, w = b.input("x", rank=2), b.input("w", rank=2)
    with b.kernel(grid={"n": None, "s": None}, loops={"k": None}) as k:
        tx = k.load(x, imap={"s": 1}, fmap={"k": 1})
        tw = k.load(w, imap={"s": 0, "n": 1}, fmap={"k": 0})
        y = k.store(k.accumulate("sum", k.contract("mk,kn->mn", tx, tw)), omap={"n": 1, "s": "sum"})
    return b.finish(y)


def split_decoding() -> MuGraph:
    """exp(q kᵀ) v / sum for one row q (h, d): keys split over the grid, further kernels put the parts together."""
    b = MuGraphBuilder()
    q, key, value = b.input("q", rank=2), b.input("k", rank=3), b.input("v", rank=3)
    with b.kernel(grid={"h": None, "s": None}, loops={"n": None}) as k:
        tq = k.load(q, imap={"h": 0})
        tk, tv = (k.load(t, imap={"h": 0, "s": 1}, fmap={"n": 1}) for t in (key, value))
        p = k.exp(k.contract("hd,hnd->hn", tq, tk))
        below = k.store(k.accumulate("sum", k.fold("sum", p, axis=1)), omap={"h": 0, "s": "stack"})
        above = k.store(k.accumulate("sum", k.contract("hn,hnd->hd", p, tv)), omap={"h": 0, "s": "stack"})
    total, parts = (b.squeeze(b.fold("sum", t, axis=0), [0]) for t in (below, above))
    return b.finish(parts / total)


def two_loops() -> MuGraph:
    """sum over j of (max over k of x (m, j, k) * w (k)), as loops over j and over k inside it."""
    b = MuGraphBuilder()
    x, w = b.input("x", rank=3), b.input("w", rank=1)
    with b.kernel(grid={"m": None}, loops={"j": None, "k": None}) as k:
        tx = k.load(x, imap={"m": 0}, fmap={"j": 1, "k": 2})
        tw = k.load(w, fmap={"k": 0})
        inner = k.accumulate("max", k.fold("max", tx * tw, axis=2), loop="k")
        y = k.store(k.squeeze(k.accumulate("sum", k.fold("sum", inner, axis=1)), [1, 2]), omap={"m": 0})
    return b.finish(y)


EXPERT = {
    "rmsnorm_linear": rmsnorm_linear(),
    "gated_mlp": gated_mlp(),
    "online_attention": online_attention(),
    "split_product": split_product(),
    "split_decoding": split_decoding(),
    "two_loops": two_loops(),
}

# Shapes of the inputs and extents of the axes, for each of them.
EXPERT_SHAPES: dict[str, tuple[dict[str, Shape], dict[str, int]]] = {
    "rmsnorm_linear": ({"x": (8, 64), "w": (64, 96)}, {"n": 6, "k": 4}),
    "gated_mlp": ({"x": (8, 64), "u": (64, 96), "v": (64, 96)}, {"n": 6, "k": 4}),
    "online_attention": ({"q": (2, 6, 8), "k": (2, 10, 8), "v": (2, 10, 4)}, {"h": 2, "m": 3, "n": 5}),
    "split_product": ({"x": (3, 30), "w": (30, 8)}, {"n": 2, "s": 3, "k": 5}),
    "split_decoding": ({"q": (4, 8), "k": (4, 20, 8), "v": (4, 20, 8)}, {"h": 2, "s": 5, "n": 2}),
    "two_loops": ({"x": (4, 6, 10), "w": (10,)}, {"m": 2, "j": 3, "k": 5}),
}
