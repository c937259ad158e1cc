"""Small models as the pipeline sees them: after the graph rules of conf/rules/cpu.yaml."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml

from pipeline.frontend.workloads.bert import Bert
from pipeline.frontend.workloads.gpt2 import Gpt2
from pipeline.frontend.workloads.llama_block import LlamaBlock
from pipeline.ir.graph import Graph
from pipeline.ir.graph_rule import GraphRule
from pipeline.ir.target import Cache, Target
from pipeline.registry import Component, Registry

CONF = Path(__file__).resolve().parents[2] / "conf"
TARGET = Target(
    "cpu", "a small machine", "x86_64-unknown-linux-gnu", "haswell", ("+avx2", "+fma"), 2, 256, 16, 2.0, 4, 3.0, 20.0,
    (Cache(1, 32768), Cache(2, 1 << 20), Cache(3, 1 << 24, 16, 2)),
)  # fmt: skip


def ruled(graph: Graph) -> Graph:
    """The graph after the rules that a CPU has by default."""
    for entry in yaml.safe_load((CONF / "rules" / "cpu.yaml").read_text(encoding="utf-8"))["graph"]:
        rule: GraphRule = Registry(()).build(GraphRule, Component.model_validate(entry), "rules")
        graph = rule.apply(graph)
    return graph


@functools.cache
def bert(**sizes: Any) -> Graph:
    given = dict(layers=2, hidden=32, heads=4, intermediate=64, vocabulary=50, positions=20, sequence=12)
    return ruled(Bert(**{**given, **sizes}).build(0))


@functools.cache
def gpt2(**sizes: Any) -> Graph:
    given = dict(layers=2, hidden=32, heads=4, vocabulary=50, positions=20, sequence=12)
    return ruled(Gpt2(**{**given, **sizes}).build(0))


def llama(**sizes: Any) -> Graph:
    return ruled(LlamaBlock(**sizes).build(0))
