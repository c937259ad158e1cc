"""Several launches, their workspaces and prologues, samples of their blocks, and elements of every type."""

import numpy as np
import pytest

from pipeline.codegen.cuda import execute as execute_module
from pipeline.codegen.cuda.execute import execute, spoiled, written_arguments
from pipeline.codegen.cuda.execute_build import find_compiler, granule
from pipeline.codegen.cuda.kernel import CudaSource, Launch
from pipeline.errors import CodegenError
from pipeline.ir.graph import DType
from pipeline.ir.graph_types import DTYPES, FLOATS, numpy_dtype
from tests.codegen.cuda import hand_sources as hand
from tests.codegen.cuda.test_execute import kinds

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")

TWO = """extern "C" MS_KERNEL(32) pack(MS_IN(float) w, MS_OUT(float) packed) {
    packed[ms::thread()] = 2.0f * w[31 - ms::thread()];
}
extern "C" MS_KERNEL(32) first(MS_IN(float) x, MS_IN(float) packed, MS_OUT(float) part) {
    const int i = ms::block_x() * 32 + ms::thread();
    part[i] = x[i] * packed[ms::thread()];
}
extern "C" MS_KERNEL(32) second(MS_INOUT(float) part, MS_OUT(float) y) {
    const int i = ms::block_x() * 32 + ms::thread();
    part[i] = part[i] + 1.0f;
    y[i] = part[i];
}
"""


def two(text: str = TWO) -> CudaSource:
    """y = x * (2 w reversed) + 1, in 20 blocks, through a workspace that one launch fills and the next changes."""
    arguments = (
        hand.argument("x", (20, 32), "input"), hand.argument("w", (32,), "constant"),
        hand.argument("packed", (32,), "packed"), hand.argument("part", (20, 32), "workspace"),
        hand.argument("y", (20, 32), "output"),
    )  # fmt: skip
    launches = (
        Launch("first", (20, 1, 1), 32, 0, ("x", "packed", "part")),
        Launch("second", (20, 1, 1), 32, 0, ("part", "y")),
    )
    prologue = (Launch("pack", (1, 1, 1), 32, 0, ("w", "packed")),)
    return CudaSource("two", hand.HEAD + text, launches, prologue, arguments, "sm_80")


def given() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x": rng.standard_normal((20, 32)).astype("f4"), "w": rng.standard_normal(32).astype("f4")}


def wanted(feeds: dict[str, np.ndarray]) -> np.ndarray:
    return feeds["x"] * (2 * feeds["w"][::-1]) + 1


def test_launches_run_in_order_after_the_prologue() -> None:
    feeds = given()
    execution = execute(two(), feeds)
    assert execution.faults == () and execution.whole
    np.testing.assert_array_equal(execution.outputs["y"], wanted(feeds))
    assert [counts.symbol for counts in execution.counts] == ["pack", "first", "second"]
    np.testing.assert_array_equal(execution.others["packed"], 2 * feeds["w"][::-1])


def test_packed_arguments_that_are_given_need_no_prologue() -> None:
    feeds = given()
    execution = execute(two(), {**feeds, "packed": np.ones(32, "f4")})
    assert [counts.symbol for counts in execution.counts] == ["first", "second"]
    np.testing.assert_array_equal(execution.outputs["y"], feeds["x"] + 1)


def test_a_launch_that_others_need_runs_whole() -> None:
    feeds = given()
    execution = execute(two(), feeds, blocks=lambda launch: [(0, 0, 0), (19, 0, 0)])
    assert execution.faults == () and not execution.whole
    assert execution.written["y"].any(1).nonzero()[0].tolist() == [0, 19]
    np.testing.assert_array_equal(execution.outputs["y"][[0, 19]], wanted(feeds)[[0, 19]])
    assert sum(counts.blocks for counts in execution.counts if counts.symbol == "first") == 20


def test_launches_that_take_no_time_run_whole_where_that_is_asked_for() -> None:
    feeds = given()
    execution = execute(two(), feeds, blocks=lambda launch: [(3, 0, 0)], whole_seconds=10.0, count=2)
    assert execution.faults == () and execution.whole
    np.testing.assert_array_equal(execution.outputs["y"], wanted(feeds))
    assert [(counts.symbol, counts.blocks) for counts in execution.counts] == [("pack", 1), ("first", 1), ("second", 1)]


def test_a_race_with_a_block_that_ran_first_is_found_in_the_rest() -> None:
    source = two(TWO.replace("y[i] = part[i];", "y[ms::thread()] = part[i];"))
    execution = execute(source, given(), blocks=lambda launch: [(3, 0, 0)], whole_seconds=10.0)
    assert kinds(execution) == {("race between blocks", "y")}


