"""Composites are found where the structure is theirs, and nowhere else."""

import math

import pytest

from pipeline.ir.graph_builder import GraphBuilder
from pipeline.report.composites import composites

SHAPE = (2, 3, 8)


def found(build):
    b = GraphBuilder()
    x = b.input("x", SHAPE, "float32")
    graph = b.finish([("y", build(b, x))])
    return composites(graph).get(dict(graph.outputs)["y"])


def op(b, fn, *operands):
    return b.elementwise(fn, *(b.scalar(v, 0) if isinstance(v, float) else v for v in operands))


def norm(b, x, eps=1e-5, axes=(-1,)):
    centred = op(b, "sub", x, b.reduce("mean", x, axes, True))
    variance = b.reduce("mean", op(b, "pow", centred, 2.0), axes, True)
    return op(b, "div", centred, op(b, "sqrt", op(b, "add", variance, eps)))


def rms(b, x, eps=1e-5, axis=-1):
    mean = b.reduce("mean", op(b, "mul", x, x), [axis], True)
    return op(b, "div", x, op(b, "sqrt", mean if eps is None else op(b, "add", mean, eps)))


def rms_by_a_product(b, x):
    mean = b.reduce("mean", op(b, "pow", x, 2.0), [2], True)
    return op(b, "mul", op(b, "rsqrt", op(b, "add", 1e-5, mean)), x)


YES = {
    "root mean square": (lambda b, x: rms(b, x), "rms_norm", (2,)),
    "root mean square without an epsilon": (lambda b, x: rms(b, x, None), "rms_norm", (2,)),
    "root mean square by a product": (rms_by_a_product, "rms_norm", (2,)),
    "softmax": (lambda b, x: b.softmax(x, 1), "softmax", (1,)),
    "log softmax": (lambda b, x: b.log_softmax(x, -1), "log_softmax", (2,)),
    "gelu": (lambda b, x: b.gelu(x), "gelu", ()),
    "gelu in another order": (
        lambda b, x: op(b, "mul", op(b, "mul", x, op(b, "add", 1.0, op(b, "erf", op(b, "div", x, math.sqrt(2))))), 0.5),
        "gelu",
        (),
    ),
    "gelu with tanh": (lambda b, x: b.gelu(x, "tanh"), "gelu_tanh", ()),
    "relu": (lambda b, x: b.relu(x), "relu", ()),
    "relu6": (lambda b, x: op(b, "min", op(b, "max", x, 0.0), 6.0), "clip", ()),
    "mean": (lambda b, x: b.reduce("mean", x, [0, 2]), "mean", (0, 2)),
    "normalize": (lambda b, x: b.normalize(x, [-1], 1e-5), "layer_norm", (2,)),
    "normalize with a power and a division": (lambda b, x: norm(b, x), "layer_norm", (2,)),
    "normalize two axes": (lambda b, x: b.normalize(x, [1, 2], 1e-5), "layer_norm", (1, 2)),
}


@pytest.mark.parametrize("name", YES)
def test_a_composite_is_found(name):
    build, kind, axes = YES[name]
    composite = found(build)
    assert composite.kind == kind
    assert composite.axes == axes
    assert composite.inputs == (0,)


def test_a_layer_norm_takes_its_scale_and_offset():
    def build(b, x):
        return b.layer_norm(x, [-1], b.input("gamma", (8,), "float32"), b.input("beta", (8,), "float32"), 1e-3)

    composite = found(build)
    assert (composite.kind, len(composite.inputs)) == ("layer_norm", 3)
    assert composite.eps == pytest.approx(1e-3)


def test_a_root_mean_square_takes_its_gain():
    def build(b, x):
        return op(b, "mul", b.input("gain", (8,), "float32"), rms(b, x, 1e-3))

    composite = found(build)
    assert (composite.kind, len(composite.inputs)) == ("rms_norm", 2)
    assert composite.eps == pytest.approx(1e-3)


def test_a_clip_knows_its_bounds():
    composite = found(lambda b, x: op(b, "max", op(b, "min", x, 3.0), -1.0))
    assert (composite.kind, composite.low, composite.high) == ("clip", -1.0, 3.0)


def softmax_of_two(b, x):
    power = op(b, "exp", op(b, "sub", x, b.reduce("max", x, [1], True)))
    return op(b, "div", power, b.reduce("sum", power, [2], True))


def gelu_of_two(b, x):
    other = op(b, "tanh", x)
    return op(b, "mul", op(b, "mul", other, 0.5), op(b, "add", op(b, "erf", op(b, "mul", x, math.sqrt(0.5))), 1.0))


def variance_about_zero(b, x):
    centred = op(b, "sub", x, b.reduce("mean", x, [-1], True))
    variance = b.reduce("mean", op(b, "mul", x, x), [-1], True)
    return op(b, "div", centred, op(b, "sqrt", op(b, "add", variance, 1e-5)))


def rms_of_two(b, x):
    mean = b.reduce("mean", op(b, "mul", x, x), [-1], True)
    return op(b, "div", op(b, "tanh", x), op(b, "sqrt", mean))


NO = {
    "root mean square over the middle axis": lambda b, x: rms(b, x, axis=1),
    "root mean square of two values": rms_of_two,
    "softmax over two different axes": softmax_of_two,
    "softmax without its maximum": lambda b, x: op(
        b, "div", op(b, "exp", x), b.reduce("sum", op(b, "exp", x), [2], True)
    ),
    "gelu with a wrong factor": lambda b, x: op(
        b, "mul", op(b, "mul", x, 0.5), op(b, "add", op(b, "erf", op(b, "mul", x, 0.7)), 1.0)
    ),
    "gelu of two values": gelu_of_two,
    "maximum with one": lambda b, x: op(b, "max", x, 1.0),
    "clip with crossed bounds": lambda b, x: op(b, "min", op(b, "max", x, 2.0), 1.0),
    "sum over a wrong count": lambda b, x: op(b, "div", b.reduce("sum", x, [2], True), 7.0),
    "normalize over the first axis": lambda b, x: norm(b, x, axes=(0,)),
    "variance about zero": variance_about_zero,
}


@pytest.mark.parametrize("name", NO)
def test_what_only_looks_alike_is_left_alone(name):
    composite = found(NO[name])
    assert composite is None
