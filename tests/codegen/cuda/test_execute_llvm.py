"""Programs of a GPU where no C++ compiler is: through the code generator of CPUs, or the interpreter."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.codegen.cuda import execute as execute_module
from pipeline.codegen.cuda.check_outputs import check_outputs
from pipeline.codegen.cuda.execute import execute
from pipeline.codegen.cuda.execute_llvm import execute_by_llvm
from pipeline.codegen.cuda.host_program import host_program
from pipeline.errors import CheckError, UserError
from pipeline.ir.interpret import interpret
from pipeline.ir.program import Alloc, Loop, Program, walk
from pipeline.ir.program_check import check
from pipeline.ir.program_parse import from_text
from tests.codegen.cuda import hand_sources as hand
from tests.codegen.kernel_runs import native

FOLDER = Path(__file__).parent


def program(name: str) -> Program:
    return from_text((FOLDER / name).read_text(encoding="utf-8"))


def feeds(source: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        b.name: rng.standard_normal([extent.value for extent in b.shape]).astype(b.dtype)
        for b in source.buffers
        if b.role == "input"
    }


@pytest.mark.parametrize("name", ["simt_gemm.txt", "tensor_gemm.txt"])
def test_a_program_of_a_gpu_runs_through_the_code_generator_of_cpus(name: str) -> None:
    source = program(name)
    given = feeds(source)
    execution = execute_by_llvm(source, given, native())
    assert execution.by == "llvm" and execution.whole and execution.counts == ()
    bound = np.array(2e-2 if name == "tensor_gemm.txt" else 1e-4)
    want = given["A"].astype(np.float64) @ given["B"].astype(np.float64)
    assert check_outputs(execution, {"C": want}, {"C": bound}).ok


@pytest.mark.parametrize("name", ["simt_gemm.txt", "tensor_gemm.txt"])
def test_a_program_without_threads_means_the_same(name: str) -> None:
    source = program(name)
    plain = host_program(source)
    check(plain)
    kinds = {stmt.kind for stmt in walk(plain.body) if isinstance(stmt, Loop)}
    scopes = {stmt.buffer.scope for stmt in walk(plain.body) if isinstance(stmt, Alloc)}
    assert kinds == {"parallel", "serial"} and scopes == {"shared"}
    given = feeds(source)
    np.testing.assert_array_equal(interpret(plain, given)["C"], interpret(source, given)["C"])


def test_what_the_code_generator_cannot_lower_is_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> dict[str, np.ndarray]:
        raise CheckError("not this one")

    monkeypatch.setattr("pipeline.codegen.cuda.execute_llvm._run", refuse)
    source = program("simt_gemm.txt")
    given = feeds(source)
    execution = execute_by_llvm(source, given, native())
    assert execution.by == "interpreter"
    np.testing.assert_allclose(execution.outputs["C"], given["A"] @ given["B"], rtol=1e-3, atol=1e-4)


def test_without_a_compiler_the_source_is_not_run_and_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(execute_module, "find_compiler", lambda named: None)
    with pytest.raises(UserError, match="Install"):
        execute(hand.GEMM, {})
