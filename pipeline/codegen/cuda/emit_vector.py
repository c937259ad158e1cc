"""Vectorized loops as C++: loads and stores of 2 to 16 bytes where memory is contiguous and aligned."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace

from pipeline.codegen.cuda.cpp import EQUAL, MEMORY, Cpp
from pipeline.codegen.cuda.emit_block import BlockEmitter, rounded_once
from pipeline.codegen.cuda.emit_state import Place
from pipeline.codegen.cuda.lanes import Lanes, multiple
from pipeline.codegen.cuda.scalar import stored
from pipeline.ir.expr import Const, Expr, Load, Op, Var, add, children, loads, mul, substitute, variables, walk
from pipeline.ir.poly import Poly
from pipeline.ir.program import Axis, Block, map_block_exprs
from pipeline.ir.program_bounds import Facts

WIDEST = 16  # bytes that one thread moves at a time


@dataclass(frozen=True, slots=True)
class Wide:
    """An access of a block that can be made by vectors.

    place    what is accessed, at which indices (over iteration variables)
    width    elements of one vector
    only_if  conditions, all lanes alike, under which it may be read
    """

    place: Place
    indices: tuple[Expr, ...]
    width: int
    only_if: tuple[Expr, ...] = ()


Plan = tuple[dict[Load, Wide], Wide | None]  # loads by vectors, and whether the store is one


@dataclass(slots=True)
class VectorEmitter(BlockEmitter):
    """Vectorized loops. The pointers of arguments are multiples of 16 bytes.

    vectors   loads that were made before the lanes part: the array of vectors, and the elements of each
    """

    vectors: dict[Load, tuple[str, int, int]] = field(default_factory=dict)
    lane: str = ""

    def vectorized(self, axis: Axis, block: Block) -> bool:
        """The loop by vectors of as many elements as 16 bytes hold; False where no access can be."""
        extent = axis.extent.value
        if extent < 2 or block.init is not None:
            return False
        block = self.settled(block)
        items = [self.places[name].item for name, _ in accesses(block) if not self.places[name].private]
        count = math.gcd(extent, WIDEST // min(items, default=WIDEST))
        plan: Plan | None = None
        while count > 1 and plan is None:
            lanes = Lanes(axis.var, count)
            inner = block if count == extent else _chunked(block, axis.var, count)
            plan = self.plan(lanes, inner)
            count //= 1 if plan is not None else 2
        if plan is None:
            return False
        if count == extent:
            self.lanes_of(lanes, block, plan)
            return True
        with self.scope():
            self.lines.add("#pragma unroll")
            taken = set(self.names.taken)
            chunk = Axis(f"{axis.var}_c", Poly.of(extent // count))
            name = self.declare(chunk)
            with self.braces(f"for (int {name} = 0; {name} < {extent // count}; ++{name})"):
                self.lanes_of(lanes, inner, plan)
            self.names.taken = taken
        return True

    def plan(self, lanes: Lanes, block: Block) -> Plan | None:
        """Which accesses are made by vectors; None where none is, or where conditions break them up."""
        bindings = {it.var: it.binding for it in block.iters}
        domain = [test for it in block.iters for test in _domain(it.binding, it.extent.value)]
        if not all(lanes.straight(c) for c in domain) or not all(lanes.straight(c) for c in block.where):
            return None
        if any(loads(c) for c in block.where):
            return None
        found: dict[Load, Wide] = {}
        for load, guards in _guarded(block.value).items():
            needed = () if () in guards else guards[0]
            over = [substitute(c, bindings) for c in needed]
            if (needed and len(set(guards)) > 1) or not all(lanes.alike(c) and not loads(c) for c in over):
                continue
            wide = self.wide_access(lanes, load.buffer, load.indices, bindings)
            if wide is not None:
                found[load] = replace(wide, only_if=needed)
        store = self.wide_access(lanes, block.buffer, block.indices, bindings)
        if any(load.buffer == block.buffer and load.indices != block.indices for load in loads(block.value)):
            return None
        return (found, store) if found or store is not None else None

    def wide_access(self, lanes: Lanes, buffer: str, indices: tuple[Expr, ...],
                    bindings: dict[str, Expr]) -> Wide | None:  # fmt: skip
        """The access by vectors, where the lanes are neighbours in memory."""
        place = self.places[buffer]
        if place.private or not indices or any(loads(index) for index in indices):
            return None
        *outer, last = (substitute(index, bindings) for index in indices)
        if lanes.change(last) != "unit" or any(lanes.change(index) != "uniform" for index in outer):
            return None
        width = min(lanes.count, WIDEST // place.item)
        start = lanes.first(last)
        while width > 1 and not (multiple(start, width) and (not outer or place.row % width == 0)):
            width //= 2
        return Wide(place, indices, width) if width > 1 else None

    def lanes_of(self, lanes: Lanes, block: Block, plan: Plan) -> None:
        """The lanes at hand: all by vectors where all conditions hold in the first and the last lane, else one by
        one, each under its own."""
        ragged = False
        first = map_block_exprs(block, lanes.first)
        with self.scope():
            bindings = self.bindings
            self.facts = Facts({**self.facts.ranges, lanes.var: (0, lanes.count - 1)}, self.facts.sums)
            conditions = self.open_conditions(block)
            if conditions is None:
                return
            self.bindings = {it.var: it.binding for it in first.iters}
            self.enter_lanes(lanes, block, first, [test for _, test in conditions])
            tests: list[Cpp] = []
            for condition, test in conditions:
                if self.decide(lanes.first(condition)) is None:
                    tests.append(self.value(test))
                if not lanes.alike(condition):
                    ragged = True
                    tests.append(self.value(lanes.last(condition)))
                self.learn(lanes.first(condition))
                self.learn(condition)
            head = " && ".join(test.at(EQUAL) for test in tests) if len(tests) > 1 else "".join(map(str, tests))
            if head:
                with self.braces(f"if ({head})"):
                    self.by_vectors(lanes, block, first, *plan)
            else:
                self.by_vectors(lanes, block, first, *plan)
            self.bindings = bindings
        if ragged:
            self.lines.text[-1] += " else {"
            self.lines.depth += 1
            self.one_by_one(lanes, block)
            self.lines.depth -= 1
            self.lines.add("}")

    def open_conditions(self, block: Block) -> list[tuple[Expr, Expr]] | None:
        """The conditions that are not proven for all lanes, over loop variables and as they are written; None where
        one never holds."""
        found = []
        for it in block.iters:
            for over, own in zip(
                _domain(it.binding, it.extent.value), _domain(Var(it.var), it.extent.value), strict=True
            ):
                known = self.decide(over)
                if known is False:
                    return None
                if known is None:
                    found.append((over, own))
        for condition in block.where:
            known = self.decide(condition)
            if known is False:
                return None
            if known is None:
                found.append((condition, condition))
        kept = {id(over) for over in self.needed([over for over, _ in found])}
        return [pair for pair in found if id(pair[0]) in kept]

    def enter_lanes(self, lanes: Lanes, block: Block, first: Block, tests: list[Expr]) -> None:
        """Declares the iteration variables that are used again: what they are in all lanes, or in the first."""
        uses = Counter(name for expr in (*block.indices, block.value, *tests) for name in names_of(expr))
        moving = {it.var for it in block.iters if lanes.var in variables(it.binding)}
        for it in first.iters:
            start = self.index(it.binding)
            if uses[it.var] > 1 and not isinstance(it.binding, Const | Var):
                start = self.constant(f"{it.var}_0" if it.var in moving else it.var, start)
            self.env[it.var] = start

    def one_by_one(self, lanes: Lanes, block: Block) -> None:
        self.lines.add("#pragma unroll")
        with self.scope():
            taken = set(self.names.taken)
            name = self.declare(Axis(lanes.var, Poly.of(lanes.count)))
            with self.braces(f"for (int {name} = 0; {name} < {lanes.count}; ++{name})"):
                self.block(block)
            self.names.taken = taken

    def by_vectors(self, lanes: Lanes, block: Block, first: Block, found: dict[Load, Wide], store: Wide | None) -> None:
        """Loads, then what each lane computes, then stores."""
        before = self.bindings, self.vectors, self.lane
        for it in block.iters:  # in any lane
            low, high = self.bounds(it.binding)
            ranges = {**self.facts.ranges, it.var: (max(low, 0), min(high, it.extent.value - 1))}
            self.facts = Facts(ranges, self.facts.sums)
        self.bindings = {it.var: it.binding for it in first.iters}
        if store is not None and self.moves(lanes, block, found, store):
            self.bindings, self.vectors, self.lane = before
            return
        self.vectors = {}
        for load, wide in found.items():
            self.vectors[load] = (self.loaded_vectors(wide, lanes), wide.width, lanes.count)
        old = ""
        if store is not None and block.combine is not None:
            old = self.loaded_vectors(store, lanes)
        result = self.vector_array(store, lanes, "result") if store is not None else ""
        self.lines.add("#pragma unroll")
        with self.scope():
            taken = set(self.names.taken)
            name = self.lane = self.declare(Axis(lanes.var, Poly.of(lanes.count)))
            self.bindings = {it.var: it.binding for it in block.iters}
            with self.braces(f"for (int {name} = 0; {name} < {lanes.count}; ++{name})"):
                for it in block.iters:
                    if lanes.var in variables(it.binding):
                        self.env[it.var] = self.index(it.binding)
                if store is None:
                    self.store(block)
                else:
                    place = store.place
                    into = self.picked(result, store.width, lanes.count, place)
                    if block.combine is None:
                        value = stored(self.value(rounded_once(block.value)), place.buffer.dtype)
                    else:
                        value = self.combined(block, place, self.picked(old, store.width, lanes.count, place))
                    self.lines.add(f"{into} = {value};")
            self.names.taken = taken
        self.bindings = {it.var: it.binding for it in first.iters}
        if store is not None:
            for number in range(lanes.count // store.width):
                piece = result if lanes.count == store.width else f"{result}[{number}]"
                offset = self.further(store.place, store.indices, number * store.width)
                self.lines.add(f"ms::store<{store.width}>({store.place.name}, {offset}, {piece});")
        self.bindings, self.vectors, self.lane = before

    def moves(self, lanes: Lanes, block: Block, found: dict[Load, Wide], store: Wide) -> bool:
        """A copy without a change of dtype is a load and a store."""
        wide = found.get(block.value) if isinstance(block.value, Load) else None
        if wide is None or block.combine is not None or wide.width != store.width or wide.only_if:
            return False
        if wide.place.buffer.dtype != store.place.buffer.dtype:
            return False
        for number in range(lanes.count // store.width):
            into = self.further(store.place, store.indices, number * store.width)
            from_ = self.further(wide.place, wide.indices, number * store.width)
            value = f"ms::load<{store.width}>({wide.place.name}, {from_})"
            self.lines.add(f"ms::store<{store.width}>({store.place.name}, {into}, {value});")
        return True

    def further(self, place: Place, indices: tuple[Expr, ...], elements: int) -> Cpp:
        """The offset of an element some elements on in its row, which a swizzle may have put anywhere in that row."""
        if elements:
            indices = (*indices[:-1], Op("add", (indices[-1], Const(elements))))
        return self.offset(place, indices)

    def vector_array(self, wide: Wide, lanes: Lanes, wanted: str) -> str:
        """Declares the vectors that hold what the lanes access."""
        name, pieces = self.names.new(wanted), lanes.count // wide.width
        type_ = f"ms::vec<{MEMORY[wide.place.buffer.dtype]}, {wide.width}>"
        self.lines.add(f"{type_} {name}{f'[{pieces}]' if pieces > 1 else ''};")
        return name

    def loaded_vectors(self, wide: Wide, lanes: Lanes) -> str:
        pieces = lanes.count // wide.width
        offset = self.offset(wide.place, wide.indices)
        wanted = f"{wide.place.name}_{lanes.count}"
        tests = [self.value(c) for c in wide.only_if if self.decide(c) is not True]
        if pieces == 1 and not tests:
            name = self.names.new(wanted)
            self.lines.add(f"const auto {name} = ms::load<{wide.width}>({wide.place.name}, {offset});")
            return name
        name = self.vector_array(wide, lanes, wanted)
        if tests:
            self.lines.text[-1] = self.lines.text[-1].removesuffix(";") + " = {};"
        head = " && ".join(test.at(EQUAL) for test in tests) if len(tests) > 1 else "".join(map(str, tests))

        def read() -> None:
            for number in range(pieces):
                piece = name if pieces == 1 else f"{name}[{number}]"
                at = self.further(wide.place, wide.indices, number * wide.width)
                self.lines.add(f"{piece} = ms::load<{wide.width}>({wide.place.name}, {at});")

        if head:
            with self.braces(f"if ({head})"):
                read()
        else:
            read()
        return name

    def picked(self, name: str, width: int, count: int, place: Place) -> Cpp:
        """The lane's own element of an array of vectors."""
        text = f"{name}[{self.lane}]" if width == count else f"{name}[{self.lane} / {width}][{self.lane} % {width}]"
        return Cpp(text, MEMORY[place.buffer.dtype])

    def read(self, load: Load) -> Cpp:
        if load in self.vectors and self.lane:
            name, width, count = self.vectors[load]
            place = self.places[load.buffer]
            return self.loaded(place, self.picked(name, width, count, place))
        return BlockEmitter.read(self, load)


