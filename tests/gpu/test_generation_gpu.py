"""Decoding on a GPU: captured steps against single kernels, and the GPU against the CPU."""

from __future__ import annotations

import pytest
import torch
from initialised import shaken
from method_cases import TOKENS, built, every_method, wiring_of

from comt_cli.generation.cached import Decoder, generate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none is visible"),
]
PROMPTS = [row[:length].tolist() for row, length in zip(TOKENS, (5, 12, 1), strict=True)]


@every_method
def test_a_replayed_step_is_the_step(options):
    """In fp32, against single kernels and the CPU; attention over other numbers of columns adds in another order."""
    cpu, gpu = (shaken(built(wiring_of(options))) for _ in range(2))
    gpu.to("cuda")
    decoders = [Decoder(cpu, 3, 24, graph=False), *(Decoder(gpu, 3, 24, graph=graph) for graph in (False, True))]
    for _ in range(2):  # a graph serves the next prompts too
        logits = [[decoder.prefill(PROMPTS).cpu()] for decoder in decoders]
        for step in range(8):
            for found, decoder in zip(logits, decoders, strict=True):
                found.append(decoder.step(TOKENS[:, step].to(decoder.device)).cpu())
        expected, *others = (torch.stack(found) for found in logits)
        for found in others:
            assert (found - expected).norm() < 1e-4 * expected.norm()


def test_the_gpu_draws_what_the_cpu_draws():
    """The random numbers are the same; a draw differs only where one falls within rounding of a boundary."""
    cpu, gpu = (shaken(built(wiring_of({"name": "comt"}))) for _ in range(2))
    gpu.to("cuda")
    options = {"max_new_tokens": 8, "temperature": 1.2, "top_p": 0.9, "seed": 3}
    assert list(generate(gpu, PROMPTS, **options)) == list(generate(cpu, PROMPTS, **options))


def test_bf16_is_captured():
    model = shaken(built(wiring_of({"name": "transponder"}))).to("cuda", torch.bfloat16)
    steps = [list(generate(model, PROMPTS, max_new_tokens=8, graph=graph)) for graph in (True, True)]
    assert steps[0] == steps[1]
    assert len(steps[0]) == 8
