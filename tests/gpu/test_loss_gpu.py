"""liger-kernel's loss on a GPU, beside the blocked one: chosen, equal, and the same to the bit every time.

bf16 has 8 significant bits, and logits of size 3 are off by 0.01: 3e-2 of the largest gradient. fp32: 1e-3, since
products may run in TF32 where the machine says so.
"""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before the first product on the device

import torch
from same_bits import Reason, assert_same_bits

from comt_cli.data.split import IGNORE
from comt_cli.kernels.choice import choose_loss
from comt_cli.kernels.linear_cross_entropy import linear_cross_entropy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none is visible"),
]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 3e-2)], ids=str)
def test_it_is_chosen_and_agrees_and_repeats(dtype, tolerance):
    device = torch.device("cuda", 0)
    choice = choose_loss("auto", device, dtype)
    assert choice.fused, choice.reason
    torch.manual_seed(0)
    h = torch.randn(1000, 192, device=device, dtype=dtype, requires_grad=True)
    W = (torch.randn(5003, 192, device=device) / 192**0.5).to(dtype).requires_grad_()
    targets = torch.randint(5003, (1000,), device=device)
    targets[::7] = IGNORE

    def run(wanted):
        loss = linear_cross_entropy(h, W, targets, wanted)
        return [loss.detach(), *torch.autograd.grad(loss / 857, (h, W))]

    torch.use_deterministic_algorithms(True)
    try:
        first, second, blocked = run("auto"), run("auto"), run("reference")
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same_bits(second, first, Reason.SAME_CALL)
    for mine, other in zip(first, blocked, strict=True):
        assert (mine.double() - other.double()).abs().max() <= tolerance * other.double().abs().max()
