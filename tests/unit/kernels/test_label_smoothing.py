"""Label smoothing in the blocked loss, in liger-kernel's and in the objectives, against `F.cross_entropy` in float64.

Tolerances as in test_linear_cross_entropy.py and test_liger_loss.py, as a share of the largest number.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from same_bits import Reason, assert_same_bits, differ
from torch import Tensor, nn

from comt_cli.data.split import IGNORE
from comt_cli.kernels import linear_cross_entropy as kernel
from comt_cli.kernels.choice import Choice
from comt_cli.kernels.linear_cross_entropy import linear_cross_entropy
from comt_cli.training.objective import ClassifierLoss, SummedLoss

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2}


def inputs(T: int, D: int, V: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(T, D, generator=generator, dtype=torch.float64)
    W = torch.randn(V, D, generator=generator, dtype=torch.float64) / D**0.5
    targets = torch.randint(V, (T,), generator=generator)
    targets[torch.rand(T, generator=generator) < 0.3] = IGNORE
    return h.to(dtype).requires_grad_(), W.to(dtype).requires_grad_(), targets


def reference(h: Tensor, W: Tensor, targets: Tensor, smoothing: float) -> list[Tensor]:
    """Loss and both gradients in float64."""
    h, W = (tensor.detach().double().requires_grad_() for tensor in (h, W))
    loss = F.cross_entropy(h @ W.T, targets, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)
    return [loss.detach(), *torch.autograd.grad(loss, (h, W))]


def ours(h: Tensor, W: Tensor, targets: Tensor, smoothing: float) -> list[Tensor]:
    loss = linear_cross_entropy(h, W, targets, "reference", smoothing)
    return [loss.detach(), *torch.autograd.grad(loss, (h, W))]


def assert_near(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for mine, right in zip(found, expected, strict=True):
        assert (mine.double() - right).abs().max() <= tolerance * max(1e-6, right.abs().max())


@pytest.fixture
def as_on_cuda(monkeypatch):
    """liger-kernel's kernel, in Triton's interpreter where there is no GPU."""
    pytest.importorskip("liger_kernel", reason="liger-kernel is for Linux")
    monkeypatch.setattr(kernel, "choose_loss", lambda *_: Choice(True, "for the test"))
    monkeypatch.setitem(kernel.FUSED, "cpu", kernel.FUSED["cuda"])
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rows", [1, 5, 16, 1000])  # of 16: one at a time, with a rest, all
@pytest.mark.parametrize("smoothing", [0.1, 0.9])
def test_value_and_gradients(dtype, rows, smoothing, monkeypatch):
    monkeypatch.setitem(kernel.BLOCK_ELEMENTS, "cpu", rows * 29)
    tensors = inputs(16, 40, 29, dtype)
    assert_near(ours(*tensors, smoothing), reference(*tensors, smoothing), TOLERANCE[dtype])


@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 13), st.floats(0, 0.99), st.integers(1, 40))
def test_odd_shapes(T, D, V, smoothing, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(kernel.BLOCK_ELEMENTS, "cpu", block)
        tensors = inputs(T, D, V)
        torch.testing.assert_close(ours(*tensors, smoothing), reference(*tensors, smoothing), rtol=1e-11, atol=1e-12)


def test_gradcheck(monkeypatch):
    monkeypatch.setitem(kernel.BLOCK_ELEMENTS, "cpu", 12)
    h, W, targets = inputs(5, 4, 6)
    assert torch.autograd.gradcheck(lambda h, W: linear_cross_entropy(h, W, targets, "reference", 0.2), (h, W))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_no_smoothing_is_the_path_without_it_to_the_bit(dtype):
    tensors = inputs(16, 8, 11, dtype)
    loss = linear_cross_entropy(*tensors, "reference")
    without = [loss.detach(), *torch.autograd.grad(loss, tensors[:2])]
    assert_same_bits(ours(*tensors, 0.0), without, Reason.SAME_CALL)


def test_ignored_targets_count_nothing():
    h, W, _ = inputs(6, 4, 7)
    loss, dh, dW = ours(h, W, torch.full((6,), IGNORE), 0.1)
    assert loss == 0
    assert not dh.any()
    assert not dW.any()


def test_large_logits_do_not_overflow():
    h, W, targets = inputs(4, 3, 5, torch.float32)
    tensors = ((h * 1e4).detach().requires_grad_(), W, targets)
    found = ours(*tensors, 0.1)
    assert all(tensor.isfinite().all() for tensor in found)
    assert_near(found[:1], reference(*tensors, 0.1)[:1], 1e-4)


@pytest.mark.parametrize("smoothing", [0.1, 0.6])
def test_of_liger_kernel(as_on_cuda, smoothing):
    h, W, targets = (tensor.detach().to(as_on_cuda) for tensor in inputs(37, 24, 53, torch.float32))
    tensors = (h.requires_grad_(), W.requires_grad_(), targets)
    assert_near(ours(*tensors, smoothing), reference(*tensors, smoothing), TOLERANCE[torch.float32])


def test_what_spreads_over_the_other_words_alone_is_a_little_more_here():
    """Tensor2Tensor's 0.9 on the target and 0.1 / (V - 1) on each other word."""
    h, W, targets = inputs(9, 5, 13)
    log_p = torch.log_softmax(h @ W.T, -1).detach()[targets != IGNORE]
    spread = torch.full_like(log_p, 0.1 / 12).scatter_(1, targets[targets != IGNORE, None], 0.9)
    torch.testing.assert_close(ours(h, W, targets, 0.1 * 13 / 12)[0], -(spread * log_p).sum())


class Says(nn.Module):
    """As much of a network as the losses need: a row of its matrix for every input, as hidden state and as logits."""

    head_bias = None

    def __init__(self) -> None:
        super().__init__()
        self.head_weight = nn.Parameter(torch.eye(7) + 0.1)

    def body(self, tokens_BT: Tensor) -> Tensor:
        return self.head_weight[tokens_BT]

    def forward(self, tokens_T: Tensor) -> Tensor:
        return self.body(tokens_T)


OBJECTIVES = [lambda e: SummedLoss(Says(), smoothing=e), lambda e: ClassifierLoss(Says(), e)]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=["language", "images"])
def test_objectives_smooth_in_training_and_measure_without(objective):
    smoothed, plain = objective(0.2), objective(0.0)
    tokens, targets = torch.tensor([0, 3, 6, 1]), torch.tensor([0, IGNORE, 6, 4])
    logits = (torch.eye(7) + 0.1).double()
    if isinstance(plain, SummedLoss):
        logits = logits @ logits.T
        tokens, targets = tokens[None], targets[None]
    for value in (0.2, 0.0):
        expected = F.cross_entropy(logits[tokens.flatten()], targets.flatten(), reduction="sum", label_smoothing=value)
        assert objective(value)(tokens, targets).item() == pytest.approx(expected.item(), rel=1e-6)
    assert differ(smoothed(tokens, targets), plain(tokens, targets))
    assert_same_bits(smoothed.eval()(tokens, targets), plain(tokens, targets), Reason.SAME_CALL)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, math.nan])
@pytest.mark.parametrize("objective", OBJECTIVES, ids=["language", "images"])
def test_a_share_that_is_none_is_refused(objective, smoothing):
    with pytest.raises(ValueError, match="label smoothing"):
        objective(smoothing)
