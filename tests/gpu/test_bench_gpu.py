"""The steps that `comt bench step` measures in CUDA graphs, by block and whole."""

from __future__ import annotations

import pytest
import torch

from comt_cli.lab.bench.step import Variants
from comt_cli.lab.bench.tables import LANGUAGE, Shape

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none is visible"),
]


@pytest.mark.filterwarnings("default")  # the compiler's own
@pytest.mark.parametrize(
    ("captured", "what"), [("plain-compiled-graphs", "whole"), ("transponder-fused-graphs", "block")]
)
def test_a_step_in_cuda_graphs_is_the_same_step(captured, what):
    """Both train the same weights, in turns: the losses are equal between any two steps, to rounding in bf16, and fall.
    By block the graph of a layer reads what that of the one before it wrote."""
    model = {"size": "tiny", "width": 64, "ffn_width": 96, "layers": 3, "heads": 2}
    shape = Shape("60m-b64", "train-lm", model, {"vocabulary": 64, "sequence_length": 32}, 4)
    torch._dynamo.reset()
    builder = Variants(LANGUAGE, shape, "bf16-mixed", torch.device("cuda"), what)
    ready = [builder.prepare(name) for name in (captured.removesuffix("-graphs"), captured)]
    losses = []
    for turn in range(12):
        found = [each.loss().item() for each in ready]
        assert found[1] == pytest.approx(found[0], rel=1e-2)
        losses.append(found[1])
        ready[turn % 2].step()
        for each in ready:
            each.forward()
    assert losses[-1] < losses[0]
    torch._dynamo.reset()
