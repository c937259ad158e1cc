"""A program that prints what every strategy with every cost model proposes, in order: run it twice and compare."""

from __future__ import annotations

import yaml

from pipeline.registry import Component, Registry
from pipeline.search.cost_model import CostModel
from pipeline.search.strategy import Strategy
from tests.search import spaces as small
from tests.search.formula_measurement import tuner


def main() -> None:
    """One line a candidate."""
    graphs = {"gmm": small.gmm(), "two tasks": small.two_tasks()}
    for name, graph in graphs.items():
        for search in sorted((small.CONF / "search").glob("*.yaml")):
            for cost_model in sorted((small.CONF / "cost_model").glob("*.yaml")):
                node = yaml.safe_load(search.read_text(encoding="utf-8"))["strategy"]
                strategy = Registry().build(Strategy, Component.model_validate(node), "search.strategy")
                node = yaml.safe_load(cost_model.read_text(encoding="utf-8"))
                cost = Registry().build(CostModel, Component.model_validate(node), "cost_model", seed=3)
                made, builder, _ = tuner(graph, strategy, cost, seed=3)
                made.run()
                made.ensure()
                made.finish()
                print("\n".join(f"{name}/{search.stem}/{cost_model.stem}: {line}" for line in builder.asked))


if __name__ == "__main__":
    main()
