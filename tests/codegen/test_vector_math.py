"""The math library: at most 2 ulp in float32 over the whole range, the same bits for any number of lanes."""

from __future__ import annotations

import ctypes
import itertools
import math
import runpy
from collections.abc import Callable
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm
import mpmath
import numpy as np
import numpy.typing as npt
import pytest

from pipeline.codegen.llvm import vector_math_coefficients
from pipeline.codegen.llvm.compile import LoadedObject, assembly, compile_ir, function_attributes
from pipeline.codegen.llvm.vector_math import FUNCTIONS, Element, MathLibrary, vector_math
from pipeline.codegen.llvm.vector_math_coefficients import EXP
from pipeline.errors import CodegenError
from pipeline.ir.target import Target

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

UNARY = sorted(name for name, arity in FUNCTIONS.items() if arity == 1)
ODD = ("asin", "asinh", "atan", "atanh", "erf", "sin", "sinh", "tan", "tanh")


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
HASWELL = _target("x86_64-unknown-linux-gnu", "haswell", (), 256)
SKYLAKE = _target("x86_64-unknown-linux-gnu", "skylake-avx512", ("+avx512f",), 512)
ARM = _target("aarch64-unknown-linux-gnu", "neoverse-n1", (), 128)


def sweep_ir(fn: str, lanes: int, dtype: Element, target: Target, library: MathLibrary) -> str:
    """A function `sweep_{fn}(inputs…, output, count)` that applies `fn` to arrays, `lanes` elements at a time."""
    symbol = library.call_symbol(fn, lanes, dtype)
    kind = dtype if lanes == 1 else f"<{lanes} x {dtype}>"
    size = 4 if dtype == "float" else 8
    inputs = range(FUNCTIONS[fn])
    loads = "".join(
        f"  %p{i} = getelementptr {dtype}, ptr %in{i}, i64 %at\n  %x{i} = load {kind}, ptr %p{i}, align {size}\n"
        for i in inputs
    )
    parameters = "".join(f"ptr noalias %in{i}, " for i in inputs)
    arguments = ", ".join(f"{kind} %x{i}" for i in inputs)
    return f"""
define void @sweep_{fn}({parameters}ptr noalias %out, i64 %count) {function_attributes(target)} {{
entry:
  br label %head
head:
  %at = phi i64 [ 0, %entry ], [ %next, %tail ]
  %more = icmp slt i64 %at, %count
  br i1 %more, label %body, label %done
body:
{loads}  %y = call {kind} @{symbol}({arguments})
  br label %tail
tail:
  %po = getelementptr {dtype}, ptr %out, i64 %at
  store {kind} %y, ptr %po, align {size}
  %next = add i64 %at, {lanes}
  br label %head
done:
  ret void
}}
"""


@cache
def _loaded(lanes: int, dtype: Element) -> LoadedObject:
    library = MathLibrary(NATIVE)
    text = "".join(sweep_ir(fn, lanes, dtype, NATIVE, library) for fn in sorted(FUNCTIONS)) + library.definitions()
    return LoadedObject(compile_ir(text, NATIVE), target=NATIVE)


def compute(fn: str, *inputs: npt.NDArray[np.floating], lanes: int = 8) -> npt.NDArray[np.floating]:
    """The function of our library on arrays whose size is a multiple of `lanes`."""
    dtype: Element = "float" if inputs[0].dtype == np.float32 else "double"
    inputs = tuple(np.ascontiguousarray(x) for x in inputs)
    assert inputs[0].size % lanes == 0
    out = np.empty_like(inputs[0])
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(inputs) + 1), ctypes.c_int64)
    sweep = signature(_loaded(lanes, dtype).address(f"sweep_{fn}"))
    sweep(*(x.ctypes.data for x in inputs), out.ctypes.data, out.size)
    return out


