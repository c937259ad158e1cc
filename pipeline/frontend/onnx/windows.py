"""The geometry of sliding windows: how far a window reaches, what is padded, how many windows there are."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.frontend.onnx.call import Call
from pipeline.ir.graph import Shape


@dataclass(frozen=True, slots=True)
class Windows:
    """One entry for each spatial dimension; pads are explicit, whatever auto_pad said.

    counts   how many windows there are
    kernel   elements of a window; with dilation it reaches (kernel - 1) * dilation + 1
    """

    counts: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]

    def reach(self, axis: int) -> int:
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def overhang(self, extents: Shape) -> tuple[int, ...]:
        """The padding at the high end that the last window needs: less than `high`, or more with ceil_mode."""
        return tuple(
            (self.counts[axis] - 1) * self.strides[axis] + self.reach(axis) - extent - self.low[axis]
            for axis, extent in enumerate(extents)
        )


def windows_of(call: Call, extents: Shape, kernel: tuple[int, ...]) -> Windows:
    """Reads strides, dilations, pads, auto_pad and ceil_mode of a convolution or pooling over `extents`."""
    rank = len(extents)
    strides, dilations = tuple(call.get("strides", (1,) * rank)), tuple(call.get("dilations", (1,) * rank))
    pads = tuple(call.get("pads", (0,) * 2 * rank))
    if not len(kernel) == len(strides) == len(dilations) == len(pads) // 2 == rank:
        call.refuse(f"{call.op} over {rank} dimensions has attributes for another number of them")
    auto, ceil = call.get("auto_pad", "NOTSET"), bool(call.get("ceil_mode", 0))
    low, high, counts = [], [], []
    for axis, extent in enumerate(extents):
        stride, reach = strides[axis], (kernel[axis] - 1) * dilations[axis] + 1
        match auto:
            case "SAME_UPPER" | "SAME_LOWER":
                count = -(-extent // stride)
                total = max((count - 1) * stride + reach - extent, 0)
                before = total // 2 if auto == "SAME_UPPER" else total - total // 2
                after = total - before
            case "VALID" | "NOTSET" | "":
                before, after = (0, 0) if auto == "VALID" else (pads[axis], pads[axis + rank])
                free = extent + before + after - reach
                count = -(-free // stride) + 1 if ceil else free // stride + 1
                if ceil and (count - 1) * stride >= extent + before:
                    count -= 1
            case _:
                call.refuse(f"auto_pad {auto} is not known", why="ONNX has NOTSET, SAME_UPPER, SAME_LOWER and VALID")
        if count < 1:
            call.refuse(
                f"no window of {reach} fits into an extent of {extent}",
                why=f"padding is {before} and {after}",
                todo="Bind the model's dimensions to larger sizes with workload.shapes",
            )
        low.append(before)
        high.append(after)
        counts.append(count)
    return Windows(tuple(counts), kernel, strides, dilations, tuple(low), tuple(high))
