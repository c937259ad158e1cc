"""Chains of an exported model that PyTorch has one function for: attention, root mean square normalisation, silu."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

MASKED = -1e4  # a score this low has no share in a softmax


@dataclass(frozen=True, slots=True)
class Attention:
    """softmax(query key * scale + mask) value, all with one or two leading dimensions, or none.

    key   (…, keys, dim) once its dimensions are in the order `perm`
    mask  the name of what is added to the scores; or the data: added, or of booleans, of which True counts
    """

    query: str
    key: str
    perm: tuple[int, ...]
    value: str
    mask: str | np.ndarray | None
    scale: float


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """x over its root mean square along the last dimension, times a gain; None where that is 1."""

    x: str
    gain: str | None
    eps: float


@dataclass(frozen=True, slots=True)
class _Scores:
    """What is between a softmax and the product that it is of, read from the softmax on."""

    product: onnx.NodeProto
    mask: str | np.ndarray | None
    scale: float


def attend(found: Attention, torch: Any, call: Callable[..., Any], q: Any, k: Any, v: Any, mask: Any) -> Any:
    """PyTorch's function for it, called on operands of four dimensions, whose last ones lie in order in memory: only
    such operands reach its fused kernel on a CPU."""
    k = call(torch.permute, k, found.perm)
    if found.perm[-1] != len(found.perm) - 1:
        k = call(torch.Tensor.contiguous, k)
    missing = 4 - len(found.perm)
    for _ in range(missing):
        q, k, v = (call(torch.unsqueeze, x, 0) for x in (q, k, v))
    y = call(torch.nn.functional.scaled_dot_product_attention, q, k, v, mask, scale=found.scale)
    for _ in range(missing):
        y = call(torch.squeeze, y, 0)
    return y


@dataclass(frozen=True, slots=True)
class Fusions:
    """Finds the chains that end in a node. An intermediate that something else uses too is in no chain.

    by_output  the node of a value
    constants  data of the initializers
    uses       how many nodes read a value
    shape      of a value
    """

    by_output: Mapping[str, onnx.NodeProto]
    constants: Mapping[str, np.ndarray]
    uses: Mapping[str, int]
    shape: Callable[[str], tuple[int, ...]]

    def attention(self, last: onnx.NodeProto) -> Attention | None:
        """Two products with a softmax between them; the scores may be scaled, and masked after that."""
        if last.op_type != "MatMul" or last.input[0] in self.constants:
            return None
        softmax = self._through_reshapes(last.input[0])
        if softmax is None or softmax.op_type != "Softmax":
            return None
        rank = len(self.shape(softmax.output[0]))
        if helper.get_attribute_value(softmax.attribute[0]) not in (-1, rank - 1):
            return None
        scores = self._scores(softmax.input[0], 1.0, None, (), self.shape(last.input[0]))
        if scores is None:
            return None
        query, key = scores.product.input
        shapes = [self.shape(name) for name in (query, key, last.input[1])]
        leading = {shape[:-2] for shape in (*shapes, self.shape(last.input[0]))}
        if len(leading) != 1 or not 2 <= len(shapes[0]) <= 4 or shapes[2][-1] != shapes[0][-1]:
            return None
        key, perm = self._upright(key)
        return Attention(query, key, perm, last.input[1], scores.mask, scores.scale)

    def silu(self, last: onnx.NodeProto) -> str | None:
        """The x of x * sigmoid(x)."""
        if last.op_type != "Mul":
            return None
        for x, share in (last.input, tuple(reversed(last.input))):
            node = self._alone(share)
            if node is not None and node.op_type == "Sigmoid" and node.input[0] == x:
                return str(x)
        return None

    def rms_norm(self, last: onnx.NodeProto) -> RmsNorm | None:
        """In the form in which the export writes it: Pow, ReduceMean, Add, Sqrt, Div, Mul."""
        if last.op_type != "Mul":
            return None
        quotient = self._alone(last.input[0])
        if quotient is None or quotient.op_type != "Div":
            return None
        x, under = quotient.input
        found = []
        for kind in ("Sqrt", "Add", "ReduceMean", "Pow"):
            node = self._alone(under)
            if node is None or node.op_type != kind:
                return None
            found.append(node)
            under = node.input[0]
        _, added, mean, power = found
        eps, two, axes = (self._number(node.input[1]) for node in (added, power, mean))
        width = self.shape(x)[-1:]
        if under != x or eps is None or two != 2 or axes not in (-1, len(self.shape(x)) - 1):
            return None
        gain = last.input[1]
        if self.shape(gain) != width:
            return None
        plain = gain in self.constants and bool((self.constants[gain] == 1).all())
        return RmsNorm(x, None if plain else gain, eps)

    def _scores(self, name: str, scale: float, mask: str | np.ndarray | None, place: tuple[int, ...],
                shape: tuple[int, ...]) -> _Scores | None:  # fmt: skip
        """The product below, its scale, and the mask as it fits scores of `shape`, which was found at `place`."""
        node = self._alone(name)
        if node is None:
            return None
        match node.op_type:
            case "MatMul":
                fitted = mask if place == shape else self._laid_out(mask, place, shape)
                same = self.shape(name) == shape
                return _Scores(node, fitted, scale) if same and (mask is None or fitted is not None) else None
            case "Reshape":
                same = self.shape(name)[-1:] == self.shape(node.input[0])[-1:]
                return self._scores(node.input[0], scale, mask, place, shape) if same else None
            case "Mul" | "Div":
                number = self._number(node.input[1])
                if number is None or number == 0:
                    return None
                factor = number if node.op_type == "Mul" else 1 / number
                return self._scores(node.input[0], scale * factor, mask, place, shape)
            case "Where" if mask is None and scale == 1.0:
                visible, low = self.constants.get(node.input[0]), self._number(node.input[2])
                if visible is None or low is None or low > MASKED or not visible.any(-1).all():
                    return None
                return self._scores(node.input[1], scale, visible, self.shape(name), shape)
            case "Add" if mask is None and scale == 1.0:
                for inner, added in (node.input, tuple(reversed(node.input))):
                    if self.shape(inner) == self.shape(name):
                        found = self._scores(inner, scale, added, self.shape(name), shape)
                        if found is not None:
                            return found
        return None

    def _laid_out(self, mask: str | np.ndarray | None, place: tuple[int, ...],
                  shape: tuple[int, ...]) -> np.ndarray | None:  # fmt: skip
        """A known mask for scores that are reshaped before it: whole, but for leading dimensions that it repeats in."""
        known = self.constants.get(mask) if isinstance(mask, str) else mask
        if known is None:
            return None
        whole = np.broadcast_to(known, place).reshape(shape)
        repeats = len(place) - known.ndim
        count = 0
        while count < len(shape) - 2 and count < repeats and shape[count] == place[count]:
            count += 1
        return np.ascontiguousarray(whole[(slice(0, 1),) * count])

    def _upright(self, key: str) -> tuple[str, tuple[int, ...]]:
        """The value, and how its dimensions go, that gives the keys with their last two dimensions swapped."""
        node, perm = self.by_output.get(key), list(range(len(self.shape(key))))
        if node is not None and node.op_type == "Transpose":
            key, perm = node.input[0], list(helper.get_attribute_value(node.attribute[0]))
        perm[-2:] = reversed(perm[-2:])
        return key, tuple(perm)

    def _through_reshapes(self, name: str) -> onnx.NodeProto | None:
        node = self._alone(name)
        while node is not None and node.op_type == "Reshape":
            if self.shape(node.input[0])[-1:] != self.shape(node.output[0])[-1:]:
                return None
            node = self._alone(node.input[0])
        return node

    def _alone(self, name: str) -> onnx.NodeProto | None:
        """The node of a value that one node reads."""
        return self.by_output.get(name) if self.uses.get(name) == 1 else None

    def _number(self, name: str) -> float | None:
        value = self.constants.get(name)
        if value is None or value.size != 1:
            return None
        number = float(value.reshape(-1)[0])
        return None if math.isnan(number) else number
