"""Tests of DLPack, with NumPy as the other side: what is lent and taken is the same memory, and is let go."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from pipeline.errors import UserError
from pipeline.ir.graph import DType
from pipeline.ir.graph_types import numpy_dtype
from pipeline.runtime.dlpack import CPU, borrow, lend


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"])
def test_an_array_of_another_library_is_taken_with_its_memory(dtype: DType) -> None:
    array = np.ones((2, 3, 4), numpy_dtype(dtype))
    found = borrow(array.__dlpack__())
    assert (found.address, found.shape, found.dtype) == (array.ctypes.data, (2, 3, 4), dtype)
    assert found.device == (CPU, 0)
    assert found.contiguous
    found.release()


def test_a_capsule_is_taken_once() -> None:
    capsule = np.ones(3).__dlpack__()
    borrow(capsule).release()
    with pytest.raises(UserError, match="can be taken"):
        borrow(capsule)


def test_what_is_no_capsule_is_refused() -> None:
    with pytest.raises(UserError, match="no DLPack capsule"):
        borrow("tensor")


def test_a_dtype_that_no_model_has_is_refused() -> None:
    with pytest.raises(UserError, match="code 5 of 128 bits"):
        borrow(np.ones(3, np.complex128).__dlpack__())


@pytest.mark.parametrize(
    ("view", "contiguous"),
    [
        (np.ones((4, 6))[:, ::2], False), (np.ones((4, 6)).T, False), (np.ones((4, 6))[1:], True),
        (np.ones((1, 6))[:, :3], True), (np.ones((0, 6)).T, True),
    ],
)  # fmt: skip
def test_gaps_between_elements_are_seen(view: np.ndarray, contiguous: bool) -> None:
    found = borrow(view.__dlpack__())
    assert found.contiguous == contiguous
    found.release()


def test_what_is_taken_lives_until_it_is_let_go() -> None:
    class Own(np.ndarray):
        pass

    array = np.ones(1000).view(Own)
    alive = weakref.ref(array)
    found = borrow(array.__dlpack__())
    del array
    gc.collect()
    assert alive() is not None
    found.release()
    gc.collect()
    assert alive() is None


class Owner:
    """Memory that is lent."""

    def __init__(self, array: np.ndarray, dtype: DType) -> None:
        self.array, self.dtype = array, dtype

    def __dlpack__(self, **_: object) -> object:
        return lend(self, self.array.ctypes.data, self.array.shape, self.dtype, (CPU, 0))

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0, 4), (3, 1, 2)])
def test_what_is_lent_is_the_same_memory(shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, np.float32)
    theirs = np.from_dlpack(Owner(array, "float32"))
    array[...] = 7
    assert theirs.shape == shape
    assert theirs.dtype == np.float32
    np.testing.assert_array_equal(theirs, array)


def test_the_owner_lives_as_long_as_the_one_who_took_it() -> None:
    owner = Owner(np.zeros(3, np.int32), "int32")
    alive = weakref.ref(owner)
    theirs = np.from_dlpack(owner)
    del owner
    gc.collect()
    assert alive() is not None
    assert theirs.tolist() == [0, 0, 0]
    del theirs
    gc.collect()
    assert alive() is None


def test_a_capsule_that_nobody_took_lets_its_owner_go() -> None:
    owner = Owner(np.zeros(3, np.int32), "int32")
    alive = weakref.ref(owner)
    capsule = owner.__dlpack__()
    del owner
    gc.collect()
    assert alive() is not None
    del capsule
    gc.collect()
    assert alive() is None
