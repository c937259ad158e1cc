"""One more opinion on what a module gives, by ONNX Runtime. It is no oracle: what it says is told, decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.report.compare import difference
from pipeline.report.peers.onnxruntime import OnnxRuntime
from pipeline.report.peers.peer import PeerModel

log = logging.getLogger("pipeline")


def vote(model: PeerModel, ours: Sequence[np.ndarray[Any, Any]]) -> None:
    """Logs whether it agrees, where it is installed. ours: the outputs of the model's feeds, in order."""
    voter = OnnxRuntime()
    if voter.available() is not None:
        return
    try:
        run = voter.prepare(model, 1)
        theirs = {name: np.array(array) for name, array in run(model.feeds).items()}
    except Exception as error:  # foreign code on a model that it may not support
        log.info("onnxruntime has no vote: %s", str(error).strip().partition("\n")[0])
        return
    worst, where = difference(theirs, dict(zip(model.outputs(), ours, strict=True)), None)
    if worst <= 1.0:
        log.info("onnxruntime agrees (largest difference %.2g of a thousandth of the largest value)", worst)
    else:
        log.warning("onnxruntime disagrees: %s. float64 agrees with us; please compare", where)
