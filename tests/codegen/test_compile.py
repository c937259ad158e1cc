"""Compilation through LLVM: what comes out, what the pipeline leaves alone, and what is refused."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from pipeline.codegen.llvm.compile import LoadedObject, assembly, compile_ir, function_attributes, optimised_ir
from pipeline.errors import CodegenError
from pipeline.ir.target import Target


def _target(triple: str, cpu: str, features: tuple[str, ...], vector_bits: int) -> Target:
    return Target(
        kind="cpu", name=cpu, triple=triple, cpu=cpu, features=features, cores=2, vector_bits=vector_bits,
        vector_registers=16, fma_per_cycle=2, fma_latency=4, clock_ghz=3.0, bandwidth_gbs=20.0, caches=(),
    )  # fmt: skip


HOST_FEATURES = llvm.get_host_cpu_features()
NATIVE = _target(
    llvm.get_process_triple(),
    llvm.get_host_cpu_name(),
    tuple(("+" if on else "-") + name for name, on in sorted(HOST_FEATURES.items())),
    512 if HOST_FEATURES.get("avx512f") else 256 if HOST_FEATURES.get("avx2") else 128,
)
ARM = _target("aarch64-unknown-linux-gnu", "neoverse-n1", (), 128)
HASWELL = _target("x86_64-unknown-linux-gnu", "haswell", (), 256)
SKYLAKE = _target("x86_64-unknown-linux-gnu", "skylake-avx512", (), 512)
FOREIGN = HASWELL if "aarch64" in NATIVE.triple or "arm64" in NATIVE.triple else ARM

LOOP = """
define void @sum(ptr noalias %a, ptr noalias %b, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %pa = getelementptr float, ptr %a, i64 %i
  %pb = getelementptr float, ptr %b, i64 %i
  %x = load float, ptr %pa
  %y = load float, ptr %pb
  %z = fadd float %x, %y
  store float %z, ptr %pa
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""
MULTIPLY_ADD = """
define void @f(ptr %a, ptr %b) ATTRIBUTES {
  %x = load <16 x float>, ptr %a
  %y = load <16 x float>, ptr %b
  %p = fmul <16 x float> %x, %y
  %s = fadd <16 x float> %p, %x
  store <16 x float> %s, ptr %a
  ret void
}
"""


def test_an_object_runs_and_finds_the_math_library() -> None:
    text = """
declare double @exp(double)
define double @f(double %x) {
  %y = call double @exp(double %x)
  ret double %y
}"""
    loaded = LoadedObject(compile_ir(text, NATIVE), target=NATIVE)
    function = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(loaded.address("f"))
    assert function(1.0) == pytest.approx(2.718281828459045, rel=1e-15)


def test_objects_see_each_other_and_the_symbols_that_are_given() -> None:
    one = compile_ir("declare i64 @two()\ndefine i64 @one() {\n %x = call i64 @two()\n ret i64 %x\n}", NATIVE)
    two = compile_ir("define i64 @two() {\n ret i64 2\n}", NATIVE)
    together = LoadedObject((one, two))
    apart = LoadedObject(one, symbols={"two": together.address("two")})
    for loaded in (together, apart):
        assert ctypes.CFUNCTYPE(ctypes.c_int64)(loaded.address("one"))() == 2


@pytest.mark.parametrize("optimise", [True, False])
def test_constants_in_memory_are_reached_by_position_independent_code(optimise: bool) -> None:
    text = """
@table = private constant [4 x float] [float 1.0, float 2.0, float 3.0, float 4.0]
define float @at(i64 %i) {
  %p = getelementptr float, ptr @table, i64 %i
  %v = load float, ptr %p
  ret float %v
}"""
    loaded = LoadedObject(compile_ir(text, NATIVE, optimise=optimise))
    at = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64)(loaded.address("at"))
    assert [at(i) for i in range(4)] == [1.0, 2.0, 3.0, 4.0]


def test_a_scalar_loop_is_neither_vectorised_nor_unrolled() -> None:
    text = optimised_ir(LOOP, NATIVE)
    assert " x float>" not in text
    assert text.count("fadd float") == 1


def test_loop_invariants_are_hoisted_and_stack_slots_become_values() -> None:
    text = """
define void @f(ptr noalias %a, ptr noalias %b, i64 %n) {
entry:
  %slot = alloca float
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %scale = load float, ptr %b
  %twice = fadd float %scale, %scale
  store float %twice, ptr %slot
  %pa = getelementptr float, ptr %a, i64 %i
  %x = load float, ptr %pa
  %again = load float, ptr %slot
  %z = fmul float %x, %again
  store float %z, ptr %pa
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}"""
    optimised = optimised_ir(text, NATIVE)
    assert "alloca" not in optimised
    assert optimised.index("fadd float") < optimised.index("phi i64")


