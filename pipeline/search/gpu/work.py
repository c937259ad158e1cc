"""The instructions that one evaluation of a scalar expression takes on a GPU, by the units that execute them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.ir.expr import FLOATS, Expr, Load, Op, affine, children, dtype_of, loads, walk
from pipeline.ir.program import Block

WIDE_INTEGERS = frozenset({"int64", "uint64"})
NARROW = frozenset({"float16", "bfloat16"})  # computed in float32 and rounded
# ordinary instructions and those of the special units, as the library functions of CUDA take them in float32
COSTS: dict[str, tuple[float, float]] = {
    "div": (8.0, 1.0), "reciprocal": (6.0, 1.0), "sqrt": (7.0, 1.0), "rsqrt": (3.0, 1.0), "exp": (6.0, 1.0),
    "log": (12.0, 1.0), "tanh": (12.0, 2.0), "erf": (18.0, 1.0), "sigmoid": (14.0, 2.0), "pow": (45.0, 3.0),
    "sin": (20.0, 1.0), "cos": (20.0, 1.0), "tan": (30.0, 2.0), "mod": (20.0, 2.0), "fmod": (20.0, 2.0),
}  # fmt: skip
SELECTS = frozenset({"cast", "where", "guard"})
INTEGER_COSTS = {"floordiv": 6.0, "mod": 7.0, "div": 20.0, "fmod": 22.0, "mul": 1.0}
WIDE_FACTOR, DOUBLE_FACTOR = 2.5, 3.0  # of 64-bit integers; of the library's functions in float64


@dataclass(frozen=True, slots=True)
class Work:
    """Instructions of one thread.

    fma       of float32, also those of narrower floats
    double    of float64
    integer   integers, comparisons, conversions
    special   of the special function units
    """

    fma: float = 0.0
    double: float = 0.0
    integer: float = 0.0
    special: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.fma + other.fma,
            self.double + other.double,
            self.integer + other.integer,
            self.special + other.special,
        )


def work_of(block: Block, registers: frozenset[str]) -> Work:
    """Of one point of a block, without its memory instructions. A conversion of what was just loaded counts with the
    load, since it happens once per load and not once per use.

    registers   names of the buffers that lie in registers, from which nothing is loaded
    """
    total = Work()
    for node in _computed(block.value, registers):
        total = total + _operation(node)
    for condition in block.where:
        for node in _computed(condition, registers):
            total = total + _operation(node)
    if block.combine is not None:
        value = block.value
        fused = block.combine == "sum" and isinstance(value, Op) and value.fn == "mul" and value.dtype in FLOATS
        if not fused:
            total = total + _operation(Op("add", (value, value), dtype_of(value)))
    for load in _loads(block):
        for index in load.indices:
            if affine(index) is None:
                total = total + _index(index)
    return total


def conversions(block: Block, load: Load) -> float:
    """Conversions of one loaded element: 1 where it is converted at once."""
    return 1.0 if any(isinstance(n, Op) and n.fn == "cast" and load in n.args for n in walk(block.value)) else 0.0


def _operation(node: Op) -> Work:
    dtype = node.dtype
    if node.fn in SELECTS:
        return Work(integer=1.0)
    operand = dtype_of(node.args[-1]) if node.args else dtype
    kind = operand if dtype == "bool" else dtype
    ordinary, special = COSTS.get(node.fn, (1.0, 0.0))
    if kind == "float64":
        return Work(double=ordinary * (DOUBLE_FACTOR if node.fn in COSTS and ordinary > 1 else 1.0))
    if kind in FLOATS:
        return Work(fma=ordinary, special=special, integer=1.0 if dtype in NARROW else 0.0)
    integer = INTEGER_COSTS.get(node.fn, 1.0)
    wide = kind in WIDE_INTEGERS and bool(loads(node))  # indices are narrow
    return Work(integer=integer * (WIDE_FACTOR if wide else 1.0))


def _index(index: Expr) -> Work:
    """What an index that is not affine costs beyond the ordinary address."""
    total = Work()
    for node in walk(index):
        if isinstance(node, Op):
            total = total + Work(integer=INTEGER_COSTS.get(node.fn, 1.0))
    return total


def _computed(expr: Expr, registers: frozenset[str]) -> Iterator[Op]:
    """The operations of a value, without those of indices and the conversions of loads."""
    if isinstance(expr, Load):
        return
    if isinstance(expr, Op):
        if expr.fn == "cast" and isinstance(expr.args[0], Load) and expr.args[0].buffer not in registers:
            return
        yield expr
    for child in children(expr):
        yield from _computed(child, registers)


def _loads(block: Block) -> Iterator[Load]:
    for expr in (block.value, *block.where, *block.indices):
        for node in walk(expr):
            if isinstance(node, Load):
                yield node