def truth(fn: str, *inputs: npt.NDArray[np.floating]) -> Doubles:
    """The function in float64. erf is the C library's, because NumPy has none."""
    names = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh"}
    names |= {"atanh": "arctanh", "pow": "power"}
    with np.errstate(all="ignore"):
        wide = [x.astype(np.float64) for x in inputs]
        match fn:
            case "erf":
                return compute("erf", wide[0], lanes=1).astype(np.float64)
            case "sigmoid":
                e = np.exp(-np.abs(wide[0]))
                return np.where(wide[0] < 0, e, 1) / (1 + e)
            case "rsqrt":
                return np.asarray(1 / np.sqrt(wide[0]))
            case "reciprocal":
                return np.asarray(1 / wide[0])
            case _:
                function: Callable[..., Doubles] = getattr(np, names.get(fn, fn))
                return function(*wide)


def ulp_errors(got: Floats, want: Doubles) -> Doubles:
    """The distance in units of the last place of `want` as a float32; infinite where NaN, infinity or sign differ."""
    size = np.abs(want)
    with np.errstate(all="ignore"):
        exponent = np.where(np.isfinite(want), np.frexp(want)[1] - 1, 0)
        unit = np.exp2(np.maximum(exponent, -126) - 23.0)
        distance = np.abs(got.astype(np.float64) - want) / unit
    same = (np.isnan(got) & np.isnan(want)) | (got == want)
    # What rounds to infinity in float32 is right as infinity.
    overflow = np.isinf(got) & (size >= 2.0**128 * (1 - 2.0**-25))
    distance = np.where(same | overflow, 0, np.where(np.isnan(distance), np.inf, distance))
    wrong_sign = ~np.isnan(want) & ~np.isnan(got) & (np.signbit(got) != np.signbit(want))
    return np.where(wrong_sign, np.inf, distance)


SPECIAL = np.array(
    [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1.5, -1.5, 1e-45, -1e-45,
     1.17549421e-38, 1.17549435e-38, -1.17549435e-38, 3.4028235e38, -3.4028235e38, 16777215.0, -16777215.0, 16777216.0,
     1e30, -1e30, 1e-30, 0.99999994, 1.0000001, -0.99999994, -1.0000001],
    np.float32,
)  # fmt: skip
# Where a function changes its method, overflows, underflows or reaches its limit.
BOUNDARIES = (
    0.625, 0.9375, 3.92, 4.0, 9.02, 10.0, 88.72284, 89.0, -87.33655, -103.97208, -104.0, 89.4159, 0.5, 2.0**-10,
    2.0**30, 1.0, math.sqrt(0.5), math.sqrt(2.0), math.pi, math.pi / 2, math.pi / 4, 2.0**-126, 16.635532, 103.28,
)  # fmt: skip


def _around(value: float, count: int = 2000) -> Floats:
    """The floats nearest to the value, on both sides, and their negatives."""
    bits = int(np.float32(abs(value)).view(np.uint32))
    near = np.arange(bits - count, bits + count, dtype=np.int64).astype(np.uint32).view(np.float32)
    return np.concatenate([near, -near])


