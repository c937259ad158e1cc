"""The judgement of an execution: no faults, and every element that was written within its bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.codegen.cuda.execution import Execution
from pipeline.errors import CodegenError, listed
from pipeline.verification.verdict import compare


@dataclass(frozen=True, slots=True)
class ExecutionVerdict:
    """Whether a kernel did right, as far as it was run.

    checked       elements of outputs that were compared, of `elements` there are
    share         largest error of an element over what was allowed of it
    max_absolute  largest error in the output with that element; `max_relative` over the largest magnitude of it
    tolerance     what was allowed of the element that is so far off
    reason        what is wrong; empty when all is right
    """

    ok: bool
    checked: int
    elements: int
    share: float
    max_absolute: float
    max_relative: float
    tolerance: float
    reason: str = ""


def check_outputs(
    execution: Execution,
    expected: Mapping[str, np.ndarray],
    tolerance: Mapping[str, np.ndarray],
    *,
    edges: bool = True,
) -> ExecutionVerdict:
    """Compare what was written with what must come out (the fields of `measurement.protocol.Case`).

    Wrong is: any fault; an element beyond its tolerance; nothing written; where all blocks ran, an element not written;
    and with `edges`, a sample of blocks that leaves out the first or the last index of a dimension of an output, as
    tails are where kernels go wrong.

    Raises CodegenError where the reference lacks an output.
    """
    reasons = [str(fault) for fault in execution.faults[:3]]
    absolute = relative = allowed = 0.0
    nearest, checked = -1.0, 0
    for name, got in execution.outputs.items():
        if name not in expected or name not in tolerance:
            raise CodegenError(
                "the reference lacks an output of the kernel", where=name, why=f"it has {listed(expected)}"
            )
        mask = execution.written[name]
        want, bound = expected[name], np.broadcast_to(tolerance[name], expected[name].shape)
        if want.shape != got.shape:
            reasons.append(f"output {name} has the shape {list(got.shape)}, and {list(want.shape)} is right")
            continue
        reasons += [f"output {name}: {reason}" for reason in _coverage(mask, execution.whole, edges)]
        verdict = compare(got[mask], want[mask], bound[mask])
        checked += int(mask.sum())
        if verdict.share > nearest:
            nearest, allowed = verdict.share, verdict.tolerance
            absolute, relative = verdict.max_absolute, verdict.max_relative
        if not verdict.ok:
            place = [int(i) for i in np.argwhere(mask)[verdict.worst[0]]] if verdict.worst else []
            reasons.append(
                f"output {name}: {verdict.reason.replace(f'element {list(verdict.worst)}', f'element {place}')}"
            )
    elements = sum(array.size for array in execution.outputs.values())
    if elements and not checked:
        reasons.append("no element of any output was written")
    return ExecutionVerdict(
        not reasons, checked, elements, max(nearest, 0.0), absolute, relative, allowed, "; ".join(reasons)
    )


def _coverage(mask: np.ndarray, whole: bool, edges: bool) -> list[str]:
    """What is not written and had to be."""
    if mask.all():
        return []
    if whole:
        missing = [int(i) for i in np.argwhere(~mask)[0]]
        return [f"{int((~mask).sum())} elements were not written, such as {missing}"]
    if not edges:
        return []
    found = []
    for axis in range(mask.ndim):
        for index, end in ((0, "first"), (-1, "last")):
            if not np.take(mask, index, axis).any():
                found.append(f"no block of the sample wrote the {end} index of dimension {axis}")
    return found
