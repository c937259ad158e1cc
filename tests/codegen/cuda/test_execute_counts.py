"""What accesses cost a GPU: sectors, turns of the banks, requests of warps whose lanes part."""

import pytest

from pipeline.codegen.cuda.execute_build import find_compiler
from pipeline.codegen.cuda.execution import LaunchCounts, Traffic
from tests.codegen.cuda import hand_sources as hand
from tests.codegen.cuda.test_execute import run

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler")


def counts(body: str, shared: int = 0, threads: int = 32) -> LaunchCounts:
    """Of a kernel of one block with an input x and an output y of 4096 floats, and t, the thread."""
    head = f'extern "C" MS_KERNEL({threads}) kernel(MS_IN(float) x, MS_OUT(float) y) {{'
    text = f"{head}\nconst int t = ms::thread();\n{body}\n}}\n"
    source = hand.source(
        text,
        hand.argument("x", (4096,), "input"),
        hand.argument("y", (4096,), "output"),
        shared=shared,
        threads=threads,
    )
    execution, _ = run(source)
    assert execution.faults == ()
    return execution.counts[0]


def test_neighbouring_lanes_share_sectors() -> None:
    found = counts("y[t] = x[t];")
    assert found.loads["x"] == found.stores["y"] == Traffic(requests=1, sectors=4, bytes=128)
    assert found.loads["x"].sector_use == 1.0


def test_lanes_far_apart_take_a_sector_each() -> None:
    found = counts("y[t] = x[t * 8];")
    assert found.loads["x"].sectors == 32 and found.loads["x"].sector_use == 1 / 8


def test_a_vector_is_one_request_of_more_sectors() -> None:
    found = counts("ms::store(y, t * 4, ms::load<4>(x, t * 4));")
    assert found.loads["x"] == Traffic(requests=1, sectors=16, bytes=512)


def test_a_start_off_a_sector_costs_one_more() -> None:
    assert counts("y[t] = x[t + 1];").loads["x"].sectors == 5


def test_lanes_that_read_the_same_share_it() -> None:
    found = counts("y[t] = x[7];")
    assert found.loads["x"].sectors == 1 and found.loads["x"].sector_use == 4.0


def test_each_turn_of_a_loop_is_a_request_of_its_own() -> None:
    found = counts("for (int i = 0; i < 5000; i++) y[t] = x[i % 100 * 32 + t];")
    assert found.loads["x"].requests == 5000 and found.loads["x"].sectors == 4 * 5000


def test_lanes_that_skip_an_access_leave_the_others_together() -> None:
    found = counts("for (int i = 0; i < 3; i++) { if ((t + i) % 3) y[i * 32 + t] = x[t]; y[1024 + t] = x[64 + t]; }")
    assert found.loads["x"].requests == 6 and found.stores["y"].requests == 6
    assert found.instructions["ld.global"] == 6


@pytest.mark.parametrize(
    ("index", "wavefronts"),
    [("t", 1), ("t * 2", 2), ("t * 32", 32), ("t * 33 % 1024", 1), ("0", 1), ("t / 2 * 32", 16), ("t % 2 * 32", 2)],
)
def test_lanes_in_one_bank_take_turns(index: str, wavefronts: int) -> None:
    body = "MS_SHARED(float, s, 0, 1024);\nfor (int i = t; i < 1024; i += 32) s[i] = 0.0f;\nms::sync();\n"
    found = counts(f"{body}y[t] = s[{index}];", shared=4096)
    assert (found.loads["s"].wavefronts, found.loads["s"].ideal) == (wavefronts, 1)
    assert found.loads["s"].conflicts == wavefronts - 1
    assert found.stores["s"] == Traffic(32, 0, 4096, 32, 32)


def test_vectors_in_shared_memory_are_served_by_quarters_of_a_warp() -> None:
    body = "MS_SHARED(float, s, 0, 2048);\nms::store(s, t * STEP, ms::load<4>(x, t * 4));"
    assert counts(body.replace("STEP", "4"), shared=8192).stores["s"] == Traffic(1, 0, 512, 4, 4)
    assert counts(body.replace("STEP", "32"), shared=8192).stores["s"] == Traffic(1, 0, 512, 32, 4)
    assert counts(body.replace("STEP", "36"), shared=8192).stores["s"] == Traffic(1, 0, 512, 4, 4)


def test_collectives_functions_and_barriers_are_counted() -> None:
    found = counts(
        "float v = ms::exp(x[t]);\nms::sync();\nms::sync();\ny[t] = ms::warp_sum(v) + ms::shuffle_xor(v, 1);",
        threads=64,
    )
    assert found.barriers == 2
    assert found.instructions["warp_sum"] == found.instructions["shuffle"] == 2
    assert found.instructions["math"] == 64


def test_lines_of_the_source_have_their_traffic() -> None:
    found = counts("float v = x[t];\ny[t] = v;")
    assert found.lines == {4: Traffic(1, 4, 128), 5: Traffic(1, 4, 128)}


def test_nothing_is_counted_where_it_is_not_asked_for() -> None:
    execution, _ = run(hand.GEMM, count=False)
    assert execution.counts == () and execution.written["C"].all()


def test_only_so_many_blocks_are_counted_as_are_asked_for() -> None:
    every, _ = run(hand.GEMM)
    one, _ = run(hand.GEMM, count=1)
    assert every.counts[0].blocks == 3 and one.counts[0].blocks == 1
    for found, blocks in ((every.counts[0], 3), (one.counts[0], 1)):
        assert found.barriers == 8 * blocks and found.loads["B"].requests == 32 * blocks


def test_what_is_written_is_known_without_checks_too() -> None:
    execution, _ = run(hand.REDUCTION, check=False, count=False, blocks=lambda launch: [(1, 0, 0)])
    assert execution.written["y"].tolist() == [False, True, False]
