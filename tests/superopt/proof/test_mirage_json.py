"""Tests of saved µGraphs: read, verified from the command line, and refused with one clear error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.cli import conf_folder
from pipeline.cli_overrides import workloads
from pipeline.errors import UserError
from pipeline.ir.graph import TensorType
from pipeline.superopt.__main__ import main
from pipeline.superopt.proof.mirage_json import import_mirage, input_shapes, read_mirage
from pipeline.superopt.proof.proof import Proof
from pipeline.superopt.proof.prove import prove
from pipeline.superopt.proof.saved_specs import OF_WORKLOADS, SPECS, named_spec, saved_spec
from pipeline.verification.field_algebra import FieldAlgebra, FieldValue, Residues

DATA = Path(__file__).parents[1] / "data"
SHARED = Path(__file__).parents[4] / "shared" / "data" / "mugraphs"
RIGHT = ("gqa", "rmsnorm", "gated_mlp")


def proofs(spec: str, tests: int = 1) -> list[Proof]:
    found = []
    for saved in read_mirage(DATA / f"{spec}_bs1.json"):
        graph = saved_spec(spec, input_shapes(saved))
        found.append(prove(graph, import_mirage(saved, SPECS[spec].inputs), tests=tests, rng=np.random.default_rng(0)))
    return found


def test_saved_attention_is_equal_at_its_full_shapes() -> None:
    assert [proof.verdict for proof in proofs("gqa")] == ["equal", "equal"]


def test_saved_qknorm_attention_is_different_with_a_counterexample_in_residues_and_in_floating_point() -> None:
    for proof in proofs("qknorm_gqa"):
        assert proof.verdict == "different"
        assert proof.counterexample is not None
        assert proof.counterexample.residues is not None and proof.counterexample.witness is not None


def test_sequential_inputs_would_hide_that_qknorm_attention_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above is one that fails when the inputs are not drawn at random."""

    def sequence(algebra: FieldAlgebra, kind: TensorType) -> FieldValue:
        numbers = np.arange(int(np.prod(kind.shape))).reshape(kind.shape)
        return Residues(numbers % algebra.field_p.prime, numbers % algebra.field_q.prime)

    monkeypatch.setattr(FieldAlgebra, "draw", sequence)
    assert [proof.verdict for proof in proofs("qknorm_gqa")] == ["equal", "equal"]


def small_mlp(change: Callable[[list[dict[str, Any]]], object] = lambda graph: None) -> list[list[dict[str, Any]]]:
    """A saved gated MLP cut down to 8 x 256 and 256 x 256, in a grid of 4 and a loop of 4, with a change."""
    text = (DATA / "gated_mlp_bs1.json").read_text(encoding="utf-8")
    graph = json.loads(text)[0]

    def shrink(tensor: dict[str, Any]) -> None:
        tensor["dim"] = [256 if size == 4096 else size for size in tensor["dim"]]

    for op in graph:
        for tensor in op["input_tensors"] + op["output_tensors"]:
            shrink(tensor)
        if "bgraph" in op:
            op["bgraph"]["grid_dim"]["x"] = 4
            op["bgraph"]["forloop_range"] = 4
    change(graph)
    return [graph]


def saved(path: Path, graphs: object) -> str:
    file = path / "graphs.json"
    file.write_text(json.dumps(graphs), encoding="utf-8")
    return str(file)


def block_of(graph: list[dict[str, Any]]) -> dict[str, Any]:
    return next(op["bgraph"] for op in graph if "bgraph" in op)


def test_the_command_prints_a_line_for_each_and_succeeds_where_all_are_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", saved(tmp_path, small_mlp() * 2), "--spec", "gated_mlp"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:9] for line in lines] == ["0: equal:", "1: equal:"]


