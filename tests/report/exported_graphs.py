"""Small graphs of every primitive and every product, with the ONNX operators that each should become."""

from __future__ import annotations

import math

import numpy as np

from pipeline.ir import graph as g
from pipeline.ir.graph import AffineDim
from pipeline.ir.graph_builder import GraphBuilder
from pipeline.ir.graph_types import numpy_dtype

GRAPHS = {}


def case(*operators):
    def register(build):
        GRAPHS[build.__name__] = (build, operators)
        return build

    return register


def graph_of(name):
    b = GraphBuilder()
    made = GRAPHS[name][0](b)
    outputs = made if isinstance(made, tuple) else (made,)
    return b.finish([(f"y{i}", value) for i, value in enumerate(outputs)])


def feeds_of(graph, seed=0):
    rng = np.random.default_rng(seed)
    feeds = {}
    for node in graph.nodes:
        if isinstance(node.op, g.Input):
            dtype = numpy_dtype(node.type.dtype)
            if dtype.kind in "iu":
                feeds[node.op.name] = rng.integers(0, 3, node.type.shape).astype(dtype)
            elif dtype.kind == "b":
                feeds[node.op.name] = rng.integers(0, 2, node.type.shape).astype(bool)
            else:
                feeds[node.op.name] = rng.standard_normal(node.type.shape).astype(dtype)
    return feeds


def x_of(b, *shape, dtype="float32", name="x"):
    return b.input(name, shape, dtype)


def weights(b, *shape):
    return b.constant(np.random.default_rng(1).standard_normal(shape).astype(np.float32))


def conv(b, x, w, strides=(1, 1), low=(0, 0), high=(0, 0), dilations=(1, 1), groups=1):
    return b.conv(x, w, strides=strides, pads_low=low, pads_high=high, dilations=dilations, groups=groups)


@case("MatMul")
def matrix_product(b):
    return b.matmul(x_of(b, 5, 7), weights(b, 7, 3))


@case("MatMul")
def rows_of_any_rank(b):
    return b.matmul(x_of(b, 2, 3, 4, 7), weights(b, 7, 5))


@case("MatMul")
def batched_product(b):
    return b.matmul(x_of(b, 2, 3, 4, 7), x_of(b, 2, 3, 7, 5, name="z"))


@case("MatMul")
def batch_of_one(b):
    return b.matmul(x_of(b, 1, 3, 4, 7), x_of(b, 1, 3, 7, 5, name="z"))


@case("Transpose", "MatMul")
def scores_of_attention(b):
    return b.einsum("bhqd,bhkd->bhqk", x_of(b, 2, 3, 4, 7), x_of(b, 2, 3, 5, 7, name="z"))


@case("MatMul")
def broadcast_batch(b):
    return b.matmul(x_of(b, 2, 3, 4, 7), x_of(b, 3, 7, 5, name="z"))


@case("MatMul")
def product_of_vectors(b):
    return b.matmul(x_of(b, 7), x_of(b, 7, name="z"))


@case("MatMul")
def outer_product(b):
    return b.einsum("i,j->ij", x_of(b, 4), x_of(b, 5, name="z"))


@case("MatMul")
def product_over_two_variables_in_another_order(b):
    return b.einsum("iakb,bjk->jia", x_of(b, 2, 3, 4, 5), x_of(b, 5, 6, 4, name="z"))


@case("Einsum")
def diagonal(b):
    return b.einsum("iij,jk->ik", x_of(b, 4, 4, 3), x_of(b, 3, 2, name="z"))


@case("Einsum")
def sum_of_one_side(b):
    return b.einsum("ij,jk->k", x_of(b, 4, 3), x_of(b, 3, 2, name="z"))


@case("Conv")
def convolution_with_padding(b):
    return conv(b, x_of(b, 2, 3, 9, 8), weights(b, 4, 3, 3, 2), (2, 1), (1, 0), (1, 1))


@case("Conv")
def convolution_of_a_point(b):
    return conv(b, x_of(b, 1, 3, 4, 5), weights(b, 6, 3, 1, 1))


