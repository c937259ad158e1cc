"""Reductions over the columns of a row of accumulators, and over the lanes of a warp."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.codegen.cuda.cpp import AND, VALUE, Cpp, call, choice, converted, literal
from pipeline.codegen.cuda.emit_block import FUNCTIONS
from pipeline.codegen.cuda.emit_warp_load import LoadEmitter
from pipeline.codegen.cuda.fragment_layout import LANE, Layout
from pipeline.codegen.cuda.scalar import scalar, stored
from pipeline.ir.expr import Var, affine, substitute, variables
from pipeline.ir.graph import DType
from pipeline.ir.program import Block, Combine, Loop
from pipeline.ir.scalar_limits import neutral_number
from pipeline.schedule.nest import over_loops
from pipeline.schedule.unit_match import UnitMatch

HALVES_OF_ROWS = 2  # a lane holds elements of two rows of an accumulator


@dataclass(slots=True)
class ReduceEmitter(LoadEmitter):
    """Reductions by shuffles."""

    def row_reduction(self, found: UnitMatch) -> None:
        """The four lanes of a group hold the columns of its rows."""
        parts = [self.partial(found, half) for half in range(HALVES_OF_ROWS)]
        self.reduce_rows(found.block, parts)

    def row_reductions(self, loop: Loop, found: UnitMatch) -> bool:
        """A loop around one reduction into rows that stay: each lane reduces what it holds of all tiles first. False
        where it is another loop."""
        (axis,) = loop.axes
        indices = [affine(over_loops(found.block, index)) for index in found.block.indices]
        if any(form is None or form.coefficient(axis.var).terms for form in indices):
            return False
        dtype = self.places[found.block.buffer].buffer.dtype
        combine = _combine(found.block)
        with self.braces(), self.scope():
            name = self.names.new("part")
            start = _neutral(combine, dtype)
            self.lines.add(f"{start.type} {name}[{HALVES_OF_ROWS}] = {{{start}, {start}}};")
            with self.scope():
                variable = self.declare(axis)
                self.lines.add("#pragma unroll")
                with self.braces(f"for (int {variable} = 0; {variable} < {axis.extent.value}; ++{variable})"):
                    for half in range(HALVES_OF_ROWS):
                        part = self.partial(found, half)
                        total = Cpp(f"{name}[{half}]", start.type)
                        self.lines.add(f"{total} = {_combined(combine, total, part, dtype)};")
            parts = [Cpp(f"{name}[{half}]", start.type) for half in range(HALVES_OF_ROWS)]
            self.reduce_rows(found.block, parts)
        return True

    def partial(self, found: UnitMatch, half: int) -> Cpp:
        """What a lane holds of one of its rows of one tile, reduced."""
        block, dtype = found.block, self.places[found.block.buffer].buffer.dtype
        combine = _combine(block)
        parts = []
        for _, place in list(Layout("accumulator", "float32").elements())[2 * half : 2 * half + 2]:
            with self.assuming(self.facts):
                parts.append(self.reduced_value(self.at(block, found.variables, place), combine))
        return _combined(combine, parts[0], parts[1], dtype)

    def reduced_value(self, block: Block, combine: Combine) -> Cpp:
        """The value of the block at one place, and the neutral one where it does not run."""
        dtype = self.places[block.buffer].buffer.dtype
        tests = self.enter(block)
        if tests is None:
            return _neutral(combine, dtype)
        value = converted(self.value(block.value), VALUE[dtype])
        if not tests:
            return value
        test = Cpp(" && ".join(test.at(AND) for test in tests), "bool", AND)
        return Cpp(f"({choice(test, value, _neutral(combine, dtype), VALUE[dtype])})", VALUE[dtype])

    def reduce_rows(self, block: Block, parts: list[Cpp]) -> None:
        """Over the group, and with what the rows hold already."""
        place, combine = self.places[block.buffer], _combine(block)
        dtype = place.buffer.dtype
        rows = self.tile(place, tuple(substitute(over_loops(block, index), self.known) for index in block.indices))
        for half, part in enumerate(parts):
            register = Cpp(f"{rows}[{half}]", VALUE[dtype])
            across = call(f"ms::quad_{combine}<{part.type}>", (part,), part.type)
            self.lines.add(
                f"{register} = {stored(_combined(combine, self.loaded(place, register), across, dtype), dtype)};"
            )

    def lane_reduction(self, found: UnitMatch) -> None:
        block, combine = found.block, _combine(found.block)
        place = self.places[block.buffer]
        dtype = place.buffer.dtype
        here = self.at(block, found.variables, (Var(LANE),))
        with self.assuming(self.facts):
            value = self.reduced_value(here, combine)
        across = call(f"ms::warp_{combine}<{value.type}>", (value,), value.type)
        self.bindings = {it.var: it.binding for it in here.iters}
        if self.is_fragment(block.buffer):
            element = self.element(place, here.indices)
            total = _combined(combine, self.loaded(place, element), across, dtype)
            self.lines.add(f"{element} = {stored(total, dtype)};")
            return
        name = self.constant("total", across)
        alike = replace(
            here,
            iters=tuple(it for it in here.iters if LANE not in variables(it.binding)),
            where=tuple(condition for condition in here.where if LANE not in variables(condition)),
        )
        tests = self.enter(alike)
        if tests is not None:
            element = self.element(place, here.indices)
            total = _combined(combine, self.loaded(place, element), name, dtype)
            with self.braces(f"if ({' && '.join(['lane == 0', *(test.at(AND) for test in tests)])})"):
                self.lines.add(f"{element} = {stored(total, dtype)};")


def _neutral(combine: Combine, dtype: DType) -> Cpp:
    return literal(neutral_number(combine, dtype), dtype)


def _combine(block: Block) -> Combine:
    assert block.combine is not None  # the units that reduce are matched by how they combine
    return block.combine


def _combined(combine: Combine, a: Cpp, b: Cpp, dtype: DType) -> Cpp:
    return scalar(FUNCTIONS[combine], (a, b), dtype, dtype)
