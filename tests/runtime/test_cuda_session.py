"""Tests of sessions on a GPU, as far as they go without one: errors, the order of calls, tensors in and out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.codegen.cuda.driver import Device, runs_on, started, why_absent
from pipeline.codegen.cuda.link import link
from pipeline.errors import MeasureError, UserError
from pipeline.runtime.cuda_artifact import save_cuda
from pipeline.runtime.cuda_session import CudaSession
from tests.codegen.cuda.small_plans import V, plan
from tests.runtime.fake_driver import FakeDriver

X, Y = np.arange(100, dtype=np.float32), np.full(100, 2.0, np.float32)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return save_cuda(link(plan()), tmp_path / "artifact")


class Tensor:
    """A tensor of another library."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.__cuda_array_interface__ = {
            "shape": (100,), "typestr": "<f4", "data": (4096, False), "strides": None, "version": 3, **facts
        }  # fmt: skip


def session(stored: Path, driver: FakeDriver) -> CudaSession:
    return CudaSession(stored, device=Device(cuda=driver))


def launched(driver: FakeDriver) -> list[str]:
    return [arguments[0] for name, arguments in driver.calls if name == "cuLaunchKernel"]


def test_weights_are_uploaded_then_prologues_run_then_one_graph_is_made(stored: Path) -> None:
    driver = FakeDriver()
    session(stored, driver)
    assert launched(driver) == ["twice", "add", "first", "second", "add", "first", "second"]
    order = driver.names(
        "cuMemcpyHtoDAsync", "cuLaunchKernel", "cuMemFree", "cuStreamBeginCapture", "cuGraphInstantiate"
    )
    assert order == [
        *["cuMemcpyHtoDAsync"] * 2, "cuLaunchKernel", "cuMemFree", "cuStreamBeginCapture", *["cuLaunchKernel"] * 6,
        "cuGraphInstantiate",
    ]  # fmt: skip


def test_a_run_uploads_launches_the_graph_once_and_downloads(stored: Path) -> None:
    driver = FakeDriver()
    with session(stored, driver) as made:
        driver.calls.clear()
        outputs = made.run(["y.out", "z"], {"x": X, "y": Y})
    assert driver.names("cuLaunchKernel") == []
    order = driver.names("cuMemcpyHtoDAsync", "cuGraphLaunch", "cuMemcpyDtoHAsync", "cuStreamSynchronize")
    assert order == [
        *["cuMemcpyHtoDAsync"] * 2, "cuGraphLaunch", *["cuMemcpyDtoHAsync"] * 2, "cuStreamSynchronize"
    ]  # fmt: skip
    assert [array.shape for array in outputs] == [(100,), (100,)]


def test_what_the_plan_copies_is_copied_in_the_graph(stored: Path) -> None:
    driver = FakeDriver()
    made = session(stored, driver)
    assert len(driver.names("cuMemcpyDtoDAsync")) == 3
    (constant,) = made.run(["v.out"], {"x": X, "y": Y})
    np.testing.assert_array_equal(constant, V)  # the copy was made while the graph was captured


def test_inputs_in_device_memory_are_copied_there_and_waited_for_on_their_stream(stored: Path) -> None:
    driver = FakeDriver()
    made = session(stored, driver)
    address = made._device.allocate(400)

    tensor = Tensor({"data": (address, False), "stream": 11})
    driver.calls.clear()
    made.run(["z"], {"x": tensor, "y": Y})
    assert driver.names("cuEventRecord", "cuStreamWaitEvent", "cuMemcpyDtoDAsync", "cuGraphLaunch") == [
        "cuEventRecord", "cuStreamWaitEvent", "cuMemcpyDtoDAsync", "cuGraphLaunch"
    ]  # fmt: skip
    recorded = next(arguments for name, arguments in driver.calls if name == "cuEventRecord")
    assert recorded[1] == 11


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"typestr": "<f8"}, "wrong dtype"),
        ({"shape": (50,)}, "wrong shape"),
        ({"strides": (8,)}, "not contiguous"),
    ],
)
def test_an_input_in_device_memory_that_does_not_fit_is_refused(facts: dict[str, Any], said: str, stored: Path) -> None:
    made = session(stored, FakeDriver())
    with pytest.raises(UserError, match=said):
        made.run(None, {"x": Tensor(facts), "y": Y})


def test_outputs_can_stay_in_device_memory(stored: Path) -> None:
    driver = FakeDriver()
    made = session(stored, driver)
    driver.calls.clear()
    z, again = made.run_on_device(["z", "z.again"], {"x": X, "y": Y}, stream=5)
    assert "cuStreamSynchronize" not in driver.names()
    facts = again.__cuda_array_interface__
    assert (facts["shape"], facts["typestr"], facts["stream"], facts["version"]) == ((10, 10), "<f4", 5, 3)
    assert z.__dlpack_device__() == (2, 0)
    assert z.numpy().shape == (100,)
    waited = [arguments[0] for name, arguments in driver.calls if name == "cuStreamSynchronize"]
    assert waited[0] == 5
    assert facts["data"][0] == again.address != z.address


