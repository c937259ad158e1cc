"""One convolution of any rank as a graph: what the convolution families of the operator suite share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipeline.errors import UserError
from pipeline.frontend.workloads.cases import require_positive
from pipeline.frontend.workloads.weights import Weights
from pipeline.ir.graph import DType, Graph
from pipeline.ir.graph_builder import GraphBuilder


@dataclass(frozen=True, slots=True)
class Convolution:
    """x (N, C, space) with weights (O, C/groups, window), or (C, O/groups, window) where it is transposed.

    k, s, p, dilation   the same along every spatial dimension
    constant_weights    False makes the weights an input
    batch_norm_relu     a bias, an inference-mode batch norm and a ReLU follow
    Halves are summed in float32 and rounded once.
    """

    family: str
    batch: int
    space: tuple[int, ...]
    ci: int
    co: int
    k: int
    s: int
    p: int
    dilation: int = 1
    groups: int = 1
    transposed: bool = False
    batch_norm_relu: bool = False
    constant_weights: bool = True
    dtype: DType = "float32"

    def build(self, seed: int) -> Graph:
        self._refuse()
        rank, first, second = len(self.space), self.co, self.ci
        if self.transposed:
            first, second = second, first
        b = GraphBuilder()
        x = b.input("x", (self.batch, self.ci, *self.space), self.dtype)
        weights = Weights(b, seed, constant=self.constant_weights, dtype=self.dtype)
        summands = self.ci // self.groups * self.k**rank // (self.s**rank if self.transposed else 1)
        w = weights.fan_in("w", (first, second // self.groups, *[self.k] * rank), summands)
        strides, pads, dilations = [self.s] * rank, [self.p] * rank, [self.dilation] * rank
        wide: DType | None = "float32" if self.dtype in ("float16", "bfloat16") else None
        if self.transposed:
            y = b.conv_transpose(x, w, strides=strides, pads_low=pads, pads_high=pads, output_padding=[0] * rank,
                                 dilations=dilations, groups=self.groups, dtype=wide)  # fmt: skip
        else:
            y = b.conv(x, w, strides=strides, pads_low=pads, pads_high=pads, dilations=dilations, groups=self.groups,
                       dtype=wide)  # fmt: skip
        y = b.cast(y, self.dtype)
        if self.batch_norm_relu:
            y = b.elementwise("add", y, weights.normal("bias", (self.co, *[1] * rank), 0.1))
            scale, shift = weights.batch_norm("norm", self.co, rank)
            y = b.relu(b.elementwise("add", b.elementwise("mul", y, scale), shift))
        return b.finish([("y", y)])

    def describe(self) -> str:
        size = "x".join(map(str, self.space))
        extra = "".join(
            f", {name} {value}" for name, value in (("dilation", self.dilation), ("groups", self.groups)) if value != 1
        )
        return (f"{self.family}: batch {self.batch}, {size}, {self.ci} to {self.co} channels, window {self.k}, "
                f"stride {self.s}, padding {self.p}{extra}, {self.dtype}")  # fmt: skip

    def _refuse(self) -> None:
        require_positive(self.family, batch=self.batch, groups=self.groups, dilation=self.dilation)
        if self.ci % self.groups or self.co % self.groups:
            raise UserError(f"the channels do not divide into {self.groups} groups", where=f"workload {self.family}",
                            why=f"ci {self.ci}, co {self.co}", todo=f"Give multiples of {self.groups}")  # fmt: skip
        reach = self.dilation * (self.k - 1) + 1
        shortest = min(self.space) if not self.transposed else math.inf
        if reach > shortest + 2 * self.p:
            raise UserError("the window is larger than the padded input", where=f"workload {self.family}",
                            why=f"window {self.k} spans {reach}, the input {shortest} with padding {self.p}",
                            todo="Give a smaller k, or a larger input or p")  # fmt: skip
        if self.transposed and self.s * (min(self.space) - 1) + reach <= 2 * self.p:
            raise UserError("the padding removes the whole result", where=f"workload {self.family}",
                            why=f"p {self.p} for window {self.k}", todo="Give a smaller p")  # fmt: skip
