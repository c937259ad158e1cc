"""Tests that every command of the README runs, made small enough for the gate."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

CHECKOUT = Path(__file__).resolve().parent.parent
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
SMALL = (
    "search.trials=1", "search.batch=1", "search.candidates=32", "cost_model=roofline", "measurement.workers=1",
    "superopt.seconds=1.0", "superopt.patience=2",
    "measurement.runner.policy.samples=3", "measurement.runner.policy.min_sample_ms=0.1", "compare.seconds=0.05",
)  # fmt: skip
SMALL_MODELS = {
    "bert": ("workload.layers=1", "workload.hidden=32", "workload.heads=2", "workload.intermediate=64",
             "workload.vocabulary=50", "workload.sequence=8"),
    "gqa": ("workload.queries=5", "workload.keys=24", "workload.dim=8"),
    "llama_block": ("workload.hidden=32", "workload.heads=2", "workload.kv_heads=1", "workload.dim=16",
                    "workload.inner=48", "workload.sequence=8"),
}  # fmt: skip
# The gate and the installation are what CI itself does; the rule of the README's example has a test in test_engine.
ELSEWHERE = ("bash .ci/run", "python3 -m venv", "muschedule workload=c2d workload.k=3 'registry")


def commands() -> list[str]:
    """Every line of every shell block, continuation lines joined, comments dropped."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            command = " ".join(shlex.split(line, comments=True, posix=False))
            if command:
                found.append(command)
    return found


def run(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


def small(command: str) -> list[str]:
    """The arguments of a run, with a budget and a model that a test can afford."""
    words = shlex.split(command)
    arguments = words[3:] if words[0] == "python" else words[1:]
    for name, overrides in SMALL_MODELS.items():
        if any(word.lstrip("+") == f"workload={name}" for word in arguments):
            arguments += overrides
    if "experiment=operators" in arguments:
        arguments += ["~suite", "+suite={gmm: [0], dep: [3]}"]
    if "experiment=mugraphs" in arguments:
        arguments += ["~suite", "+suite={ntrans: [0]}", "compare.peers=[onnxruntime]"]
    if "experiment=gpu_check" in arguments:
        arguments += ["~suite", "+suite={gmm: [{n: 40, m: 24, k: 32, dtype: float16}]}"]
    return arguments if "--cfg" in arguments else [*arguments, *SMALL]


def a_model(path: Path, dims: list[int | str]) -> None:
    """y = relu(x @ w), x of the given dimensions and 8 columns."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [*dims, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [*dims, 4])
    w = numpy_helper.from_array(np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [w])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith(("muschedule", "python -m pipeline "))
                                     and not c.startswith(ELSEWHERE)])  # fmt: skip
def test_a_command_of_the_readme_runs(command: str, tmp_path: Path) -> None:
    a_model(tmp_path / "model.onnx", ["batch", "sequence"] if "shapes" in command else [2, 3])
    said = run(["-m", "pipeline", *small(command)], tmp_path)
    assert said.strip()
    if "--cfg" not in command:
        summaries = [json.loads(p.read_text(encoding="utf-8")) for p in tmp_path.glob("outputs/**/summary.json")]
        assert summaries
        assert all(summary["verified"] for summary in summaries)


def test_the_commands_of_the_store_run_on_what_a_run_left(tmp_path: Path) -> None:
    run(["-m", "pipeline", *small("muschedule workload=gmm workload.n=16 workload.m=16 workload.k=16")], tmp_path)
    store = [command for command in commands() if command.startswith("python -m pipeline.store")]
    assert store
    for command in store:
        run(shlex.split(command)[1:], tmp_path)
    assert (tmp_path / "records.jsonl").read_text(encoding="utf-8").strip()


def test_the_command_of_the_superoptimizer_proves_what_another_system_saved(tmp_path: Path) -> None:
    (tmp_path / "graphs.json").write_bytes((CHECKOUT / "tests/superopt/data/gqa_bs1.json").read_bytes())
    (command,) = [command for command in commands() if command.startswith("python -m pipeline.superopt")]
    said = run(shlex.split(command)[1:], tmp_path)
    assert said and all(": equal: " in line for line in said.splitlines())


def test_no_command_of_the_readme_is_left_out() -> None:
    covered = ("muschedule", "python -m pipeline ", "python -m pipeline.store", "python -m pipeline.superopt",
               *ELSEWHERE)  # fmt: skip
    assert [command for command in commands() if not command.startswith(covered)] == []


def test_the_main_job_of_the_first_command_runs(tmp_path: Path) -> None:
    first = next(command for command in commands() if command.startswith("python3 -m venv"))
    job = first.split("&&")[-1].strip()
    assert job.startswith(".venv/bin/python -m pipeline ")
    run(["-m", "pipeline", *small(job.replace(".venv/bin/python", "python"))], tmp_path)


def test_the_artifact_is_used_as_the_readme_shows(tmp_path: Path) -> None:
    arguments = small("muschedule workload=bert")
    run(["-m", "pipeline", *arguments, "hydra.run.dir=run"], tmp_path)
    (block,) = re.findall(r"```python\n(import numpy.*?)```", README, re.DOTALL)
    code = re.sub(r'"outputs/[^"]*/artifact"', '"run/artifact"', block)
    (tmp_path / "use.py").write_text(code + "assert all(o.size for o in outputs)\n", encoding="utf-8")
    run(["use.py"], tmp_path)
