"""Control flow that is known at import: branches are chosen, loops unrolled."""

from __future__ import annotations

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.operators import operator
from pipeline.frontend.onnx.ops_shape import join
from pipeline.frontend.onnx.tensor import Tensor, Value

MOST_STEPS = 4096


@operator("If", 1, 11, 13, 16, 19, 21, 23, 24, 25)
def branch(call: Call) -> tuple[Value, ...]:
    """The branch that a known condition takes; with a computed one both, where their results have the same types."""
    condition = call.operand(0)
    known = condition.known()
    if known is not None:
        return call.subgraph(call.need("then_branch" if known.reshape(-1)[0] else "else_branch"), ())
    then = [call.tensor(value) for value in call.subgraph(call.need("then_branch"), ())]
    other = [call.tensor(value) for value in call.subgraph(call.need("else_branch"), ())]
    for left, right in zip(then, other, strict=True):
        if (left.shape, left.dtype) != (right.shape, right.dtype):
            call.refuse(
                "the condition of If depends on the data and its branches give different types",
                why=f"{left.dtype}{list(left.shape)} and {right.dtype}{list(right.shape)}",
            )
    at = condition.reshape(())
    return tuple(at.where(left, right) for left, right in zip(then, other, strict=True))


@operator("Loop", 1, 11, 13, 16, 19, 21, 23, 24, 25)
def loop(call: Call) -> tuple[Value, ...]:
    """Unrolled: the trip count and every condition must be known at import."""
    body = call.need("body")
    trips = int(call.known(0, "trip count").reshape(-1)[0]) if call.optional(0) is not None else MOST_STEPS + 1
    going = bool(call.known(1, "condition").reshape(-1)[0]) if call.optional(1) is not None else True
    carried = [value for value in call.operands[2:] if value is not None]
    collected: list[list[Tensor]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    step = 0
    while going and step < trips:
        if step == MOST_STEPS:
            call.refuse(f"a Loop of more than {MOST_STEPS} steps is not unrolled")
        iteration, condition = call.constant(step, "int64"), call.constant(True, "bool")
        again, *results = call.subgraph(body, (iteration, condition, *carried))
        known = call.tensor(again).known()
        if known is None:
            call.refuse(
                "the condition of Loop depends on the data", why="loops are unrolled when the model is imported"
            )
        going, step = bool(known.reshape(-1)[0]), step + 1
        carried, scanned = results[: len(carried)], results[len(carried) :]
        for parts, result in zip(collected, scanned, strict=True):
            parts.append(call.tensor(result).unsqueeze(0))
    if collected and not step:
        call.refuse("a Loop of no steps collects results of unknown shape")
    return (*carried, *(join(parts, 0) for parts in collected))


@operator("Scan", 9, 11, 16, 19, 21, 23, 24, 25)
def scan(call: Call) -> tuple[Tensor, ...]:
    """Unrolled over the extent of the scanned axis."""
    body, count = call.need("body"), int(call.need("num_scan_inputs"))
    operands = call.given()
    carried, scanned = list(operands[: len(operands) - count]), operands[len(operands) - count :]
    axes = call.get("scan_input_axes", [0] * count)
    axes = [axis % tensor.rank for axis, tensor in zip(axes, scanned, strict=True)]
    backwards = call.get("scan_input_directions", [0] * count)
    outputs = len(body.output) - len(carried)
    steps = scanned[0].shape[axes[0]]
    if not 0 < steps <= MOST_STEPS:
        call.refuse(f"a Scan of {steps} steps is not unrolled", why=f"from 1 to {MOST_STEPS} steps are")
    collected: list[list[Tensor]] = [[] for _ in range(outputs)]
    for step in range(steps):
        slices = []
        for tensor, axis, back in zip(scanned, axes, backwards, strict=True):
            at = steps - 1 - step if back else step
            slices.append(tensor.part(axis, at, at + 1).reshape((*tensor.shape[:axis], *tensor.shape[axis + 1 :])))
        results = [call.tensor(value) for value in call.subgraph(body, (*carried, *slices))]
        carried = list(results[: len(carried)])
        for parts, result in zip(collected, results[len(carried) :], strict=True):
            parts.append(result)
    out_axes = call.get("scan_output_axes", [0] * outputs)
    reverse = call.get("scan_output_directions", [0] * outputs)
    stacked = []
    for parts, axis, back in zip(collected, out_axes, reverse, strict=True):
        axis = axis % (parts[0].rank + 1)
        stacked.append(join([part.unsqueeze(axis) for part in (parts[::-1] if back else parts)], axis))
    return (*carried, *stacked)
