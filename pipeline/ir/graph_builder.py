"""The builder of graphs: primitive nodes, products, and the composites that models are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pipeline.errors import CheckError, listed
from pipeline.ir import graph as g
from pipeline.ir.graph import Graph, Node
from pipeline.ir.graph_convolution import ProductBuilder
from pipeline.ir.graph_types import HALVES


class GraphBuilder(ProductBuilder):
    """Builds one graph; values are numbers. Composites of halves compute in float32."""

    def relu(self, x: int) -> int:
        return self.elementwise("max", x, self.scalar(0, x))

    def silu(self, x: int) -> int:
        return self.elementwise("mul", x, self.elementwise("sigmoid", x))

    def gelu(self, x: int, approximate: str = "none") -> int:
        """x * P(X <= x) of the normal distribution; "tanh" is its usual approximation."""
        if approximate == "none":
            inner = self.elementwise("erf", self.elementwise("mul", x, self.scalar(1 / math.sqrt(2), x)))
        elif approximate == "tanh":
            cube = self.elementwise("mul", self.elementwise("mul", x, x), x)
            bent = self.elementwise("add", x, self.elementwise("mul", cube, self.scalar(0.044715, x)))
            inner = self.elementwise("tanh", self.elementwise("mul", bent, self.scalar(math.sqrt(2 / math.pi), x)))
        else:
            raise CheckError("no such approximation", where="gelu", why=f"{approximate!r} is neither none nor tanh")
        share = self.elementwise("add", inner, self.scalar(1, x))
        return self.elementwise("mul", self.elementwise("mul", x, self.scalar(0.5, x)), share)

    def softmax(self, x: int, axis: int = -1) -> int:
        """exp(x - max) / sum."""
        wide = self._wide(x)
        power = self.elementwise("exp", self._below_max(wide, axis))
        return self.cast(self.elementwise("div", power, self.reduce("sum", power, [axis], True)), self.dtype(x))

    def log_softmax(self, x: int, axis: int = -1) -> int:
        """x - max - log(sum(exp(x - max)))."""
        below = self._below_max(self._wide(x), axis)
        total = self.elementwise("log", self.reduce("sum", self.elementwise("exp", below), [axis], True))
        return self.cast(self.elementwise("sub", below, total), self.dtype(x))

    def normalize(self, x: int, axes: Sequence[int], eps: float) -> int:
        """(x - mean) / sqrt(variance + eps) over `axes`, in float32 at least (the result too)."""
        wide = self._wide(x)
        centred = self.elementwise("sub", wide, self.reduce("mean", wide, axes, True))
        variance = self.reduce("mean", self.elementwise("mul", centred, centred), axes, True)
        scale = self.elementwise("rsqrt", self.elementwise("add", variance, self.scalar(eps, variance)))
        return self.elementwise("mul", centred, scale)

    def layer_norm(self, x: int, axes: Sequence[int], gamma: int | None = None, beta: int | None = None,
                   eps: float = 1e-5) -> int:  # fmt: skip
        """`normalize`, then gamma and beta, which broadcast from the right."""
        out = self.cast(self.normalize(x, axes, eps), self.dtype(x))
        out = out if gamma is None else self.elementwise("mul", out, gamma)
        return out if beta is None else self.elementwise("add", out, beta)

    def finish(self, outputs: Sequence[tuple[str, int]]) -> Graph:
        """The graph of these outputs: every input in order, and only the other nodes that an output needs."""
        names = [name for name, _ in outputs]
        if len(set(names)) != len(names):
            raise CheckError("two outputs have one name", where=listed(names))
        needed = {value for _, value in outputs}
        for value in range(len(self._nodes) - 1, -1, -1):
            if value in needed:
                needed.update(self._nodes[value].inputs)
        kept = [v for v, node in enumerate(self._nodes) if v in needed or isinstance(node.op, g.Input)]
        number = {value: i for i, value in enumerate(kept)}
        nodes = [self._nodes[v] for v in kept]
        keys = {node.op.key for node in nodes if isinstance(node.op, g.Constant)}
        return Graph(
            tuple(Node(node.op, tuple(number[v] for v in node.inputs), node.type, node.name) for node in nodes),
            tuple((name, number[value]) for name, value in outputs),
            {key: array for key, array in self._constants.items() if key in keys},
        )

    def _wide(self, x: int) -> int:
        return self.cast(x, "float32") if self.dtype(x) in HALVES else x

    def _below_max(self, x: int, axis: int) -> int:
        return self.elementwise("sub", x, self.reduce("max", x, [axis], True))
