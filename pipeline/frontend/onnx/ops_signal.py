"""Fourier transforms of known length: products with matrices of cosines and sines."""

from __future__ import annotations

import numpy as np

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.operators import operator
from pipeline.frontend.onnx.ops_linear import product
from pipeline.frontend.onnx.tensor import Tensor


@operator("DFT", 17)
def fourier_by_attribute(call: Call) -> Tensor:
    x = call.operand(0)
    return transformed(call, x, call.axis(x.rank, 1))


@operator("DFT", 20)
def fourier(call: Call) -> Tensor:
    x = call.operand(0)
    axis = call.integers(2, "axis")[0] if call.optional(2) is not None else -2
    return transformed(call, x, call.dimension(axis, x.rank))


def transformed(call: Call, x: Tensor, axis: int) -> Tensor:
    """The last dimension holds the real part, or real and imaginary; the signal is cut or filled up to its length."""
    if axis == x.rank - 1:
        call.refuse("DFT along the dimension of real and imaginary parts")
    inverse, onesided = bool(call.get("inverse", 0)), bool(call.get("onesided", 0))
    back = inverse and onesided
    default = 2 * (x.shape[axis] - 1) if back else x.shape[axis]
    length = call.integers(1, "length")[0] if call.optional(1) is not None else default
    if length < 1:
        call.refuse(f"DFT of length {length}")
    bins = length // 2 + 1 if onesided else length
    order = [*(i for i in range(x.rank - 1) if i != axis), axis, x.rank - 1]
    signal = x.transpose(order)
    signal = signal.pad([0] * x.rank, [*[0] * (x.rank - 2), (bins if back else length) - x.shape[axis], 0])
    out = real_signal(signal, length) if back else spectrum(signal, bins, inverse)
    return out.transpose(np.argsort(order).tolist())


def spectrum(signal: Tensor, bins: int, inverse: bool) -> Tensor:
    """(..., length, parts) to (..., bins, 2), as one product over length and parts together."""
    *outer, length, parts = signal.shape
    angle = phases(length, bins, length) * (1 if inverse else -1)
    real, imaginary = np.cos(angle), np.sin(angle)
    matrix = np.stack([np.stack([real, imaginary], -1), np.stack([-imaginary, real], -1)][:parts], 1)
    matrix = matrix.reshape(length * parts, bins * 2) / (length if inverse else 1)
    return product(signal.reshape((*outer, length * parts)), signal.like(matrix)).reshape((*outer, bins, 2))


def real_signal(half: Tensor, length: int) -> Tensor:
    """(..., bins, 2) to (..., length, 1): the other bins are the conjugates of these, which so count twice, but for
    the first and, of an even length, the last."""
    *outer, bins, parts = half.shape
    angle = phases(bins, length, length)
    weight = np.where((np.arange(bins) * 2) % length == 0, 1.0, 2.0)[:, None] / length
    matrix = np.stack([np.cos(angle) * weight, -np.sin(angle) * weight][:parts], 1).reshape(bins * parts, length)
    return product(half.reshape((*outer, bins * parts)), half.like(matrix)).reshape((*outer, length, 1))


def phases(rows: int, columns: int, length: int) -> np.ndarray:
    """2 pi * row * column / length, reduced in whole numbers: cosines of large angles lose digits."""
    return 2 * np.pi * (np.outer(np.arange(rows), np.arange(columns)) % length) / length


@operator("STFT", 17)
def short_time_fourier(call: Call) -> Tensor:
    """Frames of the signal, step after step, times the window, each transformed."""
    signal, step = call.operand(0), call.integers(1, "step")[0]
    window = call.optional(2)
    signal = signal if signal.rank == 3 else signal.unsqueeze(2)
    length = call.integers(3, "length")[0] if call.optional(3) is not None else window.shape[0] if window else 0
    if not 0 < length <= signal.shape[1] or step < 1:
        call.refuse(f"frames of {length} every {step} do not fit a signal of {signal.shape[1]}")
    starts = np.arange(0, signal.shape[1] - length + 1, step)
    frames = signal.take(starts[:, None] + np.arange(length), 1)
    if window is not None:
        frames = frames * window.along(2, 4)
    return spectrum(frames, length // 2 + 1 if call.get("onesided", 1) else length, inverse=False)
