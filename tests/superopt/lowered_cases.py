"""Hand-written µGraphs with their specifications, at any sizes: what lowering has to get right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pipeline.superopt.mugraph.builder import Handle, KernelBuilder, MuGraphBuilder
from pipeline.superopt.mugraph.graph import MuGraph
from pipeline.superopt.spec import Spec
from tests.superopt import specs
from tests.superopt.specs import Writer

Case = tuple[Spec, MuGraph]
LOWEST = -3.4028234663852886e38


def online(k: KernelBuilder, s: Handle, v: Handle, subscripts: str) -> Handle:
    """softmax over the last dimension of the scores times v, in one traversal."""
    top = k.running(k.fold("max", s, axis=-1))
    p = k.exp(s - top)
    below = k.rescaled_sum(k.fold("sum", p, axis=-1), top)
    return k.rescaled_sum(k.contract(subscripts, p, v), top) / below


def attention(
    heads: int = 2, queries: int = 5, keys: int = 11, dim: int = 6, width: int = 9, *,
    scale: float | None = None, mask: str = "", masked: float = -10000.0,
) -> Case:  # fmt: skip
    """softmax(q kᵀ) v: axes b, i, j, d, e. mask: "add" over (i, j), "keys" over (b, j), "where" by bools of (i, j)."""
    w = Writer((heads, queries, keys, dim, width))
    q, k, v = w.input("q", (0, 1, 3)), w.input("k", (0, 2, 3)), w.input("v", (0, 2, 4))
    labels = {"add": (1, 2), "keys": (0, 2), "where": (1, 2)}.get(mask)
    m = w.input("mask", labels) if labels is not None else None
    s = w.product(q, k, (3,))
    if scale is not None:
        s = w.apply("mul", s, w.number(scale))
    if m is not None:
        s = w.apply("where", m, s, w.number(masked)) if mask == "where" else w.apply("add", s, m)
    p = w.apply("exp", w.apply("sub", s, w.reduce("max", s, (2,))))
    spec = w.finish(w.product(w.apply("div", p, w.reduce("sum", p, (2,))), v, (2,)))
    if mask == "where":
        spec = replace(spec, inputs=(*spec.inputs[:3], replace(spec.inputs[3], dtype="bool")))
    b = MuGraphBuilder()
    tensors = [b.input(one.name, len(one.labels)) for one in spec.inputs]
    with b.kernel(grid={"b": None, "i": None}, loops={"j": None}) as g:
        tq = g.load(tensors[0], imap={"b": 0, "i": 1})
        tk, tv = (g.load(one, imap={"b": 0}, fmap={"j": 1}) for one in tensors[1:3])
        tm = None
        if mask == "keys":
            tm = g.unsqueeze(g.load(tensors[3], imap={"b": 0}, fmap={"j": 1}), [1])
        elif mask:
            tm = g.load(tensors[3], imap={"i": 0}, fmap={"j": 1})
        scores = g.contract("bid,bjd->bij", tq, tk)
        if scale is not None:
            scores = scores * scale
        if tm is not None:
            scores = g.map("where", tm, scores, masked) if mask == "where" else scores + tm
        y = g.store(online(g, scores, tv, "bij,bje->bie"), omap={"b": 0, "i": 1})
    return spec, b.finish(y)


def qknorm(heads: int = 2, queries: int = 5, keys: int = 11, dim: int = 6) -> Case:
    """Attention over normalised queries and keys; the keys are normalised after the product."""
    b = MuGraphBuilder()
    q, k, v = (b.input(name, 3) for name in "qkv")
    with b.kernel(grid={"b": None, "i": None}, loops={"j": None}) as g:
        tq = g.load(q, imap={"b": 0, "i": 1})
        tk, tv = (g.load(one, imap={"b": 0}, fmap={"j": 1}) for one in (k, v))
        nq = tq * g.rsqrt(g.fold("sum", tq * tq, axis=2) / float(dim))
        nk = g.transpose(g.rsqrt(g.fold("sum", tk * tk, axis=2) / float(dim)), [0, 2, 1])
        scores = g.contract("bid,bjd->bij", nq, tk) * nk
        y = g.store(online(g, scores, tv, "bij,bje->bie"), omap={"b": 0, "i": 1})
    return specs.qknorm(heads, queries, keys, dim), b.finish(y)


def split_attention(
    heads: int = 2, queries: int = 3, keys: int = 23, dim: int = 6, width: int = 9, *,
    scale: float | None = None, mask: bool = False,
) -> Case:  # fmt: skip
    """The keys split over the grid; a second kernel puts maxima, sums and partial results of the parts together."""
    spec, _ = attention(heads, queries, keys, dim, width, scale=scale, mask="add" if mask else "")
    b = MuGraphBuilder()
    q, k, v = (b.input(name, 3) for name in "qkv")
    added = b.input("mask", 2) if mask else None
    with b.kernel(grid={"b": None, "s": None}, loops={"j": None}) as g:
        tq = g.load(q, imap={"b": 0})
        tk, tv = (g.load(one, imap={"b": 0, "s": 1}, fmap={"j": 1}) for one in (k, v))
        scores = g.contract("bid,bjd->bij", tq, tk)
        if scale is not None:
            scores = scores * scale
        if added is not None:
            scores = scores + g.load(added, imap={"s": 1}, fmap={"j": 1})
        top = g.running(g.fold("max", scores, axis=2))
        p = g.exp(scores - top)
        omap = {"b": 0, "s": "stack"}
        below = g.store(g.rescaled_sum(g.fold("sum", p, axis=2), top), omap=omap)  # type: ignore[arg-type]
        above = g.store(g.rescaled_sum(g.contract("bij,bje->bie", p, tv), top), omap=omap)  # type: ignore[arg-type]
        tops = g.store(g.accumulate("last", top), omap=omap)  # type: ignore[arg-type]
    with b.kernel(grid={"h": None}) as g:
        m, z, o = (g.load(one, imap={"h": 1}) for one in (tops, below, above))
        change = g.exp(m - g.fold("max", m, axis=0))
        y = g.fold("sum", o * change, axis=0) / g.fold("sum", z * change, axis=0)
        y = g.store(g.squeeze(y, [0]), omap={"h": 0})
    return spec, b.finish(y)


def rmsnorm_linear(rows: int = 3, hidden: int = 37, outputs: int = 21) -> Case:
    """The division after the product."""
    b = MuGraphBuilder()
    x, w = b.input("x", 2), b.input("w", 2)
    with b.kernel(grid={"n": None}, loops={"k": None}) as g:
        tx, tw = g.load(x, fmap={"k": 1}), g.load(w, imap={"n": 1}, fmap={"k": 0})
        squares = g.accumulate("sum", g.fold("sum", tx * tx, axis=1))
        acc = g.accumulate("sum", g.contract("mk,kn->mn", tx, tw))
        y = g.store(acc * g.rsqrt(squares / float(hidden)), omap={"n": 1})
    return specs.rmsnorm_linear(rows, hidden, outputs), b.finish(y)


def rows_and_columns(rows: int = 9, hidden: int = 20, outputs: int = 21) -> Case:
    """As rmsnorm_linear, the grid over rows too."""
    b = MuGraphBuilder()
    x, w = b.input("x", 2), b.input("w", 2)
    with b.kernel(grid={"m": None, "n": None}, loops={"k": None}) as g:
        tx, tw = g.load(x, imap={"m": 0}, fmap={"k": 1}), g.load(w, imap={"n": 1}, fmap={"k": 0})
        squares = g.accumulate("sum", g.fold("sum", tx * tx, axis=1))
        acc = g.accumulate("sum", g.contract("mk,kn->mn", tx, tw))
        y = g.store(acc * g.rsqrt(squares / float(hidden)), omap={"m": 0, "n": 1})
    return specs.rmsnorm_linear(rows, hidden, outputs), b.finish(y)


def gated_mlp(rows: int = 3, hidden: int = 37, inner: int = 21) -> Case:
    """Both products share the tile of x."""
    b = MuGraphBuilder()
    x, u, v = b.input("x", 2), b.input("w1", 2), b.input("w2", 2)
    with b.kernel(grid={"n": None}, loops={"k": None}) as g:
        tx = g.load(x, fmap={"k": 1})
        gate, up = (g.contract("mk,kn->mn", tx, g.load(w, imap={"n": 1}, fmap={"k": 0})) for w in (u, v))
        y = g.store(g.silu(g.accumulate("sum", gate)) * g.accumulate("sum", up), omap={"n": 1})
    return specs.gated_mlp(rows, hidden, inner), b.finish(y)


def lora(rows: int = 4, hidden: int = 19, outputs: int = 37, rank: int = 3) -> Case:
    """x w + (x a) b in one kernel; b runs over the labels n, r, so that its tile is read across."""
    spec = specs.lora(rows, hidden, outputs, rank)
    b = MuGraphBuilder()
    tensors = [b.input(one.name, 2) for one in spec.inputs]
    with b.kernel(grid={"n": None}, loops={"k": None}) as g:
        tx, tw = g.load(tensors[0], fmap={"k": 1}), g.load(tensors[1], imap={"n": 1}, fmap={"k": 0})
        ta, tb = g.load(tensors[2], fmap={"k": 0}), g.load(tensors[3], imap={"n": 0})
        narrow = g.accumulate("sum", g.contract("mk,kr->mr", tx, ta))
        wide = g.accumulate("sum", g.contract("mk,kn->mn", tx, tw))
        y = g.store(wide + g.contract("mr,nr->mn", narrow, tb), omap={"n": 1})
    return spec, b.finish(y)


def ntrans(rows: int = 5, hidden: int = 19) -> Case:
    """rms(x + alpha (rms(h) - x)), each row in one go."""
    b = MuGraphBuilder()
    h, x, alpha = (b.input(name, 2) for name in ("h", "x", "alpha"))
    with b.kernel(grid={"m": None}) as g:
        th, tx, ta = (g.load(one, imap={"m": 0}) for one in (h, x, alpha))

        def rms(y: Handle) -> Handle:
            return y * g.rsqrt(g.fold("sum", y * y, axis=1) / float(hidden))

        y = g.store(rms(tx + ta * (rms(th) - tx)), omap={"m": 0})
    return specs.ntrans(rows, hidden), b.finish(y)


def full_mlp(rows: int = 3, hidden: int = 13, inner: int = 19) -> Case:
    """The inner dimension in a loop around that over the hidden one, and split over the grid."""
    b = MuGraphBuilder()
    x, u, v, w = b.input("x", 2), b.input("w1", 2), b.input("w2", 2), b.input("w3", 2)
    with b.kernel(grid={"s": None}, loops={"f": None, "k": None}) as g:
        tx = g.load(x, fmap={"k": 1})
        tu, tv = (g.load(one, imap={"s": 1}, fmap={"k": 0, "f": 1}) for one in (u, v))
        tw = g.load(w, imap={"s": 0}, fmap={"f": 0})
        gate, up = (g.accumulate("sum", g.contract("mk,kf->mf", tx, one), loop="k") for one in (tu, tv))
        y = g.store(g.accumulate("sum", g.contract("mf,fn->mn", g.silu(gate) * up, tw)), omap={"s": "sum"})
    return specs.full_mlp(rows, hidden, inner), b.finish(y)


def moe(experts: int = 2, rows: int = 3, hidden: int = 7, inner: int = 19) -> Case:
    """exp(x a) b for each expert, the inner dimension in a loop."""
    b = MuGraphBuilder()
    x, a, w = b.input("x", 3), b.input("a", 3), b.input("b", 3)
    with b.kernel(grid={"x": None}, loops={"f": None}) as g:
        tx, ta, tw = g.load(x, imap={"x": 0}), g.load(a, {"x": 0}, {"f": 2}), g.load(w, {"x": 0}, {"f": 1})
        power = g.exp(g.contract("xmk,xkf->xmf", tx, ta))
        y = g.store(g.accumulate("sum", g.contract("xmf,xfn->xmn", power, tw)), omap={"x": 0})
    return specs.moe(experts, rows, hidden, inner), b.finish(y)


def split_product(rows: int = 3, hidden: int = 37, outputs: int = 21) -> Case:
    """x w with the sum split over the grid, the parts added up where they are written."""
    w = Writer((rows, hidden, outputs))
    spec = w.finish(w.product(w.input("x", (0, 1)), w.input("w", (1, 2)), (1,)))
    b = MuGraphBuilder()
    x, weight = b.input("x", 2), b.input("w", 2)
    with b.kernel(grid={"n": None, "s": None}, loops={"k": None}) as g:
        tx = g.load(x, imap={"s": 1}, fmap={"k": 1})
        tw = g.load(weight, imap={"s": 0, "n": 1}, fmap={"k": 0})
        y = g.store(g.accumulate("sum", g.contract("mk,kn->mn", tx, tw)), omap={"n": 1, "s": "sum"})
    return spec, b.finish(y)


def largest_of_parts(rows: int = 3, columns: int = 37) -> Case:
    """The maximum of each row of exp(x): parts over the grid, then their maximum."""
    w = Writer((rows, columns))
    spec = w.finish(w.reduce("max", w.apply("exp", w.input("x", (0, 1))), (1,)))
    b = MuGraphBuilder()
    x = b.input("x", 2)
    with b.kernel(grid={"s": None}, loops={"j": None}) as g:
        tx = g.load(x, imap={"s": 1}, fmap={"j": 1})
        y = g.store(g.squeeze(g.accumulate("max", g.fold("max", g.exp(tx), axis=1)), [1]), omap={"s": "max"})
    return spec, b.finish(y)


def layer_norm_linear(rows: int = 3, hidden: int = 21, outputs: int = 18) -> Case:
    """((x - mean) / deviation * gamma + beta) w: the normalised rows are a tile of the kernel."""
    w = Writer((rows, hidden, outputs))
    x, gamma, beta, weight = (w.input(n, at) for n, at in (("x", (0, 1)), ("g", (1,)), ("b", (1,)), ("w", (1, 2))))
    size = w.number(float(hidden))
    centred = w.apply("sub", x, w.apply("div", w.reduce("sum", x, (1,)), size))
    variance = w.apply("div", w.reduce("sum", w.apply("mul", centred, centred), (1,)), size)
    deviation = w.apply("sqrt", w.apply("add", variance, w.number(1e-5)))
    rows_ = w.apply("add", w.apply("mul", w.apply("div", centred, deviation), gamma), beta)
    spec = w.finish(w.product(rows_, weight, (1,)))
    b = MuGraphBuilder()
    tensors = [b.input(one.name, len(one.labels)) for one in spec.inputs]
    with b.kernel(grid={"n": None}) as k:
        tx, tg, tb = (k.load(one) for one in tensors[:3])
        tw = k.load(tensors[3], imap={"n": 1})
        c = tx - k.fold("sum", tx, axis=1) / float(hidden)
        d = k.sqrt(k.fold("sum", c * c, axis=1) / float(hidden) + 1e-5)
        y = k.store(k.contract("mk,kn->mn", c / d * tg + tb, tw), omap={"n": 1})
    return spec, b.finish(y)


def two_loops(rows: int = 4, outer: int = 6, inner: int = 10) -> Case:
    """sum over j of (max over k of x * w), as loops over j and over k inside it."""
    w = Writer((rows, outer, inner))
    x, weight = w.input("x", (0, 1, 2)), w.input("w", (2,))
    spec = w.finish(w.reduce("sum", w.reduce("max", w.apply("mul", x, weight), (2,)), (1,)))
    b = MuGraphBuilder()
    tensors = [b.input("x", 3), b.input("w", 1)]
    with b.kernel(grid={"m": None}, loops={"j": None, "k": None}) as g:
        tx, tw = g.load(tensors[0], {"m": 0}, {"j": 1, "k": 2}), g.load(tensors[1], fmap={"k": 0})
        top = g.accumulate("max", g.fold("max", tx * tw, axis=2), loop="k")
        y = g.store(g.squeeze(g.accumulate("sum", g.fold("sum", top, axis=1)), [1, 2]), omap={"m": 0})
    return spec, b.finish(y)


def largest_then_product(outputs: int = 5, rows: int = 4, terms: int = 3, parts: int = 8) -> Case:
    """w (max over j of x), as a running maximum whose last value is read with lanes along its rows."""
    w = Writer((outputs, rows, terms, parts))
    x, weight = w.input("x", (1, 2, 3)), w.input("w", (0, 2))
    spec = w.finish(w.product(w.reduce("max", x, (3,)), weight, (2,)))
    b = MuGraphBuilder()
    tensors = [b.input("x", 3), b.input("w", 2)]
    with b.kernel(grid={"n": None}, loops={"j": None}) as g:
        tx, tw = g.load(tensors[0], fmap={"j": 2}), g.load(tensors[1], imap={"n": 0})
        top = g.running(g.squeeze(g.fold("max", tx, axis=2), [2]))
        y = g.store(g.contract("id,ed->ei", g.accumulate("last", top), tw), omap={"n": 0})
    return spec, b.finish(y)


def mixed_kernels(rows: int = 3, hidden: int = 13, outputs: int = 10) -> Case:
    """rms_norm(x) w with operators on whole tensors before and after the kernel of the product."""
    b = MuGraphBuilder()
    x, w = b.input("x", 2), b.input("w", 2)
    root = b.rsqrt(b.fold("sum", x * x, axis=1) / float(hidden))
    turned = b.transpose(w, [1, 0])
    with b.kernel(grid={"n": None}, loops={"k": None}) as g:
        tx, tw = g.load(x, fmap={"k": 1}), g.load(turned, imap={"n": 0}, fmap={"k": 1})
        y = g.store(g.accumulate("sum", g.contract("mk,nk->mn", tx, tw)), omap={"n": 1})
    return specs.rmsnorm_linear(rows, hidden, outputs), b.finish(y * root)


def softmax_by_kernels(rows: int = 3, columns: int = 13) -> Case:
    """softmax by operators on whole tensors alone."""
    w = Writer((rows, columns))
    x = w.input("x", (0, 1))
    p = w.apply("exp", w.apply("sub", x, w.reduce("max", x, (1,))))
    spec = w.finish(w.apply("div", p, w.reduce("sum", p, (1,))))
    b = MuGraphBuilder()
    t = b.input("x", 2)
    q = b.exp(t - b.fold("max", t, axis=1))
    return spec, b.finish(q / b.fold("sum", q, axis=1))


ALL: dict[str, Callable[..., Case]] = {
    made.__name__: made
    for made in (
        attention, qknorm, split_attention, rmsnorm_linear, rows_and_columns, gated_mlp, lora, ntrans, full_mlp, moe,
        split_product, largest_of_parts, layer_norm_linear, two_loops, largest_then_product, mixed_kernels,
        softmax_by_kernels,
    )
}  # fmt: skip
