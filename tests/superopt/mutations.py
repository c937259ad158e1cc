"""Mutated µGraphs: `python -m tests.superopt.mutations 100000` compares the prover with floating point on that many.

A mutant that the prover calls equal while float64 clearly refutes it, or different while float64 finds no difference
for any of its inputs, is a defect of the prover and is printed. Where the parts of a mutant do not fit together another
one is drawn.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from pipeline.errors import CheckError
from pipeline.ir import graph as g
from pipeline.ir.evaluate import evaluate
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    BlockGraph,
    BlockNode,
    Contract,
    Fold,
    KernelNode,
    Map,
    MuGraph,
    Op,
    RescaledSum,
    Running,
    Scalar,
)
from pipeline.superopt.mugraph.interpret import run_mugraph
from pipeline.superopt.proof.prove import prove
from pipeline.superopt.proof.witness import WatchedFloats, clear_difference
from tests.superopt.hand_mugraphs import HAND, HandMuGraph

T = TypeVar("T")
BATCH = 500
MAGNITUDES = (1.0, 0.01, 3.0, 30.0)
UNARY = ("exp", "neg", "sqrt", "rsqrt", "sigmoid", "tanh", "reciprocal", "abs", "erf", "identity")
BINARY = ("add", "sub", "mul", "div", "max", "min")
KINDS = ("sum", "max", "min", "prod")
OMAPS: tuple[Any, ...] = (0, 1, 2, "sum", "max", "stack")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one mutant.

    verdict  of the prover
    refuted  whether float64 differs clearly
    misfits  mutants before it whose parts did not fit together
    """

    case: str
    kind: str
    verdict: str
    refuted: bool
    text: str
    misfits: int

    @property
    def defect(self) -> bool:
        return (self.verdict == "equal" and self.refuted) or (self.verdict == "different" and not self.refuted)


def mutate(graph: MuGraph, rng: np.random.Generator) -> tuple[str, MuGraph]:
    """The µGraph with one thing changed, and what kind of thing."""
    while True:
        number = int(rng.integers(len(graph.nodes)))
        kernel = graph.nodes[number]
        if not isinstance(kernel.op, BlockGraph) or rng.random() < 0.05:
            kind, changed = "operand of a kernel", _kernel_operand(kernel, len(graph.inputs), number, rng)
        else:
            mutation = choose(MUTATIONS, rng)
            kind = mutation.__name__.strip("_").replace("_", " ")
            changed = replace(kernel, op=mutation(kernel.op, rng))
        if changed != kernel:
            return kind, replace(graph, nodes=(*graph.nodes[:number], changed, *graph.nodes[number + 1 :]))


def choose(options: Sequence[T], rng: np.random.Generator) -> T:
    return options[int(rng.integers(len(options)))]


def _kernel_operand(kernel: KernelNode, inputs: int, number: int, rng: np.random.Generator) -> KernelNode:
    if not kernel.inputs:
        return kernel
    operands = list(kernel.inputs)
    operands[int(rng.integers(len(operands)))] = int(rng.integers(inputs + number))
    return replace(kernel, inputs=tuple(operands))


def _with(block: BlockGraph, position: int, op: Op, inputs: Sequence[int]) -> BlockGraph:
    nodes = (*block.nodes[:position], BlockNode(op, tuple(inputs)), *block.nodes[position + 1 :])
    return replace(block, nodes=nodes)


def _node(block: BlockGraph, kinds: type | tuple[type, ...], rng: np.random.Generator) -> int | None:
    found = [position for position, node in enumerate(block.nodes) if isinstance(node.op, kinds)]
    return choose(found, rng) if found else None