def test_a_multiplication_and_an_addition_are_not_fused_unless_asked() -> None:
    for target in (HASWELL, SKYLAKE, ARM):
        text = assembly(MULTIPLY_ADD.replace("ATTRIBUTES", function_attributes(target)), target)
        assert "fmadd" not in text and "fmla" not in text


def test_512_bit_vectors_stay_whole_on_a_cpu_that_prefers_256() -> None:
    assert "zmm" in assembly(MULTIPLY_ADD.replace("ATTRIBUTES", function_attributes(SKYLAKE)), SKYLAKE)
    narrow = assembly(MULTIPLY_ADD.replace("ATTRIBUTES", function_attributes(HASWELL)), HASWELL)
    assert "ymm" in narrow and "zmm" not in narrow


def test_a_foreign_target_compiles() -> None:
    code = compile_ir(MULTIPLY_ADD.replace("ATTRIBUTES", function_attributes(ARM)), ARM)
    assert code[:4] == b"\x7fELF" and code[18] == 183
    assert ".4s" in assembly(MULTIPLY_ADD.replace("ATTRIBUTES", function_attributes(ARM)), ARM)


def test_object_code_of_another_machine_is_refused() -> None:
    with pytest.raises(CodegenError, match="another machine"):
        LoadedObject(compile_ir("define void @f() {\n ret void\n}", FOREIGN))


def test_a_feature_that_the_cpu_lacks_is_named() -> None:
    absent = next(name for name, on in sorted(HOST_FEATURES.items()) if not on and not name.startswith("prefer"))
    wanting = _target(NATIVE.triple, "generic", (f"+{absent}",), 128)
    with pytest.raises(CodegenError, match=absent):
        LoadedObject(compile_ir("define void @f() {\n ret void\n}", NATIVE), target=wanting)


def test_a_tuning_preference_is_not_a_missing_feature() -> None:
    tuned = _target(NATIVE.triple, "generic", ("+prefer-256-bit",), 128)
    LoadedObject(compile_ir("define void @f() {\n ret void\n}", NATIVE), target=tuned)


def test_a_parse_error_shows_the_line() -> None:
    with pytest.raises(CodegenError, match=r"line 2, column 20: .*`%x = add i32 1, 2.0`"):
        compile_ir("define void @f() {\n   %x = add i32 1, 2.0\n  ret void\n}", NATIVE)


def test_a_verifier_error_shows_the_instruction() -> None:
    text = "define i32 @f() {\n  %x = add i32 1, %y\n  %y = add i32 %x, 1\n  ret i32 %x\n}"
    with pytest.raises(CodegenError, match=r"dominate.*%y = add i32 %x, 1"):
        compile_ir(text, NATIVE)


def test_an_unknown_triple_is_refused() -> None:
    with pytest.raises(CodegenError, match="cannot generate code"):
        compile_ir("define void @f() {\n ret void\n}", _target("nonsense-unknown-none", "", (), 128))


def test_a_symbol_that_is_missing_is_an_error_not_a_crash() -> None:
    with pytest.raises(CodegenError, match="g: symbol cannot be resolved"):
        LoadedObject(compile_ir("define void @f() {\n ret void\n}", NATIVE)).address("g")
    calls = "declare void @muschedule_absent()\ndefine void @f() {\n call void @muschedule_absent()\n ret void\n}"
    with pytest.raises(CodegenError, match="f: symbol cannot be resolved"):
        LoadedObject(compile_ir(calls, NATIVE)).address("f")


def test_bytes_that_are_no_object_are_refused() -> None:
    with pytest.raises(CodegenError):
        LoadedObject(b"not an object").address("f")


def test_a_symbol_defined_twice_is_refused() -> None:
    code = compile_ir("define void @f() {\n ret void\n}", NATIVE)
    with pytest.raises(CodegenError):
        LoadedObject((code, code)).address("f")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_compilations_leave_no_memory_behind() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def some(count: int) -> None:
        for _ in range(count):
            LoadedObject(compile_ir("define i64 @f() {\n ret i64 1\n}", NATIVE)).address("f")

    some(50)
    before = resident()
    some(200)
    assert resident() - before < 4 << 20


def test_several_threads_compile_and_load_at_once() -> None:
    results: dict[int, int] = {}

    def build(number: int) -> None:
        for _ in range(5):
            loaded = LoadedObject(compile_ir(f"define i64 @f() {{\n ret i64 {number}\n}}", NATIVE))
            results[number] = ctypes.CFUNCTYPE(ctypes.c_int64)(loaded.address("f"))()

    threads = [threading.Thread(target=build, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: number for number in range(4)}
