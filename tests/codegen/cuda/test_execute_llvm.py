"""Programs of a GPU where no C++ compiler is: through the code generator of CPUs, or the interpreter."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.codegen.cuda import execute as execute_module
from pipeline.codegen.cuda.check_outputs import check_outputs
from pipeline.codegen.cuda.execute import execute
from pipeline.codegen.cuda.execute_llvm import execute_by_llvm, workspaces_by_llvm
from pipeline.codegen.cuda.host_program import host_program
from pipeline.codegen.cuda.kernel import Launch
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


SUMS = """program sums():
    input A: float32[6, 8]
    intermediate W: float32[6]
    output B: float32[6]
    body:
        for i0 in blockIdx.x(6):
            block first:
                spatial v in range(6) = i0
                W[v] = A[v, 0] + A[v, 7]
        for i1 in blockIdx.x(6):
            block second:
                spatial v in range(6) = i1
                B[v] = W[5 - v] * 2.0:float32
"""


def test_values_of_workspaces_come_from_the_same_program() -> None:
    source = from_text(SUMS)
    given = feeds(source)
    workspaces = workspaces_by_llvm(source, given, native())
    assert workspaces is not None
    found = workspaces(Launch("first", (6, 1, 1), 1, 0, ("A", "W")))
    np.testing.assert_array_equal(found["W"], given["A"][:, 0] + given["A"][:, 7])
    twice = SUMS.replace("B[v] =", "W[v] =").replace("    output B: float32[6]\n", "").replace("W[5 - v]", "A[v, 1]")
    again = from_text(twice)
    assert workspaces_by_llvm(again, given, native()) is None