@cache
def whole_range(samples: int = 1 << 13) -> Floats:
    """Every exponent and both signs with `samples` mantissas each, the boundaries, and the special values."""
    rng = np.random.default_rng(20)
    exponents = np.arange(256, dtype=np.uint32)[:, None] << 23
    mantissas = rng.integers(0, 1 << 23, (256, samples), dtype=np.uint32)
    mantissas[:, :2] = (0, (1 << 23) - 1)
    positive = (exponents | mantissas).ravel()
    dense = np.concatenate([positive, positive | np.uint32(1 << 31)]).view(np.float32)
    angles = (np.arange(1, 4001) * (math.pi / 2)).astype(np.float32)
    everything = np.concatenate([dense, *(_around(value) for value in BOUNDARIES), angles, -angles, SPECIAL])
    return np.resize(everything, -(-everything.size // 16) * 16)


@pytest.mark.parametrize("fn", UNARY)
def test_float32_is_within_2_ulp_over_the_whole_range(fn: str) -> None:
    x = whole_range()
    errors = ulp_errors(compute(fn, x), truth(fn, x))
    worst = int(errors.argmax())
    assert errors[worst] <= 2, f"{fn}({x[worst]!r}) is off by {errors[worst]} ulp"


def test_pow_is_within_2_ulp_over_the_whole_range() -> None:
    rng = np.random.default_rng(7)
    x = whole_range()
    whole = rng.integers(-40, 40, 1 << 20).astype(np.float32)
    bases = rng.uniform(-8, 8, 1 << 20).astype(np.float32)
    for base, exponent in (
        (x, rng.permutation(x)),
        (np.exp(rng.normal(0, 8, x.size)).astype(np.float32), rng.normal(0, 12, x.size).astype(np.float32)),
        (bases, whole),
        ((1 + rng.normal(0, 1e-4, bases.size)).astype(np.float32), rng.normal(0, 1e6, bases.size).astype(np.float32)),
    ):
        errors = ulp_errors(compute("pow", base, exponent), truth("pow", base, exponent))
        worst = int(errors.argmax())
        assert errors[worst] <= 2, f"pow({base[worst]!r}, {exponent[worst]!r}) is off by {errors[worst]} ulp"


def test_pow_has_the_special_cases_of_c() -> None:
    pairs = np.array(list(itertools.product(SPECIAL, SPECIAL)), np.float32)
    base, exponent = np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])
    want = []
    for x, y in pairs.astype(np.float64).tolist():
        try:
            want.append(math.pow(x, y))
        except OverflowError:
            want.append(math.copysign(math.inf, x) if y % 2 == 1 else math.inf)
        except ValueError:  # Python raises where C returns NaN, and for a power of zero, where C returns infinity.
            want.append((math.copysign(math.inf, x) if y % 2 == 1 else math.inf) if x == 0 else math.nan)
    errors = ulp_errors(compute("pow", base, exponent), np.array(want))
    assert errors.max() <= 2, pairs[errors.argmax()]


def test_special_values_are_what_c_gives() -> None:
    inf, nan = math.inf, math.nan
    table: dict[str, tuple[tuple[float, float], ...]] = {
        "exp": ((0, 1), (-0.0, 1), (inf, inf), (-inf, 0), (nan, nan), (89, inf), (-104, 0), (-103, 1e-45)),
        "log": ((1, 0), (0, -inf), (-0.0, -inf), (inf, inf), (-1, nan), (-inf, nan), (nan, nan), (-1e-45, nan)),
        "tanh": ((-0.0, -0.0), (inf, 1), (-inf, -1), (nan, nan), (1e-45, 1e-45)),
        "erf": ((-0.0, -0.0), (inf, 1), (-inf, -1), (nan, nan)),
        "sigmoid": ((0, 0.5), (inf, 1), (-inf, 0), (nan, nan)),
        "sin": ((-0.0, -0.0), (inf, nan), (-inf, nan), (nan, nan)),
        "cos": ((-0.0, 1), (inf, nan), (nan, nan)),
        "tan": ((-0.0, -0.0), (inf, nan), (nan, nan)),
        "asin": ((-0.0, -0.0), (1.0000001, nan), (nan, nan)),
        "acos": ((1, 0), (-1.0000001, nan), (nan, nan)),
        "atan": ((-0.0, -0.0), (nan, nan)),
        "acosh": ((1, 0), (inf, inf), (0.5, nan), (-2, nan), (-inf, nan), (nan, nan)),
        "asinh": ((-0.0, -0.0), (inf, inf), (-inf, -inf), (nan, nan)),
        "atanh": ((-0.0, -0.0), (1, inf), (-1, -inf), (1.5, nan), (inf, nan), (nan, nan)),
        "sinh": ((-0.0, -0.0), (inf, inf), (-inf, -inf), (90, inf), (nan, nan)),
        "cosh": ((0, 1), (inf, inf), (-inf, inf), (nan, nan)),
        "rsqrt": ((0, inf), (-0.0, -inf), (inf, 0), (-1, nan), (nan, nan)),
        "reciprocal": ((0, inf), (-0.0, -inf), (inf, 0), (-inf, -0.0), (nan, nan)),
    }
    assert sorted(table) == UNARY
    for fn, cases in table.items():
        x = np.array([case[0] for case in cases], np.float32)
        want = np.array([case[1] for case in cases], np.float32)
        got = compute(fn, np.resize(x, 8 * len(cases)))[: len(cases)]
        np.testing.assert_array_equal(got, want, err_msg=fn)
        np.testing.assert_array_equal(np.signbit(got) | np.isnan(want), np.signbit(want) | np.isnan(want), err_msg=fn)


