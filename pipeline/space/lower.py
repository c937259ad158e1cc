"""A graph into a program: one block, with a loop nest of its own, for each primitive operation."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np

from pipeline.errors import CodegenError
from pipeline.ir.expr import ONE, ZERO, Const, Expr, Load, Op, Var, add, both, floordiv, less, mod, mul, sub
from pipeline.ir.graph import (
    AffineDim,
    AffineMap,
    Broadcast,
    Concat,
    Constant,
    Contract,
    DType,
    Elementwise,
    Gather,
    GatherElements,
    GatherND,
    Graph,
    Input,
    Iota,
    Node,
    Pad,
    Reduce,
    ReduceWindow,
    Reshape,
    Scan,
    ScatterElements,
    ScatterND,
    Shape,
    Slice,
    TopK,
    Transpose,
)
from pipeline.ir.poly import Poly
from pipeline.ir.program import Axis, Block, Buffer, Combine, Iter, Loop, Program, Seq, Stmt
from pipeline.schedule.rewrite import neutral

FLOATS = ("float64", "float32", "float16", "bfloat16")
ACCUMULATE: dict[DType, DType] = {"float16": "float32", "bfloat16": "float32", "int8": "int32", "uint8": "int32",
                                  "int16": "int32", "uint16": "int32"}  # fmt: skip


def lower(graph: Graph, name: str, constants: Collection[str] = ()) -> Program:
    """The program of a graph. constants: names of the inputs whose data is known when the program is compiled."""
    return _Lowering(graph, frozenset(constants)).program(name)


@dataclass(slots=True)
class _Lowering:
    graph: Graph
    constants: frozenset[str]
    buffers: list[Buffer] = field(default_factory=list)
    regions: list[Stmt] = field(default_factory=list)
    values: dict[int, str] = field(default_factory=dict)  # value number -> buffer
    literals: dict[int, Const] = field(default_factory=dict)

    def program(self, name: str) -> Program:
        results: dict[int, str] = {}
        for position, (_, number) in enumerate(self.graph.outputs):
            results.setdefault(number, output_name(position))
        skipped = _only_padded(self.graph)
        for number, node in enumerate(self.graph.nodes):
            role = "output" if number in results else "intermediate"
            match node.op:
                case Input(given):
                    kind = "constant" if given in self.constants else "input"
                    self.values[number] = self.buffer(argument_name(given), node.type.shape, node.type.dtype, kind)
                    if number in results:
                        self.copy(number, self.buffer(results[number], node.type.shape, node.type.dtype, "output"))
                    continue
                case Constant(key):
                    data = self.graph.constants[key]
                    if data.size != 1:
                        raise CodegenError("a constant that is no scalar", where=f"%{number}", todo="Make it an input")
                    self.literals[number] = Const(_python(data), node.type.dtype)
                    if number in results:
                        self.copy(number, self.buffer(results[number], node.type.shape, node.type.dtype, "output"))
                    continue
            if number not in results and number in skipped:
                continue
            target = self.buffer(results.get(number, f"v{number}"), node.type.shape, node.type.dtype, role)
            self.values[number] = target
            self.operation(number, node, target)
        for position, (_, number) in enumerate(self.graph.outputs):
            if results[number] != output_name(position):  # an output that is another one, too
                type_ = self.graph.nodes[number].type
                self.copy(number, self.buffer(output_name(position), type_.shape, type_.dtype, "output"))
        return self.without_idle_work(name)

    def without_idle_work(self, name: str) -> Program:
        """A tensor without elements is nobody's work; one that is an output is still said to be written."""
        regions = [region for region in self.regions if not _idle(region)]
        buffers = []
        for buffer in self.buffers:
            empty = any(not extent.terms for extent in buffer.shape)
            if empty and buffer.role == "intermediate":
                continue
            buffers.append(buffer)
            if empty and buffer.role == "output":
                zero = Const(_number(0, buffer.dtype), buffer.dtype)
                shape = tuple(extent.value for extent in buffer.shape)
                regions.append(self.nest(f"no_{buffer.name}", buffer.name, shape, lambda s, _, zero=zero: zero))  # type: ignore[misc]
        return Program(name, tuple(buffers), Seq(tuple(regions)))

    def buffer(self, name: str, shape: Shape, dtype: DType, role: str) -> str:
        assert role in ("input", "constant", "output", "intermediate")
        self.buffers.append(Buffer(name, tuple(Poly.of(extent) for extent in shape), dtype, "global", role))  # type: ignore[arg-type]
        return name

    def load(self, number: int, indices: tuple[Expr, ...]) -> Expr:
        if number in self.literals:
            return self.literals[number]
        return Load(self.values[number], indices, self.graph.nodes[number].type.dtype)

    def shape(self, number: int) -> Shape:
        return self.graph.nodes[number].type.shape

    def nest(
        self,
        name: str,
        target: str,
        spatial: Shape,
        value: Callable[[tuple[Expr, ...], tuple[Expr, ...]], Expr],
        *,
        reduced: Shape = (),
        combine: Combine | None = None,
        init: Const | None = None,
        store: Callable[[tuple[Expr, ...]], tuple[Expr, ...]] = lambda indices: indices,
        kinds: tuple[str, ...] = (),
        outer: tuple[Iter, ...] = (),
    ) -> Stmt:
        """A block in its own loops; `value` and `store` are given the iteration variables.

        A combination of nothing is the initial value, and one of a single term that term."""
        if 0 in reduced:
            assert init is not None
            start = init
            return self.nest(name, target, spatial, lambda s, _: start, store=store, kinds=kinds, outer=outer)
        if combine is not None and not reduced and not kinds and not outer:
            combine = init = None
        extents = (*spatial, *reduced)
        variables = [f"s{i}" for i in range(len(spatial))] + [f"r{i}" for i in range(len(reduced))]
        roles = list(kinds) or ["spatial"] * len(spatial)
        roles += ["reduce"] * len(reduced)
        iters = tuple(
            Iter(var, Poly.of(extent), role, Var(f"{name}_{var}"))  # type: ignore[arg-type]
            for var, extent, role in zip(variables, extents, roles, strict=True)
        )
        s = tuple(Var(var) for var in variables[: len(spatial)])
        r = tuple(Var(var) for var in variables[len(spatial) :])
        body: Stmt = Block(name, (*outer, *iters), target, store(s), value(s, r), combine, init)
        for var, extent in reversed(list(zip(variables, extents, strict=True))):
            body = Loop((Axis(f"{name}_{var}", Poly.of(extent)),), body)
        return body

    def copy(self, number: int, target: str) -> None:
        self.regions.append(
            self.nest(f"copy{number}_{target}", target, self.shape(number), lambda s, _: self.load(number, s))
        )

    def operation(self, number: int, node: Node, target: str) -> None:
        op, inputs, shape, dtype = node.op, node.inputs, node.type.shape, node.type.dtype
        name = f"{_stem(op)}{number}"
        match op:
            case Input() | Constant():
                raise AssertionError("handled before")
            case Elementwise(fn):
                self.regions.append(self.nest(name, target, shape, lambda s, _: Op(
                    fn, tuple(self.load(i, _broadcast(s, self.shape(i))) for i in inputs), dtype)))  # fmt: skip
            case Contract(spatial, reduced, lhs, rhs):
                self.contract(name, node, target, spatial, reduced, lhs, rhs)
            case Reduce("argmax" | "argmin", _, _):
                self.position(name, node, target)
            case Reduce(kind, axes, _):
                self.reduce(name, node, target, kind, tuple(a % len(self.shape(inputs[0])) for a in axes))
            case ReduceWindow(kind, spatial, reduced, operand):
                self.accumulate(name, target, kind, dtype, spatial, reduced,
                                lambda s, r: self.load(inputs[0], _affine(operand, (*s, *r))))  # fmt: skip
            case Reshape():
                source = self.shape(inputs[0])
                self.regions.append(self.nest(
                    name, target, shape, lambda s, _: self.load(inputs[0], _reshape(s, shape, source))))  # fmt: skip
            case Transpose(perm):
                self.regions.append(self.nest(name, target, shape, lambda s, _: self.load(
                    inputs[0], tuple(s[perm.index(axis)] for axis in range(len(perm))))))  # fmt: skip
            case Slice(starts, strides):
                self.regions.append(self.nest(name, target, shape, lambda s, _: self.load(inputs[0], tuple(
                    add(mul(i, Const(step)), Const(first))
                    for i, first, step in zip(s, starts, strides, strict=True)))))  # fmt: skip
            case Pad() if (base := padded_value(self.graph, number)) is not None:
                self.pad_in_place(name, node, target, base)
            case Pad(low, high, interior, value):
                del high
                self.regions.append(self.nest(name, target, shape, lambda s, _: self.padded(
                    inputs[0], s, low, interior, Const(_number(value, dtype), dtype))))  # fmt: skip
            case Broadcast():
                self.regions.append(self.nest(name, target, shape, lambda s, _: self.load(
                    inputs[0], _broadcast(s, self.shape(inputs[0])))))  # fmt: skip
            case Concat(axis):
                self.concat(name, node, target, axis % len(shape))
            case Gather(axis):
                self.gather(name, node, target, axis % len(self.shape(inputs[0])))
            case GatherElements(axis):
                axis %= len(shape)
                extent = self.shape(inputs[0])[axis]
                self.regions.append(self.nest(name, target, shape, lambda s, _: self.load(inputs[0], tuple(
                    self.index(inputs[1], s, extent) if i == axis else s[i] for i in range(len(s))))))  # fmt: skip
            case GatherND(batch):
                self.gather_nd(name, node, target, batch)
            case ScatterElements(axis, reduction):
                axis %= len(shape)
                self.copy_into(name, inputs[0], target)
                self.scatter(name, target, self.shape(inputs[1]), reduction, lambda s: tuple(
                    self.index(inputs[1], s, shape[axis]) if i == axis else s[i] for i in range(len(s))),
                    lambda s: self.load(inputs[2], s))  # fmt: skip
            case ScatterND(reduction):
                self.copy_into(name, inputs[0], target)
                *outer, depth = self.shape(inputs[1])
                rest = shape[depth:]
                count = len(outer)
                self.scatter(name, target, (*outer, *rest), reduction, lambda s: (*(
                    self.index(inputs[1], (*s[:count], Const(i)), shape[i]) for i in range(depth)), *s[count:]),
                    lambda s: self.load(inputs[2], s))  # fmt: skip
            case Scan():
                self.scan(name, node, target, op)
            case TopK():
                self.top(name, node, target, op)
            case Iota(axis):
                axis %= len(shape)
                self.regions.append(self.nest(name, target, shape, lambda s, _: Op("cast", (s[axis],), dtype)))
            case _:
                assert_never(op)

    def contract(
        self, name: str, node: Node, target: str, spatial: Shape, reduced: Shape, lhs: AffineMap, rhs: AffineMap
    ) -> None:
        dtype = node.type.dtype
        wide = ACCUMULATE.get(dtype, dtype)
        a, b = node.inputs

        def value(s: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
            x, y = self.load(a, _affine(lhs, (*s, *r))), self.load(b, _affine(rhs, (*s, *r)))
            return Op("mul", (_as(x, wide), _as(y, wide)), wide)

        into = target if wide == dtype else self.buffer(f"{target}_wide", spatial, wide, "intermediate")
        self.regions.append(
            self.nest(name, into, spatial, value, reduced=reduced, combine="sum", init=Const(_number(0, wide), wide))
        )
        self.narrow(name, into, target, spatial, wide, dtype)

    def narrow(self, name: str, wide: str, target: str, shape: Shape, source: DType, dtype: DType) -> None:
        """The result of a combination that was kept in a wider dtype, where it was."""
        if source != dtype:
            self.regions.append(
                self.nest(f"{name}_narrow", target, shape, lambda s, _: Op("cast", (Load(wide, s, source),), dtype))
            )

    def accumulate(
        self,
        name: str,
        target: str,
        kind: str,
        dtype: DType,
        spatial: Shape,
        reduced: Shape,
        value: Callable[[tuple[Expr, ...], tuple[Expr, ...]], Expr],
    ) -> None:
        """A reduction in a dtype that is wide enough for it."""
        wide = ACCUMULATE.get(dtype, dtype) if kind in ("sum", "prod") and dtype in FLOATS else dtype
        combine: Combine = kind  # type: ignore[assignment]
        into = target if wide == dtype else self.buffer(f"{target}_wide", spatial, wide, "intermediate")
        self.regions.append(self.nest(
            name, into, spatial, lambda s, r: _as(value(s, r), wide), reduced=reduced, combine=combine,
            init=neutral(combine, wide)))  # fmt: skip
        self.narrow(name, into, target, spatial, wide, dtype)

    def reduce(self, name: str, node: Node, target: str, kind: str, axes: tuple[int, ...]) -> None:
        source = self.shape(node.inputs[0])
        reduced = tuple(source[axis] for axis in sorted(axes))
        self.accumulate(
            name, target, kind, node.type.dtype, node.type.shape, reduced,
            lambda s, r: self.load(node.inputs[0], _scatter_axes(s, r, axes, len(source))),
        )  # fmt: skip

    def position(self, name: str, node: Node, target: str) -> None:
        """argmax and argmin: the extremum first, then the first (or last) place that equals it, or that is NaN."""
        op = node.op
        assert isinstance(op, Reduce)
        (source,) = node.inputs
        shape, dtype = self.shape(source), self.graph.nodes[source].type.dtype
        axes = (op.axes[0] % len(shape),)
        reduced = (shape[axes[0]],)
        kind = op.kind[3:]
        best = self.buffer(f"{target}_best", node.type.shape, dtype, "intermediate")
        self.regions.append(self.nest(
            f"{name}_best", best, node.type.shape,
            lambda s, r: self.load(source, _scatter_axes(s, r, axes, len(shape))), reduced=reduced,
            combine=kind, init=neutral(kind, dtype)))  # type: ignore[arg-type]  # fmt: skip
        far = Const(-1 if op.last else reduced[0])

        def value(s: tuple[Expr, ...], r: tuple[Expr, ...]) -> Expr:
            x = self.load(source, _scatter_axes(s, r, axes, len(shape)))
            hit: Expr = Op("eq", (x, Load(best, s, dtype)), "bool")
            if dtype in FLOATS:
                hit = Op("or", (hit, Op("isnan", (x,), "bool")), "bool")
            return Op("where", (hit, r[0], far), "int64")

        self.regions.append(self.nest(name, target, node.type.shape, value, reduced=reduced,
                                      combine="max" if op.last else "min", init=far))  # fmt: skip

    def pad_in_place(self, name: str, node: Node, target: str, base: int) -> None:
        """The elements at their place in the padded tensor, so that they can be stored there as they are made, and the
        border around them, slab by slab."""
        op = node.op
        assert isinstance(op, Pad)
        inner, shape, dtype = self.shape(node.inputs[0]), node.type.shape, node.type.dtype
        made = self.shape(base)
        self.regions.append(self.nest(
            name, target, made, lambda s, _: self.load(base, s),
            store=lambda s: tuple(
                add(i, Const(low)) for i, low in zip(_reshape(s, made, inner), op.low, strict=True))))  # fmt: skip
        fill = Const(_number(op.value, dtype), dtype)
        for d in range(len(shape)):
            for first, width in ((0, op.low[d]), (op.low[d] + inner[d], op.high[d])):
                extents = (*inner[:d], width, *shape[d + 1 :])
                start = (*op.low[:d], first, *(0 for _ in shape[d + 1 :]))
                if width:
                    self.regions.append(self.nest(
                        f"{name}_border{d}_{first}", target, extents, lambda s, _: fill,
                        store=lambda s, start=start: tuple(
                            add(i, Const(at)) for i, at in zip(s, start, strict=True))))  # type: ignore[misc]  # fmt: skip

    def padded(self, source: int, s: tuple[Expr, ...], low: Shape, interior: Shape, value: Const) -> Expr:
        if 0 in self.shape(source):
            return value
        condition: Expr | None = None
        indices: list[Expr] = []
        for index, before, gap, extent in zip(s, low, interior, self.shape(source), strict=True):
            place = sub(index, Const(before))
            if gap:
                hit = Op("eq", (mod(place, gap + 1), ZERO), "bool")
                condition = both(condition, hit)
                condition = both(condition, Op("ge", (place, ZERO), "bool"))
                place = floordiv(place, gap + 1)
                condition = both(condition, less(place, Const(extent)))
            else:
                if before > 0:
                    condition = both(condition, Op("ge", (place, ZERO), "bool"))
                condition = both(condition, less(place, Const(extent)))
            indices.append(place)
        load = self.load(source, tuple(indices))
        return load if condition is None else Op("guard", (condition, load, value), value.dtype)

    def concat(self, name: str, node: Node, target: str, axis: int) -> None:
        offset = 0
        for position, source in enumerate(node.inputs):
            self.piece(f"{name}_{position}", source, target, axis, offset)
            offset += self.shape(source)[axis]

    def piece(self, name: str, source: int, target: str, axis: int, start: int) -> None:
        """One operand of a concatenation, which begins at `start` along the axis."""

        def place(s: tuple[Expr, ...]) -> tuple[Expr, ...]:
            return tuple(add(i, Const(start)) if d == axis else i for d, i in enumerate(s))

        self.regions.append(self.nest(name, target, self.shape(source), lambda s, _: self.load(source, s), store=place))

    def index(self, number: int, s: tuple[Expr, ...], extent: int) -> Expr:
        """An index from a tensor: negative ones count from the end, others are kept in bounds."""
        raw = _as(self.load(number, s), "int64")
        wrapped = Op("where", (less(raw, ZERO), Op("add", (raw, Const(extent))), raw), "int64")
        return Op("min", (Op("max", (wrapped, ZERO)), Const(max(extent - 1, 0))))

    def gather(self, name: str, node: Node, target: str, axis: int) -> None:
        data, indices = node.inputs
        rank = len(self.shape(indices))
        extent = self.shape(data)[axis]
        self.regions.append(self.nest(name, target, node.type.shape, lambda s, _: self.load(data, (
            *s[:axis], self.index(indices, s[axis : axis + rank], extent), *s[axis + rank :]))))  # fmt: skip

    def gather_nd(self, name: str, node: Node, target: str, batch: int) -> None:
        data, indices = node.inputs
        *outer, depth = self.shape(indices)
        count = len(outer)
        self.regions.append(self.nest(name, target, node.type.shape, lambda s, _: self.load(data, (
            *s[:batch],
            *(self.index(indices, (*s[:count], Const(i)), self.shape(data)[batch + i]) for i in range(depth)),
            *s[count:]))))  # fmt: skip

    def copy_into(self, name: str, source: int, target: str) -> None:
        self.regions.append(self.nest(f"{name}_copy", target, self.shape(source), lambda s, _: self.load(source, s)))

    def scatter(
        self, name: str, target: str, extents: Shape, reduction: str,
        store: Callable[[tuple[Expr, ...]], tuple[Expr, ...]], value: Callable[[tuple[Expr, ...]], Expr],
    ) -> None:  # fmt: skip
        """Updates in order: two of them may go to one place."""
        combine = {"none": None, "add": "sum", "mul": "prod", "max": "max", "min": "min"}[reduction]
        self.regions.append(self.nest(
            name, target, extents, lambda s, _: value(s), store=store, combine=combine,  # type: ignore[arg-type]
            kinds=("scan",) * len(extents)))  # fmt: skip

    def scan(self, name: str, node: Node, target: str, op: Scan) -> None:
        """A running combination, kept in a dtype that is wide enough for it."""
        shape, dtype = node.type.shape, node.type.dtype
        axis = op.axis % len(shape)
        last = Const(shape[axis] - 1)
        combine: Combine = op.kind  # type: ignore[assignment]
        wide = ACCUMULATE.get(dtype, dtype) if op.kind in ("sum", "prod") and dtype in FLOATS else dtype
        into = target if wide == dtype else self.buffer(f"{target}_wide", shape, wide, "intermediate")
        fn = {"sum": "add", "prod": "mul"}.get(op.kind, op.kind)
        if dtype == "bool":
            fn = {"max": "or", "min": "and"}.get(fn, fn)

        def place(s: tuple[Expr, ...], step: Expr) -> tuple[Expr, ...]:
            where = sub(last, step) if op.reverse else step
            return tuple(where if d == axis else i for d, i in enumerate(s))

        def value(s: tuple[Expr, ...], _: tuple[Expr, ...]) -> Expr:
            step = s[axis]
            before = sub(step, ONE)
            started = Op("ge", (step, ONE), "bool")
            running = Load(into, place(s, before), wide)
            if op.exclusive:
                both_ = Op(fn, (running, _as(self.load(node.inputs[0], place(s, before)), wide)), wide)
                return Op("guard", (started, both_, neutral(combine, wide)), wide)
            here = _as(self.load(node.inputs[0], place(s, step)), wide)
            return Op(fn, (Op("guard", (started, running, neutral(combine, wide)), wide), here), wide)

        kinds = tuple("scan" if d == axis else "spatial" for d in range(len(shape)))
        self.regions.append(self.nest(name, into, shape, value, store=lambda s: place(s, s[axis]), kinds=kinds))
        self.narrow(name, into, target, shape, wide, dtype)

    def top(self, name: str, node: Node, target: str, op: TopK) -> None:
        """Selection: each place is the best of what comes after the place before it, by value and then by position."""
        (source,) = node.inputs
        shape, dtype = self.shape(source), self.graph.nodes[source].type.dtype
        axis = op.axis % len(shape)
        out = node.type.shape
        extent = shape[axis]
        kind: Combine = "max" if op.largest else "min"
        best = self.buffer(f"{target}_best", out, dtype, "intermediate")
        place = target if op.part == "indices" else self.buffer(f"{target}_place", out, "int64", "intermediate")

        def swap(s: tuple[Expr, ...], index: Expr) -> tuple[Expr, ...]:
            return tuple(index if d == axis else i for d, i in enumerate(s))

        def key(s: tuple[Expr, ...], index: Expr) -> Expr:
            x = self.load(source, swap(s, index))
            if dtype in FLOATS:  # NaN counts as the largest
                return Op("where", (Op("isnan", (x,), "bool"), Const(float("inf"), dtype), x), dtype)
            return x

        def after(s: tuple[Expr, ...], r: Expr) -> Expr:
            earlier = swap(s, sub(s[axis], ONE))
            was, at = Load(best, earlier, dtype), Load(place, earlier, "int64")
            worse = Op("lt" if op.largest else "gt", (key(s, r), was), "bool")
            tied = Op("and", (Op("eq", (key(s, r), was), "bool"), Op("gt", (r, at), "bool")), "bool")
            first = Op("ge", (s[axis], ONE), "bool")
            return Op("guard", (first, Op("or", (worse, tied), "bool"), Const(True, "bool")), "bool")

        iters = [(f"s{d}", n, "scan" if d == axis else "spatial") for d, n in enumerate(out)]
        s = tuple(Var(var) for var, _, _ in iters)
        r = Var("r0")
        outer = tuple(Iter(var, Poly.of(n), role, Var(f"{name}_{var}")) for var, n, role in iters)  # type: ignore[arg-type]

        def search(suffix: str, into: str, value: Expr, how: Combine, init: Const) -> Stmt:
            iter_ = Iter("r0", Poly.of(extent), "reduce", Var(f"{name}_{suffix}_r0"))
            block = Block(f"{name}_{suffix}", (*outer, iter_), into, s, value, how, init)
            return Loop((Axis(f"{name}_{suffix}_r0", Poly.of(extent)),), block)

        worst = neutral(kind, dtype)
        candidate = Op("where", (after(s, r), key(s, r), worst), dtype)
        hit = Op("and", (after(s, r), Op("eq", (key(s, r), Load(best, s, dtype)), "bool")), "bool")
        body: Stmt = Seq((
            search("best", best, candidate, kind, worst),
            search("place", place, Op("where", (hit, r, Const(extent)), "int64"), "min", Const(extent)),
        ))  # type: ignore[arg-type]  # fmt: skip
        # the chosen axis is the slowest below the others, so that each row is selected in order
        order = [d for d in range(len(out)) if d != axis] + [axis]
        for d in reversed(order):
            body = Loop((Axis(f"{name}_s{d}", Poly.of(out[d])),), body)
        self.regions.append(body)
        if op.part == "values":
            self.regions.append(self.nest(
                f"{name}_take", target, out,
                lambda i, _: self.load(source, swap(i, Load(place, i, "int64")))))  # fmt: skip


def _idle(stmt: Stmt) -> bool:
    """Does nothing run in the nest, because a loop around all of it has no iteration?"""
    while isinstance(stmt, Loop):
        if any(not axis.extent.terms for axis in stmt.axes):
            return True
        stmt = stmt.body
    return False


def padded_value(graph: Graph, number: int) -> int | None:
    """The value, computed in the same graph, whose elements a padding puts in their place; None where it has to look
    them up instead: it crops, spreads, or pads what comes from outside."""
    node = graph.nodes[number]
    op = node.op
    if not isinstance(op, Pad) or any(op.interior) or any(n < 0 for n in (*op.low, *op.high)):
        return None
    base = node.inputs[0]
    while isinstance(graph.nodes[base].op, Reshape):
        base = graph.nodes[base].inputs[0]
    return None if isinstance(graph.nodes[base].op, Input | Constant) else base


def _only_padded(graph: Graph) -> frozenset[int]:
    """Reshapes that nothing but such paddings read."""
    readers: dict[int, list[int]] = {}
    for number, node in enumerate(graph.nodes):
        for source in node.inputs:
            readers.setdefault(source, []).append(number)
    found: set[int] = set()
    for number in range(len(graph.nodes) - 1, -1, -1):
        if isinstance(graph.nodes[number].op, Reshape) and readers.get(number):
            users = readers[number]
            if all(user in found or padded_value(graph, user) is not None for user in users):
                found.add(number)
    return frozenset(found)


def _affine(map_: AffineMap, variables: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return tuple(_affine_dim(dim, variables) for dim in map_)


def _affine_dim(dim: AffineDim, variables: tuple[Expr, ...]) -> Expr:
    total: Expr = Const(dim.offset)
    for variable, coefficient in dim.terms:
        total = add(total, mul(variables[variable], Const(coefficient)))
    return total


def _broadcast(s: tuple[Expr, ...], shape: Shape) -> tuple[Expr, ...]:
    """The indices of an operand of that shape, broadcast as NumPy does."""
    kept = s[len(s) - len(shape) :]
    return tuple(ZERO if extent == 1 else index for index, extent in zip(kept, shape, strict=True))


def _reshape(s: tuple[Expr, ...], to: Shape, source: Shape) -> tuple[Expr, ...]:
    """The indices in the source of an element of the reshaped tensor, group by group of dimensions of equal size."""
    if 0 in source:
        return tuple(ZERO for _ in source)  # no element to ask for
    indices: list[Expr] = []
    i = j = 0
    while i < len(source) or j < len(to):
        left, right = (source[i] if i < len(source) else 1), (to[j] if j < len(to) else 1)
        i2, j2 = min(i + 1, len(source)), min(j + 1, len(to))
        while left != right:
            if left < right and i2 < len(source):
                left, i2 = left * source[i2], i2 + 1
            elif j2 < len(to):
                right, j2 = right * to[j2], j2 + 1
            else:
                left, i2 = left * source[i2], i2 + 1
        flat: Expr = ZERO
        for index, extent in zip(s[j:j2], to[j:j2], strict=True):
            flat = add(mul(flat, Const(extent)), index)
        inner = 1
        group: list[Expr] = []
        for position in reversed(range(i, i2)):
            part = floordiv(flat, inner) if inner > 1 else flat
            group.append(ZERO if source[position] == 1 else (part if position == i else mod(part, source[position])))
            inner *= source[position]
        indices.extend(reversed(group))
        i, j = i2, j2
    return tuple(indices)


def _scatter_axes(s: tuple[Expr, ...], r: tuple[Expr, ...], axes: tuple[int, ...], rank: int) -> tuple[Expr, ...]:
    """Kept and reduced indices put where the operand has them."""
    kept, gone = iter(s), iter(r)
    return tuple(next(gone) if axis in axes else next(kept) for axis in range(rank))


def _as(expr: Expr, dtype: DType) -> Expr:
    if isinstance(expr, Const):
        return Const(_number(expr.value, dtype), dtype)
    have = expr.dtype if isinstance(expr, Load | Op) else "int64"
    return expr if have == dtype else Op("cast", (expr,), dtype)


def _number(value: float, dtype: DType) -> int | float | bool:
    if dtype in FLOATS:
        return float(value)
    return bool(value) if dtype == "bool" else int(value)


def _python(data: np.ndarray) -> int | float | bool:
    value = data.reshape(-1)[0].item()
    return value if isinstance(value, int | float | bool) else float(value)


def output_name(position: int) -> str:
    """The kernel argument of an output of the graph."""
    return f"out{position}"


def argument_name(name: str) -> str:
    """The kernel argument of an input of the graph: a name that the text form can hold."""
    clean = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return clean if clean and not clean[0].isdigit() else f"x_{clean}"


def _stem(op: object) -> str:
    if isinstance(op, Elementwise):
        return {"and": "and_", "or": "or_", "not": "not_"}.get(op.fn, op.fn)
    return type(op).__name__.lower()