def test_what_one_run_left_in_device_memory_goes_into_another_by_dlpack(stored: Path, tmp_path: Path) -> None:
    driver = FakeDriver()
    device = Device(cuda=driver)
    first, second = (CudaSession(stored, device=device) for _ in range(2))
    (z,) = first.run_on_device(["z"], {"x": X, "y": Y})
    driver.view(z.address, 100)[:] = 3.0
    driver.calls.clear()
    second.run(None, {"x": z, "y": Y})
    copied = [given for name, given in driver.calls if name == "cuMemcpyDtoDAsync"]
    assert [source for _, source, *_ in copied] == [z.address]
    np.testing.assert_array_equal(driver.view(copied[0][0], 100), np.full(100, 3.0, np.float32))


def test_a_tensor_on_another_gpu_or_of_another_shape_is_refused(stored: Path) -> None:
    made = session(stored, FakeDriver())
    (again,) = made.run_on_device(["z.again"], {"x": X, "y": Y})
    with pytest.raises(UserError, match="wrong shape"):
        made.run(None, {"x": again, "y": Y})

    class Elsewhere:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 1

    with pytest.raises(UserError, match="on another GPU"):
        made.run(None, {"x": Elsewhere(), "y": Y})


def test_the_default_stream_is_written_as_other_libraries_do(stored: Path) -> None:
    made = session(stored, FakeDriver())
    (z,) = made.run_on_device(["z"], {"x": X, "y": Y}, stream=0)
    assert z.__cuda_array_interface__["stream"] == 1
    (z,) = made.run_on_device(["z"], {"x": X, "y": Y})
    assert z.__cuda_array_interface__["stream"] is None, "the run was waited for"


def test_times_are_the_devices(stored: Path) -> None:
    made = session(stored, FakeDriver())
    assert made.time({"x": X, "y": Y}, 3) == [0.25, 0.25, 0.25]
    told = made.profile({"x": X, "y": Y}, repeats=2)
    assert [call["label"] for call in told["calls"]] == ["sum", "back", "z", "u"]
    assert told["total_ms"] == 1.0


def test_a_closed_session_does_not_run_and_holds_no_memory(stored: Path) -> None:
    driver = FakeDriver()
    made = session(stored, driver)
    made.close()
    assert driver.memory == {}
    with pytest.raises(UserError, match="the session is closed"):
        made.run(None, {"x": X, "y": Y})


MADE_AND_ENDED = (
    ("cuModuleLoadData", "cuModuleUnload"), ("cuStreamCreate", "cuStreamDestroy"), ("cuMemAlloc", "cuMemFree"),
    ("cuGraphInstantiate", "cuGraphExecDestroy"), ("cuStreamEndCapture", "cuGraphDestroy"),
)  # fmt: skip


