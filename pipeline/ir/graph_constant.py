"""The name of a constant: a hash of its dtype, shape and data, so that equal graphs have equal texts."""

from __future__ import annotations

import hashlib

import numpy as np

from pipeline.ir.graph_types import type_of

KEY_DIGITS = 24


def constant_key(array: np.ndarray) -> str:
    """The first 96 bits of the SHA-256 of dtype, shape and row-major data."""
    kind = type_of(array)
    digest = hashlib.sha256(f"{kind.dtype}{list(kind.shape)}".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()[:KEY_DIGITS]
