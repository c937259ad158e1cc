"""The ONNX backend interface over sessions, for programs that speak `onnx.backend.base`.

Compiling belongs to a higher layer, so the backend is made from a function that does it: `onnx_backend(build)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

from pipeline.errors import UserError
from pipeline.runtime.session import Session

Build = Callable[[onnx.ModelProto], Session]


class SessionRep(BackendRep):
    """A prepared model: `run` takes a mapping, or a sequence in the order of the inputs, and gives a named tuple."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._inputs = [node.name for node in session.get_inputs()]
        self._outputs = [node.name for node in session.get_outputs()]

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        elif isinstance(inputs, Sequence):
            if len(inputs) != len(self._inputs):
                raise UserError(
                    "the model takes another number of inputs",
                    why=f"{len(inputs)} were given",
                    todo=f"Give {len(self._inputs)}: {', '.join(self._inputs)}",
                )
            feeds = dict(zip(self._inputs, inputs, strict=True))
        else:
            raise UserError(
                "the inputs are neither a mapping nor a sequence", why=f"a {type(inputs).__name__} was given"
            )
        return namedtupledict("Outputs", self._outputs)(*self._session.run(None, feeds))


def onnx_backend(build: Build) -> type[Backend]:
    """A backend class whose `prepare` compiles with `build`."""

    class SessionBackend(Backend):
        """Runs ONNX models on this machine's CPU."""

        @classmethod
        def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> bool:
            return cls.supports_device(device)

        @classmethod
        def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> BackendRep:
            if not cls.supports_device(device):
                raise UserError("the device is not supported", where=device, todo="Use CPU")
            return SessionRep(build(model))

        @classmethod
        def run_node(cls, node: onnx.NodeProto, inputs: Any, device: str = "CPU", outputs_info: Any = None,
                     **kwargs: Any) -> tuple[Any, ...]:  # fmt: skip
            version = kwargs.get("opset_version", onnx.defs.onnx_opset_version())
            given = [name for name in node.input if name]
            arrays = [np.asarray(x) for x in (inputs.values() if isinstance(inputs, Mapping) else inputs)]
            values = [
                onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
                for name, x in zip(given, arrays, strict=True)
            ]
            results = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output]
            graph = onnx.helper.make_graph([node], "node", values, results)
            model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)])
            return cls.prepare(onnx.shape_inference.infer_shapes(model), device).run(
                dict(zip(given, arrays, strict=True))
            )

        @classmethod
        def supports_device(cls, device: str) -> bool:
            return Device(device).type == DeviceType.CPU

    return SessionBackend
