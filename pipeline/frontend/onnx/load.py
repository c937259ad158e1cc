"""Reads an ONNX file with its external data; everything that can be wrong with a file is told apart here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # its stubs are another package
from onnx import GraphProto, ModelProto, NodeProto, TensorProto
from onnx.external_data_helper import load_external_data_for_model

from pipeline.errors import ModelError

EXPORT_AGAIN = "Copy or export the file again"
FIRST_FIELD = b"\x08"  # ir_version, which every exporter writes first


def load(path: Path) -> ModelProto:
    """The model with all its tensors in memory; a ModelError where the file does not hold one."""
    where = str(path)
    if path.is_dir():
        inside = sorted(file.name for file in path.glob("*.onnx"))[:5]
        todo = f"Name the file in it: {', '.join(inside)}" if inside else "Name an ONNX file"
        raise ModelError("the model is a folder, not a file", where=where, todo=todo)
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        todo = "Check workload.path; a relative path counts from the folder that the command is started in"
        raise ModelError("there is no such file", where=where, todo=todo) from error
    except OSError as error:
        raise ModelError(
            "the file cannot be read", where=where, why=str(error), todo="Check its permissions"
        ) from error
    model = parse(data, where)
    load_external(model, path)
    return model


def parse(data: bytes, where: str) -> ModelProto:
    """A truncated file either breaks off inside a field or lacks the last ones: graph and opset_import."""
    if not data:
        raise ModelError("the file is empty", where=where, todo=EXPORT_AGAIN)
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        if data[:1] == FIRST_FIELD:
            why = f"its {len(data)} bytes begin like an ONNX model and break off, or are damaged"
            raise ModelError("the file is truncated", where=where, why=why, todo=EXPORT_AGAIN) from error
        raise ModelError(
            "this is not an ONNX file", where=where, why=f"it begins with {data[:8]!r}", todo="Give a .onnx file"
        ) from error
    if not model.HasField("graph") and not model.ir_version:
        raise ModelError(
            "this is not an ONNX file", where=where, why=f"it begins with {data[:8]!r}", todo="Give a .onnx file"
        )
    if not model.HasField("graph") or not model.opset_import:
        missing = "graph" if not model.HasField("graph") else "opset_import"
        raise ModelError("the file is truncated", where=where, why=f"it has no {missing}", todo=EXPORT_AGAIN)
    check_names(model, where)
    return model


def check_names(model: ModelProto, where: str) -> None:
    """protobuf hands out bytes where a text is not UTF-8: a sign of damage."""
    graph = model.graph
    values = [*graph.input, *graph.output, *graph.initializer]
    nodes = [*graph.node, *(node for function in model.functions for node in function.node)]
    words = [value.name for value in values]
    words += [word for node in nodes for word in (node.op_type, node.domain, node.name, *node.input, *node.output)]
    words += [dim.dim_param for info in graph.input for dim in info.type.tensor_type.shape.dim]
    broken = [word for word in words if isinstance(word, bytes)]
    if broken:
        raise ModelError("the file is damaged", where=where, why=f"{broken[0]!r} is not a name", todo=EXPORT_AGAIN)


def load_external(model: ModelProto, path: Path) -> None:
    """Reads the data that lie in files next to the model, after a check that all of them are there."""
    missing: dict[str, int] = {}
    for tensor in tensors(model.graph):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        file = path.parent / entries.get("location", "")
        if not file.is_file():
            missing[entries.get("location", "")] = missing.get(entries.get("location", ""), 0) + 1
            continue
        try:
            end = int(entries.get("offset", 0)) + int(entries.get("length", 0))
        except ValueError as error:
            where = f"{path}: tensor {tensor.name}"
            raise ModelError("where its data lie is damaged", where=where, why=str(error), todo=EXPORT_AGAIN) from error
        if end > file.stat().st_size:
            raise ModelError(
                "external data are truncated",
                where=str(file),
                why=f"tensor {tensor.name} ends at byte {end} of {file.stat().st_size}",
                todo=EXPORT_AGAIN,
            )
    if missing:
        listing = ", ".join(f"{name or '(no name)'} ({count} tensors)" for name, count in missing.items())
        raise ModelError(
            "external data are missing",
            where=str(path),
            why=f"not found in {path.parent}: {listing}",
            todo="Put the files next to the model; they belong together",
        )
    try:
        load_external_data_for_model(model, str(path.parent))
    except (onnx.checker.ValidationError, OSError, ValueError) as error:
        raise ModelError("external data cannot be read", where=str(path), why=str(error), todo=EXPORT_AGAIN) from error


def tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Every stored tensor of a graph and its subgraphs."""
    yield from graph.initializer
    for node in graph.node:
        yield from node_tensors(node)


def node_tensors(node: NodeProto) -> Iterator[TensorProto]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("g"):
            yield from tensors(attribute.g)
        for graph in attribute.graphs:
            yield from tensors(graph)