def _chunked(block: Block, var: str, count: int) -> Block:
    """The block inside two loops, chunks and the lanes of each, in place of the one over both."""
    index = add(mul(Var(f"{var}_c"), Const(count)), Var(var))
    iters = tuple(replace(it, binding=substitute(it.binding, {var: index})) for it in block.iters)
    return replace(block, iters=iters, where=tuple(substitute(c, {var: index}) for c in block.where))


def _domain(binding: Expr, extent: int) -> tuple[Expr, Expr]:
    return Op("ge", (binding, Const(0)), "bool"), Op("lt", (binding, Const(extent)), "bool")


def _guarded(value: Expr) -> dict[Load, list[tuple[Expr, ...]]]:
    """Every load with the conditions under which each of its occurrences is evaluated."""
    found: dict[Load, list[tuple[Expr, ...]]] = {}

    def visit(expr: Expr, conditions: tuple[Expr, ...]) -> None:
        if isinstance(expr, Load):
            found.setdefault(expr, []).append(conditions)
        if isinstance(expr, Op) and expr.fn == "guard":
            test, yes, no = expr.args
            visit(test, conditions)
            visit(yes, (*conditions, test))
            visit(no, (*conditions, Op("not", (test,), "bool")))
            return
        for child in children(expr):
            visit(child, conditions)

    visit(value, ())
    return found


def names_of(expr: Expr) -> list[str]:
    return [node.name for node in walk(expr) if isinstance(node, Var)]


def accesses(block: Block) -> list[tuple[str, tuple[Expr, ...]]]:
    return [(block.buffer, block.indices), *((load.buffer, load.indices) for load in loads(block.value))]