@case("Conv")
def strided_convolution_of_a_point(b):
    return conv(b, x_of(b, 2, 3, 5, 5), weights(b, 6, 3, 1, 1), (2, 2))


@case("Conv")
def dilated_convolution(b):
    return conv(b, x_of(b, 1, 3, 11, 11), weights(b, 4, 3, 3, 3), (1, 2), (2, 2), (2, 2), (2, 2))


@case("Conv")
def grouped_convolution(b):
    return conv(b, x_of(b, 2, 6, 7, 7), weights(b, 9, 2, 3, 3), groups=3)


@case("Conv")
def depthwise_convolution(b):
    return conv(b, x_of(b, 1, 6, 7, 7), weights(b, 6, 1, 3, 3), low=(1, 1), high=(1, 1), groups=6)


@case("Conv")
def convolution_over_the_whole_image(b):
    return conv(b, x_of(b, 2, 3, 4, 4), weights(b, 5, 3, 4, 4))


@case("Conv")
def convolution_of_one_channel(b):
    return conv(b, x_of(b, 2, 1, 6, 6), weights(b, 1, 1, 3, 3))


@case("Conv")
def convolution_with_weights_given(b):
    return conv(b, x_of(b, 1, 3, 6, 6), x_of(b, 4, 3, 3, 3, name="w"))


@case("Conv")
def convolution_in_one_dimension(b):
    return conv(b, x_of(b, 2, 3, 9), weights(b, 4, 3, 3), (2,), (1,), (1,), (1,))


@case("Conv")
def convolution_in_three_dimensions(b):
    return conv(b, x_of(b, 1, 2, 5, 5, 5), weights(b, 3, 2, 3, 3, 3), (1,) * 3, (1,) * 3, (1,) * 3, (1,) * 3)


def transposed(b, strides, low, high, more, dilations=(1, 1), groups=1, window=(4, 3), channels=(4, 3)):
    x = x_of(b, 2, channels[0], 5, 4)
    w = weights(b, channels[0], channels[1], *window)
    return b.conv_transpose(x, w, strides=strides, pads_low=low, pads_high=high, output_padding=more,
                            dilations=dilations, groups=groups)  # fmt: skip


@case("ConvTranspose")
def transposed_convolution(b):
    return transposed(b, (2, 2), (1, 1), (1, 1), (0, 0))


@case("ConvTranspose")
def transposed_convolution_with_uneven_steps(b):
    return transposed(b, (3, 2), (0, 1), (1, 0), (0, 1))


@case("ConvTranspose")
def transposed_convolution_in_groups(b):
    return transposed(b, (2, 2), (1, 0), (1, 0), (1, 0), groups=2)


@case("ConvTranspose")
def transposed_convolution_with_a_small_window(b):
    return transposed(b, (3, 3), (0, 0), (0, 0), (0, 0), window=(2, 2))


@case("Conv")
def transposed_convolution_without_a_step(b):
    return transposed(b, (1, 1), (1, 1), (1, 1), (0, 0))


@case("Conv")
def dilated_transposed_convolution(b):
    return transposed(b, (2, 1), (1, 1), (1, 1), (1, 0), dilations=(2, 2), groups=2)


@case("Gather", "MatMul")
def convolution_of_matrices(b):
    x, w = x_of(b, 1, 5, 5, 3, 2), weights(b, 3, 3, 3, 2, 4)
    lhs = (AffineDim(((0, 1),)), AffineDim(((1, 2), (4, 1))), AffineDim(((2, 2), (5, 1))), AffineDim(((6, 1),)),
           AffineDim(((7, 1),)))  # fmt: skip
    rhs = (AffineDim(((4, 1),)), AffineDim(((5, 1),)), AffineDim(((6, 1),)), AffineDim(((7, 1),)), AffineDim(((3, 1),)))
    return b.reduce("sum", b.contract(x, w, [1, 2, 2, 4], [3, 3, 3, 2], lhs, rhs), [0])


@case("MaxPool")
def max_pooling(b):
    return b.pool("max", x_of(b, 2, 3, 7, 8), (3, 2), (2, 2), (1, 0), (1, 1))


