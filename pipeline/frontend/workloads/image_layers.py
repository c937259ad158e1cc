"""The layers that the image models are made of: convolution with batch norm, classifier."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.errors import UserError
from pipeline.frontend.workloads.weights import Weights
from pipeline.ir.graph_builder import GraphBuilder


@dataclass(frozen=True, slots=True)
class ImageLayers:
    """Adds layers to a graph; activations are (batch, channels, height, width)."""

    builder: GraphBuilder
    weights: Weights

    def conv_norm(self, name: str, x: int, outputs: int, window: int, stride: int = 1, groups: int = 1,
                  gain: float = 1.0) -> int:  # fmt: skip
        """Convolution without bias, padded to keep the size (over the stride), then batch norm.

        gain  of the batch norm: below 1 at the end of a residual branch, so that the sum does not grow with depth
        """
        b, inner = self.builder, self.builder.shape(x)[1] // groups
        with b.scope(name):
            fan_in = inner * window * window
            # half of a ReLU's outputs are zero: the square root of two makes up for it
            w = self.weights.fan_in(f"{name}.weight", (outputs, inner, window, window), fan_in, math.sqrt(2))
            pads = [window // 2] * 2
            y = b.conv(x, w, strides=[stride] * 2, pads_low=pads, pads_high=pads, dilations=[1, 1], groups=groups)
            scale, shift = self.weights.batch_norm(f"{name}.norm", outputs, 2, gain)
            return b.elementwise("add", b.elementwise("mul", y, scale), shift)

    def classify(self, x: int, classes: int) -> int:
        """Mean over the image, then a dense layer."""
        b, inputs = self.builder, self.builder.shape(x)[1]
        with b.scope("classifier"):
            w = self.weights.fan_in("classifier.weight", (inputs, classes), inputs)
            product = b.matmul(b.reduce("mean", x, [2, 3]), w)
            return b.elementwise("add", product, self.weights.normal("classifier.bias", (classes,), 0.02))


def refuse_small(family: str, size: int) -> None:
    """Five halvings leave nothing of a smaller image."""
    if size < 32:
        raise UserError("the image is too small", where=f"workload.size of {family}", why=f"size {size}",
                        todo="Give 32 or more")  # fmt: skip
