"""The fast interpreter: every statement at many points at a time, with what a reference must notice.

A lane is one point of the loops around a statement. Loops that `lockstep` allows multiply the lanes, others iterate.
Each storage knows which of its elements were written, and who touched them while parallel loops run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, assert_never

import numpy as np

from pipeline.errors import CheckError
from pipeline.ir.evaluate_scalar import apply_scalar
from pipeline.ir.expr import Const, Expr, Load, Op, Size, Var, loads
from pipeline.ir.graph import DType
from pipeline.ir.graph_types import numpy_dtype
from pipeline.ir.lockstep import THREADS, lockstep_loops, loop_class, thread_extents, volume
from pipeline.ir.program import PRIVATE, Alloc, Block, Buffer, Combine, Loop, Program, Seq, Stmt, walk

LANES = 1 << 20  # the most points at a time

COMBINE: Mapping[Combine, np.ufunc] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


class Storage:
    """The memory of a buffer: instances one after another, each row-major, and which elements were written."""

    def __init__(self, buffer: Buffer, dtype: DType, instances: int = 1) -> None:
        self.buffer = buffer
        self.shape = tuple(extent.value for extent in buffer.shape)
        self.size = math.prod(self.shape)
        self.data = np.zeros(instances * self.size, numpy_dtype(dtype))
        self.written = np.zeros(instances * self.size, np.bool_)
        self.threads: dict[str, int] = {}  # kind of thread loop -> distance of the instances of two threads
        self._mark: np.ndarray | None = None

    @property
    def mark(self) -> np.ndarray:
        """Scratch: a number for each element."""
        if self._mark is None:
            self._mark = np.zeros(self.data.size, np.int64)
        return self._mark


class RaceLog:
    """Which iteration of a nest of parallel loops wrote and read each element: -1 none, -2 several (readers only)."""

    def __init__(self, tracked: frozenset[str]) -> None:
        self.tracked = tracked
        self.writers: dict[str, np.ndarray] = {}
        self.readers: dict[str, np.ndarray] = {}

    def _of(self, storage: Storage) -> tuple[np.ndarray, np.ndarray]:
        name = storage.buffer.name
        if name not in self.writers:
            self.writers[name] = np.full(storage.data.size, -1, np.int64)
            self.readers[name] = np.full(storage.data.size, -1, np.int64)
        return self.writers[name], self.readers[name]

    def write(self, storage: Storage, at: np.ndarray, iteration: np.ndarray) -> np.ndarray:
        """Where another iteration has touched the element."""
        writers, readers = self._of(storage)
        wrote, read = writers[at], readers[at]
        bad = ((wrote != -1) & (wrote != iteration)) | ((read != -1) & (read != iteration))
        writers[at] = iteration
        return np.asarray(bad | (writers[at] != iteration))

    def read(self, storage: Storage, at: np.ndarray, iteration: np.ndarray) -> np.ndarray:
        """Where another iteration has written the element."""
        writers, readers = self._of(storage)
        read = readers[at]
        new = np.where((read == -1) | (read == iteration), iteration, -2)
        readers[at] = new
        readers[at[readers[at] != new]] = -2
        wrote = writers[at]
        return np.asarray((wrote != -1) & (wrote != iteration))


@dataclass(slots=True)
class Lanes:
    """Points of the loops: the value of each variable, the first element of each buffer's instance, and the iteration
    of the parallel loops around (class of loop -> number)."""

    count: int
    vars: dict[str, np.ndarray]
    bases: dict[str, np.ndarray]
    iterations: dict[int, np.ndarray]

    def each(self, fn: Callable[[np.ndarray], np.ndarray], count: int) -> Lanes:
        return Lanes(
            count,
            {name: fn(values) for name, values in self.vars.items()},
            {name: fn(values) for name, values in self.bases.items()},
            {number: fn(values) for number, values in self.iterations.items()},
        )

    def pick(self, chosen: np.ndarray) -> Lanes:
        return self.each(lambda values: values[chosen], chosen.size)


class Machine:
    """Runs one concrete program over its storages."""

    def __init__(self, program: Program, dtype: Callable[[DType], DType]) -> None:
        self.program = program
        self.dtype = dtype
        self.storages = {buffer.name: Storage(buffer, dtype(buffer.dtype)) for buffer in program.buffers}
        self.lockstep = lockstep_loops(program)
        self.volumes: dict[int, int] = {}
        self.races: dict[int, RaceLog] = {}
        self.block: Block | None = None

    def fill(self, name: str, array: np.ndarray) -> None:
        self.storages[name].data[:] = array.reshape(-1)
        self.storages[name].written[:] = True

    def read(self, name: str) -> np.ndarray:
        storage = self.storages[name]
        if not storage.written.all():
            missing = np.unravel_index(int(np.flatnonzero(~storage.written)[0]), storage.shape)
            raise CheckError(f"output {name} has an element that was never written", where=self.program.name,
                             why=f"The element is {name}[{', '.join(str(int(i)) for i in missing)}]")  # fmt: skip
        return storage.data.reshape(storage.shape)

    def run(self, part: Seq) -> None:
        self.execute(part, Lanes(1, {}, {}, {}))

    # Statements

    def execute(self, stmt: Stmt, lanes: Lanes) -> None:
        match stmt:
            case Seq(body):
                for child in body:
                    self.execute(child, lanes)
            case Block():
                self.block = stmt
                self.execute_block(stmt, lanes)
            case Alloc(buffer, body):
                threads = thread_extents(body) if buffer.scope in PRIVATE else {}
                storage = Storage(buffer, self.dtype(buffer.dtype), lanes.count * math.prod(threads.values()))
                step = storage.size
                for kind in THREADS:
                    if kind in threads:
                        storage.threads[kind] = step
                        step *= threads[kind]
                self.storages[buffer.name] = storage
                bases = {**lanes.bases, buffer.name: np.arange(lanes.count) * step}
                self.execute(body, Lanes(lanes.count, lanes.vars, bases, lanes.iterations))
                del self.storages[buffer.name]
            case Loop():
                number = loop_class(stmt)
                if not number or number in self.races:
                    self.execute_loop(stmt, lanes)
                    return
                assert lanes.count == 1
                outside = frozenset(self.storages)
                written = {s.buffer for s in walk(stmt) if isinstance(s, Block)}
                self.races[number] = RaceLog(outside & written)
                iterations = {**lanes.iterations, number: np.zeros(1, np.int64)}
                self.execute_loop(stmt, Lanes(1, lanes.vars, lanes.bases, iterations))
                del self.races[number]
            case _:
                assert_never(stmt)

    def execute_loop(self, loop: Loop, lanes: Lanes) -> None:
        total = math.prod(axis.extent.value for axis in loop.axes)
        chunk = 1
        if id(loop) in self.lockstep:
            if id(loop) not in self.volumes:
                self.volumes[id(loop)] = volume(loop.body, self.lockstep)
            chunk = max(1, LANES // (lanes.count * self.volumes[id(loop)]))
        for begin in range(0, total, chunk):
            self.execute(loop.body, self.expand(loop, lanes, begin, min(begin + chunk, total)))

    def expand(self, loop: Loop, lanes: Lanes, begin: int, end: int) -> Lanes:
        """Each lane at iterations begin to end of the loop, the loop fastest."""
        times = end - begin
        inner = lanes.each(lambda values: np.repeat(values, times), lanes.count * times)
        flat = np.tile(np.arange(begin, end), lanes.count)
        number = loop_class(loop)
        if number:
            total = math.prod(axis.extent.value for axis in loop.axes)
            inner.iterations[number] = inner.iterations[number] * total + flat
        if loop.kind in THREADS:
            for name, base in inner.bases.items():
                if loop.kind in self.storages[name].threads:
                    inner.bases[name] = base + flat * self.storages[name].threads[loop.kind]
        for axis in reversed(loop.axes):
            extent = axis.extent.value
            inner.vars[axis.var] = flat % extent if len(loop.axes) > 1 else flat
            flat = flat // extent
        return inner

    def execute_block(self, block: Block, lanes: Lanes) -> None:
        inside = np.ones(lanes.count, np.bool_)
        iters: dict[str, np.ndarray] = {}
        for it in block.iters:
            values = self.full(it.binding, lanes)
            inside &= (values >= 0) & (values < it.extent.value)
            iters[it.var] = values
        for condition in block.where:
            if loads(condition):  # which may be out of bounds where the block does not run
                chosen = np.flatnonzero(inside)
                inside[chosen] &= self.evaluate(condition, lanes.pick(chosen))
            else:
                inside &= self.evaluate(condition, lanes)
        here = Lanes(lanes.count, iters, lanes.bases, lanes.iterations)
        if not inside.all():
            here = here.pick(np.flatnonzero(inside))
        if not here.count:
            return
        storage = self.storage(block.buffer)
        at = self.locate(storage, block.indices, here, "writes")
        keep = self.initialise(block, storage, at, here)
        value = np.broadcast_to(self.evaluate(block.value, here), here.count)
        for number, log in self.races.items():
            if block.buffer in log.tracked:
                bad = log.write(storage, at, here.iterations[number])
                self.refuse(bad, here, f"two parallel iterations touch one element of {block.buffer}", storage, at)
        if block.combine is None:
            storage.data[at] = value
            storage.written[at] = True
            return
        if keep is not None:
            at, value = at[keep], value[keep]
        COMBINE[block.combine].at(storage.data, at, value.astype(storage.data.dtype, copy=False))

    def initialise(self, block: Block, storage: Storage, at: np.ndarray, here: Lanes) -> np.ndarray | None:
        """Sets elements to init. Returns which lanes still count (those before the last init of their element do not);
        None: all of them."""
        if block.combine is None:
            return None
        what = f"combines into an element of {block.buffer} that was never written"
        if block.init is None:
            self.refuse(~storage.written[at], here, what, storage, at)
            return None
        first = np.ones(here.count, np.bool_)
        for it in block.iters:
            if it.kind == "reduce":
                first &= here.vars[it.var] == 0
        order, mark = np.arange(here.count), storage.mark
        mark[at[::-1]] = order[::-1]  # of equal elements the last assignment stays: here, the first lane
        self.refuse(~storage.written[at] & ~first[mark[at]], here, what, storage, at)
        mark[at] = -1
        mark[at[first]] = order[first]
        storage.data[at[first]] = block.init.value
        storage.written[at[first]] = True
        keep = order >= mark[at]
        return None if keep.all() else keep

    # Memory

    def storage(self, name: str) -> Storage:
        if name not in self.storages:
            raise CheckError(f"buffer {name} is not there", where=self.where(), why="No buffer or alloc around it")
        return self.storages[name]

    def locate(self, storage: Storage, indices: tuple[Expr, ...], lanes: Lanes, verb: str) -> np.ndarray:
        """The element that each lane means."""
        name = storage.buffer.name
        if len(indices) != len(storage.shape):
            raise CheckError(f"{name} has {len(storage.shape)} dimensions, not {len(indices)}", where=self.where())
        at = lanes.bases.get(name)
        flat = np.zeros(lanes.count, np.int64) if at is None else at
        step = storage.size
        values = [self.full(index, lanes) for index in indices]
        for index, extent in zip(values, storage.shape, strict=True):
            bad = (index < 0) | (index >= extent)
            if bad.any():
                lane = int(np.flatnonzero(bad)[0])
                element = ", ".join(str(int(v[lane])) for v in values)
                raise CheckError(f"{verb} {name}[{element}] out of bounds", where=self.where(lanes, lane),
                                 why=f"The shape of {name} is {storage.shape}")  # fmt: skip
            step //= extent
            flat = flat + index * step
        return flat

    def load(self, load: Load, lanes: Lanes) -> np.ndarray:
        storage = self.storage(load.buffer)
        at = self.locate(storage, load.indices, lanes, "reads")
        what = f"reads an element of {load.buffer} that was never written"
        self.refuse(~storage.written[at], lanes, what, storage, at)
        for number, log in self.races.items():
            if load.buffer in log.tracked:
                bad = log.read(storage, at, lanes.iterations[number])
                what = f"reads what another parallel iteration wrote into {load.buffer}"
                self.refuse(bad, lanes, what, storage, at)
        return np.asarray(storage.data[at])

    def refuse(self, bad: np.ndarray, lanes: Lanes, what: str, storage: Storage, at: np.ndarray) -> None:
        if bad.any():
            lane = int(np.flatnonzero(bad)[0])
            element = np.unravel_index(int(at[lane]) % storage.size, storage.shape)
            name = f"{storage.buffer.name}[{', '.join(str(int(i)) for i in element)}]"
            raise CheckError(what, where=self.where(lanes, lane), why=f"The element is {name}")

    def where(self, lanes: Lanes | None = None, lane: int = 0) -> str:
        block = f"block {self.block.name}" if self.block is not None else self.program.name
        if lanes is None or not lanes.vars:
            return block
        return f"{block} at {', '.join(f'{name}={int(values[lane])}' for name, values in lanes.vars.items())}"

    # Expressions

    def full(self, expr: Expr, lanes: Lanes) -> np.ndarray:
        return np.broadcast_to(self.evaluate(expr, lanes), lanes.count)

    def evaluate(self, expr: Expr, lanes: Lanes) -> np.ndarray:
        """One value for each lane, or one for all."""
        match expr:
            case Const(value, dtype):
                return np.asarray(value, numpy_dtype(self.dtype(dtype)))
            case Var(name):
                if name not in lanes.vars:
                    self.unbound(name)
                return lanes.vars[name]
            case Size(poly):
                raise CheckError(f"the size {poly} has no value", where=self.where(),
                                 todo="Instantiate the program first")  # fmt: skip
            case Load():
                return self.load(expr, lanes)
            case Op("guard", (condition, value, otherwise), _):
                return self.guard(self.evaluate(condition, lanes), value, otherwise, lanes)
            case Op("floordiv", (a, b), _):
                return np.asarray(np.floor_divide(self.evaluate(a, lanes), self.evaluate(b, lanes)))
            case Op(fn, args, dtype):
                return apply_scalar(fn, [self.evaluate(arg, lanes) for arg in args], self.dtype(dtype))
            case _:
                assert_never(expr)

    def unbound(self, name: str) -> NoReturn:
        raise CheckError(f"variable {name} is not bound", where=self.where())

    def guard(self, condition: np.ndarray, value: Expr, otherwise: Expr, lanes: Lanes) -> np.ndarray:
        """One of the two is evaluated, never both."""
        if condition.all():
            return self.evaluate(value, lanes)
        if not condition.any():
            return self.evaluate(otherwise, lanes)
        yes, no = np.flatnonzero(condition), np.flatnonzero(~condition)
        a, b = self.evaluate(value, lanes.pick(yes)), self.evaluate(otherwise, lanes.pick(no))
        result: np.ndarray[Any, Any] = np.empty(lanes.count, a.dtype)
        result[yes], result[no] = a, b
        return result
