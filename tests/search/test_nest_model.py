"""Tests of the analytic model: finite for whatever is tuned, and right about what is plainly better."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import yaml

from pipeline.frontend.workloads.workload import Workload
from pipeline.ir.graph import Graph
from pipeline.ir.program_parse import from_text
from pipeline.registry import Component, Registry
from pipeline.search.candidates import SketchSpace
from pipeline.search.nest_model import FEATURES, NestModel
from tests.search import spaces as small

OPERATORS = (
    "c1d", "c2d", "c3d", "cap", "cbr", "dep", "dil", "gmm", "gram", "grp", "nrm", "sfm", "softmax", "t2d", "tbg",
    "layer_norm", "attention", "odd",
)  # fmt: skip


def operator(name: str) -> Graph:
    """The workload of that name, as conf/ describes it."""
    node = yaml.safe_load((small.CONF / "workload" / f"{name}.yaml").read_text(encoding="utf-8"))
    workload = Registry().build(Workload, Component.model_validate(node), "workload")
    return workload.build(0)


@pytest.mark.parametrize("name", OPERATORS)
def test_times_and_features_of_every_operator_are_finite(name: str) -> None:
    for task in small.parts(operator(name)).tasks:
        for number, sketch in enumerate(small.sketches(task)):
            space = SketchSpace(number, sketch, small.TARGET)
            seconds, features = space.analyse(space.draw(64, np.random.default_rng(0)))
            assert seconds.shape == (64,) and features.shape == (64, len(FEATURES))
            assert np.isfinite(seconds).all() and (seconds > 0).all()
            assert np.isfinite(features).all()


def test_a_row_is_analysed_the_same_alone_and_among_others() -> None:
    for space in small.spaces(small.gmm()):
        rows = space.draw(40, np.random.default_rng(1))
        seconds, features = space.analyse(rows)
        for i in (0, 17, 39):
            alone = space.analyse(rows[i : i + 1])
            assert np.allclose(alone[0], seconds[i], rtol=1e-12)
            assert np.allclose(alone[1], features[i], rtol=1e-12)


def test_a_concrete_program_is_predicted_like_its_row() -> None:
    for space in small.spaces(small.gmm()):
        rows = space.draw(8, np.random.default_rng(2))
        seconds, _ = space.analyse(rows)
        for row, expected in zip(rows, seconds, strict=True):
            found, _ = NestModel(space.program(row), small.TARGET).evaluate({}, 1)
            assert found[0] == pytest.approx(expected, rel=0.05)  # loops of one iteration are gone from it


def best(n: int, m: int, k: int) -> float:
    """The fastest predicted time of a product over many draws."""
    spaces = small.spaces(small.gmm(n, m, k))
    return min(s.analyse(s.draw(512, np.random.default_rng(0)))[0].min() for s in spaces)


def test_more_arithmetic_takes_more_time() -> None:
    for axis in range(3):
        sizes = [[64, 64, 64] for _ in range(4)]
        for i, size in enumerate(sizes):
            size[axis] <<= 2 * i
        times = [best(*size) for size in sizes]
        assert all(later > earlier for earlier, later in pairwise(times)), (axis, times)


def test_no_prediction_is_faster_than_the_machine() -> None:
    for n, m, k in ((512, 512, 512), (1021, 1021, 1021), (64, 4096, 64)):
        assert best(n, m, k) >= 2 * n * m * k / (small.TARGET.peak_gflops() * 1e9)


def test_a_slower_machine_is_predicted_to_be_slower() -> None:
    program = small.spaces(small.gmm(512, 512, 512))[0]
    rows = program.draw(64, np.random.default_rng(0))
    half = replace(small.TARGET, clock_ghz=small.TARGET.clock_ghz / 2, bandwidth_gbs=small.TARGET.bandwidth_gbs / 2)
    slower = SketchSpace(0, program.sketch, half)
    assert (slower.analyse(rows)[0] > 1.5 * program.analyse(rows)[0]).all()


def test_a_register_tile_is_ranked_above_a_single_element() -> None:
    """A 6 x 16 tile of a 1024 product, the textbook kernel of AVX2, against 1 x 8: one accumulator at a time."""
    for space in small.spaces(small.gmm(1024, 1024, 1024)):
        columns = space.space.columns
        rows = space.draw(4000, np.random.default_rng(0))
        seconds, features = space.analyse(rows)
        accumulators = 2.0 ** features[:, FEATURES.index("accumulators")]
        large, one = (accumulators >= 8) & (accumulators <= 12), accumulators <= 1.5
        assert large.any() and one.any(), columns
        assert seconds[large].min() < 0.5 * seconds[one].min()
        assert np.median(seconds[large]) < np.median(seconds[one])
        assert 2.0 ** features[seconds.argmin(), FEATURES.index("accumulators")] >= 6


def text(kind: str, inner: str = "serial", rows: int = 64, columns: int = 64) -> str:
    """An elementwise program whose loops have these kinds."""
    return f"""program scale():
    input x: float32[{rows}, {columns}]
    output y: float32[{rows}, {columns}]
    body:
        for i in {kind}({rows}):
            for j in {inner}({columns}):
                block b:
                    spatial u in range({rows}) = i
                    spatial v in range({columns}) = j
                    y[u, v] = x[u, v] * x[u, v]
