"""MobileNet-V2 (Sandler et al., 2018) with random weights: images to logits."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.frontend.workloads.cases import require_positive
from pipeline.frontend.workloads.image_layers import ImageLayers, refuse_small
from pipeline.frontend.workloads.weights import Weights
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder

# expansion, channels, blocks, stride of the first block: table 2 of the paper
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


@dataclass(frozen=True, slots=True)
class MobilenetV2:
    """Input x (batch, 3, size, size), output logits.

    width  multiplies the channels, which are rounded to multiples of 8
    """

    name: str = "mobilenet_v2"
    batch: int = 1
    size: int = 224
    classes: int = 1000
    width: float = 1.0

    def build(self, seed: int) -> Graph:
        require_positive(self.name, batch=self.batch, classes=self.classes, width=1 if self.width > 0 else 0)
        refuse_small(self.name, self.size)
        b = GraphBuilder()
        layers = ImageLayers(b, Weights(b, seed))
        x = b.input("x", (self.batch, 3, self.size, self.size), "float32")
        x = _relu6(b, layers.conv_norm("stem", x, self._channels(32), 3, 2))
        for stage, (expansion, channels, blocks, stride) in enumerate(STAGES):
            for block in range(blocks):
                with b.scope(f"stage{stage}.block{block}"):
                    step = stride if block == 0 else 1
                    x = _inverted(layers, f"{stage}.{block}", x, expansion, self._channels(channels), step)
        x = _relu6(b, layers.conv_norm("top", x, self._channels(1280) if self.width > 1 else 1280, 1))
        return b.finish([("logits", layers.classify(x, self.classes))])

    def describe(self) -> str:
        return (f"{self.name}: batch {self.batch}, {self.size}x{self.size}, width {self.width}, "
                f"{self.classes} classes, float32")  # fmt: skip

    def _channels(self, count: int) -> int:
        """The nearest multiple of 8 that loses at most a tenth."""
        wanted = count * self.width
        rounded = max(8, int(wanted + 4) // 8 * 8)
        return rounded if rounded >= 0.9 * wanted else rounded + 8


def _inverted(layers: ImageLayers, name: str, x: int, expansion: int, outputs: int, stride: int) -> int:
    b = layers.builder
    inputs = b.shape(x)[1]
    y = x
    if expansion != 1:
        y = _relu6(b, layers.conv_norm(f"{name}.expand", y, inputs * expansion, 1))
    y = _relu6(b, layers.conv_norm(f"{name}.depthwise", y, inputs * expansion, 3, stride, groups=inputs * expansion))
    y = layers.conv_norm(f"{name}.project", y, outputs, 1, gain=0.5)
    return b.elementwise("add", x, y) if stride == 1 and inputs == outputs else y


def _relu6(b: GraphBuilder, x: int) -> int:
    return b.elementwise("min", b.relu(x), b.scalar(6, x))
