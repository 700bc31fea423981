"""The fused linear cross entropy of liger-kernel, as it is called here, against `F.cross_entropy` in float64.

Without a GPU Triton's interpreter runs its kernel, on CPU tensors, so the choice of it is made for it. Tolerances, as a
share of the largest number. float32: sums of at most 40 products and 60 exponentials, some tens of roundings of 6e-8.
bfloat16 has 8 significant bits: logits of size 3 are off by about 0.01, the error of a gradient of size 1.
"""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from same_bits import Reason, assert_same_bits
from torch import Tensor

from comt_cli.data.split import IGNORE
from comt_cli.kernels import linear_cross_entropy as kernel
from comt_cli.kernels.choice import Choice
from comt_cli.kernels.linear_cross_entropy import linear_cross_entropy

pytest.importorskip("liger_kernel", reason="liger-kernel is for Linux")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True, scope="module")
def chosen():
    """As on a CUDA device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "choose_loss", lambda wanted, *_: Choice(wanted != "reference", "for the test"))
        patch.setitem(kernel.FUSED, "cpu", kernel.FUSED["cuda"])
        yield


@pytest.fixture
def calls(monkeypatch):
    """How often liger-kernel's was called."""
    made, real = [], kernel.liger
    monkeypatch.setattr(kernel, "liger", lambda: made.append(1) or real())
    return made


def inputs(T: int, D: int, V: int, dtype: torch.dtype = torch.float32, ignored: float = 0.3, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(T, D, generator=generator)
    W = torch.randn(V, D, generator=generator) / D**0.5
    targets = torch.randint(V, (T,), generator=generator)
    targets[torch.rand(T, generator=generator) < ignored] = IGNORE
    h, W = (tensor.to(DEVICE, dtype).requires_grad_() for tensor in (h, W))
    return h, W, targets.to(DEVICE)


def reference(h: Tensor, W: Tensor, targets: Tensor, factor: float = 1.0, bias: Tensor | None = None) -> list[Tensor]:
    """With a bias smoothed by 0.1."""
    given = [tensor.detach().double().requires_grad_() for tensor in (h, W, bias) if tensor is not None]
    logits, smoothing = (given[0] @ given[1].T, 0.0) if bias is None else (given[0] @ given[1].T + given[2], 0.1)
    loss = F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)
    return [loss.detach(), *torch.autograd.grad(loss * factor, given)]


def ours(h: Tensor, W: Tensor, targets: Tensor, factor: float = 1.0, bias: Tensor | None = None) -> list[Tensor]:
    loss = linear_cross_entropy(h, W, targets, "auto", 0.0 if bias is None else 0.1, bias)
    return [loss.detach(), *torch.autograd.grad(loss * factor, [each for each in (h, W, bias) if each is not None])]


def assert_near(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for mine, right in zip(found, expected, strict=True):
        assert (mine.double() - right).abs().max() <= tolerance * max(1e-6, right.abs().max())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("factor", [1.0, -0.25])  # the first is a case of its own in its backward pass
def test_value_and_gradients(dtype, factor, calls):
    tensors = inputs(37, 24, 53, dtype)
    found = ours(*tensors, factor)
    assert [tensor.dtype for tensor in found] == [torch.float32, dtype, dtype]
    assert_near(found, reference(*tensors, factor), TOLERANCE[dtype])
    assert calls == [1]


@settings(max_examples=10)
@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 40), st.integers(0, 3), st.integers(1, 1000))
def test_odd_shapes(T, D, V, seed, block):
    tensors = inputs(T, D, V, seed=seed)
    bias = torch.linspace(-2, 3, V, device=DEVICE).requires_grad_() if seed % 2 else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "LIGER_BLOCK_ELEMENTS", block)
        assert_near(ours(*tensors, 0.5, bias), reference(*tensors, 0.5, bias), TOLERANCE[torch.float32])


@pytest.mark.parametrize(("elements", "blocks"), [(1, 4), (2 * 32 * 8, 2), (4 * 32 * 8, 1), (10**9, 1)])
def test_blocks_are_as_large_as_said(monkeypatch, elements, blocks):
    """32 tokens, 8 wide, 32 words: by itself it takes 8 rows at a time, with twice the logits 16, then all."""
    ops, rows = sys.modules["liger_kernel.ops.fused_linear_cross_entropy"], []

    class Counted:
        def __getitem__(self, grid):
            rows.append(grid[0])
            return real[grid]

    real = ops.liger_cross_entropy_kernel
    monkeypatch.setattr(ops, "liger_cross_entropy_kernel", Counted())
    monkeypatch.setattr(kernel, "LIGER_BLOCK_ELEMENTS", elements)
    tensors = inputs(32, 8, 32)
    assert_near(ours(*tensors), reference(*tensors), TOLERANCE[torch.float32])
    assert rows == [32 // blocks] * blocks


def test_under_autocast(calls):
    """fp32 weights, bf16 products; the gradient of the weights comes back in fp32."""
    h, W, targets = inputs(12, 16, 20)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        loss = linear_cross_entropy(h.to(torch.bfloat16), W, targets)
    found = [loss, *torch.autograd.grad(loss, (h, W))]
    assert {tensor.dtype for tensor in found} == {torch.float32}
    assert_near(found, reference(h, W, targets), TOLERANCE[torch.bfloat16])
    # The products did run in bf16: without, the error would be some 1e-7.
    assert (loss.double() - reference(h, W, targets)[0]).abs() > 1e-6
    assert calls


def test_it_repeats_to_the_bit():
    """Also where PyTorch refuses whatever adds up in no fixed order."""
    tensors = inputs(64, 16, 130, torch.bfloat16)
    torch.use_deterministic_algorithms(True)
    try:
        first, second = ours(*tensors, 0.5), ours(*tensors, 0.5)
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same_bits(second, first, Reason.SAME_CALL)


def test_what_it_cannot_do_is_ours(calls):
    h, W, targets = inputs(6, 4, 7)
    (dW,) = torch.autograd.grad(linear_cross_entropy(h.detach(), W, targets), W)
    assert_near([dW], reference(h, W, targets)[2:], TOLERANCE[torch.float32])
    assert linear_cross_entropy(h[:0], W, targets[:0]) == 0
    assert calls == []