@case("AveragePool")
def average_pooling(b):
    return b.pool("average", x_of(b, 2, 3, 8, 8), (2, 2), (2, 2), (0, 0), (0, 0))


@case("AveragePool")
def average_pooling_with_padding_counted(b):
    return b.pool("average", x_of(b, 2, 3, 7, 7), (3, 3), (2, 2), (1, 1), (1, 1), count_include_pad=True)


@case("AveragePool")
def average_pooling_with_padding_not_counted(b):
    return b.pool("average", x_of(b, 2, 3, 7, 7), (3, 3), (2, 2), (1, 1), (1, 1))


@case("MaxPool")
def pooling_in_one_dimension(b):
    return b.pool("max", x_of(b, 2, 3, 9), (3,), (1,), (0,), (0,))


@case("MaxPool", "Neg")
def minimum_of_windows(b):
    dims = (AffineDim(((0, 1),)), AffineDim(((1, 1),)), AffineDim(((2, 2), (3, 1))))
    return b.reduce_window("min", x_of(b, 2, 3, 9), [2, 3, 4], [2], dims)


@case("Softmax")
def softmax(b):
    return b.softmax(x_of(b, 2, 3, 5), 1)


@case("LayerNormalization")
def layer_norm(b):
    return b.layer_norm(x_of(b, 2, 3, 8), [-1], weights(b, 8), weights(b, 8))


@case("LayerNormalization")
def layer_norm_without_scale(b):
    return b.normalize(x_of(b, 2, 3, 8), [1, 2], 1e-5)


@case("Gelu")
def gelu(b):
    return b.gelu(x_of(b, 4, 5))


@case("Gelu")
def gelu_with_tanh(b):
    return b.gelu(x_of(b, 4, 5), "tanh")


def rms_norm(b, x, axis=-1, eps=1e-5):
    mean = b.reduce("mean", b.elementwise("mul", x, x), [axis], True)
    return b.elementwise("mul", x, b.elementwise("rsqrt", b.elementwise("add", mean, b.scalar(eps, mean))))


@case()
def root_mean_square(b):
    return b.elementwise("mul", rms_norm(b, x_of(b, 2, 3, 8)), b.constant(np.linspace(1, 2, 8, dtype=np.float32)))


@case()
def root_mean_square_of_columns(b):
    return rms_norm(b, x_of(b, 3, 8), 0)


@case()
def root_mean_square_without_epsilon(b):
    x = x_of(b, 3, 8)
    return b.elementwise("div", x, b.elementwise("sqrt", b.reduce("mean", b.elementwise("mul", x, x), [1], True)))


@case("MatMul")
def queries_in_groups(b):
    q, k = x_of(b, 2, 3, 2, 4, 5), x_of(b, 2, 7, 2, 5, name="k")
    return b.einsum("bqhgd,bkhd->bhgqk", q, k)


@case("Clip")
def relu6(b):
    x = x_of(b, 4, 5)
    return b.elementwise("min", b.elementwise("max", x, b.scalar(0, x)), b.scalar(6, x))


@case()
def every_function_of_one(b):
    x = x_of(b, 3, 4)
    inside = b.elementwise("tanh", x)  # into (-1, 1)
    above = b.elementwise("add", b.elementwise("abs", x), b.scalar(1.1, x))
    return tuple(
        b.elementwise(fn, above if fn in ("log", "sqrt", "rsqrt", "reciprocal", "acosh") else inside)
        for fn in sorted(g.UNARY - {"not", "cast", "identity", "isnan", "isinf"})
    ) + tuple(b.cast(b.elementwise(fn, x), "float32") for fn in ("isnan", "isinf"))


