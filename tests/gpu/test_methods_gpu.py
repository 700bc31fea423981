"""Every kind of method, and many runs at once, on a GPU."""

from __future__ import annotations

import pytest
import torch
from initialised import shaken
from method_cases import KINDS, METHODS, TOKENS, built, loss_of, wiring_of
from tiny_runs import tiny_spec
from torch import Tensor

from comt_cli.campaign.executor import train_on
from comt_cli.campaign.outcomes import Ending
from comt_cli.generation.cached import Decoder
from comt_cli.models.llama import Llama

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none is visible"),
]
PROMPTS = [row[:length].tolist() for row, length in zip(TOKENS, (5, 12, 1), strict=True)]
SHARES = 6


@pytest.mark.parametrize("names", [KINDS[share::SHARES] for share in range(SHARES)], ids=",".join)
def test_the_gpu_computes_what_the_cpu_does(names):
    """In fp32. Both sum the same numbers in other orders, over four blocks: some 1e-5 of them."""
    for name in names:
        cpu, gpu = (shaken(built(wiring_of(METHODS[name]))) for _ in range(2))
        gpu.to("cuda")
        assert_same_gradients(cpu, gpu, name)
        assert_same_decoding(cpu, gpu, name)


def assert_same_gradients(cpu: Llama, gpu: Llama, name: str) -> None:
    expected, found = cpu(TOKENS), gpu(TOKENS.to("cuda"))
    assert near(found, expected, 1e-4), name
    loss_of(cpu).backward()
    targets = TOKENS[:, 1:].reshape(-1).to("cuda")
    torch.nn.functional.cross_entropy(found[:, :-1].flatten(0, 1), targets).backward()
    for (parameter, one), (_, other) in zip(cpu.named_parameters(), gpu.named_parameters(), strict=True):
        assert near(other.grad, one.grad, 1e-3), f"{name}: {parameter}"


def assert_same_decoding(cpu: Llama, gpu: Llama, name: str) -> None:
    """By captured steps, by single kernels and by the CPU; attention over other numbers of columns adds in another
    order."""
    decoders = [Decoder(cpu, 3, 24, graph=False), *(Decoder(gpu, 3, 24, graph=graph) for graph in (False, True))]
    for _ in range(2):  # a graph serves the next prompts too
        logits = [[decoder.prefill(PROMPTS).cpu()] for decoder in decoders]
        for step in range(8):
            for found, decoder in zip(logits, decoders, strict=True):
                found.append(decoder.step(TOKENS[:, step].to(decoder.device)).cpu())
        expected, *others = (torch.stack(found) for found in logits)
        for found in others:
            assert near(found, expected, 1e-4), name


def near(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    return bool((found.cpu() - expected).norm() <= tolerance * expected.norm() + 1e-7)


def test_workers_fill_the_gpu(tiny_corpus, tmp_path):
    specs = [tiny_spec(tiny_corpus, seed=seed, steps=4) for seed in (1, 2, 3)]
    summary = train_on(1, specs, tmp_path, "cuda", 2)
    assert [outcome.ending for outcome in summary.outcomes] == [Ending.done] * 3
