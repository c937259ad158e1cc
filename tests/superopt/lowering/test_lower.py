"""Lowered µGraphs: every candidate of every sketch is right, interpreted and compiled, at any shape and access."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.codegen.llvm.build import build_kernel
from pipeline.ir.graph import AffineDim
from pipeline.ir.program import Alloc, Block, Loop, Program, Seq, blocks, walk
from pipeline.superopt.lowering.lower import lower_mugraph
from pipeline.superopt.spec import Spec
from tests.codegen.kernel_runs import described, native
from tests.superopt import lowered_cases as cases
from tests.superopt.lowered_cases import ALL, attention
from tests.superopt.lowered_runs import assert_lowered, changed, constants, names_of, programs, sketches, transposed


@pytest.mark.parametrize("name", ALL)
def test_what_an_expert_writes_is_lowered_right(name: str) -> None:
    assert assert_lowered(*ALL[name]())


@pytest.mark.parametrize("name", ALL)
def test_every_extent_may_be_one(name: str) -> None:
    sizes = ALL[name].__defaults__ or ()
    assert assert_lowered(*ALL[name](*(1,) * sum(type(size) is int for size in sizes)), rows=1)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("attention", (1, 17, 31, 16, 32)),  # a vector and what is beyond it
        ("attention", (3, 1, 2, 13, 1)),  # one row, fewer keys than lanes
        ("split_attention", (1, 1, 67, 8, 5)),
        ("rmsnorm_linear", (1, 97, 53)),
        ("rmsnorm_linear", (16, 8, 128)),
        ("rmsnorm_linear", (2, 5, 3)),  # smaller than a vector in every dimension
        ("gated_mlp", (5, 3, 71)),
        ("lora", (1, 64, 7, 16)),
        ("ntrans", (1, 61)),
        ("full_mlp", (2, 47, 5)),
        ("split_product", (1, 127, 2)),
        ("layer_norm_linear", (7, 33, 5)),
    ],
)
def test_shapes_off_the_tiles_are_lowered_right(name: str, sizes: tuple[int, ...]) -> None:
    assert assert_lowered(*ALL[name](*sizes), rows=2, interpreted=False)


@pytest.mark.parametrize(
    ("heads", "mask", "scale"),
    [(1, "", 0.125), (4, "", 0.125), (2, "add", 0.125), (2, "keys", None), (2, "where", 0.125)],
    ids=["one head", "many heads", "a mask that is added", "a mask of keys", "a mask that chooses"],
)
def test_attention_takes_scales_and_masks(heads: int, mask: str, scale: float | None) -> None:
    assert assert_lowered(*attention(heads, 3, 7, 4, 5, scale=scale, mask=mask))


# ---------------------------------------------------------------------- where the tensors lie


def beside(tensor: str, spec: Spec, size: int) -> Spec:
    """The tensor over (head, row, element) as [row, head * size + element]."""
    one = next(one for one in spec.inputs if one.name == tensor)
    head, row, element = one.labels
    shape = (spec.extents[row], spec.extents[head] * size)
    access = (AffineDim(((row, 1),)), AffineDim(((head, size), (element, 1))))
    return changed(spec, tensor, shape=shape, access=access)


def test_heads_may_lie_side_by_side_and_keys_across() -> None:
    spec, graph = attention(3, 5, 11, 6, 9, scale=0.5)
    spec = beside("v", beside("q", spec, 6), 9)
    key = transposed(spec.inputs[1])
    spec = changed(spec, "k", shape=key.shape, access=key.access)
    stored = (AffineDim(((1, 1),)), AffineDim(((0, 9), (4, 1))))
    spec = replace(spec, shape=(5, 27), store=stored)
    assert assert_lowered(spec, graph)


def test_queries_keys_and_values_may_be_parts_of_one_argument() -> None:
    spec, graph = attention(2, 5, 5, 6, 6)
    for number, name in enumerate("qkv"):
        one = spec.inputs[number]
        head, row, element = one.labels
        access = (AffineDim(((row, 1),)), AffineDim(((head, 6), (element, 1)), 12 * number))
        spec = changed(spec, name, shape=(5, 36), access=access)
    assert assert_lowered(spec, graph, arguments=("qkv", "qkv", "qkv"))


def test_two_inputs_may_be_the_same_argument() -> None:
    spec, graph = cases.gated_mlp(3, 9, 17)
    assert assert_lowered(spec, graph, arguments=("x", "w", "w"))
    assert assert_lowered(constants(spec, "w1", "w2"), graph, arguments=("x", "w", "w"))


@pytest.mark.parametrize("turned", [False, True], ids=["rows", "across"])
def test_constants_are_packed_before_the_first_run(turned: bool) -> None:
    spec, graph = cases.gated_mlp(3, 21, 37)
    spec = constants(spec, "w1", "w2")
    if turned:
        w = transposed(spec.inputs[1])
        spec = changed(spec, "w1", shape=w.shape, access=w.access)
    found = sketches(spec, graph, native())
    assert all(list(walk(sketch.program.prologue))[1:] for sketch in found)
    assert assert_lowered(spec, graph)


# ---------------------------------------------------------------------- the outer structure


def outer(program: Program) -> list[str]:
    """Regions, loops between them and inner blocks, and scratch, by name."""
    found: list[str] = []

    def down(stmt: object, inside: bool) -> None:
        match stmt:
            case Seq(parts):
                for part in parts:
                    down(part, inside)
            case Alloc(buffer, body):
                found.append(buffer.name)
                down(body, inside)
            case Loop(axes, body, kind):
                if kind == "parallel" or len(blocks_of(stmt)) > 1:
                    found.append("/".join(axis.var for axis in axes))
                down(body, True)

    down(program.body, False)
    return found


def blocks_of(stmt: Loop) -> list[Block]:
    return [one for one in walk(stmt) if isinstance(one, Block)]


def test_a_sum_over_a_loop_adds_up_in_the_scratch_of_its_accumulator() -> None:
    spec, graph = cases.rmsnorm_linear()
    program = lower_mugraph(spec, graph, "p", names_of(spec), native()).program
    assert outer(program) == ["k0_n", "k0_v4_acc", "k0_v6_acc", "k0_v9_tile", "k0_k"]
    assert not [block.name for block in blocks(program) if block.buffer.startswith("t")]


def test_the_partial_results_of_a_split_sum_get_a_region_of_their_own() -> None:
    spec, graph = cases.split_product()
    program = lower_mugraph(spec, graph, "p", names_of(spec), native()).program
    assert outer(program) == ["k0_n/k0_s", "k0_v3_acc", "k0_out0_combine_all"]
    assert program.buffer("k0_out0_parts").role == "intermediate"


# ---------------------------------------------------------------------- other machines


PORTED = ("attention", "split_attention", "rmsnorm_linear", "gated_mlp", "lora", "ntrans", "full_mlp")


AVX2 = "+avx2" in native().features


@pytest.mark.skipif(not AVX2, reason="this processor has no AVX2")
@pytest.mark.parametrize("name", PORTED)
def test_code_for_avx2_alone_is_right(name: str) -> None:
    spec, graph = ALL[name]()
    packed = constants(spec, *(one.name for one in spec.inputs if one.name[0] == "w"))
    assert assert_lowered(packed, graph, target=described("avx2"), interpreted=False)


@pytest.mark.parametrize("target", ["aarch64"] if AVX2 else ["aarch64", "avx2"])
@pytest.mark.parametrize("name", PORTED)
def test_every_sketch_compiles_for_machines_that_are_not_this_one(name: str, target: str) -> None:
    spec, graph = ALL[name]()
    compiled = 0
    for _, program in programs(spec, graph, described(target), 1):
        kernel = build_kernel(program, described(target))
        assert kernel.object_code
        compiled += 1
    assert compiled
