"""Every method, and many runs at once, on a GPU."""

from __future__ import annotations

import pytest
import torch
from initialised import shaken
from method_cases import TOKENS, built, every_method, loss_of, wiring_of
from tiny_runs import tiny_spec

from comt_cli.campaign.launch import train_on
from comt_cli.campaign.outcomes import Ending

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none is visible"),
]


@every_method
def test_the_gpu_computes_what_the_cpu_does(options):
    """Logits and gradients in fp32. Both sum the same numbers in other orders, over four blocks: some 1e-5 of them."""
    cpu, gpu = (shaken(built(wiring_of(options))) for _ in range(2))
    gpu.to("cuda")
    with torch.no_grad():
        expected, found = cpu(TOKENS), gpu(TOKENS.to("cuda")).cpu()
    assert (found - expected).norm() < 1e-4 * expected.norm()
    loss_of(cpu).backward()
    logits = gpu(TOKENS.to("cuda"))
    targets = TOKENS[:, 1:].reshape(-1).to("cuda")
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), targets).backward()
    for (name, one), (_, other) in zip(cpu.named_parameters(), gpu.named_parameters(), strict=True):
        assert (other.grad.cpu() - one.grad).norm() <= 1e-3 * one.grad.norm() + 1e-7, name


def test_workers_fill_the_gpu(tiny_corpus, tmp_path):
    specs = [tiny_spec(tiny_corpus, seed=seed, steps=4) for seed in (1, 2, 3)]
    summary = train_on(1, specs, tmp_path, "cuda", 2)
    assert [outcome.ending for outcome in summary.outcomes] == [Ending.done] * 3
