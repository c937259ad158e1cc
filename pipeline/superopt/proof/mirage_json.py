"""The import of µGraphs as Mirage saves them (mirage-project/mirage, branch `evaluation`): a list of operators each.

Composite operators (silu, rms_norm, accumulators that also reduce) are written out. The extents are those of the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from pipeline.errors import UserError, listed
from pipeline.ir.graph import Shape
from pipeline.superopt.mugraph.graph import (
    Accumulate,
    Axis,
    BlockGraph,
    BlockInput,
    BlockNode,
    BlockOutput,
    Contract,
    Fold,
    KernelNode,
    LoopOp,
    Map,
    MuGraph,
    Scalar,
    TileOp,
)

Saved = Mapping[str, Any]
UNARY = {"exp": "exp", "sqrt": "sqrt", "sigmoid": "sigmoid", "log": "log"}
BINARY = {"add": "add", "sub": "sub", "mul": "mul", "div": "div"}
AXES = ("x", "y", "z")
MOST_ELEMENTS = 2**40  # of a tensor: far more than a machine holds


def read_mirage(path: Path) -> list[list[Saved]]:
    """The µGraphs of a file; UserError where it is none."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # text that is none, a number of too many digits, and depth
        raise UserError("the file cannot be read", where=str(path), why=str(error)) from None
    if not isinstance(saved, list) or not saved or not all(isinstance(graph, list) for graph in saved):
        raise UserError("the file holds no µGraphs", where=str(path), why="it is not a list of lists of operators")
    return saved


def input_shapes(graph: Sequence[Saved]) -> tuple[Shape, ...]:
    """Of the inputs, in order."""
    return tuple(_shape(op["output_tensors"][0]) for op in graph if op["op_type"] == "kn_input_op")


def import_mirage(graph: Sequence[Saved], inputs: Sequence[str]) -> MuGraph:
    """A saved µGraph, with these names for its inputs, in order.

    UserError, with the operator, for what is not of the format or of what is supported.
    """
    kernels = _Kernels()
    for number, op in enumerate(graph):
        try:
            kernels.add(op)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            kind = op.get("op_type", "no op_type") if isinstance(op, dict) else "no object"
            raise UserError("the operator is not as expected", where=f"operator {number} ({kind})",
                            why=f"{type(error).__name__}: {error}") from None  # fmt: skip
        except UserError as error:
            error.where = f"operator {number} ({op['op_type']})" + (f", {error.where}" if error.where else "")
            raise
    if len(inputs) != kernels.inputs or not kernels.outputs:
        raise UserError("the µGraph does not have the tensors of the specification",
                        why=f"it has {kernels.inputs} inputs and {len(kernels.outputs)} outputs",
                        todo=f"The inputs would be {', '.join(inputs)}")  # fmt: skip
    return MuGraph(tuple(inputs), tuple(kernels.nodes), tuple(kernels.outputs))


class _Written:
    """Operators written one after another, on tensors or on tiles, and where the values of the file are."""

    def __init__(self) -> None:
        self.place: dict[int, int] = {}
        self.count = 0

    def write(self, op: TileOp | LoopOp, *operands: int) -> int:
        raise NotImplementedError

    def ordinary(self, name: str, op: Saved) -> int:
        """What is the same on tensors and on tiles."""
        x = [self.place[tensor["guid"]] for tensor in op["input_tensors"]]
        shape = _shape(op["input_tensors"][0])
        last = len(shape) - 1
        if name in UNARY:
            return self.write(Map(UNARY[name]), x[0])
        if name in BINARY:
            return self.write(Map(BINARY[name]), x[0], x[1])
        match name:
            case "matmul":
                batch = "abcdefgh"[: last - 1]
                return self.write(Contract(f"{batch}mk,{batch}kn->{batch}mn"), x[0], x[1])
            case "square":
                return self.write(Map("mul"), x[0], x[0])
            case "silu":
                return self.write(Map("mul"), x[0], self.write(Map("sigmoid"), x[0]))
            case "relu":
                return self.write(Map("max"), x[0], self.write(Scalar(0.0)))
            case "rms_norm":
                squares = self.write(Fold("sum", (last,)), self.write(Map("mul"), x[0], x[0]))
                return self.write(Map("div"), x[0], self.root_of_mean(squares, shape[last]))
            case "reduction_0" | "reduction_1" | "reduction_2":
                return self.write(Fold("sum", (int(name[-1]),)), x[0])
        known = listed([*UNARY, *BINARY, "matmul", "square", "silu", "relu", "rms_norm", "reduction_0, _1, _2"])
        raise UserError("the operator is not supported", where=name, todo=f"Supported are {known}")

    def root_of_mean(self, squares: int, count: int) -> int:
        return self.write(Map("sqrt"), self.write(Map("div"), squares, self.write(Scalar(float(count)))))


