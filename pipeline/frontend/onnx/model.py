"""A model in an ONNX file, as a workload: its graph of primitives for fixed sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onnx import GraphProto, ModelProto, ValueInfoProto

from pipeline.errors import CheckError, ModelError
from pipeline.frontend.onnx import (
    ops_activation,
    ops_attention,
    ops_control,
    ops_einsum,
    ops_elementwise,
    ops_generate,
    ops_index,
    ops_legacy,
    ops_linear,
    ops_microsoft,
    ops_norm,
    ops_pool,
    ops_quantize,
    ops_recurrent,
    ops_reduce,
    ops_resize,
    ops_sample,
    ops_sequence,
    ops_shape,
    ops_signal,
)
from pipeline.frontend.onnx.dimensions import bind, declared
from pipeline.frontend.onnx.dtypes import dtype_of
from pipeline.frontend.onnx.importer import Environment, Frame, Importer, functions_of, place, plain, too_large
from pipeline.frontend.onnx.inventory import Inventory
from pipeline.frontend.onnx.liveness import needed
from pipeline.frontend.onnx.load import load
from pipeline.frontend.onnx.schemas import newest
from pipeline.frontend.onnx.tensor import Tensor, TensorSequence
from pipeline.frontend.onnx.validity import refuse_other_type
from pipeline.ir.graph import Graph
from pipeline.ir.graph_builder import GraphBuilder

# importing a family is what puts its operators into the table
FAMILIES = (
    ops_activation, ops_attention, ops_control, ops_einsum, ops_elementwise, ops_generate, ops_index, ops_legacy,
    ops_linear, ops_microsoft, ops_norm, ops_pool, ops_quantize, ops_recurrent, ops_reduce, ops_resize, ops_sample,
    ops_sequence, ops_shape, ops_signal,
)  # fmt: skip


class OnnxModel:
    """The model in a file.

    path    the ONNX file; its external data lie next to it
    shapes  sizes of its symbolic dimensions by name, or the whole shape of an input by the input's name
    """

    def __init__(self, path: str, shapes: Mapping[str, int | Sequence[int]] | None = None) -> None:
        self.path = Path(path)
        self.shapes = dict(shapes or {})

    def describe(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.shapes.items())
        return f"{self.path}" + (f" with {sizes}" if sizes else "")

    def build(self, seed: int) -> Graph:
        """The graph. The weights are those of the file, so the seed has no say."""
        del seed
        return graph_of(load(self.path), self.shapes, str(self.path))


def graph_of(model: ModelProto, shapes: Mapping[str, int | Sequence[int]], where: str) -> Graph:
    """The graph of a model in memory, all of whose tensors are loaded."""
    opsets = {plain(entry.domain): entry.version for entry in model.opset_import}
    stored = {tensor.name for tensor in model.graph.initializer}
    given = [info for info in model.graph.input if info.name not in stored]
    outputs = [output.name for output in model.graph.output]
    functions = functions_of(model)
    check_opset(opsets.get("", 1), where)
    inventory = Inventory(functions)
    inventory.scan(needed(model.graph.node, outputs)[0], opsets)
    inventory.refuse(where)
    check_values(given, model.graph.output, where)
    check_definitions(model.graph, where)
    if model.graph.sparse_initializer:
        raise ModelError("sparse tensors are not supported", where=where, todo="Export the model with dense tensors")
    bound = bind([declared(info) for info in given], shapes, where)

    builder = GraphBuilder()
    environment: Environment = {}
    for info in given:
        dtype = dtype_of(info.type.tensor_type.elem_type, f"{where}: {info.name}")
        try:
            environment[info.name] = Tensor(builder, builder.input(info.name, bound[info.name], dtype))
        except CheckError as error:
            raise too_large(error, f"{where}: input {info.name}") from error
    importer = Importer(builder, where, functions, inventory.listing())
    results = importer.graph(model.graph, Frame(environment, opsets, {}, ""))
    named = []
    for name, declaration, result in zip(outputs, model.graph.output, results, strict=True):
        if isinstance(result, TensorSequence):
            raise ModelError(f"output {name} is a sequence", where=where, todo="Export the model with tensors only")
        refuse_other_type(declaration, result.dtype, where)
        named.append((name, result.value))
    return builder.finish(named)


def check_opset(opset: int, where: str) -> None:
    if opset > newest():
        raise ModelError(
            f"opset {opset} is not known",
            where=where,
            why=f"the installed onnx package knows operators up to opset {newest()}",
            todo="Export the model for an older opset, or upgrade the onnx package",
        )


def check_values(inputs: Sequence[ValueInfoProto], outputs: Sequence[ValueInfoProto], where: str) -> None:
    """Inputs and outputs are tensors (no sequences, maps or optional values), and each name stands once."""
    for info in (*inputs, *outputs):
        kind = info.type.WhichOneof("value")
        if kind not in ("tensor_type", None):
            raise ModelError(
                f"{info.name} is a {kind.removesuffix('_type').replace('_', ' ')}",
                where=where,
                why="inputs and outputs are dense tensors here",
                todo="Export the model with tensors only",
            )
    for what, values in (("inputs", inputs), ("outputs", outputs)):
        names = [info.name for info in values]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ModelError(f"two {what} are called {twice[0]}", where=where, todo="Export the model again")


def check_definitions(graph: GraphProto, where: str) -> None:
    """There is something to compute, and every value is made once."""
    if not graph.output:
        raise ModelError("the model has no outputs", where=where, todo="Export the model with the outputs you need")
    made = {value.name for value in (*graph.input, *graph.initializer)}
    for number, node in enumerate(graph.node):
        for name in filter(None, node.output):
            if name in made:
                raise ModelError(
                    f"value {name} is made twice",
                    where=place(node, number, where),
                    why="each name of an ONNX graph stands for one value",
                    todo="The file is damaged: export it again",
                )
            made.add(name)
