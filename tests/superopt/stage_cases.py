"""A small graph with one fused kernel, what an expert's search finds for it, and notes in memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.schedule.rule import Rule
from pipeline.superopt.enumeration.finding import Finding, Proven
from pipeline.superopt.mugraph.builder import MuGraphBuilder
from pipeline.superopt.mugraph.graph import MuGraph
from pipeline.superopt.spec import Spec
from pipeline.superopt.stage import Effort
from pipeline.superopt.subprograms import Limits
from rules.schedule.inner_product import InnerProduct
from rules.schedule.inner_rows import InnerRows
from rules.schedule.parallel_vectorize import ParallelVectorize

RULES: tuple[Rule, ...] = (InnerProduct(), InnerRows(), ParallelVectorize())
WIDTH = 64


def normalised() -> Graph:
    """x (16, 64) over its root mean square, times w (64, 48)."""
    b = GraphBuilder()
    x, w = b.input("x", (16, WIDTH), "float32"), b.input("w", (WIDTH, 48), "float32")
    mean = b.elementwise("mul", b.reduce("sum", b.elementwise("mul", x, x), [1], True), b.scalar(1 / WIDTH, x))
    return b.finish([("y", b.matmul(b.elementwise("mul", x, b.elementwise("rsqrt", mean)), w))])


def fused(scale: float = 1 / WIDTH) -> MuGraph:
    """The scale after the product, in one kernel; with another number it is wrong."""
    b = MuGraphBuilder()
    x, w = b.input("x", rank=2), b.input("w", rank=2)
    with b.kernel(grid={"n": None}, loops={"k": None}) as k:
        tx, tw = k.load(x, fmap={"k": 1}), k.load(w, imap={"n": 0}, fmap={"k": 1})
        ss = k.accumulate("sum", k.fold("sum", tx * tx, axis=1))
        acc = k.accumulate("sum", k.contract("mk,nk->mn", tx, tw))
        y = k.store(acc * k.rsqrt(ss * scale), omap={"n": 1})
    return b.finish(y)


def unlooped() -> MuGraph:
    """All of x in one tile."""
    b = MuGraphBuilder()
    x, w = b.input("x", rank=2), b.input("w", rank=2)
    with b.kernel(grid={"n": None}) as k:
        tx, tw = k.load(x), k.load(w, imap={"n": 0})
        y = k.store(
            k.contract("mk,nk->mn", tx, tw) * k.rsqrt(k.fold("sum", tx * tx, axis=1) * (1 / WIDTH)), omap={"n": 1}
        )
    return b.finish(y)


def finding(spec: Spec, *graphs: MuGraph) -> Finding:
    """What a search of the specification would give that has found these, without its proofs."""
    names = tuple(tensor.name for tensor in spec.inputs)
    proven = tuple(Proven(replace(graph, inputs=names), 1e-5, 4, 1e-20, (), {"n": 2, "k": 4}) for graph in graphs)
    return Finding(
        proven, 0.5, True, {"topologies": 3, "proven": len(graphs)}, reason="" if graphs else "nothing is left"
    )


def effort(**given: object) -> Effort:
    return replace(Effort(20.0, 4, 2, Limits(), "1"), **given)  # type: ignore[arg-type]


@dataclass(slots=True)
class Notes:
    """In memory."""

    kept: dict[str, str] = field(default_factory=dict)

    def note(self, key: str, text: str) -> None:
        self.kept[key] = text

    def noted(self, key: str) -> str | None:
        return self.kept.get(key)


@dataclass(slots=True)
class Search:
    """Gives the same graphs for every specification; counts how often, or raises."""

    graphs: tuple[MuGraph, ...] = ()
    raises: BaseException | None = None
    given: list[float] = field(default_factory=list)

    def __call__(self, spec: Spec, seconds: float) -> Finding:
        self.given.append(seconds)
        if self.raises is not None:
            raise self.raises
        return finding(spec, *self.graphs)
