"""The blocked head and loss against `F.cross_entropy` on the whole matrix of logits.

Tolerances. float64 and float32: two orders of summing at most 40 products and 60 exponentials, some tens of roundings.
bfloat16 has 8 significant bits: products are rounded to 2^-9 relative, and logits of size 3 so to about 0.01, which
is the error of a gradient of size 1.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from comt_cli.data.split import IGNORE
from comt_cli.kernels import linear_cross_entropy as kernel
from comt_cli.kernels.linear_cross_entropy import linear_cross_entropy

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2}


def inputs(T: int, D: int, V: int, dtype: torch.dtype = torch.float64, ignored: float = 0.3, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(T, D, generator=generator, dtype=torch.float64)
    W = torch.randn(V, D, generator=generator, dtype=torch.float64) / D**0.5
    targets = torch.randint(V, (T,), generator=generator)
    targets[torch.rand(T, generator=generator) < ignored] = IGNORE
    return h.to(dtype).requires_grad_(), W.to(dtype).requires_grad_(), targets


def reference(h: Tensor, W: Tensor, targets: Tensor) -> list[Tensor]:
    """Loss and both gradients in float64."""
    h, W = (tensor.detach().double().requires_grad_() for tensor in (h, W))
    loss = F.cross_entropy(h @ W.T, targets, ignore_index=IGNORE, reduction="sum")
    return [loss.detach(), *torch.autograd.grad(loss, (h, W))]


def ours(h: Tensor, W: Tensor, targets: Tensor, factor: float = 1.0) -> list[Tensor]:
    loss = linear_cross_entropy(h, W, targets)
    return [loss.detach(), *torch.autograd.grad(loss * factor, (h, W))]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch):
    """Blocks of `rows` rows for a vocabulary of `V`."""

    def set_rows(rows: int, V: int) -> None:
        monkeypatch.setitem(kernel.BLOCK_ELEMENTS, "cpu", rows * V)

    return set_rows


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rows", [1, 5, 8, 16, 17, 1000])  # of 16: one at a time, with a rest, two halves, all
def test_value_and_gradients(dtype, rows, small_blocks):
    small_blocks(rows, 29)
    h, W, targets = inputs(16, 40, 29, dtype)
    for mine, expected in zip(ours(h, W, targets), reference(h, W, targets), strict=True):
        scale = expected.abs().max()
        assert (mine.double() - expected).abs().max() <= TOLERANCE[dtype] * scale
    loss = linear_cross_entropy(h, W, targets)
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 13), st.integers(1, 40), st.integers(0, 3))
def test_odd_shapes(T, D, V, block, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(kernel.BLOCK_ELEMENTS, "cpu", block)  # also less than one row
        h, W, targets = inputs(T, D, V, seed=seed)
        torch.testing.assert_close(ours(h, W, targets), reference(h, W, targets), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("which", [range(4, 8), range(16)], ids=["a block", "all"])
def test_ignored_rows_count_nothing(which, small_blocks):
    small_blocks(4, 11)
    h, W, targets = inputs(16, 6, 11, ignored=0)
    targets[list(which)] = IGNORE
    loss, dh, dW = ours(h, W, targets)
    torch.testing.assert_close([loss, dh, dW], reference(h, W, targets), rtol=1e-12, atol=1e-12)
    assert not dh[list(which)].any()
    assert bool(dW.any()) == (len(which) < 16)


def test_the_incoming_derivative_multiplies_both_gradients():
    h, W, targets = inputs(7, 5, 9)
    once, thrice = ours(h, W, targets), ours(h, W, targets, factor=-3.0)
    torch.testing.assert_close([-3 * once[1], -3 * once[2]], thrice[1:], rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("rows", [5, 1000])
def test_a_bias_is_added_to_every_row(dtype, rows, small_blocks):
    small_blocks(rows, 29)
    h, W, targets = inputs(16, 40, 29, dtype)
    b = torch.linspace(-2, 3, 29, dtype=dtype).requires_grad_()
    found = linear_cross_entropy(h, W, targets, smoothing=0.1, bias_V=b)
    exact = [tensor.detach().double().requires_grad_() for tensor in (h, W, b)]
    logits = exact[0] @ exact[1].T + exact[2]
    expected = F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum", label_smoothing=0.1)
    pairs = zip(torch.autograd.grad(found * 3, (h, W, b)), torch.autograd.grad(expected * 3, exact), strict=True)
    for mine, theirs in ((found, expected), *pairs):
        assert mine.dtype == dtype
        assert (mine.double() - theirs).abs().max() <= TOLERANCE[dtype] * theirs.abs().max()
    with torch.no_grad():
        assert torch.equal(linear_cross_entropy(h, W, targets, smoothing=0.1, bias_V=b), found)


def test_gradcheck(small_blocks):
    small_blocks(2, 6)
    h, W, targets = inputs(5, 4, 6)
    assert torch.autograd.gradcheck(linear_cross_entropy, (h, W, targets))


def test_large_logits_do_not_overflow():
    h, W, targets = inputs(4, 3, 5, torch.float32, ignored=0)
    found = ours((h * 1e4).detach().requires_grad_(), W, targets)
    assert all(tensor.isfinite().all() for tensor in found)
    expected = reference(h.detach() * 1e4, W, targets)[0]
    assert abs(found[0] - expected) <= 1e-4 * expected


def test_under_autocast():
    """fp32 weights, bf16 products; the gradient of the weights comes back in fp32."""
    h, W, targets = inputs(12, 16, 20, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = linear_cross_entropy(h.to(torch.bfloat16), W, targets)
    dh, dW = torch.autograd.grad(loss, (h, W))
    assert loss.dtype == dh.dtype == dW.dtype == torch.float32
    for mine, expected in zip((loss, dh, dW), reference(h, W, targets), strict=True):
        assert (mine.double() - expected).abs().max() <= 3e-2 * expected.abs().max()
    # The products did run in bf16: without, the error would be some 1e-7.
    assert (loss.double() - reference(h, W, targets)[0]).abs() > 1e-6
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kept = linear_cross_entropy(h, W, targets)  # what comes in fp32 stays in it
    torch.testing.assert_close(kept.double(), reference(h, W, targets)[0], rtol=1e-6, atol=0)


@pytest.mark.parametrize("h_needs", [True, False])
def test_a_gradient_for_one_of_the_two(h_needs):
    h, W, targets = inputs(6, 4, 7)
    h.requires_grad_(h_needs)
    W.requires_grad_(not h_needs)
    (found,) = torch.autograd.grad(linear_cross_entropy(h, W, targets), h if h_needs else W)
    torch.testing.assert_close(found, reference(h, W, targets)[1 if h_needs else 2], rtol=1e-12, atol=1e-12)


def test_without_gradients_the_loss_is_the_same_and_no_graph_is_kept():
    h, W, targets = inputs(6, 4, 7)
    with torch.no_grad():
        loss = linear_cross_entropy(h, W, targets)
    assert loss.grad_fn is None
    torch.testing.assert_close(loss, reference(h, W, targets)[0], rtol=1e-12, atol=0)
