"""ResNet-50 (He et al., 2016; the stride in the 3x3 convolution) with random weights: images to logits."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.frontend.workloads.cases import require_positive
from pipeline.frontend.workloads.image_layers import ImageLayers, refuse_small
from pipeline.frontend.workloads.weights import Weights
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder

EXPANSION = 4  # of the channels at the end of a bottleneck


@dataclass(frozen=True, slots=True)
class Resnet50:
    """Input x (batch, 3, size, size), output logits.

    width   channels of the first stage
    blocks  bottlenecks in each stage
    """

    name: str = "resnet50"
    batch: int = 1
    size: int = 224
    classes: int = 1000
    width: int = 64
    blocks: tuple[int, ...] = (3, 4, 6, 3)

    def build(self, seed: int) -> Graph:
        require_positive(self.name, batch=self.batch, classes=self.classes, width=self.width,
                         blocks=min(self.blocks, default=0))  # fmt: skip
        refuse_small(self.name, self.size)
        b = GraphBuilder()
        layers = ImageLayers(b, Weights(b, seed))
        x = b.relu(layers.conv_norm("stem", b.input("x", (self.batch, 3, self.size, self.size), "float32"),
                                    self.width, 7, 2))  # fmt: skip
        x = b.pool("max", x, [3, 3], [2, 2], [1, 1], [1, 1])
        for stage, count in enumerate(self.blocks):
            for block in range(count):
                with b.scope(f"stage{stage}.block{block}"):
                    stride = 2 if block == 0 and stage > 0 else 1
                    x = _bottleneck(layers, f"{stage}.{block}", x, self.width << stage, stride)
        return b.finish([("logits", layers.classify(x, self.classes))])

    def describe(self) -> str:
        return f"{self.name}: batch {self.batch}, {self.size}x{self.size}, {self.classes} classes, float32"


def _bottleneck(layers: ImageLayers, name: str, x: int, width: int, stride: int) -> int:
    b = layers.builder
    y = b.relu(layers.conv_norm(f"{name}.reduce", x, width, 1))
    y = b.relu(layers.conv_norm(f"{name}.window", y, width, 3, stride))
    y = layers.conv_norm(f"{name}.expand", y, EXPANSION * width, 1, gain=0.3)
    if stride != 1 or b.shape(x)[1] != EXPANSION * width:
        x = layers.conv_norm(f"{name}.shortcut", x, EXPANSION * width, 1, stride, gain=0.7)
    return b.relu(b.elementwise("add", x, y))
