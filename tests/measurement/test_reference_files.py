"""References as files: what is read is what was written."""

import ml_dtypes
import numpy as np
import pytest

from pipeline.measurement.protocol import Case, Reference
from pipeline.measurement.reference_files import read, write


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.uint8, bool])
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (200, 300)])
def test_a_reference_comes_back_as_it_was(dtype, shape, tmp_path):
    array = (np.arange(int(np.prod(shape))) % 2).reshape(shape).astype(dtype)
    case = Case({"x/1": array}, {"y": array}, {"y": np.float64(0.5)})
    back = read(write(Reference("task", {"w": array}, (case, case), frozenset({"x/1"})), tmp_path / "task"))
    assert back.task_id == "task"
    assert back.fed == {"x/1"}
    assert len(back.cases) == 2
    for got in (back.constants["w"], back.cases[1].inputs["x/1"], back.cases[0].expected["y"]):
        assert got.dtype == array.dtype
        assert got.shape == shape
        np.testing.assert_array_equal(got, array)
    assert back.cases[0].tolerance["y"] == 0.5


def test_large_arrays_are_mapped_and_not_read(tmp_path):
    large = np.zeros(1 << 20, np.float32)
    back = read(write(Reference("task", {"w": large}, ()), tmp_path / "task"))
    base = back.constants["w"]
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
