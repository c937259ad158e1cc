"""The comparison: who is checked, who is timed, in which order, and what becomes of those who cannot run."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from pipeline.ir.graph_builder import GraphBuilder
from pipeline.report.compare import compare, in_turns, paired_ratio
from pipeline.report.peers.peer import PeerModel

X = np.arange(4, dtype=np.float32)


def model():
    b = GraphBuilder()
    x = b.input("x", (4,), "float32")
    return PeerModel(b.finish([("y", b.elementwise("add", x, x))]), {"x": X})


@dataclass
class World:
    """A clock that runs only while a contestant does."""

    now: float = 0.0
    order: list = field(default_factory=list)

    def clock(self):
        return self.now

    def runner(self, name, seconds, result=lambda x: 2 * x):
        def run(feeds):
            self.now += seconds
            self.order.append(name)
            return {"y": result(feeds["x"])}

        return run


@dataclass
class Planted:
    name: str
    run: object = None
    absent: str | None = None
    broken: str | None = None
    asked: list = field(default_factory=list)

    def available(self):
        return self.absent

    def prepare(self, model, threads):
        self.asked.append(threads)
        if self.broken:
            raise RuntimeError(self.broken)
        return self.run


def held(world, peers, **options):
    ours = world.runner("ours", 0.010)
    return compare(ours, peers, model(), 3, clock=world.clock, sleep=lambda _: None, seconds=1.0, **options)


def test_a_ratio_above_one_means_that_we_are_faster():
    world = World()
    peer = Planted("slow", world.runner("slow", 0.015))
    found = held(world, [peer])
    assert found.ours_ms == pytest.approx(10.0)
    assert found.peers["slow"].status == "ok"
    assert found.peers["slow"].median_ms == pytest.approx(15.0)
    assert found.peers["slow"].ratio == pytest.approx(1.5)
    assert found.peers["slow"].difference == 0
    assert peer.asked == [3]
    assert len(found.ours_samples_ms) >= 6


def test_a_machine_of_two_speeds_does_not_change_a_ratio():
    ours = [[4.0, 4.0], [4.0, 5.5], [5.5, 5.5], [5.5, 5.5], [5.5, 5.5]]
    theirs = [[4.8], [4.8], [6.6], [6.6], [6.6]]
    assert paired_ratio(theirs, ours) == pytest.approx(1.2)
    assert paired_ratio(ours, ours) == 1.0


def test_a_ratio_is_that_of_rounds_and_not_of_medians():
    """The machine becomes half as fast after a second."""
    world = World()
    speed = {"slow": 1.0}

    def runner(name, seconds):
        def run(feeds):
            world.now += seconds * speed["slow"]
            speed["slow"] = 2.0 if world.now > 1.0 else 1.0
            return {"y": 2 * feeds["x"]}

        return run

    found = compare(
        runner("ours", 0.010), [Planted("peer", runner("peer", 0.015))], model(), 1, clock=world.clock,
        sleep=lambda _: None, seconds=1.0,
    )  # fmt: skip
    assert found.peers["peer"].ratio == pytest.approx(1.5)


def test_each_round_is_told_apart():
    world = World()
    taken = in_turns(
        {"a": world.runner("a", 0.010), "b": world.runner("b", 0.020)}, {"x": X}, 0.5, world.clock, lambda _: None
    )
    assert len(taken["a"]) == len(taken["b"]) >= 3
    assert {len(one) for one in taken["a"]} == {10} and {len(one) for one in taken["b"]} == {4}


def test_contestants_take_turns_there_and_back():
    world = World()
    held(world, [Planted("a", world.runner("a", 0.010)), Planted("b", world.runner("b", 0.010))])
    blocks = [name for i, name in enumerate(world.order) if i == 0 or world.order[i - 1] != name]
    warm_up = len(["ours", "a", "b", "ours", "a", "b"])
    assert blocks[warm_up - 1 : warm_up + 9] == ["b", "ours", "a", "b", "a", "ours", "a", "b", "a", "ours"]


def test_a_missing_peer_is_a_result_and_the_others_go_on():
    world = World()
    found = held(world, [Planted("gone", absent="gone is not installed"), Planted("a", world.runner("a", 0.020))])
    assert list(found.peers) == ["gone", "a"]
    assert (found.peers["gone"].status, found.peers["gone"].reason) == ("missing", "gone is not installed")
    assert found.peers["gone"].ratio is None
    assert found.peers["a"].ratio == pytest.approx(2.0)


def test_a_peer_that_raises_is_a_result():
    world = World()
    found = held(world, [Planted("broken", broken="no kernel for this\nand a long trace")])
    assert found.peers["broken"].status == "failed"
    assert found.peers["broken"].reason == "RuntimeError: no kernel for this"
    assert found.peers["broken"].median_ms is None


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (lambda x: 2 * x + 0.1, "y[0] is 0.1 there and 0.0 here"),
        (lambda x: np.full_like(x, np.nan), "y[0] is nan there"),
        (lambda x: 2 * x[:2], "shape (2,) instead of (4,)"),
    ],
)
def test_a_peer_that_disagrees_is_timed_and_flagged(result, reason):
    world = World()
    found = held(world, [Planted("odd", world.runner("odd", 0.010, result))])
    assert found.peers["odd"].status == "disagrees"
    assert reason in found.peers["odd"].reason
    assert found.peers["odd"].difference > 1
    assert found.peers["odd"].ratio == pytest.approx(1.0)


def test_the_tolerance_decides_who_disagrees():
    world = World()
    close = Planted("close", world.runner("close", 0.010, lambda x: 2 * x + 0.1))
    found = held(world, [close], tolerance={"y": np.full(4, 0.2)})
    assert found.peers["close"].status == "ok"
    assert found.peers["close"].difference == pytest.approx(0.5, rel=1e-4)


def test_outputs_in_the_runtimes_own_memory_are_copied_before_the_next_run():
    world, memory = World(), np.zeros(4, np.float32)

    def reused(x):
        memory[:] = 2 * x
        return memory

    def spoils(x):
        memory[:] = 7
        return 2 * x

    ours = world.runner("ours", 0.01, reused)
    peer = Planted("spoils", world.runner("spoils", 0.01, spoils))
    found = compare(ours, [peer], model(), 1, clock=world.clock, sleep=lambda _: None, seconds=0.1)
    assert found.peers["spoils"].status == "ok"


def test_without_peers_we_are_timed_alone():
    found = held(World(), [])
    assert found.peers == {}
    assert found.ours_ms == pytest.approx(10.0)


@dataclass
class OnDevice:
    """A contestant with a clock of its own, which says `ms` for each run and notes how often it was asked."""

    ms: float
    world: World
    name: str
    result: object = lambda x: 2 * x

    def __call__(self, feeds):
        self.world.order.append(f"{self.name} for its outputs")
        return {"y": self.result(feeds["x"])}

    def time(self, feeds, runs):
        self.world.order.append(self.name)
        return [9 * self.ms] + [self.ms] * (runs - 1)


def test_runs_on_a_device_are_timed_by_its_clock_in_turns():
    world = World()
    ours, theirs = OnDevice(0.5, world, "ours"), OnDevice(1.0, world, "theirs")
    found = compare(ours, [Planted("theirs", theirs)], model(), 1, seconds=0.2)
    assert found.ours_ms == 0.5, "the first run of a turn, which finds cold caches, does not count"
    assert found.peers["theirs"].ratio == 2.0 and found.peers["theirs"].status == "ok"
    assert world.order[2:12] == ["ours", "theirs", *["ours", "theirs", "theirs", "ours"] * 2]


def test_a_peer_on_the_cpu_is_not_compared_with_a_device_nor_the_other_way_round():
    world = World()
    on_device, on_cpu = OnDevice(0.5, world, "device"), world.runner("cpu", 0.01)
    found = compare(on_device, [Planted("cpu", on_cpu)], model(), 1, seconds=0.1)
    assert (found.peers["cpu"].status, found.peers["cpu"].median_ms) == ("missing", None)
    assert "runs on the CPU" in found.peers["cpu"].reason
    found = held(world, [Planted("device", on_device)])
    assert (found.peers["device"].status, found.peers["device"].ratio) == ("missing", None)


def test_a_peer_on_a_device_that_disagrees_is_flagged():
    world = World()
    odd = OnDevice(0.5, world, "odd", lambda x: 2 * x + 1)
    found = compare(OnDevice(0.5, world, "ours"), [Planted("odd", odd)], model(), 1, seconds=0.1)
    assert found.peers["odd"].status == "disagrees" and found.peers["odd"].ratio == 1.0


def test_it_is_told_what_comes_next():
    world, told = World(), []
    peers = [Planted("a", world.runner("a", 0.010)), Planted("b", world.runner("b", 0.010))]
    held(world, peers, step=lambda *one: told.append(one))
    assert told[:3] == [(0, 5, "a is made ready"), (1, 5, "b is made ready"), (2, 5, "all are timed in turns")]
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert all(done < 5 for done, _, _ in told)
