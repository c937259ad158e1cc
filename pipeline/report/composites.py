"""Composite operators found again in a graph of primitives, so that another runtime can use its own kernels for them.

A composite is recognised only where the structure is exactly that of its definition; its value is its root's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pipeline.ir import graph as g
from pipeline.ir.graph import Graph

Kind = Literal["softmax", "log_softmax", "layer_norm", "rms_norm", "gelu", "gelu_tanh", "relu", "clip", "mean"]


@dataclass(frozen=True, slots=True)
class Composite:
    """One operator in place of several nodes.

    inputs  values: x, for layer_norm and rms_norm also gamma, and beta, where they are there
    axes    of softmax, log_softmax, mean, layer_norm (there the last ones), rms_norm (there the last one)
    keep    mean: the axes stay with extent 1
    eps     layer_norm, rms_norm
    low, high  clip
    """

    kind: Kind
    inputs: tuple[int, ...]
    axes: tuple[int, ...] = ()
    keep: bool = False
    eps: float = 0.0
    low: float = -math.inf
    high: float = math.inf


def composites(graph: Graph) -> dict[int, Composite]:
    """Composites by the number of their root. A larger one contains smaller ones, which are listed too."""
    finder = _Finder(graph)
    found = {}
    for value in range(len(graph.nodes)):
        composite = finder.at(value)
        if composite is not None:
            found[value] = composite
    return found


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def at(self, root: int) -> Composite | None:
        if not isinstance(self._graph.nodes[root].op, g.Elementwise):
            return None
        for look in (
            self._layer_norm,
            self._rms_norm,
            self._softmax,
            self._log_softmax,
            self._gelu,
            self._clip,
            self._mean,
        ):
            found = look(root)
            if found is not None:
                return found
        return None

    def _operands(self, value: int, fn: str) -> tuple[int, ...]:
        """The operands of that elementwise function; none where the value is another's."""
        node = self._graph.nodes[value]
        return node.inputs if node.op == g.Elementwise(fn) else ()

    def _either_way(self, value: int, fn: str) -> tuple[tuple[int, int], ...]:
        """The operands of a commutative function, in both orders."""
        operands = self._operands(value, fn)
        return ((operands[0], operands[1]), (operands[1], operands[0])) if len(operands) == 2 else ()

    def _scalar(self, value: int) -> float | None:
        node = self._graph.nodes[value]
        if not isinstance(node.op, g.Constant) or math.prod(node.type.shape) != 1:
            return None
        return float(self._graph.constants[node.op.key].reshape(())[()])

    def _is(self, value: int, number: float) -> bool:
        found = self._scalar(value)
        return found is not None and math.isclose(found, number, rel_tol=1e-6)

    def _floating(self, value: int) -> bool:
        return self._graph.nodes[value].type.dtype.startswith(("float", "bfloat"))

    def _reduced(self, value: int, kind: str) -> tuple[int, tuple[int, ...], bool] | None:
        """Operand, axes and whether they are kept, where the value is a reduction of that kind."""
        node = self._graph.nodes[value]
        keep = isinstance(node.op, g.Reshape)
        inner = self._graph.nodes[node.inputs[0]] if keep else node
        match inner.op:
            case g.Reduce(kind=found, axes=axes) if found == kind:
                (x,) = inner.inputs
                shape = self._graph.nodes[x].type.shape
                kept = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
                return (x, axes, keep) if not keep or node.type.shape == kept else None
        return None

    def _mean(self, root: int) -> Composite | None:
        operands = self._operands(root, "div")
        found = self._reduced(operands[0], "sum") if operands and self._floating(root) else None
        if found is None:
            return None
        x, axes, keep = found
        count = math.prod(self._graph.nodes[x].type.shape[axis] for axis in axes)
        return Composite("mean", (x,), axes, keep) if self._is(operands[1], count) else None

    def _softmax(self, root: int) -> Composite | None:
        operands = self._operands(root, "div")
        if not operands:
            return None
        power, total = operands
        exponent = self._operands(power, "exp")
        summed = self._reduced(total, "sum")
        if not exponent or summed is None or summed[0] != power or len(summed[1]) != 1 or not summed[2]:
            return None
        x = self._below_max(exponent[0], summed[1])
        return None if x is None else Composite("softmax", (x,), summed[1])

    def _log_softmax(self, root: int) -> Composite | None:
        operands = self._operands(root, "sub")
        logged = self._operands(operands[1], "log") if operands else ()
        summed = self._reduced(logged[0], "sum") if logged else None
        if summed is None or self._operands(summed[0], "exp") != (operands[0],) or len(summed[1]) != 1:
            return None
        x = self._below_max(operands[0], summed[1])
        return None if x is None or not summed[2] else Composite("log_softmax", (x,), summed[1])

    def _below_max(self, value: int, axes: tuple[int, ...]) -> int | None:
        operands = self._operands(value, "sub")
        top = self._reduced(operands[1], "max") if operands else None
        return operands[0] if top == (operands[0] if operands else None, axes, True) else None

    def _layer_norm(self, root: int) -> Composite | None:
        for inner, beta in self._either_way(root, "add"):
            for normal, gamma in self._either_way(inner, "mul"):
                found = self._normalized(normal)
                if found is not None and self._fits(found, gamma) and self._fits(found, beta):
                    return Composite("layer_norm", (*found.inputs, gamma, beta), found.axes, eps=found.eps)
        for normal, gamma in self._either_way(root, "mul"):
            found = self._normalized(normal)
            if found is not None and self._fits(found, gamma):
                return Composite("layer_norm", (*found.inputs, gamma), found.axes, eps=found.eps)
        return self._normalized(root)

    def _fits(self, norm: Composite, value: int) -> bool:
        shape = self._graph.nodes[norm.inputs[0]].type.shape
        return self._graph.nodes[value].type.shape == shape[norm.axes[0] :]

    def _normalized(self, value: int) -> Composite | None:
        """(x - mean) * rsqrt(variance + eps), or divided by its square root, over the last axes."""
        pairs = [(c, self._operands(s, "rsqrt")) for c, s in self._either_way(value, "mul")]
        if divided := self._operands(value, "div"):
            pairs.append((divided[0], self._operands(divided[1], "sqrt")))
        for centred, under in pairs:
            difference = self._operands(centred, "sub")
            mean = self._mean(difference[1]) if difference else None
            if not under or mean is None or mean.inputs != difference[:1] or not mean.keep:
                continue
            for variance, eps in self._either_way(under[0], "add"):
                spread = self._mean(variance)
                number = self._scalar(eps)
                if spread is None or number is None or (spread.axes, spread.keep) != (mean.axes, True):
                    continue
                rank = len(self._graph.nodes[difference[0]].type.shape)
                if self._is_square(spread.inputs[0], centred) and mean.axes == tuple(range(mean.axes[0], rank)):
                    return Composite("layer_norm", (difference[0],), mean.axes, eps=number)
        return None

    def _rms_norm(self, root: int) -> Composite | None:
        for normal, gamma in self._either_way(root, "mul"):
            found = self._root_mean_square(normal)
            if found is not None and self._fits(found, gamma):
                return Composite("rms_norm", (*found.inputs, gamma), found.axes, eps=found.eps)
        return self._root_mean_square(root)

    def _root_mean_square(self, value: int) -> Composite | None:
        """x * rsqrt(mean(x^2) + eps), or divided by its square root, over the last axis; eps may be missing."""
        pairs = [(x, self._operands(s, "rsqrt")) for x, s in self._either_way(value, "mul")]
        if divided := self._operands(value, "div"):
            pairs.append((divided[0], self._operands(divided[1], "sqrt")))
        for x, under in pairs:
            for square, number in self._sums_with_a_number(under[0]) if under else ():
                mean = self._mean(square)
                last = len(self._graph.nodes[x].type.shape) - 1
                if mean is None or (mean.axes, mean.keep) != ((last,), True):
                    continue
                if self._is_square(mean.inputs[0], x):
                    return Composite("rms_norm", (x,), mean.axes, eps=number)
        return None

    def _sums_with_a_number(self, value: int) -> list[tuple[int, float]]:
        """The value as a sum of another and a number, which is 0 where there is none."""
        found = [(x, number) for x, eps in self._either_way(value, "add") if (number := self._scalar(eps)) is not None]
        return [*found, (value, 0.0)]

    def _is_square(self, value: int, of: int) -> bool:
        power = self._operands(value, "pow")
        return self._operands(value, "mul") == (of, of) or (
            len(power) == 2 and power[0] == of and self._is(power[1], 2)
        )

    def _factors(self, value: int) -> list[int]:
        operands = self._operands(value, "mul")
        return [factor for operand in operands for factor in self._factors(operand)] if operands else [value]

    def _gelu(self, root: int) -> Composite | None:
        """x * 0.5 * (1 + erf(x / sqrt 2)), or with tanh(sqrt(2 / pi) * (x + 0.044715 x^3)), in any order."""
        factors = self._factors(root)
        if len(factors) != 3 or not self._floating(root):
            return None
        for place, share in enumerate(factors):
            rest = factors[:place] + factors[place + 1 :]
            for half, x in (rest, rest[::-1]):
                for inner, one in self._either_way(share, "add"):
                    if not self._is(half, 0.5) or not self._is(one, 1.0):
                        continue
                    if (erf := self._operands(inner, "erf")) and self._is_scaled(erf[0], x, math.sqrt(0.5)):
                        return Composite("gelu", (x,))
                    if (tanh := self._operands(inner, "tanh")) and self._is_bent(tanh[0], x):
                        return Composite("gelu_tanh", (x,))
        return None

    def _is_scaled(self, value: int, x: int, number: float) -> bool:
        divided = self._operands(value, "div")
        if len(divided) == 2 and divided[0] == x and self._is(divided[1], 1 / number):
            return True
        return any(a == x and self._is(b, number) for a, b in self._either_way(value, "mul"))

    def _is_bent(self, value: int, x: int) -> bool:
        for bent, scale in self._either_way(value, "mul"):
            if not self._is(scale, math.sqrt(2 / math.pi)):
                continue
            for cube, plain in self._either_way(bent, "add"):
                factors = self._factors(cube)
                numbers = [factor for factor in factors if self._is(factor, 0.044715)]
                others = [factor for factor in factors if factor not in numbers]
                powers = [self._operands(other, "pow") for other in others]
                cubed = others == [x] * 3 or (
                    len(powers) == 1 and len(powers[0]) == 2 and powers[0][0] == x and self._is(powers[0][1], 3)
                )
                if plain == x and len(numbers) == 1 and cubed:
                    return True
        return False

    def _clip(self, root: int) -> Composite | None:
        if not self._floating(root):
            return None
        for outer, inner in (("min", "max"), ("max", "min")):
            for middle, first in self._either_way(root, outer):
                for x, second in self._either_way(middle, inner):
                    a, b = self._scalar(first), self._scalar(second)
                    if a is not None and b is not None and self._same_shape(root, x):
                        low, high = (b, a) if outer == "min" else (a, b)
                        if low <= high:
                            return Composite("clip", (x,), low=low, high=high)
        for x, zero in self._either_way(root, "max"):
            if self._scalar(zero) == 0.0 and self._same_shape(root, x):
                return Composite("relu", (x,))
        return None

    def _same_shape(self, a: int, b: int) -> bool:
        return self._graph.nodes[a].type.shape == self._graph.nodes[b].type.shape