@pytest.mark.parametrize("own", [True, False])
def test_a_closed_session_has_given_back_all_that_it_made(
    own: bool, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeDriver()
    monkeypatch.setattr("pipeline.codegen.cuda.driver.load_driver", lambda: driver)
    made = CudaSession(stored) if own else session(stored, driver)
    made.run(None, {"x": X, "y": Y})
    made.close()
    made.close()
    for begin, end in MADE_AND_ENDED:
        assert len(driver.names(begin)) == len(driver.names(end)), begin
    assert driver.names("cuDevicePrimaryCtxRelease") == ["cuDevicePrimaryCtxRelease"] * own


@pytest.mark.parametrize("refused", ["cuMemAlloc", "cuGraphInstantiate", "cuStreamCreate", "cuModuleGetFunction"])
def test_a_session_that_could_not_be_made_has_given_back_what_it_had(refused: str, stored: Path) -> None:
    driver = FakeDriver({refused: "CUDA_ERROR_OUT_OF_MEMORY"})
    device = Device(cuda=driver)
    with pytest.raises(UserError):
        CudaSession(stored, device=device)
    for begin, end in MADE_AND_ENDED:
        assert begin == refused or len(driver.names(begin)) == len(driver.names(end)), begin


def test_a_session_whose_kernels_are_at_fault_is_closed_without_another_error(stored: Path) -> None:
    driver = FakeDriver()
    made = session(stored, driver)
    driver.planted = dict.fromkeys(("cuCtxSetCurrent", "cuMemFree", "cuModuleUnload"), "CUDA_ERROR_ILLEGAL_ADDRESS")
    made.close()
    with pytest.raises(UserError, match="the session is closed"):
        made.run(None, {"x": X, "y": Y})


@pytest.mark.parametrize(
    ("feeds", "said"),
    [
        ({"x": X}, "not the model's inputs"),
        ({"x": X, "y": Y, "q": X}, "not the model's inputs"),
        ([X, Y], "a list"),
        ({"x": X, "y": Y.astype(np.float64)}, "wrong dtype"),
        ({"x": X, "y": Y[:50]}, "wrong shape"),
    ],
)
def test_feeds_that_do_not_fit_are_refused(feeds: Any, said: str, stored: Path) -> None:
    with pytest.raises(UserError, match=said):
        session(stored, FakeDriver()).run(None, feeds)


def test_an_output_that_there_is_not_is_refused(stored: Path) -> None:
    with pytest.raises(UserError, match=r"no such output.*v\.out"):
        session(stored, FakeDriver()).run(["q"], {"x": X, "y": Y})


def test_a_gpu_of_another_generation_is_refused_with_both_names(stored: Path) -> None:
    with pytest.raises(UserError, match=r"for another GPU.*for sm_80, and Fake GPU is sm_90"):
        session(stored, FakeDriver(capability=(9, 0)))


@pytest.mark.parametrize(
    ("made", "device", "fits"),
    [
        ("sm_80", "sm_80", True), ("sm_80", "sm_86", True), ("sm_80", "sm_89", True), ("sm_86", "sm_80", False),
        ("sm_80", "sm_90", False), ("sm_90a", "sm_90", True), ("sm_90a", "sm_100", False), ("sm_75", "sm_80", False),
    ],
)  # fmt: skip
def test_machine_code_runs_on_its_own_generation(made: str, device: str, fits: bool) -> None:
    assert runs_on(made, device) == fits


def test_too_little_memory_is_a_mistake_of_the_user_with_the_numbers(stored: Path) -> None:
    with pytest.raises(UserError, match=r"not enough memory.*3,584 bytes were asked for"):
        session(stored, FakeDriver({"cuMemAlloc": "CUDA_ERROR_OUT_OF_MEMORY"}))


def test_a_driver_that_refuses_the_code_is_told(stored: Path) -> None:
    with pytest.raises(UserError, match=r"does not take the machine code.*NO_BINARY_FOR_GPU"):
        session(stored, FakeDriver({"cuModuleLoadData": "CUDA_ERROR_NO_BINARY_FOR_GPU"}))


def test_what_a_kernel_does_wrong_is_told_when_it_is_waited_for(stored: Path) -> None:
    with pytest.raises(MeasureError, match="ILLEGAL_ADDRESS"):
        session(stored, FakeDriver({"cuStreamSynchronize": "CUDA_ERROR_ILLEGAL_ADDRESS"}))


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        (FakeDriver(version=12080), r"too old.*it knows CUDA 12\.8, and 13\.0 is needed"),
        (FakeDriver({"cuInit": "CUDA_ERROR_NO_DEVICE"}), "no NVIDIA GPU"),
        (FakeDriver(count=0), "no NVIDIA GPU"),
        (FakeDriver({"cuInit": "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}), "does not start.*DRIVER_MISMATCH"),
    ],
)
def test_a_driver_that_cannot_be_used_is_a_mistake_of_the_user(driver: FakeDriver, said: str) -> None:
    with pytest.raises(UserError, match=said):
        started(driver)


def test_a_machine_without_a_driver_is_told_so() -> None:
    class Missing:
        def cuInit(self, flags: int) -> None:
            raise RuntimeError("libcuda.so.1 was not found")

    with pytest.raises(UserError, match=r"no driver for an NVIDIA GPU.*libcuda\.so\.1.*Install"):
        started(Missing())


def test_another_device_than_that_of_the_target_does_not_measure_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.codegen.cuda.driver.load_driver", lambda: FakeDriver(capability=(8, 6)))
    assert why_absent("sm_80") == "the GPU here, Fake GPU, is sm_86"
    assert why_absent("sm_86") is None


def test_a_device_that_there_is_not_is_refused() -> None:
    with pytest.raises(UserError, match=r"no such GPU.*device 1 was asked for and there are 1"):
        Device(1, cuda=FakeDriver())


def test_more_than_48_kib_of_shared_memory_is_asked_for(stored: Path) -> None:
    driver = FakeDriver()
    device = Device(cuda=driver)
    from_plan = link(plan()).kernels[0]
    large = from_plan.program.launches[0]
    object.__setattr__(large, "shared_bytes", 100_000)
    device.functions(from_plan)
    asked = next(arguments for name, arguments in driver.calls if name == "cuFuncSetAttribute")
    assert asked[1:] == ("CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES", 100_000)
