"""The builder of matrix products, convolutions and pooling: each a `Contract` or `ReduceWindow` over affine indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import CheckError
from pipeline.ir.graph import AffineDim, AffineMap, DType
from pipeline.ir.graph_primitives import PrimitiveBuilder, axis_map
from pipeline.ir.graph_types import FLOATS, numpy_dtype


@dataclass(frozen=True, slots=True)
class Channels:
    """How the channels of a convolution index its tensors.

    spatial  extents of n, g and co; g is absent for one group, co where each group has one output
    x, ci    the index into the channels of x, and into the channels of one group
    out, co  the index into all output channels, and into those of one group
    """

    spatial: tuple[int, ...]
    x: AffineDim
    ci: AffineDim
    out: AffineDim
    co: AffineDim


def channels(batch: int, groups: int, inner: int, outer: int, space: int) -> Channels:
    """For `inner` and `outer` channels in each group and `space` variables between those of the channels and ci."""
    spatial = [batch, *([groups] if groups > 1 else []), *([outer] if groups == 1 or outer > 1 else [])]
    ci = len(spatial) + space
    group, last = groups > 1, len(spatial) - 1
    co = ((last, 1),) if groups == 1 or outer > 1 else ()
    return Channels(tuple(spatial), AffineDim((*(((1, inner),) if group else ()), (ci, 1))), AffineDim(((ci, 1),)),
                    AffineDim((*(((1, outer),) if group else ()), *co)), AffineDim(co))  # fmt: skip


class ProductBuilder(PrimitiveBuilder):
    """What is made of products over windows. Tensors are N, C, spatial…; weights are O, I, spatial…"""

    def matmul(self, a: int, b: int, dtype: DType | None = None) -> int:
        """numpy.matmul: vectors, matrices and broadcast batches, as one Contract."""
        left, right = self.shape(a), self.shape(b)
        if not left or not right or left[-1] != right[-2 if len(right) > 1 else 0]:
            raise CheckError("the shapes do not multiply", where="matmul", why=f"{left} and {right}")
        batch = np.broadcast_shapes(left[:-2], right[:-2])
        spatial = [*batch, *left[-2:-1], *(right[-1:] if len(right) > 1 else ())]
        row, column, inner = len(batch), len(spatial) - 1, len(spatial)

        def leading(shape: tuple[int, ...]) -> list[int | None]:
            skipped = len(batch) - len(shape)
            return [skipped + i if size != 1 or batch[skipped + i] == 1 else None for i, size in enumerate(shape)]

        lhs = axis_map(*leading(left[:-2]), *((row,) if len(left) > 1 else ()), inner)
        rhs = axis_map(*leading(right[:-2]), inner, *((column,) if len(right) > 1 else ()))
        return self.contract(a, b, spatial, left[-1:], lhs, rhs, dtype)

    def einsum(self, spec: str, a: int, b: int) -> int:
        """Two operands, with letters and an explicit result: "bhqd,bhkd->bhqk"."""
        sides, _, result = spec.replace(" ", "").partition("->")
        left, _, right = sides.partition(",")
        sizes: dict[str, int] = {}
        for letters, operand in ((left, a), (right, b)):
            if len(letters) != len(self.shape(operand)) or "->" not in spec or "." in spec:
                raise CheckError("the letters do not fit the operand", where=spec, why=f"shape {self.shape(operand)}")
            for letter, size in zip(letters, self.shape(operand), strict=True):
                if sizes.setdefault(letter, size) != size:
                    raise CheckError(f"letter {letter} has two sizes", where=spec, why=f"{sizes[letter]} and {size}")
        order = [*result, *(letter for letter in sizes if letter not in result)]
        reduced = [sizes[letter] for letter in order[len(result) :]]
        lhs, rhs = (axis_map(*(order.index(letter) for letter in letters)) for letters in (left, right))
        return self.contract(a, b, [sizes[letter] for letter in result], reduced, lhs, rhs)

    def conv(self, x: int, w: int, *, strides: Sequence[int], pads_low: Sequence[int], pads_high: Sequence[int],
             dilations: Sequence[int], groups: int = 1, dtype: DType | None = None) -> int:  # fmt: skip
        """Cross-correlation of any spatial rank, weights O, I/groups, window: a Pad, then one Contract."""
        outputs, inner, *window = self.shape(w)
        if len(self.shape(x)) != len(self.shape(w)) or self.shape(x)[1] != inner * groups or outputs % groups:
            raise CheckError("the weights do not fit", where="conv",
                             why=f"x {self.shape(x)}, w {self.shape(w)}, {groups} groups")  # fmt: skip
        padded = self.pad(x, [0, 0, *pads_low], [0, 0, *pads_high])
        space = windows_in(self.shape(padded)[2:], window, strides, dilations)
        c = channels(self.shape(x)[0], groups, inner, outputs // groups, len(space))
        first, taps = len(c.spatial), range(len(c.spatial) + len(space) + 1, len(c.spatial) + 2 * len(space) + 1)
        lhs = (AffineDim(((0, 1),)), c.x, *sliding(first, taps.start, strides, dilations))
        rhs = (c.out, c.ci, *axis_map(*taps))
        out = self._squeezed(padded, w, [*c.spatial, *space], [inner, *window], lhs, rhs, dtype)
        return self.reshape(out, [self.shape(x)[0], outputs, *space])

    def conv_transpose(self, x: int, w: int, *, strides: Sequence[int], pads_low: Sequence[int],
                       pads_high: Sequence[int], output_padding: Sequence[int], dilations: Sequence[int],
                       groups: int = 1, dtype: DType | None = None) -> int:  # fmt: skip
        """The gradient of `conv` with respect to its input; weights I, O/groups, window.

        y[s * h + d * k - low] += x[h] * w[k]. Without dilation by phases: position u = s*q + r takes the weights
        s*t + r at input q - t, so nothing is multiplied by zeros. With dilation (or no stride): zeros between the
        neighbours of x and the window reversed.
        """
        batch, size = self.shape(x)[0], self.shape(x)[2:]
        inner, outer, window = self.shape(w)[0] // groups, self.shape(w)[1], self.shape(w)[2:]
        if len(self.shape(x)) != len(self.shape(w)) or self.shape(x)[1] != inner * groups:
            raise CheckError("the weights do not fit", where="conv_transpose",
                             why=f"x {self.shape(x)}, w {self.shape(w)}, {groups} groups")  # fmt: skip
        out = [
            s * (n - 1) + extra + (k - 1) * d + 1 - low - high
            for n, k, s, d, low, high, extra in zip(
                size, window, strides, dilations, pads_low, pads_high, output_padding, strict=True)
        ]  # fmt: skip
        if min(out, default=1) < 0:
            raise CheckError("the padding removes the whole result", where="conv_transpose", why=f"sizes {out}")
        rank = len(size)
        if any(d != 1 for d in dilations) or all(s == 1 for s in strides):
            reach = [d * (k - 1) for d, k in zip(dilations, window, strict=True)]
            low = [r - p for r, p in zip(reach, pads_low, strict=True)]
            high = [o + r - (s * (n - 1) + 1) - lo
                    for o, r, s, n, lo in zip(out, reach, strides, size, low, strict=True)]  # fmt: skip
            spread = self.pad(x, [0, 0, *low], [0, 0, *high], [0, 0, *(s - 1 for s in strides)])
            c = channels(batch, groups, inner, outer, rank)
            first, tap = len(c.spatial), len(c.spatial) + rank + 1
            lhs = (AffineDim(((0, 1),)), c.x, *sliding(first, tap, [1] * rank, dilations))
            taps = [AffineDim(((tap + i, -1),), int(k) - 1) for i, k in enumerate(window)]
            y = self._squeezed(spread, w, [*c.spatial, *out], [inner, *window], lhs, (c.x, c.co, *taps), dtype)
            return self.reshape(y, [batch, groups * outer, *out])

        steps = [int(-(-k // s)) for k, s in zip(window, strides, strict=True)]  # taps in one phase
        begin = [p // s for p, s in zip(pads_low, strides, strict=True)]  # the first q that is needed
        count = [max(1, -(-(p + o) // s) - b)
                 for p, o, s, b in zip(pads_low, out, strides, begin, strict=True)]  # fmt: skip
        low = [t - 1 - b for t, b in zip(steps, begin, strict=True)]
        high = [q + t - 1 - n - lo for q, t, n, lo in zip(count, steps, size, low, strict=True)]
        padded = self.pad(x, [0, 0, *low], [0, 0, *high])
        missing = [t * s - k for t, s, k in zip(steps, strides, window, strict=True)]
        filled = self.pad(w, [0] * (rank + 2), [0, 0, *missing])
        c = channels(batch, groups, inner, outer, 2 * rank)
        first, tap = len(c.spatial), len(c.spatial) + 2 * rank + 1
        places = [AffineDim(((first + 2 * i, 1), (tap + i, -1)), t - 1) for i, t in enumerate(steps)]
        taps = [AffineDim(((first + 2 * i + 1, 1), (tap + i, int(s)))) for i, s in enumerate(strides)]
        phases = [n for pair in zip(count, strides, strict=True) for n in pair]
        y = self._squeezed(padded, filled, [*c.spatial, *phases], [inner, *steps],
                           (AffineDim(((0, 1),)), c.x, *places), (c.x, c.co, *taps), dtype)  # fmt: skip
        y = self.reshape(y, [batch, groups * outer, *(q * s for q, s in zip(count, strides, strict=True))])
        starts = [p - b * s for p, b, s in zip(pads_low, begin, strides, strict=True)]
        return self.slice(y, starts, [a + o for a, o in zip(starts, out, strict=True)], axes=range(2, 2 + rank))

    def pool(self, kind: str, x: int, window: Sequence[int], strides: Sequence[int], pads_low: Sequence[int],
             pads_high: Sequence[int], dilations: Sequence[int] | None = None, count_include_pad: bool = False,
             extra_high: Sequence[int] | None = None) -> int:  # fmt: skip
        """kind: max, average. The divisor of an average counts the padding only with `count_include_pad`.

        extra_high  more padding at the high ends (for sizes rounded up), which is never counted
        """
        dtype, size, rank = self.dtype(x), self.shape(x)[2:], len(window)
        dilations = dilations or [1] * rank
        beyond = [hi + more for hi, more in zip(pads_high, extra_high or [0] * rank, strict=True)]
        if kind not in ("max", "average"):
            raise CheckError("no such pooling", where="pool", why=f"{kind!r} is neither max nor average")
        lowest = 0.0 if kind == "average" else -math.inf if dtype in FLOATS else float(np.iinfo(numpy_dtype(dtype)).min)
        padded = self.pad(x, [0, 0, *pads_low], [0, 0, *beyond], value=lowest)
        space = windows_in(self.shape(padded)[2:], window, strides, dilations)
        spatial = [*self.shape(x)[:2], *space]
        dims = (*axis_map(0, 1), *sliding(2, 2 + rank, strides, dilations))
        if kind == "max":
            return self.reduce_window("max", padded, spatial, window, dims)
        counts = np.ones(space)
        for axis in range(rank):
            start = np.arange(space[axis])[:, None] * strides[axis] + np.arange(window[axis]) * dilations[axis]
            low, high = pads_low[axis], pads_low[axis] + size[axis]
            if count_include_pad:
                low, high = 0, high + pads_high[axis]
            inside = ((start >= low) & (start < high)).sum(axis=1)
            counts *= inside.reshape([-1 if i == axis else 1 for i in range(rank)])
        if counts.size and (counts == counts.flat[0]).all():
            counts = counts.reshape(-1)[0].reshape(())
        wide = self.cast(padded, "float32") if dtype in ("float16", "bfloat16") else padded
        total = self.reduce_window("sum", wide, spatial, window, dims)
        divisor = self.constant(np.asarray(counts).astype(numpy_dtype(self.dtype(total))))
        return self.cast(self.elementwise("div", total, divisor), dtype)

    def _squeezed(self, lhs: int, rhs: int, spatial: Sequence[int], reduced: Sequence[int], lhs_map: AffineMap,
                  rhs_map: AffineMap, dtype: DType | None) -> int:  # fmt: skip
        """A Contract without the reduced variables of extent 1, so that a 1x1 window is a plain matrix product."""
        fixed = len(spatial)
        kept = [fixed + i for i, extent in enumerate(reduced) if extent != 1] or [fixed]
        number = {v: i for i, v in enumerate([*range(fixed), *kept])}

        def renumbered(dim: AffineDim) -> AffineDim:
            return AffineDim(tuple((number[v], c) for v, c in dim.terms if v in number), dim.offset)

        maps = [tuple(renumbered(dim) for dim in affine) for affine in (lhs_map, rhs_map)]
        return self.contract(lhs, rhs, spatial, [reduced[v - fixed] for v in kept], maps[0], maps[1], dtype)


def windows_in(size: Sequence[int], window: Sequence[int], strides: Sequence[int],
               dilations: Sequence[int]) -> list[int]:  # fmt: skip
    """How many windows fit along each dimension."""
    space = [int((n - d * (k - 1) - 1) // s + 1) for n, k, s, d in zip(size, window, strides, dilations, strict=True)]
    if min(space, default=1) < 0:
        raise CheckError("the window is larger than the padded tensor",
                         why=f"window {tuple(window)} dilated by {tuple(dilations)} in {tuple(size)}")  # fmt: skip
    return space


def sliding(first: int, tap: int, strides: Sequence[int], dilations: Sequence[int]) -> AffineMap:
    """stride * position + dilation * tap, for positions numbered from `first` and taps from `tap`."""
    pairs = enumerate(zip(strides, dilations, strict=True))
    return tuple(AffineDim(((first + i, int(s)), (tap + i, int(d)))) for i, (s, d) in pairs)
