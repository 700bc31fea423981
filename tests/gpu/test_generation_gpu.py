"""Generating on a GPU: the draws of the CPU, and captured steps in bf16. test_methods_gpu.py has the captured steps of
every kind of method in fp32."""

from __future__ import annotations

import pytest
import torch
from decided import draw_with_a_margin
from initialised import shaken
from method_cases import TOKENS, built, wiring_of

from comt_cli.generation.cached import generate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none is visible"),
]
PROMPTS = [row[:length].tolist() for row, length in zip(TOKENS, (5, 12, 1), strict=True)]


def test_the_gpu_draws_what_the_cpu_draws():
    """The random numbers are the same; a draw could differ only where one falls within rounding of a boundary."""
    cpu, gpu = (shaken(built(wiring_of({"name": "comt"}))) for _ in range(2))
    gpu.to("cuda")
    options = {"max_new_tokens": 8, "temperature": 1.2, "top_p": 0.9, "seed": 3}
    with pytest.MonkeyPatch.context() as patch:
        draw_with_a_margin(patch)
        expected = list(generate(cpu, PROMPTS, **options))
    assert list(generate(gpu, PROMPTS, **options)) == expected


def test_bf16_is_captured():
    """The same steps, captured twice."""
    model = shaken(built(wiring_of({"name": "transponder"}))).to("cuda", torch.bfloat16)
    steps = [list(generate(model, PROMPTS, max_new_tokens=8, graph=graph)) for graph in (True, True)]
    assert steps[0] == steps[1]
    assert len(steps[0]) == 8
