"""Tests of the import on what torch.onnx.export makes of BERT and GPT-2, against torch itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ModelError
from pipeline.frontend.onnx.model import OnnxModel
from pipeline.ir.evaluate import evaluate

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("onnxscript")

pytestmark = pytest.mark.slow
SIZES = (2, 12)


def network(name: str) -> Any:
    """Two layers, random weights; called with ids and mask, gives the last hidden state."""
    torch.manual_seed(0)
    if name == "bert":
        sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=99)
        inner = transformers.BertModel(transformers.BertConfig(**sizes))
    else:
        sizes = dict(n_embd=32, n_layer=2, n_head=4, vocab_size=99, n_positions=32, use_cache=False)
        inner = transformers.GPT2Model(transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=1))

    class Hidden(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, ids: Any, mask: Any) -> Any:
            return self.inner(input_ids=ids, attention_mask=mask).last_hidden_state

    return Hidden().eval()


@pytest.mark.parametrize("opset", [18, 20])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_an_export_with_open_dimensions_computes_what_torch_computes(name: str, opset: int, tmp_path: Path) -> None:
    module, path = network(name), str(tmp_path / "m.onnx")
    ids, mask = torch.randint(0, 99, SIZES), torch.ones(SIZES, dtype=torch.int64)
    mask[1, 8:] = 0
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    names = {"input_names": ["ids", "mask"], "output_names": ["hidden"]}
    shapes = {"ids": free, "mask": free}
    torch.onnx.export(
        module, (ids, mask), path, opset_version=opset, dynamo=True, dynamic_shapes=shapes, verbose=False, **names
    )
    with pytest.raises(ModelError, match=r"dimensions of the model have no size.*workload\.shapes"):
        OnnxModel(path).build(0)
    graph = OnnxModel(path, {"ids": SIZES, "mask": SIZES}).build(0)
    with torch.no_grad():
        wanted = module(ids, mask).numpy()
    result = evaluate(graph, {"ids": ids.numpy(), "mask": mask.numpy()})["hidden"]
    np.testing.assert_allclose(result, wanted, atol=1e-5)
