"""The rule that gives products as few variables as they can have."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pipeline.ir import graph as g
from pipeline.ir.evaluate_product import window
from pipeline.ir.graph import AffineDim, AffineMap, Graph, Node, Shape
from pipeline.ir.graph_rule import Rebuilder, rebuild
from rules.graph.view_motion import reshaped, settle


@dataclass(frozen=True, slots=True)
class MergeVariables:
    """Drop variables of extent 1, and merge neighbours that every map steps through as one.

    Contract over (b=1, s, n; k) on x[b, s, k] -> Contract over (s, n; k) on x[s, k], its result reshaped
    Contract over (n, h, w, co; ci) on x[n, h, w, ci] -> Contract over (nhw, co; ci) on x[nhw, ci], its result reshaped

    Spatial variables must be neighbours in the result, reduced ones need not. A map steps through a and b as one
    where it uses neither, or inner extent * a + b in one dimension, or a and b in two dimensions that follow each
    other; a constant is brought into an order in which it does. Reshapes move down past elementwise operations and
    reductions.

    Legal always.
    """

    def apply(self, graph: Graph) -> Graph:
        return rebuild(graph, _replaced)


def _replaced(b: Rebuilder, number: int, node: Node, inputs: tuple[int, ...]) -> int | None:
    del number
    if not isinstance(node.op, g.Contract) or 0 in node.op.spatial or 0 in node.op.reduced:
        return settle(b, node, inputs)
    before = _Product.of(b, node.op, inputs)
    after = before.squeezed()
    while (smaller := after.merged(b)) is not None:
        after = smaller
    if after == before:
        return None
    made = b.add(after.operation(), *(reshaped(b, o.value, o.shape) for o in after.operands), dtype=node.type.dtype)
    return reshaped(b, made, node.type.shape)


@dataclass(frozen=True, slots=True)
class _Operand:
    """A value, the shape that it is read in, and the map over that shape."""

    value: int
    shape: Shape
    map: AffineMap

    def uses(self, v: int) -> bool:
        return any(v == u for dim in self.map for u, _ in dim.terms)

    def joint(self, a: int, b: int, extent: int) -> _Operand | None:
        """With a standing for both, where a and b are stepped through as one; extent: that of b."""
        dims = [i for i, dim in enumerate(self.map) if {a, b} & {v for v, _ in dim.terms}]
        if not dims:
            return self
        if len(dims) == 1:
            terms = dict(self.map[dims[0]].terms)
            if a not in terms or b not in terms or terms[a] != terms[b] * extent:
                return None
            kept = tuple(sorted((v, terms[b] if v == a else c) for v, c in terms.items() if v != b))
            return self._with(self.shape, tuple(
                AffineDim(kept, dim.offset) if i == dims[0] else dim for i, dim in enumerate(self.map)))  # fmt: skip
        i, j = dims[0], dims[-1]
        if len(dims) != 2 or j != i + 1 or self.shape[j] != extent:
            return None
        if self.map[i] != AffineDim(((a, 1),)) or self.map[j] != AffineDim(((b, 1),)):
            return None
        shape = (*self.shape[:i], self.shape[i] * self.shape[j], *self.shape[j + 1 :])
        return self._with(shape, (*self.map[:j], *self.map[j + 1 :]))

    def _with(self, shape: Shape, affine: AffineMap) -> _Operand:
        return _Operand(self.value, shape, affine)


@dataclass(frozen=True, slots=True)
class _Product:
    """A Contract on its way: variables by number, the extents of all that ever were."""

    spatial: tuple[int, ...]
    reduced: tuple[int, ...]
    extents: tuple[int, ...]
    operands: tuple[_Operand, ...]

    @staticmethod
    def of(b: Rebuilder, op: g.Contract, inputs: tuple[int, ...]) -> _Product:
        count = len(op.spatial)
        extents = (*op.spatial, *op.reduced)
        operands = tuple(
            _Operand(value, b.shape(value), affine) for value, affine in zip(inputs, (op.lhs, op.rhs), strict=True)
        )
        return _Product(tuple(range(count)), tuple(range(count, len(extents))), extents, operands)

    def squeezed(self) -> _Product:
        """Without variables and dimensions of one element, but for a last variable of either kind."""

        def wide(variables: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(v for v in variables if self.extents[v] != 1) or variables[-1:]

        spatial, reduced = wide(self.spatial), wide(self.reduced)
        operands = []
        for o in self.operands:
            dims = [AffineDim(tuple((v, c) for v, c in d.terms if v in (*spatial, *reduced)), d.offset) for d in o.map]
            kept = [i for i, n in enumerate(o.shape) if n != 1]
            operands.append(_Operand(o.value, tuple(o.shape[i] for i in kept), tuple(dims[i] for i in kept)))
        return _Product(spatial, reduced, self.extents, tuple(operands))

    def merged(self, b: Rebuilder) -> _Product | None:
        """With one pair of variables merged."""
        pairs = list(zip(self.spatial, self.spatial[1:], strict=False))
        pairs += [(outer, inner) for outer in self.reduced for inner in self.reduced if outer != inner]
        for outer, inner in pairs:
            joint = [o.joint(outer, inner, self.extents[inner]) for o in self.operands]
            stubborn = [o for o, new in zip(self.operands, joint, strict=True) if new is None]
            if all(self._can_be_laid_out(b, o, outer, inner) for o in stubborn):
                found = tuple(
                    self._laid_out(b, o, outer, inner).joint(outer, inner, self.extents[inner]) if new is None else new
                    for o, new in zip(self.operands, joint, strict=True)
                )
                operands = tuple(o for o in found if o is not None)
                assert len(operands) == len(found), "in the order of the variables, they are neighbours"
                extents = tuple(n * self.extents[inner] if v == outer else n for v, n in enumerate(self.extents))
                spatial, reduced = (tuple(v for v in each if v != inner) for each in (self.spatial, self.reduced))
                return _Product(spatial, reduced, extents, operands)
        return None

    def _can_be_laid_out(self, b: Rebuilder, o: _Operand, outer: int, inner: int) -> bool:
        known = b.value_of(o.value)
        if known is None or not (o.uses(outer) and o.uses(inner)):
            return False
        return math.prod(self.extents[v] for v in (*self.spatial, *self.reduced) if o.uses(v)) <= known.size

    def _laid_out(self, b: Rebuilder, o: _Operand, outer: int, inner: int) -> _Operand:
        """A constant in the order of its variables, reduced ones first, the inner one right after the outer one."""
        known = b.value_of(o.value)
        assert known is not None, "only constants are laid out"
        order = [v for v in (*self.reduced, *self.spatial) if o.uses(v) and v != inner]
        order.insert(order.index(outer) + 1, inner)
        view = window(known.reshape(o.shape), o.map, self.extents)
        view = view[tuple(slice(None) if v in order else 0 for v in range(len(self.extents)))]
        data = np.ascontiguousarray(view.transpose([sorted(order).index(v) for v in order]))
        return _Operand(b.constant(data), data.shape, tuple(AffineDim(((v, 1),)) for v in order))

    def operation(self) -> g.Contract:
        number = {v: i for i, v in enumerate([*self.spatial, *self.reduced])}
        lhs, rhs = (
            tuple(AffineDim(tuple(sorted((number[v], c) for v, c in dim.terms)), dim.offset) for dim in o.map)
            for o in self.operands
        )
        return g.Contract(
            tuple(self.extents[v] for v in self.spatial), tuple(self.extents[v] for v in self.reduced), lhs, rhs
        )
