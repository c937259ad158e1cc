"""Tests of all graph rules in their order on whole models: the meaning, and the copies that are left."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import yaml

from pipeline.cli import conf_folder
from pipeline.frontend.workloads.bert import Bert
from pipeline.frontend.workloads.gpt2 import Gpt2
from pipeline.frontend.workloads.mobilenet_v2 import MobilenetV2
from pipeline.frontend.workloads.resnet50 import Resnet50
from pipeline.ir import graph as g
from pipeline.ir.graph import Graph
from pipeline.ir.graph_rule import GraphRule, same_graph
from pipeline.registry import Component, Registry
from rules.graph.absorb_views import AbsorbViews
from rules.graph.channels_last import ChannelsLast
from rules.graph.fold_scale import FoldScale
from rules.graph.merge_products import MergeProducts
from rules.graph.merge_variables import MergeVariables
from rules.graph.simplify import Simplify
from tests.rules.graph.attention_blocks import bert_block, gpt2_block
from tests.rules.graph.meaning import applied, operations

ORDER = (Simplify(), AbsorbViews(), FoldScale(), MergeProducts(), ChannelsLast(), AbsorbViews(), MergeVariables())
COPIES = ("Transpose", "Slice", "Pad", "Concat", "Broadcast")

MODELS: Mapping[str, tuple[Graph, dict[str, int]]] = {
    "bert": (Bert(layers=2, hidden=64, heads=4, intermediate=20, vocabulary=11, positions=9, sequence=5).build(0), {}),
    "gpt2": (Gpt2(layers=2, hidden=64, heads=4, vocabulary=11, positions=19, sequence=5).build(0), {}),
    "gpt2 with a cache": (
        Gpt2(layers=1, hidden=64, heads=4, vocabulary=11, positions=19, sequence=5, past=2, cache=True).build(0),
        {"Slice": 2, "Concat": 2}),
    "resnet50": (Resnet50(size=64, width=4, classes=7, blocks=(1, 2, 1, 1)).build(0), {"Pad": 7}),
    "mobilenet_v2": (MobilenetV2(size=64, width=0.25, classes=7).build(0), {"Pad": 18}),
    "attention of one sequence": (bert_block(), {}),
    "attention of two sequences": (bert_block(2), {}),
    "attention with a joint product": (gpt2_block(2), {}),
}  # fmt: skip


def configured() -> tuple[GraphRule, ...]:
    """The graph rules as users run them: those of `rules=cpu`."""
    listed = yaml.safe_load((conf_folder() / "rules" / "cpu.yaml").read_text(encoding="utf-8"))["graph"]
    rules = [Registry().build(GraphRule, Component.model_validate(each), "rules.graph") for each in listed]
    return tuple(rules)


ORDERS = (ORDER, configured())


@pytest.mark.parametrize("order", ORDERS, ids=["all", "cpu"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_keeps_its_meaning_and_few_copies(name: str, order: tuple[GraphRule, ...]) -> None:
    graph, copies = MODELS[name]
    for rule in order:
        graph = applied(rule, graph, relative=1e-5 if isinstance(rule, FoldScale) else 1e-10)
    found = operations(graph)
    assert {kind: found.count(kind) for kind in COPIES if kind in found} == copies


@pytest.mark.parametrize("order", ORDERS, ids=["all", "cpu"])
@pytest.mark.parametrize("name", MODELS)
def test_no_rule_undoes_what_a_later_one_did(name: str, order: tuple[GraphRule, ...]) -> None:
    graph, _ = MODELS[name]
    for rule in order:
        graph = rule.apply(graph)
    for rule in order:
        assert same_graph(rule.apply(graph), graph), f"{rule} finds more"


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2"])
def test_every_convolution_gives_its_channels_last_and_has_no_factor_behind_it(name: str) -> None:
    graph, _ = MODELS[name]
    for rule in ORDER:
        graph = rule.apply(graph)
    assert not {"mul", "div"} & set(operations(graph))
    for node in graph.nodes:
        if isinstance(node.op, g.Contract):
            last = len(node.op.spatial) - 1
            assert any(v == last for dim in node.op.rhs for v, _ in dim.terms), "the weights have it"
            own = [dim for dim in node.op.lhs if any(v == last for v, _ in dim.terms)]
            assert not own or own == [node.op.lhs[-1]], "what is vectorized is read as a vector, or as one number"
