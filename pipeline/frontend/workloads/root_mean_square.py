"""Root mean square normalisation (Zhang and Sennrich, 2019) as the graphs here write it."""

from __future__ import annotations

from pipeline.errors import UserError
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_types import HALVES


def rms_norm(b: GraphBuilder, x: int, axis: int = -1, *, gain: int | None = None, eps: float = 0.0) -> int:
    """x / sqrt(mean(x^2) + eps) along `axis`, times the gain, which broadcasts from the right.

    Halves are normalised in float32. The form is that of the ONNX import: a product with rsqrt.
    """
    wide = b.cast(x, "float32") if b.dtype(x) in HALVES else x
    mean = b.reduce("mean", b.elementwise("mul", wide, wide), [axis], True)
    if eps:
        mean = b.elementwise("add", mean, b.scalar(eps, mean))
    out = b.cast(b.elementwise("mul", wide, b.elementwise("rsqrt", mean)), b.dtype(x))
    return out if gain is None else b.elementwise("mul", out, gain)


def refuse_negative(family: str, *, eps: float) -> None:
    """A UserError where what is added to the mean square is below 0, or no number."""
    if not 0 <= eps < float("inf"):
        raise UserError("it is added to a mean square, which may be 0", where=f"workload.eps of {family}",
                        why=f"eps {eps}", todo="Give 0 or a small positive number")  # fmt: skip