def test_a_large_launch_runs_in_part_and_its_values_come_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute_module, "WHOLE_SECONDS", 0.0)
    feeds = given()
    asked = []

    def workspaces(launch: Launch) -> dict[str, np.ndarray]:
        asked.append(launch.symbol)
        return {"part": wanted(feeds) - 1 + error}

    error = np.zeros((20, 32), np.float32)
    error[8] = 1.0  # a block that does not run
    execution = execute(two(), feeds, blocks=lambda launch: [(7, 0, 0)], workspaces=workspaces)
    assert asked == ["first"] and execution.faults == ()
    np.testing.assert_allclose(execution.outputs["y"][7], wanted(feeds)[7], rtol=1e-5, atol=1e-5)
    error[7, 5] = 0.1
    execution = execute(two(), feeds, blocks=lambda launch: [(7, 0, 0)], workspaces=workspaces)
    assert [(fault.kind, fault.buffer, fault.element) for fault in execution.faults] == [
        ("workspace", "part", 7 * 32 + 5)
    ]
    error[7, 5] = 0.0
    execution = execute(two(), feeds, blocks=lambda launch: [(7, 0, 0)], workspaces=workspaces)
    assert [counts.blocks for counts in execution.counts] == [1, 1, 1]


def test_a_workspace_that_was_not_filled_is_not_read() -> None:
    source = two(TWO.replace("part[i] = x[i]", "if (ms::block_x() < 19) part[i] = x[i]"))
    execution = execute(source, given())
    assert kinds(execution) == {("unwritten", "part")} and execution.faults[0].launch == "second"


def test_blocks_that_use_each_others_part_of_a_workspace_are_a_race() -> None:
    execution = execute(two(TWO.replace("y[i] = part[i];", "y[i] = part[(i + 32) % 640];")), given())
    assert ("race between blocks", "part") in kinds(execution)


def test_what_a_launch_writes_is_read_from_its_function() -> None:
    first, second = two().launches
    assert written_arguments(two(), first) == ("part",)
    assert written_arguments(two(), second) == ("part", "y")
    with pytest.raises(CodegenError, match="lacks a function"):
        written_arguments(two(), Launch("third", (1, 1, 1), 32, 0, ()))


C_NAMES = {
    "float64": "double", "float32": "float", "float16": "ms::f16", "bfloat16": "ms::bf16", "int64": "long long",
    "int32": "int", "int16": "short", "int8": "signed char", "uint8": "unsigned char", "bool": "bool",
}  # fmt: skip


@pytest.mark.parametrize("dtype", sorted(C_NAMES))
def test_elements_of_every_type_pass_through_shared_memory(dtype: DType) -> None:
    name = C_NAMES[dtype]
    source = hand.source(
        f"""extern "C" MS_KERNEL(32) kernel(MS_IN({name}) x, MS_OUT({name}) y) {{
    MS_SHARED({name}, s, 0, 64);
    ms::store(s, ms::thread() * 2, ms::load<2>(x, ms::thread() * 2));
    ms::sync();
    y[ms::thread()] = s[63 - ms::thread()];
    y[32 + ms::thread()] = s[31 - ms::thread()];
}}
""",
        hand.argument("x", (64,), "input", dtype),
        hand.argument("y", (64,), "output", dtype),
        shared=64 * numpy_dtype(dtype).itemsize,
    )
    assert granule(source) == min(4, numpy_dtype(dtype).itemsize)
    x = (np.random.default_rng(0).standard_normal(64) * 50).astype(numpy_dtype(dtype))
    execution = execute(source, {"x": x})
    assert execution.faults == ()
    assert execution.outputs["y"].tobytes() == x[::-1].tobytes()


@pytest.mark.parametrize("dtype", sorted({"float16", "bfloat16"} & set(DTYPES)))
def test_halves_are_rounded_to_the_nearest_even(dtype: DType) -> None:
    name = C_NAMES[dtype]
    source = hand.source(
        f"""extern "C" MS_KERNEL(32) kernel(MS_IN(float) x, MS_OUT({name}) y, MS_OUT(float) back) {{
    for (int i = ms::thread(); i < 8192; i += 32) {{
        y[i] = ms::to<{name}>(x[i]);
        back[i] = ms::to_float(ms::to<{name}>(x[i]));
    }}
}}
""",
        hand.argument("x", (8192,), "input"),
        hand.argument("y", (8192,), "output", dtype),
        hand.argument("back", (8192,), "output"),
    )
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 8192, dtype=np.uint32)
    bits[:4096] = (bits[:4096] & 0x8FFFFFFF) | 0x38000000  # many of the range of halves, and subnormals of them
    bits[:512] = (bits[:512] & 0x80FFFFFF) | 0x33000000
    bits[:2048] &= 0xFFFFF000  # many halfway between two
    x = bits.view(np.float32)
    execution = execute(source, {"x": x})
    with np.errstate(all="ignore"):
        want = x.astype(numpy_dtype(dtype))
    got, nan = execution.outputs["y"], np.isnan(x)
    np.testing.assert_array_equal(got[~nan].view(np.uint16), want[~nan].view(np.uint16))
    assert np.isnan(got[nan].astype(np.float32)).all()
    np.testing.assert_array_equal(execution.outputs["back"], got.astype(np.float32))


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_what_was_not_written_is_conspicuous(dtype: DType) -> None:
    array = spoiled(hand.argument("y", (3, 5), "output", dtype))
    assert array.shape == (3, 5) and array.dtype == numpy_dtype(dtype)
    if dtype in FLOATS:
        assert np.isnan(array.astype(np.float64)).all()