"""


def seconds_of(source: str) -> float:
    return float(NestModel(from_text(source), small.TARGET).evaluate({}, 1)[0][0])


def test_threads_and_lanes_are_predicted_to_help() -> None:
    rows = 4096
    plain, lanes = seconds_of(text("serial", rows=rows)), seconds_of(text("serial", "vectorized", rows=rows))
    both = seconds_of(text("parallel", "vectorized", rows=rows))
    assert both < lanes < plain


def test_rows_that_do_not_divide_among_threads_are_predicted_to_cost_a_round() -> None:
    four, five = (
        seconds_of(text("parallel", rows=4, columns=65536)),
        seconds_of(text("parallel", rows=5, columns=65536)),
    )
    assert five > 1.5 * four


def test_a_costly_function_is_predicted_to_take_longer_than_a_product() -> None:
    source = text("parallel", "vectorized")
    costly = source.replace("x[u, v] * x[u, v]", "tanh(x[u, v])")
    assert seconds_of(costly) > seconds_of(source)


def test_data_that_leaves_the_cache_is_predicted_to_take_longer_per_element() -> None:
    near = seconds_of(text("parallel", "vectorized", rows=64, columns=64)) / (64 * 64)
    far = seconds_of(text("parallel", "vectorized", rows=4096, columns=4096)) / 4096**2
    near_loops = near - 1e-6 / (64 * 64)  # without what a call and a barrier cost
    assert far > near_loops


def test_a_program_without_any_region_takes_a_call() -> None:
    empty = from_text("""program nothing():
    input x: float32[4]
    output y: float32[0]
    body:
        for i in serial(0):
            block b:
                spatial u in range(0) = i
                y[u] = x[u]
""")
    seconds, features = NestModel(empty, small.TARGET).evaluate({}, 1)
    assert np.isfinite(seconds).all() and np.isfinite(features).all() and 0 < seconds[0] < 1e-5


PANELS = """program panels():
    input w: float32[{rows}, {columns}]
    output y: float32[{columns}]
    body:
        for j0 in serial({panels}):
            for again in serial({times}):
                for r in serial({rows}):
                    for j1 in vectorized({width}):
                        block add:
                            spatial j in range({columns}) = j0 * {width} + j1
                            reduce k in range({rows}) = r
                            y[j] += w[k, j]
"""


def panels(rows: int, columns: int, width: int, *, times: int = 1, fed: bool = False) -> dict[str, float]:
    """Seconds and features of sums down the columns of a matrix, some columns at a time."""
    text = PANELS.format(rows=rows, columns=columns, width=width, panels=columns // width, times=times)
    seconds, features = NestModel(from_text(text), small.TARGET, {"w"} if fed else ()).evaluate({}, 1)
    return {**dict(zip(FEATURES, map(float, features[0]), strict=True)), "seconds": float(seconds[0])}


RAGGED = """program p():
    input x: float32[2, 256, 64]
    output y: float32[2, 256, 64]
    body:
        for c in parallel(2):
            for t in serial({tiles}):
                for i in serial({tile}):
                    for j in vectorized(64):
                        block copy:
                            spatial h in range(2) = c
                            spatial a in range(256) = t * {tile} + i
                            spatial b in range(64) = j
                            y[h, a, b] = x[h, a, b] + x[h, a, b]
