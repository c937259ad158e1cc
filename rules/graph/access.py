"""How the operands of a product or of a pooling are read, while views are composed with it and variables are split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipeline.ir import graph as g
from pipeline.ir.graph import AffineDim, AffineMap, Shape
from rules.graph.reshape_groups import reshape_groups

Parts = tuple[tuple[int, ...], ...]
MOST_VARIABLES = 8  # more loops than that cost the search more than a copy costs at run time


@dataclass(frozen=True, slots=True)
class Access:
    """Affine maps over variables that may be split into several.

    spatial, reduced  for each variable of the operation, its parts, the outermost first
    extents           of all variables that ever were, by number
    maps              one for each operand, over those numbers
    """

    spatial: Parts
    reduced: Parts
    extents: Shape
    maps: tuple[AffineMap, ...]

    @staticmethod
    def of(op: g.Contract | g.ReduceWindow) -> Access:
        """The access of an operation as it stands."""
        maps = (op.lhs, op.rhs) if isinstance(op, g.Contract) else (op.operand,)
        count = len(op.spatial)
        whole = tuple((v,) for v in range(count + len(op.reduced)))
        return Access(whole[:count], whole[count:], (*op.spatial, *op.reduced), maps)

    def split(self, variable: int, inner: int) -> Access:
        """variable -> outer * inner + a variable of that extent."""
        outer, low = len(self.extents), len(self.extents) + 1

        def parts(all_parts: Parts) -> Parts:
            return tuple(
                tuple(n for v in group for n in ((outer, low) if v == variable else (v,))) for group in all_parts
            )

        def dim(old: AffineDim) -> AffineDim:
            terms: list[tuple[int, int]] = []
            for v, c in old.terms:
                terms += [(outer, c * inner), (low, c)] if v == variable else [(v, c)]
            return AffineDim(tuple(terms), old.offset)

        return Access(
            parts(self.spatial), parts(self.reduced), (*self.extents, self.extents[variable] // inner, inner),
            tuple(tuple(dim(d) for d in affine) for affine in self.maps),
        )  # fmt: skip

    def through(self, operand: int, view: g.Op, source: Shape, shape: Shape) -> Access | None:
        """The same elements read from before the view, whose types these are; None where that is not affine."""
        affine = self.maps[operand]
        match view:
            case g.Transpose(perm):
                return self._with(operand, tuple(affine[perm.index(axis)] for axis in range(len(perm))))
            case g.Slice(starts, strides):
                return self._with(operand, tuple(
                    AffineDim(tuple((v, c * step) for v, c in dim.terms), dim.offset * step + start)
                    for dim, start, step in zip(affine, starts, strides, strict=True)))  # fmt: skip
            case g.Broadcast():
                kept = affine[len(affine) - len(source) :]
                return self._with(operand, tuple(
                    AffineDim(()) if n == 1 else dim for dim, n in zip(kept, source, strict=True)))  # fmt: skip
            case g.Reshape():
                return self._reshaped(operand, source, shape)
        return None

    def operation(self, like: g.Contract | g.ReduceWindow) -> g.Contract | g.ReduceWindow:
        """The operation with its variables numbered in order."""
        spatial = [v for group in self.spatial for v in group]
        reduced = [v for group in self.reduced for v in group]
        number = {v: i for i, v in enumerate([*spatial, *reduced])}
        maps = tuple(
            tuple(AffineDim(tuple(sorted((number[v], c) for v, c in dim.terms)), dim.offset) for dim in affine)
            for affine in self.maps
        )
        sizes = tuple(self.extents[v] for v in spatial), tuple(self.extents[v] for v in reduced)
        if isinstance(like, g.Contract):
            return g.Contract(*sizes, maps[0], maps[1])
        return g.ReduceWindow(like.kind, *sizes, maps[0])

    def _with(self, operand: int, affine: AffineMap) -> Access:
        return replace(self, maps=tuple(affine if i == operand else m for i, m in enumerate(self.maps)))

    def _reshaped(self, operand: int, source: Shape, shape: Shape) -> Access | None:
        access = self
        while True:
            dims = access._digits(operand, source, shape)
            if dims is None:
                return None
            if isinstance(dims, _Split):
                access = access.split(dims.variable, dims.inner)
                if access._count() > MOST_VARIABLES:
                    return None
                continue
            return access._with(operand, dims)

    def _digits(self, operand: int, source: Shape, shape: Shape) -> AffineMap | _Split | None:
        """The indices before a reshape: the digits of the row-major index in the sizes of the source."""
        groups = reshape_groups(source, shape)
        if groups is None:
            return None
        made: list[AffineDim] = []
        for old, new in groups:
            terms: dict[int, int] = {}
            stride, offset = 1, 0
            for j in reversed(new):
                dim = self.maps[operand][j]
                for v, c in dim.terms:
                    terms[v] = terms.get(v, 0) + c * stride
                offset += dim.offset * stride
                stride *= shape[j]
            digits: list[AffineDim] = []
            inner = 1
            for position in reversed(old):
                size = source[position]
                # the outermost digit has nothing above it that could be carried into
                moduli = [inner] if position == old[0] else [inner, inner * size]
                for modulus in moduli:
                    obstacle = self._obstacle(terms, offset, modulus)
                    if obstacle is not None:
                        return obstacle if obstacle.inner else None
                found = {v: c // inner for v, c in terms.items() if c and c % inner == 0}
                start = offset // inner
                if position != old[0]:
                    found = {v: c for v, c in found.items() if c % size}
                    start %= size
                digits.append(AffineDim(()) if size == 1 else AffineDim(tuple(sorted(found.items())), start))
                inner *= size
            made.extend(reversed(digits))
        return tuple(made)

    def _obstacle(self, terms: Mapping[int, int], offset: int, modulus: int) -> _Split | None:
        """None where the terms below the modulus never carry; else a split that may help, or one of inner extent 0."""
        rest = {v: c for v, c in terms.items() if c % modulus and self.extents[v] > 1}
        low = offset % modulus + sum(min(0, c * (self.extents[v] - 1)) for v, c in rest.items())
        high = offset % modulus + sum(max(0, c * (self.extents[v] - 1)) for v, c in rest.items())
        if low >= 0 and high < modulus:
            return None
        for v, c in sorted(rest.items()):
            inner, beyond = divmod(modulus, abs(c))
            if not beyond and inner < self.extents[v] and self.extents[v] % inner == 0:
                return _Split(v, inner)
        return _Split(0, 0)

    def _count(self) -> int:
        return sum(len(group) for group in (*self.spatial, *self.reduced))


@dataclass(frozen=True, slots=True)
class _Split:
    """A variable, and the extent of its inner part."""

    variable: int
    inner: int
