"""What of a graph could be one kernel: found in whole models, once for equal layers, by specifications that agree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from pipeline.ir.evaluate import evaluate
from pipeline.ir.graph import Contract, DType, Elementwise, Gather, Graph, Input, Reduce, Scan
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.space.partition import partition
from pipeline.space.task import make_task
from pipeline.superopt.spec import Apply, Product, Reduction, spec_graph
from pipeline.superopt.subprograms import Limits, Subprogram, anchors, roofline_of, subprograms, tuned_in_turn
from tests.ir.random_graphs import graphs
from tests.known_gpus import gpu
from tests.superopt.model_graphs import TARGET, bert, gpt2, llama
from tests.superopt.spec_agreement import addresses, agrees, seen


def found(graph: Graph, limits: Limits | None = None) -> tuple[Subprogram, ...]:
    return subprograms(graph, partition(graph), TARGET, limits)


def operations(one: Subprogram) -> list[str]:
    names = []
    for node in one.spec.nodes:
        match node.op:
            case Product():
                names.append("product")
            case Reduction(kind):
                names.append(kind)
            case Apply(fn):
                names.append(fn)
    return names


def attentions(graph: Graph, *masking: str) -> list[Subprogram]:
    """Those that are two products and a softmax between them, with a scale and a mask, and nothing else."""
    wanted = sorted(["product", "mul", *masking, "max", "sub", "exp", "sum", "div", "product"])
    return [one for one in found(graph, Limits(count=1000)) if sorted(operations(one)) == wanted]


def test_attention_with_its_scale_and_mask_is_one_subprogram_for_all_layers_of_bert() -> None:
    graph = bert(layers=3)
    (attention,) = attentions(graph, "add")
    assert len(attention.uses) == 3
    q, k, v, mask = sorted(attention.spec.inputs, key=lambda one: (len(one.labels) == 1, one.source))
    assert (len(q.labels), len(k.labels), len(v.labels), len(mask.labels)) == (3, 3, 3, 1)
    assert sorted(attention.spec.extents) == [4, 8, 8, 12, 12]
    agrees(attention.task.graph, attention.spec)


def test_attention_of_gpt2_reads_heads_of_one_tensor_by_affine_maps_and_its_mask_is_inside() -> None:
    (attention,) = attentions(gpt2(), "where")
    assert len(attention.uses) == 2
    heads = [one for one in attention.spec.inputs if one.dtype == "float32"]
    assert len({one.source for one in heads}) == 1, "queries, keys and values lie in one tensor"
    assert [one.access[1].offset for one in heads] == [0, 32, 64]
    assert all(len(one.access[1].terms) == 2 for one in heads), "head * dim + element"
    agrees(attention.task.graph, attention.spec)


def test_grouped_attention_of_a_llama_is_found_without_its_rotation() -> None:
    graph = llama(hidden=32, heads=4, kv_heads=2, dim=8, inner=64, sequence=12)
    (attention,) = attentions(graph, "where")
    assert sorted(attention.spec.extents) == [2, 2, 8, 8, 12, 12]
    agrees(attention.task.graph, attention.spec)


def test_a_normalisation_goes_into_each_product_that_reads_it() -> None:
    b = GraphBuilder()
    x = b.input("x", (16, 64), "float32")
    normal = b.normalize(x, [-1], 1e-5)
    ends = [b.matmul(normal, b.constant(np.full((64, 32), float(i + 1), np.float32))) for i in range(3)]
    subs = found(b.finish([(f"y{i}", one) for i, one in enumerate(ends)]))
    fused = next(one for one in subs if "product" in operations(one))
    assert len(fused.uses) == 3 and operations(fused).count("sum") == 2
    assert [one.key is not None for one in fused.spec.inputs] == [False, True], "the weights are known"
    agrees(fused.task.graph, fused.spec)


def test_what_others_read_too_is_not_counted_as_saved_nor_what_leads_to_it() -> None:
    """Two products and a normalisation, then one of several that read it: each would have to compute all that again."""
    b = GraphBuilder()
    x = b.input("x", (64, 64), "float32")
    hidden = b.elementwise("tanh", b.matmul(x, b.constant(np.full((64, 256), 0.5, np.float32))))
    state = b.normalize(b.matmul(hidden, b.constant(np.full((256, 64), 0.5, np.float32))), [-1], 1e-5)
    ends = [b.matmul(state, b.constant(np.full((64, 64), float(i + 1), np.float32))) for i in range(4)]
    subs = found(b.finish([(f"y{i}", one) for i, one in enumerate(ends)]), Limits(count=1000))
    chains = [one for one in subs if operations(one).count("product") == 3]
    assert not chains and any(operations(one).count("product") == 2 for one in subs)


def test_a_gated_product_shares_the_axes_of_what_both_read() -> None:
    b = GraphBuilder()
    x = b.input("x", (8, 64), "float32")
    gate, up = (b.matmul(x, b.input(name, (64, 48), "float32")) for name in ("gate", "up"))
    (one,) = found(b.finish([("y", b.elementwise("mul", b.silu(gate), up))]))
    assert operations(one).count("product") == 2
    assert len(one.spec.inputs) == 3 and sorted(one.spec.extents) == [8, 48, 64]


def test_a_product_beside_one_of_low_rank_is_one_subprogram() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (8, 64), "float32"), b.input("w", (64, 256), "float32")
    low = b.matmul(b.matmul(x, b.input("a", (64, 4), "float32")), b.input("b", (4, 256), "float32"))
    subs = found(b.finish([("y", b.elementwise("add", b.matmul(x, w), low))]))
    assert any(operations(one).count("product") == 3 for one in subs)


def test_a_chain_of_reductions_in_one_task_is_a_subprogram_of_that_task() -> None:
    b = GraphBuilder()
    x = b.input("x", (8, 64), "float32")
    graph = b.finish([("y", b.normalize(x, [-1], 1e-5))])
    parts = partition(graph)
    (one,) = subprograms(graph, parts, TARGET)
    assert one.task.key == parts.tasks[0].key


def test_what_is_not_algebraic_ends_a_subprogram() -> None:
    for graph in (bert(), gpt2()):
        for one in found(graph):
            kinds = {type(node.op) for node in one.task.graph.nodes}
            assert not kinds & {Gather, Scan}
            assert not any(node.op == Elementwise("cast") for node in one.task.graph.nodes)


def test_one_product_alone_and_elementwise_work_alone_are_no_subprograms() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (8, 64), "float32"), b.input("w", (64, 32), "float32")
    assert found(b.finish([("y", b.relu(b.matmul(x, w))), ("z", b.elementwise("exp", x))])) == ()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_reals_of_every_width_are_looked_at_and_doubles_are_left_alone(dtype: DType) -> None:
    def softmax_of_product(dtype: DType) -> Graph:
        b = GraphBuilder()
        x, w = b.input("x", (8, 64), dtype), b.input("w", (64, 32), dtype)
        return b.finish([("y", b.softmax(b.matmul(x, w)))])

    assert found(softmax_of_product(dtype))
    assert found(softmax_of_product("float64")) == ()


def test_limits_of_size_and_count_are_kept() -> None:
    graph = bert()
    small = found(graph, Limits(anchors=3, nodes=30, count=5))
    assert 0 < len(small) <= 5
    assert all(2 <= anchors(one.task.graph) <= 3 for one in small)
    assert found(graph, Limits(anchors=1)) == ()


def test_each_use_reads_what_the_task_reads_and_gives_what_it_gives() -> None:
    graph = bert()
    parts = partition(graph)
    for one in subprograms(graph, parts, TARGET):
        inputs = [node for node in one.task.graph.nodes if isinstance(node.op, Input)]
        for use, replaced in zip(one.uses, one.replaced, strict=True):
            assert [graph.nodes[v].type for v in use.inputs] == [node.type for node in inputs]
            assert graph.nodes[use.output].type == one.task.graph.nodes[one.task.graph.outputs[0][1]].type
            assert replaced == tuple(sorted(set(replaced)))
            done = {member for i in replaced for member in parts.instances[i].members}
            assert done <= set(use.members)


def test_what_promises_most_comes_first_but_not_before_the_whole_that_it_is_a_part_of() -> None:
    subs = found(bert(hidden=128, sequence=96, positions=96))
    assert all(0 < one.seconds < one.ordinary for one in subs)
    places = {tuple(sorted(operations(one))): place for place, one in reversed(list(enumerate(subs)))}
    softmax = ["max", "sub", "exp", "sum", "div"]
    whole = places[tuple(sorted(["product", "mul", "add", *softmax, "product"]))]
    assert whole < places[tuple(sorted([*softmax, "product"]))]
    best = max(subs, key=lambda one: one.promise)
    assert all(set(best.replaced[0]) < set(one.replaced[0]) for one in subs[: subs.index(best)])


def test_the_whole_is_tuned_before_a_part_that_may_save_nearly_as_much_and_after_one_that_may_save_far_more() -> None:
    """How large its search was does not matter any more, nor how large a part of the whole it saves."""
    (part, *_) = found(bert(hidden=128, sequence=96, positions=96))
    whole = replace(
        part, task=replace(part.task, key="whole"), replaced=((*part.replaced[0], 99),),
        ordinary=3 * part.ordinary, seconds=3 * part.ordinary - 1.05 * part.saved,
    )  # fmt: skip
    assert whole.whole_of(part) and whole.promise < part.promise
    assert tuned_in_turn([part, whole]) == [whole, part]
    poor = replace(whole, chained=1e3 * part.saved)
    assert poor.gain < 0.5 * part.gain and tuned_in_turn([poor, part]) == [part, poor]
    more = replace(part, task=replace(part.task, key="more"), seconds=part.seconds - 0.5 * part.saved)
    assert tuned_in_turn([part, more]) == [more, part], "what may save most, where none holds the other"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(steps=8))
def test_the_specifications_of_random_graphs_agree_with_them(graph: Graph) -> None:
    free = replace(TARGET, bandwidth_gbs=1e-3)  # where moving costs so much, everything that can be joined is joined
    for one in subprograms(graph, partition(graph), free):
        assert sum(isinstance(node.op, Contract | Reduce) for node in one.task.graph.nodes) >= 2
        agrees(one.task.graph, one.spec)


def test_the_whole_model_is_computed_with_a_specification_in_the_place_of_its_tasks() -> None:
    """One use of attention in BERT, its inputs taken from the run of the whole graph."""
    graph = bert(layers=1)
    (attention,) = attentions(graph, "add")
    use, spec = attention.uses[0], attention.spec
    rng = np.random.default_rng(0)
    feeds = {
        node.op.name: rng.integers(0, 2, node.type.shape)
        for node in graph.nodes if isinstance(node.op, Input)
    }  # fmt: skip
    shown = Graph(
        graph.nodes, tuple((f"v{value}", value) for value in dict.fromkeys((*use.inputs, use.output))), graph.constants
    )
    values = evaluate(shown, feeds)
    arrays = [values[f"v{value}"].astype(np.float32) for value in use.inputs]
    views = {one.name: seen(one, arrays[one.source], spec.extents) for one in spec.inputs}
    (result,) = evaluate(spec_graph(spec), views).values()
    got = np.empty(spec.shape)
    got[addresses(spec.store, spec.labels(spec.output), spec.extents)] = result
    np.testing.assert_allclose(got, values[f"v{use.output}"], rtol=1e-5, atol=1e-7)


def test_what_one_kernel_saves_on_a_gpu_is_what_launches_take_there() -> None:
    graph = bert(layers=1)
    target = gpu("a100")
    assert target.gpu is not None
    slow = replace(target, gpu=replace(target.gpu, launch_us=target.gpu.launch_us + 100.0))
    ordinary, later = ({one.task.key: one for one in subprograms(graph, partition(graph), t)} for t in (target, slow))
    both = ordinary.keys() & later.keys()
    assert both
    for key in both:
        starts = len(later[key].replaced[0]) - 1
        gained = later[key].saved - ordinary[key].saved
        assert 0.0 < gained <= 100e-6 * starts * (1 + 1e-9)
    assert any(later[key].saved - ordinary[key].saved > 99e-6 for key in both)


def test_what_is_read_and_written_behind_a_product_adds_to_its_time_on_a_cpu_and_overlaps_on_a_gpu() -> None:
    """silu(x w) * u of 128 rows: the arithmetic hides x and w on both, and u and the result on a GPU."""
    b = GraphBuilder()
    x, u = b.input("x", (128, 2048), "float32"), b.input("u", (128, 8192), "float32")
    plain = b.matmul(x, b.input("w", (2048, 8192), "float32"))
    task = make_task(b.finish([("y", b.elementwise("mul", b.silu(plain), u))]), ("w",))
    for target, apart in ((TARGET, True), (gpu("a100"), False)):
        roofline = roofline_of(task.graph, target)
        beside, after = roofline.traffic(task)
        work = task.flops / (roofline.target.peak_gflops() * 1e9)
        assert roofline.apart == apart and work > beside > 0
        assert after == pytest.approx(2 * roofline.moved(128 * 8192 * 4) if apart else 0.0)
        assert roofline.seconds(task) == pytest.approx(work + after + roofline.start)
    b = GraphBuilder()
    alone = make_task(b.finish([("y", b.silu(b.input("x", (128, 8192), "float32")))]), ())
    assert roofline_of(alone.graph, TARGET).traffic(alone)[1] == 0.0
