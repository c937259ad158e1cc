"""Kernels written by hand run on the machine: right ones without a fault, each wrong one with its own."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipeline.codegen.cuda import execute_build
from pipeline.codegen.cuda.execute import execute
from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.codegen.cuda.execution import Execution
from pipeline.codegen.cuda.kernel import CudaSource
from pipeline.errors import CodegenError, UserError
from tests.codegen.cuda import hand_sources as hand

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")


def feeds(source: CudaSource) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        a.name: rng.standard_normal(a.shape).astype(a.dtype)
        for a in source.arguments
        if a.role in ("input", "constant")
    }


def kinds(execution: Execution) -> set[tuple[str, str]]:
    return {(fault.kind, fault.buffer) for fault in execution.faults}


def run(source: CudaSource, **options: object) -> tuple[Execution, dict[str, np.ndarray]]:
    given = feeds(source)
    return execute(source, given, **options), given  # type: ignore[arg-type]


def test_a_tiled_product_with_a_ragged_tail_is_right_and_without_faults() -> None:
    execution, given = run(hand.GEMM)
    assert execution.faults == ()
    assert execution.written["C"].all() and execution.whole
    np.testing.assert_allclose(execution.outputs["C"], given["A"] @ given["B"], rtol=1e-4, atol=1e-4)


def test_a_reduction_by_shuffles_is_right_and_without_faults() -> None:
    execution, given = run(hand.REDUCTION)
    assert execution.faults == ()
    np.testing.assert_allclose(execution.outputs["y"], given["x"].sum(1), rtol=1e-4, atol=1e-4)


def test_a_pipeline_of_asynchronous_copies_is_right_and_without_faults() -> None:
    execution, given = run(hand.PIPELINE)
    assert execution.faults == ()
    np.testing.assert_array_equal(execution.outputs["y"], given["x"][:, ::-1])


def test_a_missing_barrier_after_filling_is_a_race() -> None:
    execution, _ = run(hand.replaced(hand.GEMM, "ms::sync();  // filled", ""))
    assert {("race", "As"), ("race", "Bs")} <= kinds(execution)


def test_a_missing_barrier_before_refilling_is_a_race() -> None:
    execution, _ = run(hand.replaced(hand.GEMM, "ms::sync();  // used", ""))
    assert kinds(execution) == {("race", "As"), ("race", "Bs")}
    fault = execution.faults[0]
    assert fault.line > 0 and fault.text.strip() and fault.thread >= 0 and fault.other >= 0 and fault.times > 1
    assert "race" in str(fault) and "kernel" in str(fault)


def test_a_missing_barrier_between_warps_is_a_race() -> None:
    execution, _ = run(hand.replaced(hand.REDUCTION, "ms::sync();  // parts", ""))
    assert ("race", "parts") in kinds(execution) or ("unwritten", "parts") in kinds(execution)


def test_a_tail_that_is_one_too_long_is_out_of_bounds() -> None:
    execution, _ = run(hand.replaced(hand.GEMM, "* 2 + i < 70)", "* 2 + i < 71)"))
    assert kinds(execution) == {("out of bounds", "C")}
    assert execution.faults[0].block == (2, 0, 0) and execution.faults[0].element >= 70 * 64


def test_an_input_is_not_read_beyond_its_end() -> None:
    execution, _ = run(hand.replaced(hand.REDUCTION, "i < 500; i", "i <= 500; i"))
    assert kinds(execution) == {("out of bounds", "x")}


def test_a_wait_that_leaves_the_needed_copy_in_flight_is_a_fault() -> None:
    execution, _ = run(hand.replaced(hand.PIPELINE, "ms::wait<1>();", "ms::wait<2>();"))
    assert ("copy in flight read", "ring") in kinds(execution)


def test_a_ring_with_a_buffer_too_few_is_a_fault() -> None:
    whole = hand.replaced(hand.PIPELINE, "(k + 2) % 3 * 128", "(k + 2) % 2 * 128")
    execution, _ = run(hand.replaced(whole, "ring[k % 3 * 128", "ring[k % 2 * 128"))
    assert ("copy in flight read", "ring") in kinds(execution) or ("race", "ring") in kinds(execution)


def test_a_copy_is_seen_by_other_threads_only_after_a_barrier() -> None:
    execution, _ = run(hand.replaced(hand.PIPELINE, "ms::sync();", ""))
    assert ("race", "ring") in kinds(execution)


def test_a_barrier_in_a_branch_that_some_threads_skip_is_a_fault() -> None:
    execution, _ = run(hand.replaced(hand.GEMM, "ms::sync();  // used", "if (t < 100) ms::sync();"))
    assert any(fault.kind == "barrier" for fault in execution.faults)
    assert not execution.whole


def test_a_thread_that_leaves_before_a_barrier_is_a_fault() -> None:
    execution, _ = run(
        hand.replaced(hand.REDUCTION, "ms::sync();  // parts", "if (ms::warp() == 3) return; ms::sync();")
    )
    assert [fault.kind for fault in execution.faults] == ["barrier"]


def test_two_barriers_in_two_branches_are_a_fault() -> None:
    text = "if (ms::warp() == 3) ms::sync();\n else ms::sync();"
    execution, _ = run(hand.replaced(hand.REDUCTION, "ms::sync();  // parts", text))
    assert [fault.kind for fault in execution.faults] == ["barrier"]


def test_a_lane_that_skips_a_shuffle_is_a_fault() -> None:
    execution, _ = run(hand.replaced(hand.REDUCTION, "total = ms::w", "if (ms::lane() != 7) total = ms::w"))
    assert "warp" in {fault.kind for fault in execution.faults}


def test_a_vector_at_an_odd_element_is_misaligned() -> None:
    execution, _ = run(hand.replaced(hand.GEMM, "t % 32 * 2));", "t % 32 * 2 + (t < 255)));"))
    assert ("misaligned", "B") in kinds(execution)


def test_shared_memory_that_was_never_written_is_not_read() -> None:
    execution, _ = run(hand.replaced(hand.GEMM, " else As[t] = 0.0f;", ""))
    assert kinds(execution) == {("unwritten", "As")}


def test_an_array_beyond_the_shared_memory_of_the_launch_is_a_fault() -> None:
    execution, _ = run(hand.replaced(hand.GEMM, "Bs, 1024", "Bs, 1280"))
    assert ("shared size", "Bs") in kinds(execution)


def test_a_kernel_that_never_ends_is_stopped() -> None:
    endless = hand.replaced(hand.REDUCTION, "i < 500; i += 128", "; i %= 500")
    execution, _ = run(endless, budget=100_000)
    assert [fault.kind for fault in execution.faults] == ["endless"]


def test_two_blocks_that_write_one_element_are_a_race() -> None:
    execution, _ = run(hand.replaced(hand.REDUCTION, "y[ms::block_x()]", "y[0]"))
    assert kinds(execution) == {("race between blocks", "y")}
    assert execution.written["y"].tolist() == [True, False, False]


def test_only_the_chosen_blocks_run() -> None:
    execution, given = run(hand.REDUCTION, blocks=lambda launch: [(2, 0, 0)])
    assert execution.written["y"].tolist() == [False, False, True] and not execution.whole
    assert execution.outputs["y"][2] == pytest.approx(given["x"][2].sum(), rel=1e-4)
    with pytest.raises(CodegenError, match="outside of the grid"):
        run(hand.REDUCTION, blocks=lambda launch: [(3, 0, 0)])


def test_a_source_that_is_no_program_is_refused_with_what_the_compiler_says() -> None:
    with pytest.raises(CodegenError, match="nonsense"):
        run(hand.replaced(hand.REDUCTION, "float whole", "nonsense whole"))


def test_arrays_that_do_not_fit_are_refused() -> None:
    with pytest.raises(CodegenError, match="missing"):
        execute(hand.REDUCTION, {})
    with pytest.raises(CodegenError, match="does not fit"):
        execute(hand.REDUCTION, {"x": np.zeros((3, 500))})


def test_more_threads_than_a_function_allows_are_refused() -> None:
    with pytest.raises(CodegenError, match="256 threads, 128 allowed"):
        run(hand.replaced(hand.GEMM, "MS_KERNEL(256)", "MS_KERNEL(128)"))


def test_fibers_without_a_switch_of_our_own_do_the_same() -> None:
    compiler = find_compiler()
    assert compiler is not None
    path = execute_build.machine_library(compiler).with_name("machine-ucontext.so")
    flags = ("-O1", "-DMUSCHEDULE_UCONTEXT")
    execute_build._compile(compiler, execute_build.HERE / execute_build.MACHINE, path, flags)
    code = (
        "import sys; sys.path[:] = sys.argv[2:]\n"
        "from pathlib import Path\n"
        "from pipeline.codegen.cuda.execute_build import adopt_machine, find_compiler\n"
        "from tests.codegen.cuda import hand_sources as hand\n"
        "from tests.codegen.cuda.test_execute import run\n"
        "adopt_machine(find_compiler(), Path(sys.argv[1]))\n"
        "for source in (hand.GEMM, hand.REDUCTION, hand.PIPELINE):\n"
        "    execution, _ = run(source)\n"
        "    assert execution.faults == () and execution.whole\n"
        "bad, _ = run(hand.replaced(hand.GEMM, 'ms::sync();  // used', ''))\n"
        "assert bad.faults[0].kind == 'race'\n"
    )
    subprocess.run([sys.executable, "-c", code, str(path), *sys.path], check=True)


def test_a_compiler_that_makes_no_library_is_not_taken(tmp_path: Path) -> None:
    broken = tmp_path / "broken++"
    broken.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    usual = find_compiler()
    assert find_compiler(str(broken)) == usual is not None
    assert find_compiler("no such compiler") == usual


@pytest.mark.parametrize(
    ("script", "said"), [("echo no such licence >&2; exit 1", "no such licence"), ("exit 3", "exit code 3")]
)
def test_a_compiler_that_does_not_work_is_named_with_what_it_says(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "g++"
    broken.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compiler() is None
    with pytest.raises(UserError, match="no C\\+\\+ compiler") as caught:
        execute(hand.GEMM, {})
    assert str(broken) in caught.value.why and said in caught.value.why


def test_a_path_without_a_compiler_is_said_to_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compiler() is None
    assert execute_build.why_no_compiler() == "none of c++, g++, clang++ is on the path"
