"""The specifications that saved µGraphs are verified against, by name, for inputs of any fitting shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.errors import CheckError, UserError, listed
from pipeline.ir.graph import Graph, Shape
from pipeline.ir.graph_builder import GraphBuilder


@dataclass(frozen=True, slots=True)
class SavedSpec:
    """The names of the inputs, in the order of the files, and the program on them."""

    inputs: tuple[str, ...]
    program: Callable[..., int]


def named_spec(name: str) -> SavedSpec:
    """The specification of that name, or of the workload of that name; UserError where there is none."""
    found = SPECS.get(OF_WORKLOADS.get(name, name))
    if found is None:
        raise UserError("no such specification", where=name, todo=f"There are {spec_names()}")
    return found


def spec_names() -> str:
    """All of them, for people, with the workload's name where it has another one."""
    workloads = {spec: workload for workload, spec in OF_WORKLOADS.items()}
    return listed(f"{name} (or {workloads[name]})" if name in workloads else name for name in SPECS)


def saved_spec(name: str, shapes: Sequence[Shape]) -> Graph:
    """The graph of a specification; UserError for one that there is not, or that such inputs do not fit."""
    spec = named_spec(name)
    if len(shapes) != len(spec.inputs):
        raise UserError("the number of inputs is wrong", where=f"specification {name}",
                        why=f"{len(shapes)} instead of {len(spec.inputs)} ({', '.join(spec.inputs)})")  # fmt: skip
    b = GraphBuilder()
    values = [b.input(tensor, shape, "float32") for tensor, shape in zip(spec.inputs, shapes, strict=True)]
    try:
        return b.finish([("out", spec.program(b, *values))])
    except CheckError as error:
        given = ", ".join(f"{tensor}{list(shape)}" for tensor, shape in zip(spec.inputs, shapes, strict=True))
        raise UserError("the inputs do not fit", where=f"specification {name}", why=f"{given}: {error}") from None


def _rms_norm(b: GraphBuilder, x: int) -> int:
    """x / sqrt(mean(x^2)) over the last dimension, without gain and without epsilon."""
    mean = b.reduce("mean", b.elementwise("mul", x, x), [len(b.shape(x)) - 1], True)
    return b.elementwise("div", x, b.elementwise("sqrt", mean))


def _attention(b: GraphBuilder, q: int, k: int, v: int) -> int:
    """exp(QK) / sum(exp(QK)) @ V, without scale, mask and maximum; K is (batch, width, keys)."""
    power = b.elementwise("exp", b.matmul(q, k))
    total = b.reduce("sum", power, [len(b.shape(power)) - 1], True)
    return b.matmul(b.elementwise("div", power, total), v)


def _qknorm_attention(b: GraphBuilder, q: int, k: int, v: int) -> int:
    return _attention(b, _rms_norm(b, q), k, _rms_norm(b, v))


def _gated_mlp(b: GraphBuilder, x: int, w1: int, w2: int) -> int:
    return b.elementwise("mul", b.silu(b.matmul(x, w1)), b.matmul(x, w2))


def _lora(b: GraphBuilder, x: int, w: int, a: int, c: int) -> int:
    return b.elementwise("add", b.matmul(x, w), b.matmul(b.matmul(x, a), c))


def _ntrans(b: GraphBuilder, h: int, x: int, alpha: int) -> int:
    """rms_norm(x + alpha * (rms_norm(h) + x)), as the files of Mirage have it."""
    step = b.elementwise("mul", alpha, b.elementwise("add", _rms_norm(b, h), x))
    return _rms_norm(b, b.elementwise("add", x, step))


ATTENTION = SavedSpec(("Q", "K", "V"), _attention)
SPECS: Mapping[str, SavedSpec] = {
    "gqa": ATTENTION,
    "mha": ATTENTION,
    "mqa": ATTENTION,
    "qknorm_gqa": SavedSpec(("Q", "K", "V"), _qknorm_attention),
    "rmsnorm": SavedSpec(("X", "W"), lambda b, x, w: b.matmul(_rms_norm(b, x), w)),
    "gated_mlp": SavedSpec(("X", "W1", "W2"), _gated_mlp),
    "lora": SavedSpec(("X", "W", "A", "B"), _lora),
    "ntrans": SavedSpec(("H", "X", "alpha"), _ntrans),
}
# Workloads that have another name than their specification, which is called as the files of Mirage are.
OF_WORKLOADS: Mapping[str, str] = {"qknorm": "qknorm_gqa", "rmsnorm_linear": "rmsnorm"}