@pytest.mark.parametrize("fn", ODD)
def test_odd_functions_are_odd_to_the_bit(fn: str) -> None:
    x = whole_range()
    x = np.ascontiguousarray(x[~np.isnan(x)][: x.size // 2 // 16 * 16])
    one, other = compute(fn, x), -compute(fn, -x)
    same = (one.view(np.uint32) == other.view(np.uint32)) | (np.isnan(one) & np.isnan(other))
    assert same.all()


@pytest.mark.parametrize("fn", sorted(FUNCTIONS))
def test_any_number_of_lanes_gives_the_same_bits(fn: str) -> None:
    x = whole_range(1 << 7)
    x = np.ascontiguousarray(x[: x.size // 240 * 240])
    inputs = (x, np.random.default_rng(1).permutation(x))[: FUNCTIONS[fn]]
    want = compute(fn, *inputs, lanes=1)
    for lanes in (3, 4, 8, 16):
        got = compute(fn, *inputs, lanes=lanes)
        same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
        assert same.all(), f"{lanes} lanes"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fn", ["erf", "exp", "log", "sigmoid", "tanh"])
def test_every_float32_is_within_2_ulp(fn: str) -> None:
    chunk = 1 << 24
    for start in range(0, 1 << 32, chunk):
        x = np.arange(start, start + chunk, dtype=np.uint32).view(np.float32)
        got, want = compute(fn, x), truth(fn, x)
        # A neighbour of the rounded truth is within 1.5 ulp; the others are looked at closely.
        with np.errstate(all="ignore"):
            apart = np.abs(got.view(np.int32).astype(np.int64) - want.astype(np.float32).view(np.int32))
        doubtful = np.flatnonzero(apart > 1)
        errors = ulp_errors(got[doubtful], want[doubtful])
        assert errors.max(initial=0) <= 2, f"{fn}({x[doubtful[errors.argmax()]]!r}) is off by {errors.max()} ulp"


def test_one_function_comes_with_all_that_it_needs() -> None:
    symbol, definition = vector_math("tan", 4, "float", NATIVE)
    assert f"define internal <4 x float> @{symbol}(<4 x float> %x0)" in definition
    compile_ir(definition, NATIVE)


@pytest.mark.parametrize("fn", sorted(FUNCTIONS))
def test_float64_is_within_4_ulp(fn: str) -> None:
    rng = np.random.default_rng(3)
    scale = np.exp2(rng.uniform(-8, 6, 400)) * rng.choice([-1, 1], 400)
    domain = {
        "acos": np.tanh(scale), "asin": np.tanh(scale), "atanh": np.tanh(scale) * 0.999, "acosh": 1 + np.abs(scale),
        "log": np.abs(scale), "rsqrt": np.abs(scale), "pow": np.abs(scale),
    }  # fmt: skip
    x = domain.get(fn, scale)
    inputs = (x, rng.normal(0, 5, x.size))[: FUNCTIONS[fn]]
    exact: dict[str, Callable[..., mpmath.mpf]] = {
        "pow": mpmath.power,
        "reciprocal": lambda v: 1 / v,
        "rsqrt": lambda v: 1 / mpmath.sqrt(v),
        "sigmoid": lambda v: 1 / (1 + mpmath.exp(-v)),
    }
    function = exact.get(fn) or getattr(mpmath, fn)
    with mpmath.workdps(40):
        rows = zip(*(v.tolist() for v in inputs), strict=True)
        want = [function(*(mpmath.mpf(v) for v in row)) for row in rows]
        for lanes in (1, 4):
            got = compute(fn, *inputs, lanes=lanes)
            for value, right in zip(got.tolist(), want, strict=True):
                assert abs(value - right) <= 4 * math.ulp(float(right)), (fn, lanes)


def test_the_coefficients_are_those_that_the_fit_gives() -> None:
    script = runpy.run_path(str(Path(__file__).with_name("fit_vector_math.py")))
    for what in script["FITS"]:
        assert tuple(script["fit"](what)[0]) == getattr(vector_math_coefficients, what.name), what.name


def test_a_wrong_coefficient_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.linspace(-80, 80, 1 << 12, dtype=np.float32)
    want = truth("exp", x)
    monkeypatch.setattr("pipeline.codegen.llvm.vector_math_narrow.EXP", (*EXP[:3], EXP[3] * 1.01, EXP[4]))
    library = MathLibrary(NATIVE)
    text = sweep_ir("exp", 8, "float", NATIVE, library) + library.definitions()
    loaded = LoadedObject(compile_ir(text, NATIVE))
    out = np.empty_like(x)
    sweep = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(loaded.address("sweep_exp"))
    sweep(x.ctypes.data, out.ctypes.data, x.size)
    assert ulp_errors(out, want).max() > 2


@pytest.mark.parametrize("fn", ["erf", "exp", "log", "sigmoid", "tanh", "atan", "pow"])
@pytest.mark.parametrize("target", [HASWELL, SKYLAKE, ARM], ids=lambda target: target.cpu)
def test_other_cpus_compute_in_vectors_and_call_nothing(fn: str, target: Target) -> None:
    library = MathLibrary(target)
    text = sweep_ir(fn, target.lanes(), "float", target, library) + library.definitions()
    code = assembly(text, target)
    register = {128: ".4s", 256: "ymm", 512: "zmm"}[target.vector_bits]
    assert register in code
    assert not any(line.split()[0] in ("call", "callq", "bl") for line in code.splitlines() if line.strip())


def test_only_large_angles_leave_the_vector_code() -> None:
    library = MathLibrary(HASWELL)
    code = assembly(sweep_ir("sin", 8, "float", HASWELL, library) + library.definitions(), HASWELL)
    called = {line.split()[1] for line in code.splitlines() if line.split()[:1] in (["call"], ["callq"])}
    assert called == {"muschedule.reduce_large"}


def test_a_cpu_without_fused_multiply_add_still_compiles() -> None:
    plain = _target("x86_64-unknown-linux-gnu", "x86-64", (), 128)
    library = MathLibrary(plain)
    text = "".join(sweep_ir(fn, 4, "float", plain, library) for fn in sorted(FUNCTIONS)) + library.definitions()
    assert compile_ir(text, plain)[:4] == b"\x7fELF"


def test_a_function_that_is_asked_for_twice_is_defined_once() -> None:
    library = MathLibrary(NATIVE)
    symbols = {library.call_symbol("sin", 8, "float"), library.call_symbol("sin", 8, "float")}
    symbols |= {library.call_symbol("cos", 8, "float"), library.call_symbol("cos", 1, "float")}
    symbols |= {library.call_symbol("exp", 2, "double"), library.call_symbol("sigmoid", 2, "double")}
    text = library.definitions()
    assert len(symbols) == 5
    for symbol in symbols:
        assert text.count(f"@{symbol}(") == 1
    assert text.count("declare double @exp(") == 1
    compile_ir(text, NATIVE)


def test_definitions_do_not_depend_on_the_order_of_calls() -> None:
    one, other = MathLibrary(NATIVE), MathLibrary(NATIVE)
    for fn in ("exp", "tanh"):
        one.call_symbol(fn, 8, "float")
    for fn in ("tanh", "exp"):
        other.call_symbol(fn, 8, "float")
    assert one.definitions() == other.definitions()


def test_an_unknown_function_is_refused_with_the_list() -> None:
    with pytest.raises(CodegenError, match=r"gamma: unknown math function.*acos, acosh"):
        MathLibrary(NATIVE).call_symbol("gamma", 8, "float")


def test_a_vector_without_lanes_is_refused() -> None:
    with pytest.raises(CodegenError, match="lanes is 0"):
        MathLibrary(NATIVE).call_symbol("exp", 0, "float")
