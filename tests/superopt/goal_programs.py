"""The goals of the µGraph suite as terms, and the fused programs that an expert would write for them."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.superopt.goal.term import App, Factors, Leaf, Num, Reduced, Term, total

M, K, N, R, ROWS, J, D, B = range(8)


def axes(*labels: int, parts: str = "glt") -> Factors:
    return frozenset((label, part) for label in labels for part in parts)


def fn(name: str, *args: Term) -> Term:
    return App(name, args)


def mul(first: Term, *rest: Term) -> Term:
    for other in rest:
        first = fn("mul", first, other)
    return first


def product(label: int, a: Term, b: Term) -> Term:
    """A contraction over one axis."""
    return total(axes(label), mul(a, b))


def blocked(label: int, body: Term) -> Term:
    """The sum over an axis in the order of a block graph: tile, loop, grid."""
    for part in "tlg":
        body = total(axes(label, parts=part), body)
    return body


def rms(x: Term, label: int, count: float = 64.0, eps: float | None = None) -> Term:
    """The reciprocal of the root mean square."""
    mean = fn("mul", total(axes(label), mul(x, x)), Num(1 / count))
    return fn("rsqrt", mean if eps is None else fn("add", mean, Num(eps)))


def softmax(s: Term, safe: bool = True) -> Term:
    e = fn("exp", fn("sub", s, Reduced("max", axes(J), s)) if safe else s)
    return fn("div", e, total(axes(J), e))


def silu(x: Term) -> Term:
    return mul(x, fn("sigmoid", x))


X, W, GAIN = Leaf(0, axes(M, K)), Leaf(1, axes(K, N)), Leaf(2, axes(K))
W2, W3 = Leaf(3, axes(K, N)), Leaf(4, axes(N, B))
DOWN, UP = Leaf(5, axes(K, R)), Leaf(6, axes(R, N))
Q, KEY, V, MASK = Leaf(7, axes(B, ROWS, D)), Leaf(8, axes(B, D, J)), Leaf(9, axes(B, J, N)), Leaf(10, axes(ROWS, J))
H, ALPHA, BIAS = Leaf(11, axes(M, K)), Leaf(12, axes(M, K)), Leaf(13, axes(K))
SCALE = Num(0.125)


def scores(scale: bool = False, mask: bool = False, q: Term = Q, key: Term = KEY) -> Term:
    s = product(D, q, key)
    s = mul(s, SCALE) if scale else s
    return fn("add", s, MASK) if mask else s


def attention(s: Term, safe: bool = True) -> Term:
    return product(J, softmax(s, safe), V)


def rmsnorm_linear() -> Term:
    return product(K, mul(X, rms(X, K), GAIN), W)


def gated_mlp() -> Term:
    return mul(silu(product(K, X, W)), product(K, X, W2))


def full_mlp() -> Term:
    return product(N, gated_mlp(), W3)


def lora() -> Term:
    return fn("add", product(K, X, W), product(R, product(K, X, DOWN), UP))


def ntrans() -> Term:
    step = fn("add", X, mul(ALPHA, fn("sub", mul(H, rms(H, K)), X)))
    return mul(step, rms(step, K))


def layer_norm() -> Term:
    mean = fn("mul", total(axes(K), X), Num(1 / 64))
    centred = fn("sub", X, mean)
    return fn("add", mul(centred, rms(centred, K, eps=1e-5), GAIN), BIAS)


def layer_norm_linear() -> Term:
    return product(K, layer_norm(), W)


def qknorm() -> Term:
    return attention(product(D, mul(Q, rms(Q, D)), mul(KEY, rms(KEY, D))))


def moe() -> Term:
    return product(N, fn("exp", product(K, X, W)), W3)


def two_gates() -> Term:
    """Two divisors that are sums, which may be multiplied before the division."""
    gates = [fn("add", Num(1.0), fn("exp", fn("neg", product(K, X, w)))) for w in (W, W2)]
    return fn("div", fn("div", product(K, X, W), gates[0]), gates[1])


GOALS: dict[str, Callable[[], Term]] = {
    "rmsnorm_linear": rmsnorm_linear,
    "gated_mlp": gated_mlp,
    "full_mlp": full_mlp,
    "lora": lora,
    "ntrans": ntrans,
    "layer_norm_linear": layer_norm_linear,
    "moe": moe,
    "two_gates": two_gates,
    "attention": lambda: attention(scores()),
    "attention_unsafe": lambda: attention(scores(), safe=False),
    "attention_scale": lambda: attention(scores(scale=True)),
    "attention_scale_mask": lambda: attention(scores(scale=True, mask=True)),
    "qknorm": qknorm,
}


def divided_after_the_product() -> Term:
    return mul(blocked(K, mul(X, GAIN, W)), rms(X, K))


def flash_attention(s: Term) -> Term:
    """One pass per part of the keys with the maximum of that part, then the parts are put together."""
    of_part, inside, across = Reduced("max", axes(J, parts="lt"), s), axes(J, parts="lt"), axes(J, parts="g")
    e = fn("exp", fn("sub", s, of_part))
    weight = fn("exp", fn("sub", of_part, Reduced("max", across, of_part)))
    values = total(across, mul(total(inside, mul(e, V)), weight))
    return fn("div", values, total(across, mul(total(inside, e), weight)))


def online_attention(s: Term) -> Term:
    """The division after the product, the sums of the loop inside those of the grid."""
    e = fn("exp", fn("sub", s, Reduced("max", axes(J), s)))
    return fn("div", blocked(J, mul(e, V)), blocked(J, e))


def normalised_after_the_product() -> Term:
    """LayerNorm into the product: (sum(x w g) - mean * sum(w g)) * r + sum(b w)."""
    mean = fn("mul", total(axes(K), X), Num(1 / 64))
    centred = fn("sub", X, mean)
    weight = mul(W, GAIN)
    inner = fn("sub", blocked(K, mul(X, weight)), mul(mean, blocked(K, weight)))
    return fn("add", mul(inner, rms(centred, K, eps=1e-5)), blocked(K, mul(BIAS, W)))


FUSED: dict[str, tuple[str, Callable[[], Term]]] = {
    "the division after the product": ("rmsnorm_linear", divided_after_the_product),
    "the gain in the weights": ("rmsnorm_linear", lambda: mul(blocked(K, mul(X, mul(GAIN, W))), rms(X, K))),
    "gated products in a loop": (
        "gated_mlp",
        lambda: mul(silu(blocked(K, mul(X, W))), blocked(K, mul(X, W2))),
    ),
    "the whole perceptron": (
        "full_mlp",
        lambda: blocked(N, mul(W3, mul(silu(blocked(K, mul(X, W))), blocked(K, mul(X, W2))))),
    ),
    "low rank in one kernel": (
        "lora",
        lambda: fn("add", blocked(K, mul(X, W)), blocked(R, mul(UP, blocked(K, mul(X, DOWN))))),
    ),
    "low rank added to the weights": (
        "lora",
        lambda: blocked(K, mul(X, fn("add", W, blocked(R, mul(DOWN, UP))))),
    ),
    "LayerNorm into the product": ("layer_norm_linear", normalised_after_the_product),
    "online": ("attention", lambda: online_attention(scores())),
    "split keys": ("attention", lambda: flash_attention(scores())),
    "split keys, scaled": ("attention_scale", lambda: flash_attention(scores(scale=True))),
    "the scale in the queries": (
        "attention_scale",
        lambda: flash_attention(product(D, mul(Q, SCALE), KEY)),
    ),
    "split keys with a mask": ("attention_scale_mask", lambda: flash_attention(scores(scale=True, mask=True))),
    "safe from unsafe": ("attention_unsafe", lambda: flash_attention(scores())),
    "unsafe from safe": ("attention", lambda: attention(scores(), safe=False)),
    "normalised keys, late": (
        "qknorm",
        lambda: online_attention(mul(product(D, Q, KEY), mul(rms(Q, D), rms(KEY, D)))),
    ),
}
