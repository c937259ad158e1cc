"""The machine against definitions: races by all pairs of accesses, costs by counting, pipelines by arithmetic."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.codegen.cuda.execution import Traffic
from tests.codegen.cuda import hand_sources as hand
from tests.codegen.cuda.test_execute import kinds, run

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")

THREADS, SIZE = 64, 128
FEW = settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True, slots=True)
class Access:
    """Threads from `first` up to `last` write or read `width` elements, at (t * step + start) % places * width."""

    writes: bool
    first: int
    last: int
    step: int
    start: int
    width: int

    def text(self, buffer: str) -> str:
        index = f"(t * {self.step} + {self.start}) % {SIZE // self.width} * {self.width}"
        touch = (
            f"ms::store({buffer}, {index}, ms::vec<float, {self.width}>{{}});"
            if self.writes
            else f"total += ms::load<{self.width}>({buffer}, {index})[0];"
        )
        return f"if (t >= {self.first} && t < {self.last}) {touch}"

    def touched(self, thread: int) -> range:
        if not self.first <= thread < self.last:
            return range(0)
        begin = (thread * self.step + self.start) % (SIZE // self.width) * self.width
        return range(begin, begin + self.width)


Statement = Access | str
BARRIERS = ("ms::sync();", "ms::sync_warp();", "total = ms::shuffle_xor(total, 1);")


def statements() -> st.SearchStrategy[list[Statement]]:
    bound = st.sampled_from([0, 1, 7, 31, 32, 33, 40, 64])
    access = st.builds(
        lambda writes, a, b, step, start, width: Access(writes, min(a, b), max(a, b), step, start, width),
        st.booleans(), bound, bound, st.sampled_from([0, 1, 1, 2, 3]), st.integers(0, 5), st.sampled_from([1, 1, 2, 4]),
    )  # fmt: skip
    return st.lists(st.one_of(access, access, st.sampled_from(BARRIERS)), min_size=2, max_size=8)


def races(program: list[Statement]) -> bool:
    """Some element is touched by two threads, one of them writing, without a barrier of theirs between."""
    epoch, warp_epoch = 0, 0
    seen: list[tuple[int, int, int, int, bool]] = []  # element, thread, epoch, epoch of the warp, writes
    for statement in program:
        if statement == BARRIERS[0]:
            epoch += 1
        elif statement == BARRIERS[1]:
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


@pytest.mark.parametrize("shared", [True, False])
@FEW
@given(program=statements())
def test_races_are_those_that_all_pairs_of_accesses_show(shared: bool, program: list[Statement]) -> None:
    buffer = "s" if shared else "y"
    body = "\n".join(s.text(buffer) if isinstance(s, Access) else s for s in program)
    place = f"MS_SHARED(float, s, 0, {SIZE});" if shared else ""
    text = f"""extern "C" MS_KERNEL({THREADS}) kernel(MS_INOUT(float) y, MS_OUT(float) z) {{
    {place}
    const int t = ms::thread();
    float total = 0.0f;
    for (int i = t; i < {SIZE}; i += {THREADS}) {buffer}[i] = 1.0f;
    ms::sync();
    {body}
    z[t] = total;
}}
"""
    source = hand.source(
        text, hand.argument("y", (SIZE,), "output"), hand.argument("z", (THREADS,), "output"),
        threads=THREADS, shared=4 * SIZE,
    )  # fmt: skip
    execution, _ = run(source)
    assert kinds(execution) == ({("race", buffer)} if races(program) else set())


@FEW
@given(
    step=st.sampled_from([0, 1, 2, 3, 4, 8, 9, 16, 17, 32, 33]),
    start=st.integers(0, 9),
    width=st.sampled_from([1, 2, 4]),
    lanes=st.sampled_from([1, 5, 16, 31, 32]),
)
def test_costs_are_those_of_the_addresses(step: int, start: int, width: int, lanes: int) -> None:
    text = f"""extern "C" MS_KERNEL(32) kernel(MS_IN(float) x, MS_OUT(float) y) {{
    MS_SHARED(float, s, 0, 2048);
    for (int i = ms::thread(); i < 2048; i += 32) s[i] = x[i];
    ms::sync();
    const int place = (ms::thread() * {step} + {start}) % {2048 // width} * {width};
    if (ms::thread() < {lanes}) y[ms::thread()] = ms::load<{width}>(s, place)[0] + ms::load<{width}>(x, place)[0];
}}
"""
    source = hand.source(
        text, hand.argument("x", (2048,), "input"), hand.argument("y", (32,), "output"), shared=8192
    )  # fmt: skip
    execution, _ = run(source)
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
    text = hand.PIPELINE.source.replace("3 * 128", f"{stages} * 128").replace("% 3", f"% {stages}")
    text = text.replace("s < 2", f"s < {ahead}").replace("s * 128 + t * 4, x", f"s % {stages} * 128 + t * 4, x")
    text = text.replace("k + 2", f"k + {ahead}").replace("wait<1>", f"wait<{wait}>")
    source = hand.source(
        text.removeprefix(hand.HEAD), *hand.PIPELINE.arguments, shared=stages * 512
    )  # fmt: skip
    execution, feeds = run(source)
    right = wait < ahead < stages
    assert (execution.faults == ()) == right
    if right:
        np.testing.assert_array_equal(execution.outputs["y"], feeds["x"][:, ::-1])
