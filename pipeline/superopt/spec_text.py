"""The text of a specification, for people: its axes as letters, one line for each tensor and each operation."""

from __future__ import annotations

from typing import assert_never

from pipeline.ir.graph import AffineDim
from pipeline.superopt.spec import Apply, Labels, Number, Product, Reduction, Spec


def to_text(spec: Spec) -> str:
    """Such as `v3[ab] = sum over c of x0[ac] * w1[cb]`; extents first, then how each tensor lies in memory."""
    lines = ["axes " + ", ".join(f"{_letter(label)}: {extent}" for label, extent in enumerate(spec.extents))]
    values: list[str] = []
    for tensor in spec.inputs:
        values.append(f"{tensor.name}[{_letters(tensor.labels)}]")
        lies = ", ".join(_index(dim) for dim in tensor.access)
        lines.append(f"{values[-1]} = tensor {tensor.source} at [{lies}] of {tensor.dtype}{list(tensor.shape)}")
    for number, node in enumerate(spec.nodes, len(spec.inputs)):
        operands = [values[value] for value in node.inputs]
        match node.op:
            case Number(value):
                values.append(f"{value:g}")
                continue
            case Apply(fn):
                done = f"{fn}({', '.join(operands)})"
            case Product(over):
                done = (f"sum over {_letters(over)} of " if over else "") + " * ".join(operands)
            case Reduction(kind, over):
                done = f"{kind} over {_letters(over)} of {operands[0]}"
            case _:
                assert_never(node.op)
        values.append(f"v{number}[{_letters(node.labels)}]")
        lines.append(f"{values[-1]} = {done}")
    lines.append(
        f"return {values[spec.output]} at [{', '.join(_index(dim) for dim in spec.store)}] of {list(spec.shape)}"
    )
    return "\n".join(lines)


def _index(dim: AffineDim) -> str:
    terms = [f"{_letter(label)}" if c == 1 else f"{c}*{_letter(label)}" for label, c in dim.terms]
    return " + ".join([*terms, *([str(dim.offset)] if dim.offset or not terms else [])])


def _letters(labels: Labels) -> str:
    return "".join(_letter(label) for label in labels)


def _letter(label: int) -> str:
    return chr(ord("a") + label)
