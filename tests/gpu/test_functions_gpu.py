"""The sigmoid and the tanh of the Triton kernels as compiled, which the interpreter does not have, against float64; and
liger-kernel's loss beside the blocked one.

Of the loss: bf16 has 8 significant bits, and logits of size 3 are off by 0.01: 3e-2 of the largest gradient. fp32:
1e-3, since products may run in TF32 where the machine says so.
"""

from __future__ import annotations

import pytest
import torch
from same_bits import Reason, assert_same_bits
from torch import Tensor

pytest.importorskip("triton", reason="Triton exists for Linux alone")

import triton
import triton.language as tl

from comt_cli.data.split import IGNORE
from comt_cli.kernels.choice import choose_loss
from comt_cli.kernels.linear_cross_entropy import linear_cross_entropy
from comt_cli.kernels.triton.gates import half_tanh, sigmoid


@triton.jit
def _apply(x_ptr, plain_ptr, gate_ptr, TYPE: tl.constexpr, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + at)
    tl.store(plain_ptr + at, sigmoid(x))
    tl.store(gate_ptr + at, 0.5 + 0.5 * half_tanh(0.5 * x, TYPE))


def both(x: Tensor, dtype: tl.dtype) -> tuple[Tensor, Tensor]:
    plain, gate = torch.empty_like(x), torch.empty_like(x)
    _apply[(len(x) // 1024,)](x, plain, gate, TYPE=dtype, N=1024)
    return plain, gate


def exact_to_a_few_ulp(found: Tensor, x: Tensor) -> bool:
    """ex2.approx is right to 2^-22; its argument, -x log2 e, is rounded, which changes exp by |x| 2^-23 of itself."""
    right = torch.sigmoid(x.double())
    return bool(((found - right).abs() <= right * (2**-21 + x.abs().double() * 2**-23) + 2**-126).all())


def every_bf16() -> Tensor:
    """Every number of that type, 65,536 with the infinities and NaNs, in fp32."""
    return torch.arange(-(2**15), 2**15, device="cuda").to(torch.int16).view(torch.bfloat16).float()


def test_every_number():
    x = every_bf16()
    finite = x.isfinite()
    plain, gate = both(x, tl.bfloat16)
    assert exact_to_a_few_ulp(plain[finite], x[finite])
    # tanh.approx: 2^-11 of tanh at most (PTX), half of it here; and one rounding of the sum.
    right = torch.sigmoid(x.double())
    bound = torch.tanh(x.double() / 2).abs() * 2**-12 + 2**-24
    assert ((gate - right).abs() <= bound)[finite].all()
    for found in (plain, gate):
        special = found[~finite], right[~finite].float()
        torch.testing.assert_close(*special, rtol=2**-22, atol=2**-126, equal_nan=True)
    exact = both(x, tl.float32)[1]
    assert ((exact - right).abs() <= 2**-22)[finite].all()


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