"""


@pytest.mark.parametrize("tile", [128, 200, 250])
def test_what_lies_beyond_the_end_is_not_read_and_what_lies_before_it_is(tile: int) -> None:
    """With tiles that hold half as much again as there is, all of the input is moved once, neither more nor less."""
    source = RAGGED.format(tile=tile, tiles=-(-256 // tile))
    _, features = NestModel(from_text(source), small.TARGET).evaluate({}, 1)
    read, written = 4 * 2 * 256 * 64, 2 * 4 * 2 * 256 * 64  # what is written is read before
    assert 2.0 ** features[0, FEATURES.index("memory")] == pytest.approx(read + written, rel=0.01)


def test_narrow_panels_of_an_input_that_begins_anywhere_touch_lines_twice() -> None:
    narrow, anywhere = panels(8, 65536, 16), panels(8, 65536, 16, fed=True)
    assert 0.8 < anywhere["memory"] - narrow["memory"] < 1.0, "in log2: two lines for each of one, the sums aside"
    assert anywhere["seconds"] > 1.2 * narrow["seconds"]
    wide, anywhere = panels(4096, 4096, 256), panels(4096, 4096, 256, fed=True)
    assert wide["memory"] < anywhere["memory"] < wide["memory"] + 0.2
    whole, anywhere = panels(64, 4096, 4096), panels(64, 4096, 4096, fed=True)
    assert anywhere["memory"] == pytest.approx(whole["memory"], abs=0.01), "whole rows follow each other"


def test_lines_down_many_pages_are_waited_for() -> None:
    """No prefetcher follows a panel of 4,096 rows; it follows eight rows, and rows of a few lines are its own."""
    far, wide, few = panels(4096, 4096, 16), panels(4096, 4096, 1024), panels(8, 4096, 16)
    assert far["memory"] > wide["memory"] + 0.5
    assert far["seconds"] > 1.3 * wide["seconds"]
    assert few["memory"] < far["memory"] - 9.5, "in log2: 512 times fewer rows"


def test_rows_a_power_of_two_apart_push_each_other_out() -> None:
    """64 rows of one line are 4 KiB: they stay in the first cache, but not where all of them are in one set."""
    apart, clashing = panels(64, 4096 + 16, 16, times=8), panels(64, 4096, 16, times=8)
    assert clashing["level2"] > apart["level2"] + 2.5, "in log2: each of the eight times"
    few, many = panels(4, 4096, 16, times=8), panels(4, 4096 + 16, 16, times=8)
    assert few["level2"] == pytest.approx(many["level2"], abs=0.1), "four rows fit into a set"


COPY = """program copy():
    input x: float32[{n}, {n}]
    output y: float32[{n}, {n}]
    body:
        for i0 in {kind}({outer}):
            for i1 in {kind}({inner}):
                for j in vectorized({n}):
                    block copy:
                        spatial i in range({n}) = i0 * {inner} + i1
                        spatial k in range({n}) = j
                        y[i, k] = {value}
"""


def predicted(value: str, *, n: int = 64, inner: int = 64, kind: str = "serial") -> tuple[float, float]:
    """Seconds, and how many loads gather."""
    program = from_text(COPY.format(n=n, outer=n // inner, inner=inner, kind=kind, value=value))
    seconds, features = NestModel(program, small.TARGET).evaluate({}, 1)
    return float(seconds[0]), float(features[0, FEATURES.index("gathers")])


def test_a_copy_that_is_turned_in_registers_costs_more_than_one_in_a_row_and_less_than_a_gather() -> None:
    (straight, none), (turned, neither), (gathered, one) = (
        predicted("x[i, k]"), predicted("x[k, i]"), predicted("x[k, i]", kind="unrolled")
    )  # fmt: skip
    assert straight < turned < gathered and (none, neither, one) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(("inner", "gathers"), [(64, 0.0), (4, 0.0), (2, 0.0), (1, 0.0)])
def test_the_loops_of_a_split_row_count_together(inner: int, gathers: float) -> None:
    assert predicted("x[k, i]", inner=inner)[1] == gathers


@pytest.mark.parametrize(
    "value", ["x[k, 63 + i * -1]", "x[k, 0] + x[i, k]", "guard(i * 2 < 64, x[k, i * 2], 0.0:float32)"]
)
def test_a_load_that_does_not_step_by_one_along_the_rows_is_a_gather(value: str) -> None:
    assert predicted(value)[1] == 1.0


def test_a_few_rows_are_gathered() -> None:
    assert predicted("x[k, i]", n=2, inner=2)[1] == 1.0