def test_the_command_fails_where_one_is_different(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def swap(graph: list[dict[str, Any]]) -> None:
        silu = next(op for op in block_of(graph)["operators"] if op["op_type"] == "tb_silu_op")
        silu["op_type"] = "tb_sigmoid_op"

    assert main(["verify", saved(tmp_path, small_mlp() + small_mlp(swap)), "--spec", "gated_mlp"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("0: equal") and lines[1].startswith("1: different: output 0[")


def test_what_does_not_fit_together_is_not_provable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def cut(graph: list[dict[str, Any]]) -> None:
        block_of(graph)["grid_dim"]["x"] = 3

    assert main(["verify", saved(tmp_path, small_mlp(cut)), "--spec", "gated_mlp"]) == 1
    assert "not provable: kernel 0, input 1: a dimension is not cut into equal pieces" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "spec", "message"),
    [
        ("{", "gqa", "the file cannot be read"),
        ("{}", "gqa", "the file holds no µGraphs"),
        ("[]", "gqa", "the file holds no µGraphs"),
        ("[[{}]]", "gqa", "the inputs cannot be read"),
        (json.dumps(small_mlp(lambda graph: graph[1]["output_tensors"][0].update(dim=[100, 256]))), "gated_mlp",
         "the inputs do not fit"),
        (json.dumps(small_mlp()), "lora", "the number of inputs is wrong"),
        (json.dumps(small_mlp()), "moe", "no such specification"),
        (json.dumps(small_mlp(lambda graph: graph.pop())), "gated_mlp", "does not have the tensors"),
        (json.dumps(small_mlp(lambda graph: block_of(graph).pop("grid_dim"))), "gated_mlp",
         "operator 3 (kn_customized_op): the operator is not as expected"),
        (json.dumps(small_mlp(lambda graph: graph[4].update(op_type="kn_clamp_op"))), "gated_mlp",
         "clamp: the operator is not supported"),
        ("[" * 100_000, "gqa", "the file cannot be read"),
        ("[[" + "9" * 5000 + "]]", "gqa", "the file cannot be read"),
        (json.dumps(small_mlp(lambda graph: graph[0]["output_tensors"][0].update(dim=[8]))), "gated_mlp",
         "dim: a tensor has fewer sizes than dimensions"),
        (json.dumps(small_mlp(lambda graph: graph[0]["output_tensors"][0].update(dim=[10**40, 64]))), "gated_mlp",
         "dim: a tensor is too large"),
    ],
)  # fmt: skip
def test_a_bad_file_gives_one_clear_error_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, spec: str, message: str
) -> None:
    file = tmp_path / "graphs.json"
    file.write_text(content, encoding="utf-8")
    assert main(["verify", str(file), "--spec", spec]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and not printed.out
    assert len(printed.err.splitlines()) == 1 and printed.err.startswith("error: ")


def test_a_missing_file_gives_status_2(tmp_path: Path) -> None:
    assert main(["verify", str(tmp_path / "none.json"), "--spec", "gqa"]) == 2


@pytest.mark.parametrize("extent", [0, -8, 8.0, "8", True, None, float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["grid_dim.x", "forloop_range", "dim", "num_dims"])
def test_an_extent_is_a_positive_whole_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str, extent: object
) -> None:
    def change(graph: list[dict[str, Any]]) -> None:
        match where:
            case "grid_dim.x":
                block_of(graph)["grid_dim"]["x"] = extent
            case "forloop_range":
                block_of(graph)["forloop_range"] = extent
            case "dim":
                graph[0]["output_tensors"][0]["dim"][0] = extent
            case _:
                graph[0]["output_tensors"][0]["num_dims"] = extent

    assert main(["verify", saved(tmp_path, small_mlp(change)), "--spec", "gated_mlp"]) == 2
    assert f"{where}: an extent is not a whole number of at least 1. {extent!r}" in capsys.readouterr().err


def test_what_does_not_fit_into_memory_is_not_provable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object, **settings: object) -> Proof:
        raise MemoryError("Unable to allocate 954. GiB")

    monkeypatch.setattr("pipeline.superopt.__main__.prove", refuse)
    assert main(["verify", saved(tmp_path, small_mlp()), "--spec", "gated_mlp"]) == 1
    assert "not provable: this machine has not enough memory: Unable to allocate" in capsys.readouterr().out


def test_a_negative_seed_gives_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", saved(tmp_path, small_mlp()), "--spec", "gated_mlp", "--seed=-1"]) == 2
    assert capsys.readouterr().err.startswith("error: --seed: a seed is not negative")


def test_every_specification_has_a_graph_for_the_shapes_of_the_benchmarks() -> None:
    shapes: dict[str, list[tuple[int, ...]]] = {
        "gqa": [(2, 8, 4), (2, 4, 16), (2, 16, 4)], "mha": [(2, 8, 4), (2, 4, 16), (2, 16, 4)],
        "mqa": [(1, 8, 4), (1, 4, 16), (1, 16, 4)], "qknorm_gqa": [(2, 8, 4), (2, 4, 16), (2, 16, 4)],
        "rmsnorm": [(2, 8), (8, 6)], "gated_mlp": [(2, 8), (8, 6), (8, 6)],
        "lora": [(2, 8), (8, 6), (8, 3), (3, 6)], "ntrans": [(2, 8), (2, 8), (2, 8)],
    }  # fmt: skip
    assert set(shapes) == set(SPECS)
    for name, given in shapes.items():
        assert saved_spec(name, given).outputs[0][0] == "out"
    with pytest.raises(UserError, match="no such specification"):
        saved_spec("moe", [])


@pytest.mark.parametrize("workload", sorted(OF_WORKLOADS))
def test_a_specification_has_the_name_of_its_workload_too(workload: str) -> None:
    assert workload in workloads(conf_folder()) and workload not in SPECS
    assert named_spec(workload) is SPECS[OF_WORKLOADS[workload]]
    with pytest.raises(UserError, match=rf"no such.* {OF_WORKLOADS[workload]} \(or {workload}\)"):
        named_spec("moe")


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="the whole files are not here")
@pytest.mark.parametrize(("spec", "status"), [*((spec, 0) for spec in RIGHT), ("qknorm_gqa", 1)])
def test_the_whole_files_are_equal_and_qknorm_attention_is_different(
    spec: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(SHARED / f"{spec}_bs1.json"), "--spec", spec]) == status
    verdicts = [line.split(": ")[1] for line in capsys.readouterr().out.splitlines()]
    assert verdicts == (["different"] * 40 if status else ["equal"] * 10)
