"""A µGraph into a sketch: outer loops and scratch of each block graph fixed, its inner blocks left to the rules.

A block graph becomes one region: a parallel loop over its grid, inside it the nest of its sequential loops, inside that
one block for each operator that is kept as a tile. Nothing is staged that can be read where it lies: inputs are read
from memory through their access maps, elementwise operators are computed where they are used, a sum over a loop adds
up in the scratch of its accumulator, and the tile of an elementwise operator takes the place of its operand's when that
is not needed any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pipeline.errors import listed
from pipeline.ir.expr import Expr
from pipeline.ir.graph import DType
from pipeline.ir.graph_types import HALVES
from pipeline.ir.poly import Poly
from pipeline.ir.program import Buffer, Derived, Program, Seq, Stmt
from pipeline.ir.target import Target
from pipeline.schedule.constraint import AtMost
from pipeline.schedule.rewrite import neutral
from pipeline.schedule.sketch import Sketch
from pipeline.schedule.variables import Tile
from pipeline.space.lower import argument_name, output_name
from pipeline.superopt.lowering.block import BlockLowering
from pipeline.superopt.lowering.cuts import Cuts
from pipeline.superopt.lowering.nest import nest
from pipeline.superopt.lowering.operators import apply_tile_op
from pipeline.superopt.lowering.tile import (
    DTYPE,
    STORED,
    Index,
    Placing,
    Tensor,
    Value,
    access,
    cannot,
    rounded,
    same,
    whole_value,
)
from pipeline.superopt.mugraph.graph import (
    BlockGraph,
    MuGraph,
    TileOp,
)
from pipeline.superopt.spec import Spec


def lower_mugraph(spec: Spec, graph: MuGraph, name: str, arguments: Sequence[str], target: Target) -> Sketch:
    """The sketch of a µGraph of the specification, its trace empty.

    arguments  the name of the graph input behind each input of the specification; two may be the same one

    CodegenError where the µGraph has a form that cannot be lowered; it says which.
    """
    return _Lowering(spec, graph, tuple(arguments), target).sketch(name)


@dataclass(slots=True)
class _Lowering:
    spec: Spec
    graph: MuGraph
    arguments: tuple[str, ...]
    target: Target
    buffers: list[Buffer] = field(default_factory=list)
    regions: list[Stmt] = field(default_factory=list)
    variables: list[Tile] = field(default_factory=list)
    derived: list[Derived] = field(default_factory=list)
    constraints: list[AtMost] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)

    def sketch(self, name: str) -> Sketch:
        if len(self.graph.outputs) != 1 or self.graph.outputs[0] < len(self.graph.inputs):
            raise cannot(name, "its result is not one tensor that a kernel makes")
        for given, tensor in zip(self.arguments, self.spec.inputs, strict=True):
            buffer = argument_name(given)
            if tensor.dtype not in STORED:
                raise cannot(f"input {tensor.name}", f"{tensor.dtype} is not lowered, only {listed(STORED)}")
            role: Literal["constant", "input"] = "constant" if tensor.key is not None else "input"
            if all(known.name != buffer for known in self.buffers):
                shape = tuple(Poly.of(n) for n in tensor.shape)
                self.buffers.append(Buffer(buffer, shape, tensor.dtype, "global", role))
            dims = tuple(Poly.of(self.spec.extents[label]) for label in tensor.labels)
            self.tensors.append(Tensor(dims, buffer, access(tensor.access, tensor.labels), tensor.dtype))
        for number, node in enumerate(self.graph.nodes):
            operands = [self.tensors[i] for i in node.inputs]
            results = [self.result(len(self.tensors) + k) for k in range(node.results)]
            if isinstance(node.op, BlockGraph):
                name_ = f"k{number}"
                cuts = Cuts(node.op, name_, operands, self.target)
                cuts.find()
                self.variables += cuts.variables
                self.derived += cuts.derived
                BlockLowering(self, node.op, name_, operands, results, cuts).run()
            else:
                self.predefined(node.op, f"k{number}", operands, results[0])
        params = tuple(symbol for variable in self.variables for symbol in variable.symbols)
        program = Program(name, tuple(self.buffers), Seq(tuple(self.regions)), Seq(()), params, tuple(self.derived))
        return Sketch(program, tuple(self.variables), tuple(self.constraints))

    @property
    def factors(self) -> DType:
        """Of tiles that only products read: halves where the tensors in memory are."""
        halves = [tensor.dtype for tensor in self.spec.inputs if tensor.dtype in HALVES]
        return halves[0] if halves else DTYPE

    def result(self, number: int) -> tuple[str, Placing | None]:
        """The buffer of a tensor, and where its elements lie in it; None: row by row."""
        if number == self.graph.outputs[0]:
            shape = tuple(Poly.of(n) for n in self.spec.shape)
            self.buffers.append(Buffer(output_name(0), shape, self.spec.dtype, "global", "output"))
            return output_name(0), access(self.spec.store, self.spec.labels(self.spec.output))
        return f"t{number}", None

    def place(self, result: tuple[str, Placing | None], dims: tuple[Poly, ...]) -> Tensor:
        """The tensor of a result, now that its dimensions are known."""
        buffer, at = result
        if at is None:
            self.buffers.append(Buffer(buffer, dims, DTYPE))
            at = same
        tensor = Tensor(dims, buffer, at, self.spec.dtype if buffer == output_name(0) else DTYPE)
        self.tensors.append(tensor)
        return tensor

    def predefined(
        self, op: TileOp, name: str, operands: list[Tensor],
        result: tuple[str, Placing | None],
    ) -> None:  # fmt: skip
        """An operator on whole tensors: a nest of its own, which the ordinary rules schedule."""
        values = [whole_value(tensor) for tensor in operands]
        made = apply_tile_op(op, values, name)
        spatial = made.dims if isinstance(made, Value) else made.spatial
        tensor = self.place(result, tuple(dim.extent for dim in spatial))

        def store(s: tuple[Index, ...]) -> tuple[Expr, ...]:
            return tensor.place(tuple(i.whole for i in s))

        if isinstance(made, Value):
            region = nest(name, tensor.buffer, spatial, (), lambda s, _: rounded(made.read(s), tensor.dtype), store)
        elif tensor.dtype != DTYPE:
            raise cannot(name, f"a sum in memory is {DTYPE}, the result {tensor.dtype}")
        else:
            start = neutral(made.combine, DTYPE)
            region = nest(name, tensor.buffer, spatial, made.reduced, made.read, store, made.combine, start)
        self.regions.append(region)
