"""The machine against definitions: races by all pairs of accesses, costs by counting, pipelines by arithmetic."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.codegen.cuda.execute import execute
from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.codegen.cuda.execution import Traffic
from pipeline.codegen.cuda.kernel import CudaSource
from tests.codegen.cuda import hand_sources as hand
from tests.codegen.cuda.test_execute import kinds

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")

THREADS, SIZE, MOST = 64, 128, 9
MANY = settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
BARRIERS = ("end", "sync", "sync_warp", "shuffle")  # by number
WRITE, READ = 4, 5


@dataclass(frozen=True, slots=True)
class Access:
    """Threads from `first` up to `last` write or read `width` elements, at (t * step + start) % places * width."""

    writes: bool
    first: int
    last: int
    step: int
    start: int
    width: int

    def row(self) -> tuple[int, ...]:
        return (WRITE if self.writes else READ, self.first, self.last, self.step, self.start, self.width)

    def touched(self, thread: int) -> range:
        if not self.first <= thread < self.last:
            return range(0)
        begin = (thread * self.step + self.start) % (SIZE // self.width) * self.width
        return range(begin, begin + self.width)


Statement = Access | str


def interpreter(buffer: str) -> CudaSource:
    """A kernel that does what the rows of p say to a buffer, s in shared or y in global memory."""
    touches = "".join(
        f"""
        if (row == {WRITE} && mine && w == {w}) ms::store({buffer}, at, ms::vec<float, {w}>{{}});
        if (row == {READ} && mine && w == {w}) total += ms::load<{w}>({buffer}, at)[0];"""
        for w in (1, 2, 4)
    )
    text = f"""extern "C" MS_KERNEL({THREADS}) kernel(MS_IN(int) p, MS_INOUT(float) y, MS_OUT(float) z) {{
    {f"MS_SHARED(float, s, 0, {SIZE});" if buffer == "s" else ""}
    const int t = ms::thread();
    float total = 0.0f;
    for (int i = t; i < {SIZE}; i += {THREADS}) {buffer}[i] = 1.0f;
    ms::sync();
    for (int i = 0; i < {MOST} && p[i * 6] != 0; i++) {{
        const int row = p[i * 6], w = p[i * 6 + 5], at = (t * p[i * 6 + 3] + p[i * 6 + 4]) % ({SIZE} / w) * w;
        const bool mine = t >= p[i * 6 + 1] && t < p[i * 6 + 2];
        if (row == 1) ms::sync();
        if (row == 2) ms::sync_warp();
        if (row == 3) total = ms::shuffle_xor(total, 1);{touches}
    }}
    z[t] = total;
}}
"""
    arguments = (
        hand.argument("p", (MOST, 6), "input", "int32"), hand.argument("y", (SIZE,), "output"),
        hand.argument("z", (THREADS,), "output"),
    )  # fmt: skip
    return hand.source(text, *arguments, threads=THREADS, shared=4 * SIZE)


def statements() -> st.SearchStrategy[list[Statement]]:
    bound = st.sampled_from([0, 1, 7, 31, 32, 33, 40, 64])
    access = st.builds(
        lambda writes, a, b, step, start, width: Access(writes, min(a, b), max(a, b), step, start, width),
        st.booleans(), bound, bound, st.sampled_from([0, 1, 1, 2, 3]), st.integers(0, 5), st.sampled_from([1, 1, 2, 4]),
    )  # fmt: skip
    return st.lists(st.one_of(access, access, st.sampled_from(BARRIERS[1:])), min_size=2, max_size=8)


def races(program: list[Statement]) -> bool:
    """Some element is touched by two threads, one of them writing, without a barrier of theirs between."""
    epoch, warp_epoch = 0, 0
    seen: list[tuple[int, int, int, int, bool]] = []  # element, thread, epoch, epoch of the warp, writes
    for statement in program:
        if statement == "sync":
            epoch += 1
        elif statement == "sync_warp":
            warp_epoch += 1
        elif isinstance(statement, Access):
            seen += [(e, t, epoch, warp_epoch, statement.writes) for t in range(THREADS) for e in statement.touched(t)]
    by_element: dict[int, list[tuple[int, int, int, bool]]] = {}
    for element, *rest in seen:
        by_element.setdefault(element, []).append((rest[0], rest[1], rest[2], bool(rest[3])))
    return any(
        t != u and e == f and (writes or wrote) and not (t // 32 == u // 32 and w != v)
        for touches in by_element.values()
        for i, (t, e, w, writes) in enumerate(touches)
        for u, f, v, wrote in touches[:i]
    )


@pytest.mark.parametrize("buffer", ["s", "y"])
@MANY
@given(program=statements())
def test_races_are_those_that_all_pairs_of_accesses_show(buffer: str, program: list[Statement]) -> None:
    rows = np.zeros((MOST, 6), np.int32)
    rows[:, 5] = 1
    for i, statement in enumerate(program):
        rows[i] = statement.row() if isinstance(statement, Access) else (BARRIERS.index(statement), 0, 0, 0, 0, 1)
    execution = execute(interpreter(buffer), {"p": rows}, count=False)
    assert kinds(execution) == ({("race", buffer)} if races(program) else set())


@MANY
@given(
    step=st.sampled_from([0, 1, 2, 3, 4, 8, 9, 16, 17, 32, 33]),
    start=st.integers(0, 9),
    width=st.sampled_from([1, 2, 4]),
    lanes=st.sampled_from([1, 5, 16, 31, 32]),
)
def test_costs_are_those_of_the_addresses(step: int, start: int, width: int, lanes: int) -> None:
    reads = "".join(
        f"""
    if (ms::thread() < p[3] && p[2] == {w}) y[ms::thread()] = ms::load<{w}>(s, at)[0] + ms::load<{w}>(x, at)[0];"""
        for w in (1, 2, 4)
    )
    text = f"""extern "C" MS_KERNEL(32) kernel(MS_IN(int) p, MS_IN(float) x, MS_OUT(float) y) {{
    MS_SHARED(float, s, 0, 2048);
    for (int i = ms::thread(); i < 2048; i += 32) s[i] = x[i];
    ms::sync();
    const int at = (ms::thread() * p[0] + p[1]) % (2048 / p[2]) * p[2];{reads}
}}
"""
    source = hand.source(
        text, hand.argument("p", (4,), "input", "int32"), hand.argument("x", (2048,), "input"),
        hand.argument("y", (32,), "output"), shared=8192,
    )  # fmt: skip
    given = {"p": np.array([step, start, width, lanes], np.int32), "x": np.zeros(2048, np.float32)}
    execution = execute(source, given)
    addresses = (np.arange(lanes) * step + start) % (2048 // width) * width * 4
    found = execution.counts[0].loads
    assert execution.faults == ()
    assert found["x"] == Traffic(64 + 1, 64 * 4 + len(set(addresses // 32)), 8192 + lanes * width * 4)
    served = [addresses[i : i + 32 // width] for i in range(0, lanes, 32 // width)]  # lanes that are served together
    turns = 0
    for part in served:
        words = {int(a) // 4 + w for a in part for w in range(width)}
        turns += max(sum(1 for word in words if word % 32 == bank) for bank in range(32))
    assert found["s"] == Traffic(1, 0, lanes * width * 4, turns, len(served))


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("ahead", [1, 2, 3])
@pytest.mark.parametrize("wait", [0, 1, 2])
def test_a_pipeline_is_right_where_its_numbers_are(stages: int, ahead: int, wait: int) -> None:
    execution = execute(PIPELINE, {"p": np.array([stages, ahead, wait], np.int32), "x": ROWS})
    right = wait < ahead < stages
    assert (execution.faults == ()) == right
    if right:
        np.testing.assert_array_equal(execution.outputs["y"], ROWS[:, ::-1])


ROWS = np.arange(1280, dtype=np.float32).reshape(10, 128)
PIPELINE = hand.source(
    """extern "C" MS_KERNEL(32) kernel(MS_IN(int) p, MS_IN(float) x, MS_OUT(float) y) {
    MS_SHARED(float, ring, 0, 4 * 128);
    const int t = ms::thread(), stages = p[0], ahead = p[1], pending = p[2];
    for (int k = 0; k < ahead; k++) {
        ms::copy_async<16>(ring, k % stages * 128 + t * 4, x, k * 128 + t * 4);
        ms::commit();
    }
    for (int k = 0; k < 10; k++) {
        if (pending == 0) ms::wait<0>();
        if (pending == 1) ms::wait<1>();
        if (pending == 2) ms::wait<2>();
        ms::sync();
        const int next = k + ahead;
        if (next < 10) ms::copy_async<16>(ring, next % stages * 128 + t * 4, x, next * 128 + t * 4);
        ms::commit();
        for (int i = 0; i < 4; i++) y[k * 128 + i * 32 + t] = ring[k % stages * 128 + 127 - i * 32 - t];
    }
}
""",
    hand.argument("p", (3,), "input", "int32"), hand.argument("x", (10, 128), "input"),
    hand.argument("y", (10, 128), "output"), shared=4 * 512,
)  # fmt: skip
