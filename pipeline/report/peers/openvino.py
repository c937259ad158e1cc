"""OpenVINO on its CPU plug-in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pipeline.report.peers.peer import PeerModel, Run, missing


class OpenVino:
    """The latency profile: one stream with all threads, float32 kept in float32, shapes fixed, outputs not copied."""

    name = "openvino"

    def available(self) -> str | None:
        return missing("openvino", "openvino")

    def prepare(self, model: PeerModel, threads: int) -> Run:
        import openvino

        core = openvino.Core()
        source = model.onnx()
        read = core.read_model(str(source) if isinstance(source, Path) else source)
        shapes = {
            name: openvino.PartialShape(list(model.feeds[name].shape))
            for port in read.inputs
            for name in port.get_names()
            if name in model.feeds
        }
        if shapes:
            read.reshape(shapes)
        compiled = core.compile_model(
            read,
            "CPU",
            {
                "INFERENCE_NUM_THREADS": threads,
                "INFERENCE_PRECISION_HINT": "f32",
                "PERFORMANCE_HINT": "LATENCY",
                "NUM_STREAMS": 1,
            },
        )
        request = compiled.create_infer_request()
        ports = {name: compiled.output(name) for name in model.outputs()}
        wanted = {name for port in compiled.inputs for name in port.get_names()}

        def run(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
            given = {name: array for name, array in feeds.items() if name in wanted}
            results = request.infer(given, share_inputs=True, share_outputs=True)
            return {name: results[port] for name, port in ports.items()}

        return run
