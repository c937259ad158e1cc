"""Fragments as C++: register arrays of each lane, and blocks at the elements that a lane holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pipeline.codegen.cuda.cpp import AND, ATOM, HALVES, INDENT, MEMORY, PRODUCT, VALUE, Cpp, call, choice, converted
from pipeline.codegen.cuda.emit import Emitter
from pipeline.codegen.cuda.emit_block import FUNCTIONS, rounded_once
from pipeline.codegen.cuda.emit_state import Place
from pipeline.codegen.cuda.emit_value import ValueEmitter
from pipeline.codegen.cuda.fragment_layout import LANE, LANES, Layout
from pipeline.codegen.cuda.scalar import scalar, stored
from pipeline.errors import CodegenError
from pipeline.ir.expr import Expr, Load, affine, map_children, substitute
from pipeline.ir.graph import DType
from pipeline.ir.poly import Poly
from pipeline.ir.program import Block, Buffer, Stmt, map_block_exprs
from pipeline.ir.program_bounds import Facts
from pipeline.schedule.nest import indices_over_loops


@dataclass(slots=True)
class FragmentEmitter(Emitter):
    """Elements of fragments.

    layouts   of the fragments of the function
    held      loads whose values are in registers already, their indices over loop variables
    """

    layouts: Mapping[str, Layout] = field(default_factory=dict)
    held: dict[Load, Cpp] = field(default_factory=dict)

    @contextmanager
    def lanes(self) -> Iterator[None]:
        """Inside, it can be said which lane this is."""
        self.used.add("lane")
        with self.scope():
            for name, (text, values) in LANES.items():
                self.env[name] = Cpp(text, "int", ATOM if name == LANE else PRODUCT)
                self.facts = Facts({**self.facts.ranges, name: (0, values - 1)}, self.facts.sums)
            yield

    def registers(self, buffer: Buffer) -> Place:
        """Declares the array of a fragment."""
        layout = self.layouts.get(buffer.name)
        if layout is None:
            raise CodegenError(f"no unit uses the fragment {buffer.name}", where="codegen.cuda",
                               todo="Tensorize what writes and reads it, or allocate it as local")  # fmt: skip
        place = Place(buffer, self.names.new(buffer.name), private=True)
        leading = "".join(f"[{extent}]" for extent in place.shape[: len(place.shape) - len(layout.shape)])
        self.lines.add(f"{layout.type} {place.name}{leading}[{layout.registers}];  // {layout}")
        return place

    def fragment(self, buffer: Buffer, body: Stmt) -> None:
        with self.scope(), self.placed({buffer.name: self.registers(buffer)}):
            self.statement(body)

    def is_fragment(self, name: str) -> bool:
        return name in self.layouts

    def over_nest(self, expr: Expr) -> Cpp:
        """An index that is over the variables of loops."""
        bindings, self.bindings = self.bindings, {}
        text = self.index(expr)
        self.bindings = bindings
        return text

    def tile(self, place: Place, indices: tuple[Expr, ...]) -> str:
        """The registers of the tile that the indices are in."""
        leading = indices[: len(indices) - len(self.layouts[place.buffer.name].shape)]
        return place.name + "".join(f"[{self.over_nest(self.over_loops(index))}]" for index in leading)

    def register(self, place: Place, indices: tuple[Expr, ...]) -> tuple[str, int]:
        """The register in which this lane holds an element, and which part of it that is. CodegenError where another
        lane holds it."""
        layout = self.layouts[place.buffer.name]
        inner = tuple(self.over_loops(index) for index in indices[len(indices) - len(layout.shape) :])
        slot = layout.slot(inner)
        if slot is None:
            raise CodegenError(f"a lane needs an element of {place.buffer.name} that another lane holds",
                               where="codegen.cuda", why=f"It lies as {layout}",
                               todo="Convert it through shared memory")  # fmt: skip
        return f"{self.tile(place, indices)}[{self.over_nest(slot.register)}]", slot.part

    def part_of(self, place: Place, register: str, part: int) -> Cpp:
        """An element in the type of memory."""
        layout, dtype = self.layouts[place.buffer.name], place.buffer.dtype
        if layout.type == MEMORY[dtype]:
            return Cpp(register, VALUE[dtype])
        if layout.per == 1:
            return Cpp(f"ms::from_word({register})", VALUE[dtype])
        return Cpp(f"ms::unpack<{MEMORY[dtype]}>({register}, {part})", VALUE[dtype])

    def element(self, place: Place, indices: tuple[Expr, ...]) -> Cpp:
        if not self.is_fragment(place.buffer.name):
            return ValueEmitter.element(self, place, indices)
        return self.part_of(place, *self.register(place, indices))

    def read(self, load: Load) -> Cpp:
        if self.held:
            found = self.held.get(self.load_over_loops(load))
            if found is not None:
                return found
        return Emitter.read(self, load)

    def load_over_loops(self, load: Load) -> Load:
        return Load(load.buffer, tuple(self.over_loops(index) for index in load.indices), load.dtype)

    # Blocks at single places of a nest

    def at(self, block: Block, variables: tuple[str, ...], place: tuple[Expr, ...]) -> Block:
        """The block with the loop variables of its nest replaced by where a lane is. Its indices into fragments are
        over loop variables then: no lane computes them."""
        where = {**self.known, **dict(zip(variables, place, strict=True))}
        here = map_block_exprs(block, lambda expr: substitute(expr, where))

        def settled(expr: Expr) -> Expr:
            if isinstance(expr, Load) and self.is_fragment(expr.buffer):
                return Load(expr.buffer, indices_over_loops(here, expr.indices), expr.dtype)
            return map_children(expr, settled)

        target = indices_over_loops(here, here.indices) if self.is_fragment(block.buffer) else here.indices
        return replace(here, indices=target, value=settled(here.value), where=tuple(map(settled, here.where)))

    @contextmanager
    def braced(self) -> Iterator[None]:
        """Braces around what is emitted inside, if it declares anything."""
        lines, start, depth = self.lines, len(self.lines.text), self.lines.depth
        taken, constants, bindings = set(self.names.taken), dict(self.constants), self.bindings
        with self.scope():
            yield
        self.names.taken, self.constants, self.bindings = taken, constants, bindings
        added = lines.text[start:]
        if any(line.startswith(INDENT * depth + "const ") for line in added):
            inside = [f"{INDENT}{line}" if line else line for line in added]
            lines.text[start:] = [f"{INDENT * depth}{{", *inside, f"{INDENT * depth}}}"]

    def packed(self, blocks: Sequence[Block]) -> None:
        """The elements of one register of a fragment, each of which one of the blocks stores."""
        place, bindings = self.places[blocks[0].buffer], self.bindings
        dtype = place.buffer.dtype
        values: list[Cpp] = []
        target = ""
        for block in blocks:
            with self.scope():
                target, part = self.register(place, block.indices)
                old = self.loaded(place, self.part_of(place, target, part))
                tests = self.enter(block)
                value = old if tests is None else self.value(rounded_once(block.value))
                if tests is not None and block.combine is not None:
                    value = scalar(FUNCTIONS[block.combine], (old, converted(value, VALUE[dtype])), dtype, dtype)
                if tests:
                    test = Cpp(" && ".join(test.at(AND) for test in tests), "bool", AND)
                    value = choice(test, converted(value, VALUE[dtype]), old, VALUE[dtype])
                values.append(value)
        self.lines.add(f"{target} = {self.word(values, dtype)};")
        self.bindings = bindings

    def word(self, values: list[Cpp], dtype: DType) -> Cpp:
        """One register that holds all the values."""
        if dtype in HALVES:
            return call(f"ms::pack<{MEMORY[dtype]}>", values, "unsigned")
        return call("ms::pack" if len(values) > 1 else "ms::to_tf32", [stored(v, dtype) for v in values], "unsigned")

    def complete(self, block: Block, variables: tuple[str, ...], extents: tuple[int, ...]) -> bool:
        """Is it proven that a block runs at all places of its nest?"""
        with self.scope():
            block = map_block_exprs(block, lambda expr: substitute(expr, self.known))
            ranges = {var: (0, extent - 1) for var, extent in zip(variables, extents, strict=True)}
            self.facts = Facts({**self.facts.ranges, **ranges}, self.facts.sums)
            bindings, self.bindings = self.bindings, {it.var: it.binding for it in block.iters}
            bounds = [(*self.bounds(it.binding), it.extent.value) for it in block.iters]
            whole = all(low >= 0 and high < extent for low, high, extent in bounds)
            whole = whole and all(self.decide(condition) is True for condition in block.where)
            self.bindings = bindings
            return whole


def neighbours(indices: Sequence[tuple[Expr, ...]], place: Place) -> bool:
    """Are the elements, given by their indices over loop variables, next to one another in memory, and the first at a
    multiple of their number? All buffers begin at one, and so do the stages of a pipeline."""
    count = len(indices)
    if count * place.item not in (2, 4, 8, 16) or not indices[0]:
        return False
    *leading, last = indices[0]
    start = affine(last)
    number = Poly.of(count)
    if start is None or (leading and place.row % count) or (place.base and place.count % count):
        return False
    if start.constant.quotient(number) is None or any(step.quotient(number) is None for _, step in start.terms):
        return False
    for distance, others in enumerate(indices):
        form = affine(others[-1])
        if form is None or form.terms != start.terms or form.constant + -distance != start.constant:
            return False
        if others[:-1] != tuple(leading):
            return False
    return True
