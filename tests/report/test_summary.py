"""The summary: it survives its file, is written whole, and refuses what it does not know."""

import json
import math

import pytest

from pipeline.errors import UserError
from pipeline.report.summary import (
    Latency,
    Machine,
    MaxError,
    PeerSummary,
    Summary,
    TaskSummary,
    read_summary,
    write_summary,
)

SUMMARY = Summary(
    workload="gmm",
    target="native",
    seed=0,
    status="complete",
    verified=True,
    max_error=MaxError(absolute=1e-6, relative=1e-5, tolerance=1e-4),
    latency_ms=Latency.of([4.0, 5.0, 6.0]),
    predicted=False,
    untuned_ms=9.0,
    roofline_ms=4.0,
    tuning_seconds=12.5,
    trials=32,
    invalid_candidates=0,
    failed_candidates={"timeout": 1, "wrong": 0},
    tasks=(
        TaskSummary(
            name="gmm",
            weight=1,
            flops=2e9,
            bytes=1e7,
            latency_ms=4.9,
            roofline_ms=4.0,
            sketches=3,
            trials=32,
            best_at_trial=7,
        ),
    ),
    peers={
        "onnxruntime": PeerSummary(median_ms=6.0, ratio=1.25, ours_ms=5.0),
        "torch": PeerSummary(median_ms=None, ratio=None, status="missing", reason="torch is not installed"),
    },
    machine=Machine(cpu="a CPU", cores=2, vector_bits=256, peak_gflops=200.0, bandwidth_gbs=30.0),
    versions={"muschedule": "0.1.0"},
    artifact="outputs/run/artifact",
)
KEYS = [
    *[
        "workload",
        "target",
        "seed",
        "status",
        "verified",
        "unchecked",
        "max_error",
        "latency_ms",
        "predicted",
        "untuned_ms",
    ],
    *[
        "roofline_ms",
        "tuning_seconds",
        "trials",
        "invalid_candidates",
        "failed_candidates",
        "tasks",
        "superopt",
        "peers",
        "machine",
        "versions",
    ],
    "artifact",
]


def test_a_summary_survives_its_file(tmp_path):
    write_summary(SUMMARY, tmp_path / "summary.json")
    assert read_summary(tmp_path / "summary.json") == SUMMARY


def test_the_file_holds_the_promised_keys(tmp_path):
    write_summary(SUMMARY, tmp_path / "summary.json")
    data = json.loads((tmp_path / "summary.json").read_text())
    assert list(data) == KEYS
    assert set(data["max_error"]) == {"absolute", "relative", "tolerance"}
    assert set(data["latency_ms"]) == {"median", "min", "p90", "samples"}
    assert set(data["tasks"][0]) == {
        *[
            "name",
            "weight",
            "flops",
            "bytes",
            "latency_ms",
            "roofline_ms",
            "sketches",
            "trials",
            "best_at_trial",
            "kernel",
        ]
    }
    assert {"median_ms", "ratio"} <= set(data["peers"]["onnxruntime"])
    assert set(data["machine"]) == {"cpu", "cores", "vector_bits", "peak_gflops", "bandwidth_gbs"}


def test_what_is_not_a_number_is_null_in_the_file(tmp_path):
    odd = SUMMARY.model_copy(update={"max_error": MaxError(absolute=math.inf, relative=math.nan, tolerance=0.1)})
    write_summary(odd, tmp_path / "summary.json")
    text = (tmp_path / "summary.json").read_text()
    assert json.loads(text)["max_error"] == {"absolute": None, "relative": None, "tolerance": 0.1}
    assert "Infinity" not in text


def test_an_earlier_file_is_replaced_and_nothing_else_is_left(tmp_path):
    (tmp_path / "summary.json").write_text("old")
    write_summary(SUMMARY, tmp_path / "summary.json")
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path):
    with pytest.raises(UserError, match=r"cannot write the summary.*hydra\.run\.dir"):
        write_summary(SUMMARY, tmp_path / "absent" / "summary.json")


@pytest.mark.parametrize("text", ["", "{}", '{"workload": 1}', "[1]"])
def test_a_file_that_is_not_a_summary_is_refused(tmp_path, text):
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(UserError, match="not a summary"):
        read_summary(tmp_path / "summary.json")


def test_an_unknown_key_is_refused():
    with pytest.raises(ValueError, match="Extra inputs"):
        PeerSummary(median_ms=1.0, ratio=1.0, speed=3)


@pytest.mark.parametrize(
    ("samples", "median", "p90"),
    [([3.0], 3.0, 3.0), ([1.0, 2.0], 1.5, 2.0), ([float(i) for i in range(10, 0, -1)], 5.5, 9.0)],
)
def test_a_latency_is_made_from_its_samples(samples, median, p90):
    latency = Latency.of(samples)
    assert (latency.median, latency.p90, latency.min, latency.samples) == (median, p90, min(samples), len(samples))
