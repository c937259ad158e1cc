"""The sampling of one kernel, with a clock that the test moves."""

import pytest

from pipeline.measurement.sampling import SamplingPolicy, interleave, sample, typical


class Kernel:
    """A clock that says what a kernel of a fixed duration would, and notes what it was asked."""

    def __init__(self, ns, first_ns=None):
        self.ns, self.first_ns, self.asked = ns, first_ns, []

    def __call__(self, repeats, inner):
        ns = self.first_ns if self.first_ns is not None and not self.asked else self.ns
        self.asked.append((repeats, inner))
        return (float(ns),) * repeats


POLICY = SamplingPolicy(warmup=2, samples=7, min_sample_ms=2.0, cut_factor=3.0, max_seconds=1.0)


def test_a_sample_of_a_short_kernel_holds_many_runs():
    taken = sample(Kernel(1000), POLICY, None)
    assert taken.inner == 2000
    assert taken.nanoseconds == (1000.0,) * 7


def test_a_slow_first_run_does_not_make_the_samples_too_short():
    assert sample(Kernel(1000, first_ns=1e6), POLICY, None).inner == 2000


def test_a_sample_of_a_long_kernel_holds_one_run():
    assert sample(Kernel(5e6), POLICY, None).inner == 1


def test_a_very_slow_kernel_gets_fewer_samples_but_one():
    assert len(sample(Kernel(0.3e9), POLICY, None).nanoseconds) == 3
    assert len(sample(Kernel(30e9), POLICY, None).nanoseconds) == 1


def test_a_first_sample_in_which_the_processor_was_elsewhere_is_not_the_only_one():
    class Delayed(Kernel):
        def __call__(self, repeats, inner):
            taken = super().__call__(repeats, inner)
            return (9e6,) * repeats if inner == 2000 and sum(i == 2000 for _, i in self.asked) == 1 else taken

    taken = sample(Delayed(1000), POLICY, None)
    assert taken.nanoseconds == (9e6, *(1000.0,) * 6)
    assert not sample(Delayed(1000), POLICY, 900).cut


def test_a_kernel_far_slower_than_the_best_is_cut():
    taken = sample(Kernel(1000), POLICY, 300)
    assert (taken.cut, len(taken.nanoseconds)) == (True, 1)


@pytest.mark.parametrize(("run_ns", "runs"), [(50e6, 2), (3e9, 1)])
def test_a_long_kernel_far_slower_than_the_best_is_not_sampled(run_ns, runs):
    kernel = Kernel(run_ns)
    taken = sample(kernel, POLICY, 1e6)
    assert (taken.cut, taken.nanoseconds) == (True, (run_ns,))
    assert kernel.asked == [(1, 1)] * runs


def test_a_slow_first_run_does_not_cut_a_kernel():
    """Of the first kernel of a task: the memory of its inputs comes with that run."""
    taken = sample(Kernel(2e6, first_ns=77e6), POLICY, 2e6)
    assert not taken.cut and taken.nanoseconds == (2e6,) * 7


def test_two_slow_runs_do_not_cut_a_short_kernel():
    """A busy machine gives the processor to another program for milliseconds, and maybe again."""

    class Preempted(Kernel):
        def __call__(self, repeats, inner):
            before = len(self.asked)
            taken = super().__call__(repeats, inner)
            return (4e6, *taken[1:]) if before < 2 else taken

    taken = sample(Preempted(9e3), POLICY, 9e3)
    assert not taken.cut and taken.nanoseconds == (9e3,) * 7


def test_a_kernel_slower_than_the_best_is_left_after_a_few_samples():
    kernel = Kernel(1000)
    taken = sample(kernel, POLICY, 790)
    assert (taken.cut, len(taken.nanoseconds)) == (True, 3)
    assert sum(repeats for repeats, inner in kernel.asked if inner == taken.inner) == 3


def test_one_quick_sample_of_the_first_few_is_enough_to_go_on():
    class Disturbed(Kernel):
        def __call__(self, repeats, inner):
            taken = super().__call__(repeats, inner)
            return taken if len(self.asked) < 5 else (800.0,) * repeats

    taken = sample(Disturbed(2000), POLICY, 790)
    assert (taken.cut, len(taken.nanoseconds)) == (False, 7)


def test_what_stands_for_the_samples_is_among_the_fastest_but_not_one_lucky_one():
    assert typical((9.0, 3.0, 2.0, 8.0, 7.0, 1.0, 5.0)) == 2.0
    assert typical((4.0, 3.0)) == 3.0
    assert typical((4.0,)) == 4.0


@pytest.mark.parametrize("best", [None, 820, 1e9])
def test_a_kernel_near_the_best_is_not_cut(best):
    taken = sample(Kernel(1000), POLICY, best)
    assert (taken.cut, len(taken.nanoseconds)) == (False, 7)


def test_cold_samples_hold_one_run():
    policy = SamplingPolicy(samples=4, flush_cache=True)
    taken = sample(Kernel(100), policy, None)
    assert (taken.inner, len(taken.nanoseconds)) == (1, 4)


def test_a_clock_that_says_zero_is_survived():
    assert len(sample(Kernel(0), POLICY, None).nanoseconds) == 7


def test_kernels_take_turns_and_each_round_begins_with_another():
    order = []

    def clock(name):
        def run(repeats, inner):
            if inner > 2:
                order.append(name)
            return (1000.0,) * repeats

        return run

    taken = interleave([clock("a"), clock("b"), clock("c")], POLICY, 3)
    assert "".join(order) == "abcbcacab"
    assert all(len(samples.nanoseconds) == 3 for samples in taken)