@case()
def every_function_of_two(b):
    x, z = x_of(b, 3, 4), x_of(b, 4, name="z")
    positive = b.elementwise("abs", x)
    numbers = [b.elementwise(fn, positive if fn == "pow" else x, z)
               for fn in ("add", "sub", "mul", "div", "mod", "fmod", "pow", "max", "min")]  # fmt: skip
    flags = [b.elementwise(fn, x, z) for fn in ("eq", "ne", "lt", "le", "gt", "ge")]
    logic = [b.elementwise(fn, flags[2], flags[4]) for fn in ("and", "or", "xor")]
    return (*numbers, *flags, *logic, b.elementwise("not", flags[0]), b.elementwise("where", flags[2], x, z))


@case()
def integers(b):
    x, z = x_of(b, 3, 4, dtype="int32"), x_of(b, 3, 4, dtype="int32", name="z")
    three = b.scalar(3, x)
    low = b.elementwise("sub", x, b.scalar(2, x))
    return (
        *(b.elementwise(fn, low, three) for fn in ("div", "mod", "fmod", "mul")),
        b.elementwise("add", x, z),
        b.cast(x, "float32"),
        b.cast(low, "bool"),
    )


@case()
def reductions(b):
    x = x_of(b, 3, 4, 5)
    plain = [b.reduce(kind, x, [0, 2]) for kind in ("sum", "max", "min", "prod", "mean")]
    places = [b.reduce(kind, x, [1], last=last) for kind in ("argmax", "argmin") for last in (False, True)]
    return (*plain, *places, b.reduce("sum", x, [1], True))


@case()
def views(b):
    x = x_of(b, 3, 4, 5)
    return (
        b.reshape(x, [6, 10]),
        b.transpose(x, [2, 0, 1]),
        b.slice(x, [0, 3, 1], [3, 0, 5], [2, -1, 3]),
        b.slice(x, [None, None, None], [None, None, None], [-1, 1, -2]),
        b.pad(x, [1, 0, 2], [0, 3, 1], value=0.5),
        b.pad(x, [-1, 0, 2], [0, -1, 1], [0, 2, 1]),
        b.broadcast(b.slice(x, [0, 0, 0], [3, 1, 5]), [2, 3, 4, 5]),
        b.concat([x, x, b.elementwise("neg", x)], 1),
    )


@case()
def gathers(b):
    x, i = x_of(b, 5, 4), b.constant(np.array([[0, 4], [-1, 2]]))
    rows = b.constant(np.array([[0, 1, 2, -1]]))
    return (b.gather(x, i, 0), b.gather(x, b.constant(np.array(2)), 1), b.gather_elements(x, rows, 0))


@case()
def scatters(b):
    x, u, i = x_of(b, 5, 4), x_of(b, 1, 4, name="u"), b.constant(np.array([[0, 1, -1, 2]]))
    return tuple(b.scatter_elements(x, i, u, 0, kind) for kind in ("none", "add", "mul", "max", "min"))


@case()
def by_several_indices(b):
    x, i = x_of(b, 3, 4, 2), b.constant(np.array([[0, 1], [2, 3]]))
    return b.gather_nd(x, i), b.scatter_nd(x, i, x_of(b, 2, 2, name="u"))


@case()
def running_sums(b):
    x = x_of(b, 3, 5)
    return tuple(b.scan("sum", x, 1, exclusive, reverse) for exclusive in (False, True) for reverse in (False, True))


@case("TopK")
def the_largest(b):
    return b.topk(x_of(b, 3, 7), 4)


@case()
def indices_along_an_axis(b):
    x = x_of(b, 3, 5)
    return b.elementwise("add", x, b.iota((3, 5), 1, "float32"))


@case()
def an_input_that_is_an_output(b):
    x = x_of(b, 3, 5)
    y = b.elementwise("neg", x)
    return x, y, y


@case()
def an_input_that_is_not_used(b):
    x_of(b, 3, name="unused")
    return b.elementwise("neg", x_of(b, 3, 5))


@case()
def no_elements(b):
    x = x_of(b, 0, 5)
    return b.elementwise("exp", x), b.matmul(x, weights(b, 5, 3)), b.reduce("sum", x, [0])


@case()
def sums_that_start_at_minus_infinity(b):
    x = x_of(b, 2, 3)
    return b.elementwise("max", x, b.scalar(-math.inf, x))
