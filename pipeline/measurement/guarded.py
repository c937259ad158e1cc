"""A buffer between two guard zones, which tell when a kernel writes next to it."""

from __future__ import annotations

import numpy as np

from pipeline.ir.graph import DType, Shape
from pipeline.ir.graph_types import FLOATS, numpy_dtype

GUARD = 4096
_LINE = 64
_PATTERN = np.frombuffer(b"\xa5\x5a\xc3\x3c\x96\x69\xf0\x0f" * (GUARD // 8), np.uint8)
# Read as a float of any width this is NaN: a kernel that reads beyond its input poisons its result.
_POISON = np.full(GUARD, 0xFF, np.uint8)


class GuardedBuffer:
    """Memory for one argument of a kernel, aligned to a line of 64 bytes.

    behind  bytes behind the begin of a line at which it begins instead
    poison  guard with NaN instead of a pattern: for buffers that a kernel should only read
    skew    cache lines by which the start is moved, so that large buffers do not all fall on the same cache sets
    """

    def __init__(self, shape: Shape, dtype: DType, *, poison: bool = False, skew: int = 0, behind: int = 0) -> None:
        self.dtype = dtype
        kind = numpy_dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        skewed = GUARD + skew * _LINE
        self._memory = np.empty(skewed + size + GUARD + 2 * _LINE, np.uint8)
        start = skewed + -(self._memory.ctypes.data + skewed) % _LINE + behind
        self._before = self._memory[start - GUARD : start]
        self._bytes = self._memory[start : start + size]
        self._after = self._memory[start + size : start + size + GUARD]
        self._guard = _POISON if poison else _PATTERN
        self._before[:] = self._guard
        self._after[:] = self._guard
        self.array = self._bytes.view(kind).reshape(shape) if size else np.empty(shape, kind)
        self.address = self._memory.ctypes.data + start

    def spoil(self) -> None:
        """Fill with what no kernel should leave: NaN, or a pattern for integers."""
        if self.dtype in FLOATS:
            self._bytes[:] = 0xFF
        else:
            self._bytes[:] = np.resize(_PATTERN, self._bytes.size)
        if self.dtype == "bool":  # any other byte is not a bool, and NumPy may not compare it right
            self._bytes[:] = self._bytes & 1

    def holds(self, value: np.ndarray) -> bool:
        """Whether the contents are these, bit for bit."""
        flat = np.asarray(value, order="C").reshape(-1).view(np.uint8)
        whole = flat.size // 8 * 8  # in words: an eighth of the comparisons
        same = np.array_equal(self._bytes[:whole].view(np.uint64), flat[:whole].view(np.uint64))
        return same and np.array_equal(self._bytes[whole:], flat[whole:])

    def damage(self) -> str:
        """Where something wrote outside, or an empty text."""
        for guard, where in ((self._before, "before its start"), (self._after, "after its end")):
            changed = np.flatnonzero(guard != self._guard)
            if changed.size:
                near = GUARD - int(changed[-1]) if where.startswith("before") else int(changed[0]) + 1
                return f"{changed.size} bytes written {where}, from the byte {near} outside"
        return ""
