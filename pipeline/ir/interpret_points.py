"""The slow interpreter: one point after another in the order of the program; the fast one is tested against it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np

from pipeline.errors import CheckError
from pipeline.ir.evaluate_scalar import apply_scalar
from pipeline.ir.expr import Const, Expr, Load, Op, Size, Var
from pipeline.ir.graph import DType
from pipeline.ir.graph_types import numpy_dtype
from pipeline.ir.interpret_lanes import COMBINE
from pipeline.ir.lockstep import THREADS, loop_class
from pipeline.ir.program import PRIVATE, Alloc, Block, Buffer, Loop, Program, Seq, Stmt

Element = tuple[int, ...]
Key = tuple[Element, Element]  # the threads that the instance belongs to, and the indices
Iteration = tuple[tuple[str, int], ...]


@dataclass(slots=True)
class Memory:
    """A buffer: the elements that were written."""

    buffer: Buffer
    elements: dict[Key, np.ndarray] = field(default_factory=dict)


@dataclass(slots=True)
class Touched:
    """Who wrote and who read an element while a nest of parallel loops runs."""

    writers: set[Iteration] = field(default_factory=set)
    readers: set[Iteration] = field(default_factory=set)


class PointMachine:
    """Runs one concrete program."""

    def __init__(self, program: Program, dtype: Callable[[DType], DType]) -> None:
        self.program = program
        self.dtype = dtype
        self.memories = {buffer.name: Memory(buffer) for buffer in program.buffers}
        self.vars: dict[str, int] = {}
        self.threads: dict[str, int] = {}
        self.iterations: dict[int, Iteration] = {}
        self.touched: dict[int, dict[tuple[str, Key], Touched]] = {}
        self.outside: dict[int, frozenset[str]] = {}  # the buffers that were there when the parallel nest was entered
        self.where = program.name

    def fill(self, name: str, array: np.ndarray) -> None:
        for element in np.ndindex(array.shape):
            self.memories[name].elements[(), element] = np.asarray(array[element])

    def read(self, name: str) -> np.ndarray:
        memory = self.memories[name]
        shape = tuple(extent.value for extent in memory.buffer.shape)
        result = np.empty(shape, numpy_dtype(self.dtype(memory.buffer.dtype)))
        for element in np.ndindex(shape):
            if ((), element) not in memory.elements:
                raise CheckError(f"output {name} has an element that was never written", where=self.program.name,
                                 why=f"The element is {_shown(name, element)}")  # fmt: skip
            result[element] = memory.elements[(), element]
        return result

    def run(self, stmt: Stmt) -> None:
        match stmt:
            case Seq(body):
                for child in body:
                    self.run(child)
            case Block():
                self.block(stmt)
            case Alloc(buffer, body):
                self.memories[buffer.name] = Memory(buffer)
                self.run(body)
                del self.memories[buffer.name]
            case Loop():
                self.loop(stmt)
            case _:
                assert_never(stmt)

    def loop(self, loop: Loop) -> None:
        number = loop_class(loop)
        outermost = number not in self.touched
        if number and outermost:
            self.touched[number], self.outside[number] = {}, frozenset(self.memories)
        around, thread = self.iterations.get(number, ()), self.threads.get(loop.kind)
        extents = [axis.extent.value for axis in loop.axes]
        for position, point in enumerate(itertools.product(*map(range, extents))):
            values = {axis.var: value for axis, value in zip(loop.axes, point, strict=True)}
            self.vars.update(values)
            if number:
                self.iterations[number] = (*around, *values.items())
            if loop.kind in THREADS:
                self.threads[loop.kind] = position
            self.run(loop.body)
        for axis in loop.axes:
            self.vars.pop(axis.var, None)
        if number:
            self.iterations[number] = around
            if outermost:
                del self.touched[number], self.outside[number], self.iterations[number]
        if loop.kind in THREADS:
            if thread is None:
                self.threads.pop(loop.kind, None)
            else:
                self.threads[loop.kind] = thread

    def block(self, block: Block) -> None:
        self.where = f"block {block.name}"
        values: dict[str, int] = {}
        inside = True
        for it in block.iters:
            values[it.var] = int(self.evaluate(it.binding, self.vars))
            inside &= 0 <= values[it.var] < it.extent.value
        if not inside or not all(self.evaluate(condition, self.vars) for condition in block.where):
            return
        if values:
            self.where += f" at {', '.join(f'{name}={value}' for name, value in values.items())}"
        memory = self.memory(block.buffer)
        dtype = numpy_dtype(self.dtype(memory.buffer.dtype))
        key = self.locate(memory, block.indices, values, "writes")
        starts = all(values[it.var] == 0 for it in block.iters if it.kind == "reduce")
        if block.combine is not None:
            if block.init is not None and starts:
                memory.elements[key] = np.asarray(block.init.value, dtype)
            if key not in memory.elements:
                self.refuse(f"combines into an element of {block.buffer} that was never written", memory, key)
        value = self.evaluate(block.value, values)
        for number, touched in self.touched.items():
            if block.buffer in self.outside[number]:
                mine = {self.iterations[number]}
                seen = touched.setdefault((block.buffer, key), Touched())
                seen.writers |= mine
                if (seen.writers | seen.readers) - mine:
                    self.refuse(f"two parallel iterations touch one element of {block.buffer}", memory, key)
        if block.combine is not None:
            value = np.asarray(COMBINE[block.combine](memory.elements[key], value.astype(dtype)))
        memory.elements[key] = value.astype(dtype)

    def memory(self, name: str) -> Memory:
        if name not in self.memories:
            raise CheckError(f"buffer {name} is not there", where=self.where, why="No buffer or alloc around it")
        return self.memories[name]

    def locate(self, memory: Memory, indices: tuple[Expr, ...], values: dict[str, int], verb: str) -> Key:
        name, shape = memory.buffer.name, tuple(extent.value for extent in memory.buffer.shape)
        if len(indices) != len(shape):
            raise CheckError(f"{name} has {len(shape)} dimensions, not {len(indices)}", where=self.where)
        element = tuple(int(self.evaluate(index, values)) for index in indices)
        if not all(0 <= index < extent for index, extent in zip(element, shape, strict=True)):
            raise CheckError(f"{verb} {_shown(name, element)} out of bounds", where=self.where,
                             why=f"The shape of {name} is {shape}")  # fmt: skip
        local = memory.buffer.scope in PRIVATE
        return tuple(self.threads.get(kind, 0) for kind in THREADS) if local else (), element

    def refuse(self, what: str, memory: Memory, key: Key) -> None:
        raise CheckError(what, where=self.where, why=f"The element is {_shown(memory.buffer.name, key[1])}")

    def load(self, load: Load, values: dict[str, int]) -> np.ndarray:
        memory = self.memory(load.buffer)
        key = self.locate(memory, load.indices, values, "reads")
        if key not in memory.elements:
            self.refuse(f"reads an element of {load.buffer} that was never written", memory, key)
        for number, touched in self.touched.items():
            if load.buffer in self.outside[number]:
                seen = touched.setdefault((load.buffer, key), Touched())
                seen.readers.add(self.iterations[number])
                if seen.writers - {self.iterations[number]}:
                    what = f"reads what another parallel iteration wrote into {load.buffer}"
                    self.refuse(what, memory, key)
        return memory.elements[key]

    def evaluate(self, expr: Expr, values: dict[str, int]) -> np.ndarray:
        match expr:
            case Const(value, dtype):
                return np.asarray(value, numpy_dtype(self.dtype(dtype)))
            case Var(name):
                if name not in values:
                    raise CheckError(f"variable {name} is not bound", where=self.where)
                return np.asarray(values[name], np.int64)
            case Size(poly):
                raise CheckError(f"the size {poly} has no value", where=self.where,
                                 todo="Instantiate the program first")  # fmt: skip
            case Load():
                return self.load(expr, values)
            case Op("guard", (condition, value, otherwise), _):
                return self.evaluate(value if self.evaluate(condition, values) else otherwise, values)
            case Op("floordiv", (a, b), _):
                return np.asarray(np.floor_divide(self.evaluate(a, values), self.evaluate(b, values)))
            case Op(fn, args, dtype):
                return apply_scalar(fn, [self.evaluate(arg, values) for arg in args], self.dtype(dtype))
            case _:
                assert_never(expr)


def _shown(name: str, element: Element) -> str:
    return f"{name}[{', '.join(map(str, element))}]"
