"""Einsum: a chain of contractions of two operands each."""

from __future__ import annotations

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.operators import operator
from pipeline.frontend.onnx.tensor import Tensor
from pipeline.ir.graph import AffineDim, AffineMap

Labels = tuple[str, ...]


@operator("Einsum", 12, 28)
def einsum(call: Call) -> Tensor:
    operands = call.given()
    terms, result = parse(call, [operand.rank for operand in operands])
    extents: dict[str, int] = {}
    for labels, operand in zip(terms, operands, strict=True):
        for label, extent in zip(labels, operand.shape, strict=True):
            if extents.setdefault(label, extent) == 1:
                extents[label] = extent
            elif extent not in (1, extents[label]):
                call.refuse(f"label {label} of Einsum stands for {extents[label]} and for {extent}")
    total, labels = operands[0], terms[0]
    if len(operands) == 1:
        return contract(total, labels, total.like(1), (), result, extents)
    for position in range(1, len(operands)):
        later = {label for rest in terms[position + 1 :] for label in rest} | set(result)
        both = dict.fromkeys((*labels, *terms[position]))
        kept = result if position == len(operands) - 1 else tuple(label for label in both if label in later)
        total = contract(total, labels, operands[position], terms[position], kept, extents)
        labels = kept
    return total


def parse(call: Call, ranks: list[int]) -> tuple[list[Labels], Labels]:
    """The labels of each operand and of the result; the dimensions of an ellipsis are numbered from the back."""
    left, arrow, right = str(call.need("equation")).replace(" ", "").partition("->")
    texts = left.split(",")
    if len(texts) != len(ranks):
        call.refuse(f"Einsum {left} is given {len(ranks)} operands")
    longest = max(
        (rank - len(text.replace("...", "")) for text, rank in zip(texts, ranks, strict=True) if "..." in text),
        default=0,
    )
    terms = []
    for text, rank in zip(texts, ranks, strict=True):
        labels = expand(text, rank - len(text.replace("...", "")))
        if len(labels) != rank:
            call.refuse(f"term {text} of Einsum is given {rank} dimensions")
        terms.append(labels)
    if arrow:
        return terms, expand(right, longest)
    letters = left.replace(",", "").replace("...", "")
    once = tuple(sorted(label for label in set(letters) if letters.count(label) == 1))
    return terms, (*(expand("...", longest)), *once)


def expand(text: str, extra: int) -> Labels:
    before, dots, after = text.partition("...")
    middle = tuple(f".{extra - 1 - i}" for i in range(extra)) if dots else ()
    return (*before, *middle, *after)


def contract(a: Tensor, left: Labels, b: Tensor, right: Labels, kept: Labels, extents: dict[str, int]) -> Tensor:
    """out[kept] = sum over all other labels of a[left] * b[right]; an extent of one broadcasts."""
    order = (*kept, *(label for label in dict.fromkeys((*left, *right)) if label not in kept))
    number = {label: position for position, label in enumerate(order)}

    def indices(labels: Labels, operand: Tensor) -> AffineMap:
        return tuple(
            AffineDim(((number[label], 1),) if extent == extents[label] else ())
            for label, extent in zip(labels, operand.shape, strict=True)
        )

    spatial, reduced = (tuple(extents[label] for label in part) for part in (kept, order[len(kept) :]))
    lhs, rhs = indices(left, a), indices(right, b)
    return a.of(a.builder.contract(a.value, b.value, spatial, reduced, lhs, rhs))