def _swapped_operands(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    position = _node(block, (Map, Contract, RescaledSum), rng)
    if position is None:
        return block
    return _with(block, position, block.nodes[position].op, block.nodes[position].inputs[::-1])


def _other_operand(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """Another value, mostly a neighbour: off by one, a stale maximum, what is not yet accumulated or scaled."""
    position = int(rng.integers(len(block.nodes)))
    operands = list(block.nodes[position].inputs)
    if not operands:
        return block
    which, last = int(rng.integers(len(operands))), len(block.inputs) + position - 1
    near = operands[which] + choose((-2, -1, 1, 2), rng)
    operands[which] = int(np.clip(near, 0, last)) if rng.random() < 0.6 else int(rng.integers(last + 1))
    return _with(block, position, block.nodes[position].op, operands)


def _left_out_node(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """What read a node reads its operand: a missing accumulator, scale, normalisation or rescaling."""
    position = int(rng.integers(len(block.nodes)))
    gone, operands = len(block.inputs) + position, block.nodes[position].inputs
    if not operands:
        return block
    instead = choose(operands, rng)
    nodes = tuple(
        replace(node, inputs=tuple(instead if value == gone else value for value in node.inputs))
        for node in block.nodes
    )  # fmt: skip
    outputs = tuple(replace(out, value=instead) if out.value == gone else out for out in block.outputs)
    return replace(block, nodes=nodes, outputs=outputs)


def _wrong_imap(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    if not block.grid:
        return block
    tile, axis = int(rng.integers(len(block.inputs))), int(rng.integers(len(block.grid)))
    imap = list(block.inputs[tile].imap)
    imap[axis] = choose((None, 0, 1, 2), rng)
    changed = replace(block.inputs[tile], imap=tuple(imap))
    return replace(block, inputs=(*block.inputs[:tile], changed, *block.inputs[tile + 1 :]))


def _wrong_fmap(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    if not block.loops:
        return block
    tile, loop = int(rng.integers(len(block.inputs))), int(rng.integers(len(block.loops)))
    fmap = list(block.inputs[tile].fmap)
    fmap[loop] = choose((None, 0, 1, 2), rng)
    changed = replace(block.inputs[tile], fmap=tuple(fmap))
    return replace(block, inputs=(*block.inputs[:tile], changed, *block.inputs[tile + 1 :]))


def _wrong_omap(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    if not block.grid:
        return block
    number, axis = int(rng.integers(len(block.outputs))), int(rng.integers(len(block.grid)))
    omap = list(block.outputs[number].omap)
    omap[axis] = choose(OMAPS, rng)
    changed = replace(block.outputs[number], omap=tuple(omap))
    return replace(block, outputs=(*block.outputs[:number], changed, *block.outputs[number + 1 :]))


def _swapped_axes(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """Two entries of one map change places."""
    tile = int(rng.integers(len(block.inputs)))
    imap, fmap = block.inputs[tile].imap, block.inputs[tile].fmap
    order = rng.permutation(len(imap))
    changed = replace(block.inputs[tile], imap=tuple(imap[i] for i in order), fmap=fmap[::-1])
    return replace(block, inputs=(*block.inputs[:tile], changed, *block.inputs[tile + 1 :]))


def _wrong_output(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    number = int(rng.integers(len(block.outputs)))
    value = int(rng.integers(len(block.inputs) + len(block.nodes)))
    changed = replace(block.outputs[number], value=value)
    return replace(block, outputs=(*block.outputs[:number], changed, *block.outputs[number + 1 :]))


def _wrong_function(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    position = _node(block, Map, rng)
    if position is None:
        return block
    inputs = block.nodes[position].inputs
    return _with(block, position, Map(choose(UNARY if len(inputs) == 1 else BINARY, rng)), inputs)


def _wrong_reduction(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    position = _node(block, Fold, rng)
    if position is None:
        return block
    op = block.nodes[position].op
    assert isinstance(op, Fold)
    axes = (int(rng.integers(3)),) if rng.random() < 0.6 else op.axes
    kind = choose(KINDS, rng) if rng.random() < 0.5 else op.kind
    keep = choose((1, 1, 2, 3), rng)
    return _with(block, position, Fold(kind, axes, keep), block.nodes[position].inputs)  # type: ignore[arg-type]


def _wrong_subscripts(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    position = _node(block, Contract, rng)
    if position is None:
        return block
    op = block.nodes[position].op
    assert isinstance(op, Contract)
    left, right, out = op.subscripts.replace("->", ",").split(",")
    parts = [left, right, out]
    which = int(rng.integers(3))
    parts[which] = "".join(rng.permutation(list(parts[which])))
    return _with(block, position, Contract(f"{parts[0]},{parts[1]}->{parts[2]}"), block.nodes[position].inputs)


def _wrong_accumulator(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    """Another kind or level; a rescaled sum that is not rescaled, or the other way round."""
    position = _node(block, (Accumulate, Running, RescaledSum), rng)
    if position is None:
        return block
    node = block.nodes[position]
    level = choose((0, 0, 0, 1), rng)
    ops: tuple[Op, ...] = (
        Accumulate(choose(("sum", "max", "min", "prod", "last"), rng), level),  # type: ignore[arg-type]
        Accumulate("concat", level, int(rng.integers(3))),
        Running(choose(("max", "min"), rng), level),  # type: ignore[arg-type]
        RescaledSum(level),
    )
    op = choose(ops, rng)
    extra = int(rng.integers(len(block.inputs) + position))
    if isinstance(op, RescaledSum):
        inputs = (*node.inputs, extra)[:2]
    else:
        inputs = (choose(node.inputs, rng) if rng.random() < 0.2 else node.inputs[0],)
    return _with(block, position, op, inputs)


def _wrong_number(block: BlockGraph, rng: np.random.Generator) -> BlockGraph:
    position = _node(block, Scalar, rng)
    if position is None:
        return block
    op = block.nodes[position].op
    assert isinstance(op, Scalar)
    factor = choose((2.0, 0.5, -1.0, 1.01, 0.0), rng)
    return _with(block, position, Scalar(op.value * factor), ())


Mutation = Callable[[BlockGraph, np.random.Generator], BlockGraph]
MUTATIONS: tuple[Mutation, ...] = (
    _swapped_operands, _other_operand, _other_operand, _other_operand, _left_out_node, _left_out_node, _wrong_imap,
    _wrong_fmap, _wrong_omap, _swapped_axes, _wrong_output, _wrong_function, _wrong_reduction, _wrong_subscripts,
    _wrong_accumulator, _wrong_accumulator, _wrong_number,
)  # fmt: skip


def refuted(case: HandMuGraph, mutant: MuGraph, rng: np.random.Generator) -> bool:
    """Whether float64 clearly differs for some inputs of several magnitudes, where both results are finite.

    Not where an intermediate value leaves the range of float64: that a mutant is unsafe there does not make it wrong.
    """
    inputs = {node.op.name: node.type for node in case.spec.nodes if isinstance(node.op, g.Input)}
    for magnitude in MAGNITUDES:
        for positive in (False, True):
            feeds = {}
            for name, kind in inputs.items():
                x = (rng.standard_normal(kind.shape) * magnitude).astype(np.float32)
                feeds[name] = abs(x) if positive else x
            want = evaluate(case.spec, feeds)["out"]
            algebra = WatchedFloats()
            values = {name: algebra.constant(x) for name, x in feeds.items()}
            (have,) = run_mugraph(mutant, values, algebra, case.extents)
            if want.shape != have.shape:
                return True
            if clear_difference(want, have) is not None and not algebra.left:
                return True
            if magnitude == 1.0 and not np.isfinite(have).all():
                return True  # a result that is not finite where the specification's is
    return False


def judge(seed: int, cases: Sequence[HandMuGraph]) -> Outcome:
    """One mutant, of one to three mutations."""
    rng = np.random.default_rng(seed)
    case = choose(cases, rng)
    for misfits in itertools.count():
        mutant, kinds = case.mugraph, []
        for _ in range(choose((1, 1, 1, 2, 3), rng)):
            kind, mutant = mutate(mutant, rng)
            kinds.append(kind)
        try:
            proof = prove(case.spec, mutant, extents=case.extents, rng=rng)
        except CheckError:
            continue
        return Outcome(case.name, "; ".join(kinds), proof.verdict, refuted(case, mutant, rng), str(proof), misfits)
    raise AssertionError


def judge_many(seeds: range) -> tuple[Counter[str], list[str]]:
    """How often each verdict was given, and the defects."""
    cases = [make() for make in HAND]
    counts: Counter[str] = Counter()
    defects = []
    with np.errstate(all="ignore"):
        for seed in seeds:
            outcome = judge(seed, cases)
            counts[f"{outcome.verdict}, {'refuted' if outcome.refuted else 'agrees'} in float64"] += 1
            counts["(redrawn: the parts did not fit)"] += outcome.misfits
            if outcome.defect:
                defects.append(f"seed {seed}: {outcome}")
    return counts, defects


def main(arguments: Sequence[str] | None = None) -> int:
    """0: no defect."""
    parser = argparse.ArgumentParser(prog="python -m tests.superopt.mutations", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=100_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first mutant")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(arguments)
    end = given.first + given.count
    batches = [range(first, min(first + BATCH, end)) for first in range(given.first, end, BATCH)]
    counts: Counter[str] = Counter()
    defects: list[str] = []
    with ProcessPoolExecutor(given.processes) as pool:
        for done, (some, wrong) in enumerate(pool.map(judge_many, batches), 1):
            counts += some
            defects += wrong
            for text in wrong:
                print(text, flush=True)
            print(f"\r{min(done * BATCH, given.count)} mutants, {len(defects)} defects", end="", file=sys.stderr)
    print(file=sys.stderr)
    for name, count in sorted(counts.items()):
        print(f"{count:8d}  {name}")
    print(f"{len(defects)} defects")
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
