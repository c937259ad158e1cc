"""ONNX Runtime on its CPU provider."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from pipeline.report.peers.peer import PeerModel, Run, missing


class OnnxRuntime:
    """All graph optimisations, one run at a time.

    Its threads spin while a run lasts, which is its fastest setting, and stop when the run ends
    (`session.force_spinning_stop`), so that they do not take the cores from what is measured next."""

    name = "onnxruntime"

    def available(self) -> str | None:
        return missing("onnxruntime", "onnxruntime")

    def prepare(self, model: PeerModel, threads: int) -> Run:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3
        options.add_session_config_entry("session.force_spinning_stop", "1")
        source = model.onnx()
        for name, size in _free_dimensions(source, model.feeds).items():
            options.add_free_dimension_override_by_name(name, size)
        given = str(source) if isinstance(source, Path) else source
        session = onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
        names = list(model.outputs())
        wanted = {value.name for value in session.get_inputs()}

        def run(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
            given = {name: array for name, array in feeds.items() if name in wanted}
            return dict(zip(names, session.run(names, given), strict=True))

        return run


def _free_dimensions(source: bytes | Path, feeds: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Sizes of the named dimensions of the inputs: what is fixed can be optimised further."""
    if isinstance(source, bytes):
        return {}
    found = {}
    for value in onnx.load(str(source), load_external_data=False).graph.input:
        if value.name not in feeds:
            continue
        for dim, size in zip(value.type.tensor_type.shape.dim, feeds[value.name].shape, strict=False):
            if dim.dim_param:
                found[dim.dim_param] = int(size)
    return found
