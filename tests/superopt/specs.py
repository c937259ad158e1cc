"""Specifications of the µGraph suite by hand, at the shapes of its first case or at any others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline.ir.graph import AffineDim
from pipeline.superopt.spec import Apply, Labels, Number, Product, Reduction, Spec, SpecInput, SpecNode


@dataclass(slots=True)
class Writer:
    """Writes one specification; a value is its number among the operations, or below zero an input (~number)."""

    extents: tuple[int, ...]
    inputs: list[SpecInput] = field(default_factory=list)
    nodes: list[SpecNode] = field(default_factory=list)

    def input(self, name: str, labels: Labels) -> int:
        shape = tuple(self.extents[label] for label in labels)
        access = tuple(AffineDim(((label, 1),)) for label in labels)
        self.inputs.append(SpecInput(name, labels, "float32", shape, access))
        return ~(len(self.inputs) - 1)

    def labels(self, value: int) -> Labels:
        return self.inputs[~value].labels if value < 0 else self.nodes[value].labels

    def number(self, value: float) -> int:
        self.nodes.append(SpecNode(Number(value), (), ()))
        return len(self.nodes) - 1

    def apply(self, fn: str, *operands: int) -> int:
        labels = tuple(sorted({label for value in operands for label in self.labels(value)}))
        self.nodes.append(SpecNode(Apply(fn), operands, labels))
        return len(self.nodes) - 1

    def product(self, x: int, y: int, over: Labels) -> int:
        labels = tuple(sorted({*self.labels(x), *self.labels(y)} - {*over}))
        self.nodes.append(SpecNode(Product(over), (x, y), labels))
        return len(self.nodes) - 1

    def reduce(self, kind: str, x: int, over: Labels) -> int:
        labels = tuple(label for label in self.labels(x) if label not in over)
        self.nodes.append(SpecNode(Reduction(kind, over), (x,), labels))
        return len(self.nodes) - 1

    def rms_norm(self, x: int, over: int) -> int:
        """As the workloads write it: x times the reciprocal square root of the mean square."""
        mean = self.apply("div", self.reduce("sum", self.apply("mul", x, x), (over,)), self.number(self.extents[over]))
        return self.apply("mul", x, self.apply("rsqrt", mean))

    def silu(self, x: int) -> int:
        return self.apply("mul", x, self.apply("sigmoid", x))

    def attention(self, q: int, k: int, v: int, *, dim: int, keys: int, scale: float | None = None) -> int:
        scores = self.product(q, k, (dim,))
        if scale is not None:
            scores = self.apply("mul", scores, self.number(scale))
        power = self.apply("exp", self.apply("sub", scores, self.reduce("max", scores, (keys,))))
        return self.product(self.apply("div", power, self.reduce("sum", power, (keys,))), v, (keys,))

    def finish(self, output: int) -> Spec:
        count = len(self.inputs)
        nodes = tuple(
            SpecNode(node.op, tuple(~i if i < 0 else count + i for i in node.inputs), node.labels, node.dtype)
            for node in self.nodes
        )
        labels = self.labels(output)
        return Spec(
            extents=self.extents,
            inputs=tuple(self.inputs),
            nodes=nodes,
            output=count + output,
            shape=tuple(self.extents[label] for label in labels),
            store=tuple(AffineDim(((label, 1),)) for label in labels),
        )


def rmsnorm_linear(rows: int = 2, hidden: int = 4096, outputs: int = 6144) -> Spec:
    """rms_norm(X) W: axes m, k, n."""
    w = Writer((rows, hidden, outputs))
    x, weight = w.input("x", (0, 1)), w.input("w", (1, 2))
    return w.finish(w.product(w.rms_norm(x, 1), weight, (1,)))


def gated_mlp(rows: int = 8, hidden: int = 4096, inner: int = 4096) -> Spec:
    """silu(X W1) * (X W2): axes m, k, n."""
    w = Writer((rows, hidden, inner))
    x, w1, w2 = w.input("x", (0, 1)), w.input("w1", (1, 2)), w.input("w2", (1, 2))
    gate = w.silu(w.product(x, w1, (1,)))
    return w.finish(w.apply("mul", gate, w.product(x, w2, (1,))))


def full_mlp(rows: int = 8, hidden: int = 4096, inner: int = 4096) -> Spec:
    """(silu(X W1) * (X W2)) W3: axes m, k, f, n."""
    w = Writer((rows, hidden, inner, hidden))
    x, w1, w2, w3 = w.input("x", (0, 1)), w.input("w1", (1, 2)), w.input("w2", (1, 2)), w.input("w3", (2, 3))
    gate = w.silu(w.product(x, w1, (1,)))
    return w.finish(w.product(w.apply("mul", gate, w.product(x, w2, (1,))), w3, (2,)))


def lora(rows: int = 16, hidden: int = 256, outputs: int = 4096, rank: int = 16) -> Spec:
    """X W + (X A) B: axes m, k, n, r."""
    w = Writer((rows, hidden, outputs, rank))
    x, weight, a, b = w.input("x", (0, 1)), w.input("w", (1, 2)), w.input("a", (1, 3)), w.input("b", (2, 3))
    return w.finish(w.apply("add", w.product(x, weight, (1,)), w.product(w.product(x, a, (1,)), b, (3,))))


def gqa(heads: int = 2, queries: int = 256, keys: int = 4096, dim: int = 64, *, scale: float | None = None) -> Spec:
    """softmax(Q K) V, many rows of queries for each head of keys: axes b, i, j, d, e."""
    w = Writer((heads, queries, keys, dim, dim))
    q, k, v = w.input("q", (0, 1, 3)), w.input("k", (0, 2, 3)), w.input("v", (0, 2, 4))
    return w.finish(w.attention(q, k, v, dim=3, keys=2, scale=scale))


def mha() -> Spec:
    """As gqa, with 32 heads of 16 rows."""
    return gqa(32, 16)


def mqa() -> Spec:
    """As gqa, with one head for 1024 rows."""
    return gqa(1, 1024)


def gqa_decode() -> Spec:
    """As gqa, for one new token: 8 rows for each head of keys."""
    return gqa(2, 8)


def qknorm(heads: int = 2, queries: int = 256, keys: int = 4096, dim: int = 64) -> Spec:
    """gqa over normalised queries and keys: axes b, i, j, d, e."""
    w = Writer((heads, queries, keys, dim, dim))
    q, k, v = w.input("q", (0, 1, 3)), w.input("k", (0, 2, 3)), w.input("v", (0, 2, 4))
    return w.finish(w.attention(w.rms_norm(q, 3), w.rms_norm(k, 3), v, dim=3, keys=2))


def ntrans(rows: int = 8, hidden: int = 4096) -> Spec:
    """rms(X + α (rms(H) - X)): axes m, d."""
    w = Writer((rows, hidden))
    h, x, alpha = w.input("h", (0, 1)), w.input("x", (0, 1)), w.input("alpha", (0, 1))
    step = w.apply("mul", alpha, w.apply("sub", w.rms_norm(h, 1), x))
    return w.finish(w.rms_norm(w.apply("add", x, step), 1))


def moe(experts: int = 8, rows: int = 8, hidden: int = 4096, inner: int = 4096) -> Spec:
    """exp(X A) B: axes x, m, k, f, n."""
    w = Writer((experts, rows, hidden, inner, hidden))
    x, a, b = w.input("x", (0, 1, 2)), w.input("a", (0, 2, 3)), w.input("b", (0, 3, 4))
    return w.finish(w.product(w.apply("exp", w.product(x, a, (2,))), b, (3,)))


SUITE: dict[str, Callable[[], Spec]] = {
    "gqa": gqa,
    "gqa_decode": gqa_decode,
    "mha": mha,
    "mqa": mqa,
    "qknorm": qknorm,
    "rmsnorm_linear": rmsnorm_linear,
    "lora": lora,
    "gated_mlp": gated_mlp,
    "ntrans": ntrans,
    "moe": moe,
    "full_mlp": full_mlp,
}
