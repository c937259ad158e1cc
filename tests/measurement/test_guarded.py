"""Guarded buffers: aligned, spoiled, and watched on both sides."""

import ml_dtypes
import numpy as np
import pytest

from pipeline.ir.graph_types import DTYPES, numpy_dtype
from pipeline.measurement.guarded import GUARD, GuardedBuffer


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (0, 4), (67,)])
def test_a_buffer_is_aligned_writable_and_whole(dtype, shape):
    buffer = GuardedBuffer(shape, dtype, skew=3)
    assert buffer.array.shape == shape
    assert buffer.array.dtype == numpy_dtype(dtype)
    assert buffer.address % 64 == 0
    if buffer.array.size:
        assert buffer.array.ctypes.data == buffer.address
    buffer.array[...] = 1
    buffer.spoil()
    assert buffer.damage() == ""


def test_a_buffer_may_begin_behind_a_line_and_is_watched_there_too():
    buffer = GuardedBuffer((67,), "float32", skew=3, behind=16)
    assert buffer.address % 64 == 16
    buffer.array[...] = 1
    assert buffer.damage() == ""
    buffer._memory[buffer.address - buffer._memory.ctypes.data - 1] ^= 1
    assert "before its start" in buffer.damage()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_spoiled_floats_are_nan(dtype):
    buffer = GuardedBuffer((5,), dtype)
    buffer.spoil()
    assert np.isnan(buffer.array.astype(np.float64)).all()


def test_spoiled_integers_are_not_zero_and_spoiled_bools_are_bools():
    numbers, flags = GuardedBuffer((9,), "int32"), GuardedBuffer((9,), "bool")
    numbers.spoil()
    flags.spoil()
    assert numbers.array.all()
    assert set(flags.array.view(np.uint8)) <= {0, 1}


@pytest.mark.parametrize("offset", [-GUARD, -1, 13, 13 + GUARD - 1])
@pytest.mark.parametrize("poison", [False, True])
def test_a_byte_written_outside_is_found(offset, poison):
    buffer = GuardedBuffer((13,), "int8", poison=poison)
    start = buffer.address - buffer._memory.ctypes.data
    buffer._memory[start + offset] ^= 1
    assert "1 bytes written " + ("before its start" if offset < 0 else "after its end") in buffer.damage()


def test_what_is_read_beyond_a_poisoned_buffer_is_nan():
    buffer = GuardedBuffer((4,), "float32", poison=True)
    start = buffer.address - buffer._memory.ctypes.data
    for kind in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16):
        beyond = buffer._memory[start + 16 : start + 24].view(kind)
        assert np.isnan(beyond.astype(np.float64)).all()


@pytest.mark.parametrize("size", [0, 1, 7, 16, 67])
def test_contents_are_compared_bit_for_bit(size):
    buffer, value = GuardedBuffer((size,), "float16"), np.full(size, np.nan, np.float16)
    buffer.array[...] = value
    assert buffer.holds(value)
    for place in range(size):
        other = value.copy()
        other.view(np.uint16)[place] ^= 1
        assert not buffer.holds(other)