class _Kernels(_Written):
    """The kernel graph as far as it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = 0
        self.nodes: list[KernelNode] = []
        self.outputs: list[int] = []

    def write(self, op: TileOp | LoopOp | BlockGraph, *operands: int) -> int:
        assert not isinstance(op, LoopOp)
        self.nodes.append(KernelNode(op, operands))
        self.count += self.nodes[-1].results
        return self.count - self.nodes[-1].results

    def add(self, op: Saved) -> None:
        match op["op_type"]:
            case "kn_input_op":
                if self.nodes:
                    raise UserError("an input comes after an operator")
                self.place[op["output_tensors"][0]["guid"]] = self.count
                self.inputs += 1
                self.count += 1
            case "kn_output_op":
                self.outputs.append(self.place[op["input_tensors"][0]["guid"]])
            case "kn_customized_op":
                block, operands, results = read_block(op["bgraph"], len(self.nodes))
                first = self.write(block, *(self.place[guid] for guid in operands))
                self.place |= {guid: first + i for i, guid in enumerate(results)}
            case name:
                self.place[op["output_tensors"][0]["guid"]] = self.ordinary(name[3:-3], op)


class _Tiles(_Written):
    """The block graph as far as it is read; there is one loop or none."""

    def __init__(self, grid: tuple[Axis, ...], loops: tuple[Axis, ...], trips: int) -> None:
        super().__init__()
        self.grid, self.loops, self.trips = grid, loops, trips
        self.inputs: list[BlockInput] = []
        self.nodes: list[BlockNode] = []
        self.outputs: list[BlockOutput] = []
        self.in_loop: list[bool] = []

    def write(self, op: TileOp | LoopOp, *operands: int) -> int:
        self.nodes.append(BlockNode(op, operands))
        self.in_loop.append(not isinstance(op, Accumulate) and any(self.in_loop[i] for i in operands))
        self.count += 1
        return self.count - 1

    def accumulate(self, x: int) -> int:
        """The sum over the loop: of what the loop does not change, a multiple."""
        if self.in_loop[x]:
            return self.write(Accumulate("sum"), x)
        return x if self.trips == 1 else self.write(Map("mul"), x, self.write(Scalar(float(self.trips))))

    def add(self, op: Saved, dimx: int) -> None:
        kind = op["op_type"]
        if kind == "tb_output_op":
            omap = tuple(_dimension(op["output_map"], axis) for axis in self.grid)
            if any(dim is None for dim in omap):
                raise UserError("an output is written by several blocks at one place", why=f"{op['output_map']}")
            self.outputs.append(
                BlockOutput(self.place[op["input_tensors"][0]["guid"]], tuple(dim for dim in omap if dim is not None))
            )
            return
        shape = _shape(op["output_tensors"][0]) if kind == "tb_input_op" else _shape(op["input_tensors"][0])
        last = len(shape) - 1
        match kind:
            case "tb_input_op":
                walked = None if op["forloop_dim"] < 0 else op["forloop_dim"]
                imap = tuple(_dimension(op["input_map"], axis) for axis in self.grid)
                self.inputs.append(BlockInput(imap, (walked,) * len(self.loops)))
                self.in_loop.append(walked is not None and bool(self.loops))
                self.count += 1
                value = self.count - 1
            case "tb_forloop_accum_nored_op":
                value = self.accumulate(self.place[op["input_tensors"][0]["guid"]])
            case "tb_forloop_accum_red_ld_sum_op":
                value = self.accumulate(self.write(Fold("sum", (last,)), self.place[op["input_tensors"][0]["guid"]]))
            case "tb_forloop_accum_redtox_ld_sum_op":
                x = self.place[op["input_tensors"][0]["guid"]]
                value = self.accumulate(self.write(Fold("sum", (last,), dimx), x))
            case "tb_forloop_accum_red_ld_rms_op":
                x = self.place[op["input_tensors"][0]["guid"]]
                squares = self.write(Fold("sum", (last,)), self.write(Map("mul"), x, x))
                value = self.root_of_mean(self.accumulate(squares), self.trips * shape[last])
            case _:
                value = self.ordinary(kind[3:-3], op)
        self.place[op["output_tensors"][0]["guid"]] = value


def read_block(saved: Saved, number: int) -> tuple[BlockGraph, list[int], list[int]]:
    """A block graph, and the guids of the tensors that it reads and makes. `number` makes its axes' names unique."""
    sizes = {name: _extent(saved["grid_dim"][name], f"grid_dim.{name}") for name in AXES}
    grid = tuple(Axis(f"{name}{number}", size) for name, size in sizes.items() if size > 1)
    trips = _extent(saved["forloop_range"], "forloop_range")
    loops = (Axis(f"loop{number}", trips),) if trips > 1 else ()
    tiles = _Tiles(grid, loops, trips)
    operands, results = [], []
    for position, op in enumerate(saved["operators"]):
        try:
            tiles.add(op, saved["reduction_dimx"])
        except UserError as error:
            error.where = f"operator {position} of the block ({op['op_type']})"
            raise
        if op["op_type"] == "tb_input_op":
            operands.append(op["dtensor"]["guid"])
        elif op["op_type"] == "tb_output_op":
            results.append(op["dtensor"]["guid"])
    return BlockGraph(grid, loops, tuple(tiles.inputs), tuple(tiles.nodes), tuple(tiles.outputs)), operands, results


def _dimension(saved: Mapping[str, int], axis: Axis) -> int | None:
    dim = saved[axis.name[0]]
    return None if dim < 0 else dim


def _shape(tensor: Saved) -> Shape:
    rank = _extent(tensor["num_dims"], "num_dims")
    if len(tensor["dim"]) < rank:
        raise UserError("a tensor has fewer sizes than dimensions", where="dim", why=f"{tensor['dim']} for {rank}")
    shape = tuple(_extent(size, "dim") for size in tensor["dim"][:rank])
    if prod(shape) > MOST_ELEMENTS:
        raise UserError("a tensor is too large", where="dim", why=f"{shape}")
    return shape


def _extent(saved: object, where: str) -> int:
    if not isinstance(saved, int) or isinstance(saved, bool) or saved < 1:
        raise UserError("an extent is not a whole number of at least 1", where=where, why=repr(saved))
    return saved
