"""Linking: kernels, buffers and barriers become one function that computes what the calls say."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.codegen.llvm.compile import LoadedObject, assembly
from pipeline.codegen.llvm.link import aligned_zeros, link
from pipeline.codegen.llvm.main_function import (
    Access,
    CopyStep,
    KernelStep,
    Pointer,
    Region,
    barriers_before,
    main_ir,
)
from pipeline.codegen.llvm.team import Team
from pipeline.codegen.module import Buffer, Call, LinkedCall, LinkedModule, ModulePlan, check_plan
from pipeline.errors import CheckError, CodegenError
from pipeline.ir.graph_types import numpy_dtype
from tests.codegen.hand_kernels import add_plan, elementwise, matmul, native, reversal


def run(module: LinkedModule, feeds: list[np.ndarray], threads: int = 1) -> list[np.ndarray]:
    """Loads and runs the module with nothing of the runtime in between."""
    loaded = LoadedObject(tuple(module.objects.values()))
    outputs = [np.full(port.shape, -7, numpy_dtype(port.dtype)) for port in module.outputs]
    size = max([weight.offset + module.data[weight.name].nbytes for weight in module.weights], default=0)
    constants = aligned_zeros(size)
    for weight in module.weights:
        raw = np.ascontiguousarray(module.data[weight.name]).reshape(-1).view(np.uint8)
        constants[weight.offset : weight.offset + raw.size] = raw
    arena, table = aligned_zeros(module.memory.arena_bytes), np.zeros(module.slots + 1, np.int64)
    areas = [constants, arena, table]
    pointers = np.array([array.ctypes.data for array in (*feeds, *outputs, *areas)], np.int64)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(loaded.address("muschedule_bind"))(pointers.ctypes.data)
    with Team(threads, loaded) as team:
        team.run(loaded.address("muschedule_main"), pointers.ctypes.data)
    return outputs


def chain(n: int = 100) -> ModulePlan:
    """t = a + b; u = reverse(t); v = a * b; y = u - v; z is a reshaped u; an input and a constant come out again."""
    return ModulePlan(
        kernels=(
            elementwise("add", "fadd", n),
            reversal("rev", n),
            elementwise("mul", "fmul", n),
            elementwise("sub", "fsub", n),
        ),
        calls=(Call(0, ("a", "b", "t")), Call(1, ("t", "u")), Call(2, ("a", "b", "v")), Call(3, ("view", "v", "y"))),
        buffers=(
            Buffer("a", (n,), "float32", "input"),
            Buffer("b", (n,), "float32", "input"),
            Buffer("t", (n,), "float32", "intermediate"),
            Buffer("u", (n,), "float32", "intermediate"),
            Buffer("v", (n,), "float32", "intermediate"),
            Buffer("y", (n,), "float32", "output"),
            Buffer("k", (3,), "int64", "constant"),
        ),
        inputs=("a", "b"),
        outputs=("y", "z", "same_a", "same_k", "y2"),
        constants={"k": np.array([1, 2, 3])},
        threads=2,
        target=native(),
        aliases={"view": "u", "z": "view", "same_a": "a", "same_k": "k", "y2": "y"},
        shapes={"z": (n // 2, 2)},
    )


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_chain_of_kernels_computes_what_its_calls_say(threads: int) -> None:
    module = link(chain())
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 100)).astype(np.float32)
    for _ in range(20):
        y, z, same_a, same_k, y2 = run(module, [a, b], threads)
        np.testing.assert_array_equal(y, (a + b)[::-1] - a * b)
        np.testing.assert_array_equal(z, (a + b)[::-1].reshape(50, 2))
        np.testing.assert_array_equal(same_a, a)
        np.testing.assert_array_equal(same_k, [1, 2, 3])
        np.testing.assert_array_equal(y2, y)


def test_an_aliased_output_is_written_in_place_and_only_second_names_are_copied() -> None:
    module = link(chain())
    assert [call.label for call in module.calls if call.symbol == "memcpy"] == [
        "copy to same_a",
        "copy to same_k",
        "copy to y2",
    ]


def matmul_plan(m: int = 5, n: int = 7, k: int = 9) -> ModulePlan:
    rng = np.random.default_rng(1)
    return ModulePlan(
        kernels=(matmul("mm", m, n, k),),
        calls=(
            Call(0, ("x", "w", "bias", "y0")),
            Call(0, ("x", "w", "bias", "y1")),
            Call(0, ("x", "w2", "bias", "y2")),
        ),
        buffers=(
            Buffer("x", (m, k), "float32", "input"),
            Buffer("w", (k, n), "float32", "constant"),
            Buffer("w2", (k, n), "float32", "constant"),
            Buffer("bias", (n,), "float32", "constant"),
            *(Buffer(f"y{i}", (m, n), "float32", "output") for i in range(3)),
        ),
        inputs=("x",),
        outputs=("y0", "y1", "y2"),
        threads=2,
        target=native(),
        constants={
            name: rng.standard_normal(shape).astype(np.float32)
            for name, shape in (("w", (k, n)), ("w2", (k, n)), ("bias", (n,)))
        },
    )


def test_constants_are_packed_once_and_raw_ones_that_nothing_reads_are_dropped() -> None:
    plan = matmul_plan()
    module = link(plan)
    assert sorted(weight.name for weight in module.weights) == ["bias", "packed.0.panel", "packed.1.panel"]
    np.testing.assert_array_equal(module.data["packed.0.panel"], plan.constants["w"].T)
    x = np.random.default_rng(2).standard_normal((5, 9)).astype(np.float32)
    y0, y1, y2 = run(module, [x], 2)
    np.testing.assert_allclose(y0, x @ plan.constants["w"] + plan.constants["bias"], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(y0, y1)
    np.testing.assert_allclose(y2, x @ plan.constants["w2"] + plan.constants["bias"], rtol=1e-5, atol=1e-5)


def test_a_constant_that_the_kernel_may_read_is_kept() -> None:
    plan = matmul_plan()
    kernel = replace(plan.kernels[0], prologue_only=())
    assert "w" in {weight.name for weight in link(replace(plan, kernels=(kernel,))).weights}


def test_weights_are_aligned_and_do_not_overlap() -> None:
    module = link(matmul_plan())
    ends = 0
    for weight in module.weights:
        assert weight.offset % 64 == 0
        assert weight.offset >= ends
        ends = weight.offset + module.data[weight.name].nbytes


def test_a_module_of_serial_kernels_is_marked_for_one_thread() -> None:
    assert link(add_plan(parallel=False)).threads == 1
    assert link(add_plan(parallel=True)).threads == 2


def test_a_serial_kernel_between_parallel_ones_sees_and_gives_whole_tensors() -> None:
    n = 1000
    plan = chain(n)
    kernels = (*plan.kernels[:3], elementwise("sub", "fsub", n, parallel=False))
    module = link(replace(plan, kernels=kernels, outputs=("y",)))
    a, b = np.random.default_rng(0).standard_normal((2, n)).astype(np.float32)
    for _ in range(50):
        np.testing.assert_array_equal(run(module, [a, b], 2)[0], (a + b)[::-1] - a * b)


def step(parallel: bool, *accesses: Access) -> KernelStep:
    return KernelStep(LinkedCall("", "", "k", parallel), tuple(a.pointer for a in accesses), accesses)


def arena(offset: int, nbytes: int, writes: bool) -> Access:
    return Access(Pointer(Region.ARENA, offset), nbytes, writes)


def test_independent_calls_have_no_barrier_between_them() -> None:
    steps = [step(True, arena(0, 64, True)), step(True, arena(64, 64, True)), step(True, arena(0, 128, False))]
    assert barriers_before(steps) == (False, False, True)


def test_reads_of_the_same_bytes_need_no_barrier() -> None:
    assert barriers_before([step(True, arena(0, 64, False)), step(True, arena(0, 64, False))]) == (False, False)


def test_reuse_of_arena_bytes_is_a_dependence() -> None:
    steps = [step(True, arena(0, 64, False), arena(64, 64, True)), step(True, arena(32, 64, True))]
    assert barriers_before(steps) == (False, True)


def test_serial_calls_follow_each_other_without_a_barrier() -> None:
    steps = [step(False, arena(0, 64, True)), step(False, arena(0, 64, True)), step(True, arena(0, 64, False))]
    assert barriers_before(steps) == (False, False, True)


def test_a_dependence_on_a_call_before_the_last_barrier_needs_no_second_one() -> None:
    write, read, other = (
        step(True, arena(0, 64, True)),
        step(True, arena(0, 64, False)),
        step(True, arena(640, 64, True)),
    )
    assert barriers_before([write, read, other, read]) == (False, True, False, False)


def test_bytes_of_different_regions_do_not_meet() -> None:
    steps = [step(True, Access(Pointer(Region.PORT, 0), 64, True)), step(True, arena(0, 64, True))]
    assert barriers_before(steps) == (False, False)


def test_the_chain_has_a_barrier_only_where_something_depends() -> None:
    # t = a + b | u = reverse(t) | v = a * b, in the bytes that t has left | y = u - v | the copy of y
    assert link(chain()).barriers == 4
    plan = chain()
    both_out = replace(plan, outputs=("y", "z", "v"))
    # u and v are outputs now: neither shares bytes with t, and nothing is copied.
    assert link(both_out).barriers == 2


BROKEN = {
    "a call with a missing buffer": (dict(calls=(Call(0, ("a", "b")),)), "wrong number of buffers"),
    "a call of an unknown buffer": (dict(calls=(Call(0, ("a", "b", "nowhere")),)), "names no buffer"),
    "a read before the write": (dict(calls=(Call(0, ("a", "y", "y")),)), "reads what nothing wrote"),
    "a write of an input": (dict(calls=(Call(0, ("a", "b", "a")),)), "writes what is only read"),
    "an output that nothing writes": (dict(calls=()), "no call writes an output"),
    "an alias of nothing": (dict(aliases={"x": "nowhere"}), "stands for no buffer"),
    "aliases in a circle": (dict(aliases={"x": "z", "z": "x"}), "circle"),
    "an unknown kernel": (dict(calls=(Call(3, ("a", "b", "y")),)), "names no kernel"),
    "a wrong size": (
        dict(buffers=(Buffer("a", (63,), "float32", "input"), *add_plan().buffers[1:])),
        "does not fit its argument",
    ),
    "a constant without data": (
        dict(buffers=(*add_plan().buffers, Buffer("k", (1,), "float32", "constant"))),
        "has no data",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plan_is_refused(name: str) -> None:
    change, message = BROKEN[name]
    with pytest.raises(CheckError, match=message):
        check_plan(replace(add_plan(), **change))


N = 300
KERNELS = (
    elementwise("p_add", "fadd", N),
    elementwise("p_mul", "fmul", N, mirrored=True),
    elementwise("s_sub", "fsub", N, parallel=False, mirrored=True),
    elementwise("s_add", "fadd", N, parallel=False),
    reversal("p_rev", N),
)
MEANING = (np.add, lambda x, y: x * y[::-1], lambda x, y: x - y[::-1], np.add, lambda x: x[::-1])


@st.composite
def plans(draw: st.DrawFn) -> ModulePlan:
    """Calls of any of the kernels on any earlier values; some values are views, some are given out, some twice."""
    values, calls, aliases = ["a", "b"], [], {}
    for number in range(draw(st.integers(1, 14))):
        kernel = draw(st.integers(0, 4))
        recent = draw(st.sampled_from([2, 3, 20]))  # chains let buffers die, and their bytes be used again
        operands = [draw(st.sampled_from(values[-recent:])) for _ in range(1 if kernel == 4 else 2)]
        calls.append(Call(kernel, (*operands, f"t{number}")))
        values.append(f"t{number}")
        if draw(st.booleans()):
            aliases[f"v{number}"] = draw(st.sampled_from(values))
            values.append(f"v{number}")
    for number in range(draw(st.integers(1, 4))):
        aliases[f"out{number}"] = draw(st.sampled_from(values[-3:] if number == 0 else values))
    return ModulePlan(
        kernels=KERNELS,
        calls=tuple(calls),
        buffers=(
            Buffer("a", (N,), "float32", "input"),
            Buffer("b", (N,), "float32", "input"),
            *(Buffer(f"t{number}", (N,), "float32", "intermediate") for number in range(len(calls))),
        ),
        inputs=("a", "b"),
        outputs=tuple(name for name in aliases if name.startswith("out")),
        constants={},
        threads=3,
        target=native(),
        aliases=aliases,
    )


@given(plans(), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_any_plan_computes_its_meaning_on_any_number_of_threads(plan: ModulePlan, threads: int) -> None:
    rng = np.random.default_rng(0)
    values = {name: rng.uniform(0.9, 1.1, N).astype(np.float32) for name in ("a", "b")}
    inputs = [values["a"], values["b"]]
    with np.errstate(all="ignore"):
        for call in plan.calls:
            *operands, out = call.buffers
            values[out] = MEANING[call.kernel](*(values[plan.root(name)] for name in operands))
    module = link(plan)
    for _ in range(5):
        for name, got in zip(plan.outputs, run(module, inputs, threads), strict=True):
            np.testing.assert_array_equal(got, values[plan.root(name)])


def test_calls_of_fixed_pointers_share_the_table_and_the_others_build_their_list() -> None:
    inner = KernelStep(LinkedCall("", "", "inner", True), (Pointer(Region.ARENA, 0), Pointer(Region.CONSTANTS, 64)), ())
    outer = KernelStep(LinkedCall("", "", "outer", True), (Pointer(Region.PORT, 0), Pointer(Region.ARENA, 0)), ())
    text, slots = main_ir([inner, outer], 1, native())
    assert slots == 2
    main = text[text.index("@muschedule_main(") : text.index("@muschedule_main_traced(")]
    assert main.count("store ptr") == 2
    bind = text[text.index("@muschedule_bind(") :]
    assert bind.count("store ptr") == 2


ARM = replace(native(), triple="aarch64-unknown-linux-gnu", cpu="generic", features=("+neon",), vector_bits=128)


def test_the_main_function_compiles_for_64_bit_arm() -> None:
    steps = [
        step(True, Access(Pointer(Region.PORT, 0), 64, False), arena(0, 64, True)),
        CopyStep(LinkedCall("copy", "", "memcpy", False), Pointer(Region.PORT, 1), Pointer(Region.ARENA, 0), 64),
    ]
    text, _ = main_ir(steps, 2, ARM)
    listing = assembly(text, ARM)
    assert "bl\tmuschedule_barrier" in listing
    assert "muschedule_main_traced:" in listing


def test_packing_for_another_machine_is_refused_since_its_prologue_cannot_run_here() -> None:
    with pytest.raises(CodegenError, match=r"this CPU cannot run|another machine"):
        link(replace(matmul_plan(), target=replace(native(), features=("+teleport",))))
