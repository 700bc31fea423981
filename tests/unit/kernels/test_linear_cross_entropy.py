"""The blocked head and loss, in PyTorch, in C++ and by liger-kernel (whose kernel Triton's interpreter runs), against
`F.cross_entropy` on the whole matrix of logits in float64.

Tolerances, of the largest number. float64 and float32: two orders of summing at most 40 products and 60 exponentials,
some tens of roundings. bfloat16 has 8 significant bits: products are rounded to 2^-8 relative, and logits of size 3 so
to about 0.01, which is the error of a gradient of size 1.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from same_bits import Reason, assert_same_bits
from torch import Tensor, nn

from comt_cli.data.split import IGNORE
from comt_cli.kernels import linear_cross_entropy as kernel
from comt_cli.kernels.choice import Choice, Wanted
from comt_cli.kernels.linear_cross_entropy import linear_cross_entropy
from comt_cli.training.objective import ClassifierLoss, SummedLoss

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2}
IN_CPP = pytest.mark.skipif("build.available() is not None", reason="the C++ kernels cannot be built")
LIGER = pytest.mark.skipif(find_spec("liger_kernel") is None, reason="liger-kernel is for Linux")
WAYS = pytest.mark.parametrize("wanted", ["reference", pytest.param("fused", marks=IN_CPP)])


def inputs(T: int, D: int, V: int, dtype: torch.dtype = torch.float64, ignored: float = 0.3, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(T, D, generator=generator, dtype=torch.float64)
    W = torch.randn(V, D, generator=generator, dtype=torch.float64) / D**0.5
    targets = torch.randint(V, (T,), generator=generator)
    targets[torch.rand(T, generator=generator) < ignored] = IGNORE
    return h.to(dtype).requires_grad_(), W.to(dtype).requires_grad_(), targets


def reference(
    h: Tensor, W: Tensor, targets: Tensor, smoothing: float = 0.0, bias: Tensor | None = None, factor: float = 1.0
) -> list[Tensor]:
    """Loss and gradients in float64."""
    given = [tensor.detach().double().requires_grad_() for tensor in (h, W, bias) if tensor is not None]
    logits = given[0] @ given[1].T + (0 if bias is None else given[2])
    loss = F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)
    return [loss.detach(), *torch.autograd.grad(loss * factor, given)]


def ours(
    h: Tensor, W: Tensor, targets: Tensor, smoothing: float = 0.0, bias: Tensor | None = None,
    wanted: Wanted = "reference", factor: float = 1.0,
) -> list[Tensor]:  # fmt: skip
    loss = linear_cross_entropy(h, W, targets, wanted, smoothing, bias)
    return [loss.detach(), *torch.autograd.grad(loss * factor, [each for each in (h, W, bias) if each is not None])]


def assert_near(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for mine, right in zip(found, expected, strict=True):
        assert mine.shape == right.shape
        if mine.numel():
            assert (mine.double() - right).abs().max() <= tolerance * max(1.0, right.abs().max())


@WAYS
@given(
    T=st.integers(0, 40),
    V=st.integers(1, 70),
    block=st.integers(1, 400),
    ignored=st.sampled_from([0.0, 0.3, 1.0]),
    size=st.sampled_from([1.0, 1e4]),
    smoothing=st.sampled_from([0.0, 0.1, 0.9]),
    has_bias=st.booleans(),
    dtype=st.sampled_from([*TOLERANCE]),
)
def test_value_and_gradients(wanted, T, V, block, ignored, size, smoothing, has_bias, dtype):
    """With rows that count nothing, and logits of some 10,000, which must not overflow. In float64 C++ leaves it to
    PyTorch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(kernel.BLOCK_ELEMENTS, "cpu", block)  # also less than one row
        patch.setattr(kernel, "FUSED_BLOCK_ELEMENTS", block)
        h, W, targets = inputs(T, 9, V, dtype, ignored)
        h = (h * size).detach().requires_grad_()
        bias = torch.linspace(-2, 3, V, dtype=dtype).requires_grad_() if has_bias else None
        found, right = ours(h, W, targets, smoothing, bias, wanted), reference(h, W, targets, smoothing, bias)
        with torch.no_grad():
            without = linear_cross_entropy(h, W, targets, wanted, smoothing, bias)
    assert without.grad_fn is None
    assert [each.dtype for each in found] == [torch.promote_types(dtype, torch.float32)] + [dtype] * (2 + has_bias)
    if size == 1:
        assert_near(found, right, TOLERANCE[dtype])
        assert_near([without], right[:1], TOLERANCE[dtype])
    assert all(each.isfinite().all() for each in found)
    assert not found[1][targets == IGNORE].any()


@pytest.mark.parametrize("h_needs", [True, False])
def test_a_gradient_for_one_of_the_two(h_needs):
    h, W, targets = inputs(6, 4, 7)
    expected = reference(h, W, targets)[1 if h_needs else 2]
    (W if h_needs else h).requires_grad_(False)
    (found,) = torch.autograd.grad(linear_cross_entropy(h, W, targets) * -3, h if h_needs else W)
    torch.testing.assert_close(found, -3 * expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "wanted", ["reference", pytest.param("fused", marks=IN_CPP), pytest.param("auto", marks=LIGER)]
)
def test_under_autocast(wanted, request):
    """fp32 weights, bf16 products; the gradient of the weights comes back in fp32."""
    if wanted == "auto":
        request.getfixturevalue("by_liger")
    h, W, targets = inputs(12, 16, 20, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = linear_cross_entropy(h.to(torch.bfloat16), W, targets, wanted)
        kept = linear_cross_entropy(h, W, targets, wanted)  # what comes in fp32 stays in it
    found, right = [loss, *torch.autograd.grad(loss, (h, W))], reference(h, W, targets)
    assert {tensor.dtype for tensor in found} == {torch.float32}
    assert_near(found, right, 3e-2)
    assert (loss.double() - right[0]).abs() > 1e-6  # in fp32 products the error would be some 1e-7
    torch.testing.assert_close(kept.double(), right[0], rtol=5e-6, atol=0)


# ---- in C++ alone


@IN_CPP
def test_a_nan_stays_in_its_row_and_ignored_rows_are_not_read():
    h, W, targets = inputs(6, 4, 21, torch.float32, ignored=0)
    targets[0] = IGNORE
    z = h.detach() @ W.detach().T
    z[0], z[1, 20], z[2, 3] = torch.nan, torch.nan, torch.inf
    losses, _ = kernel._fused_cross_entropy(z, targets, 0.0, None, None, gradient=True)
    assert losses.isnan().tolist() == [False, True, True, False, False, False]
    assert losses[0] == 0
    assert not z[0].any()
    assert z[3:].isfinite().all()


@IN_CPP
def test_what_cpp_does_not_take_is_refused():
    z, targets = torch.zeros(3, 5), torch.tensor([0, 2, 1])
    for error, logits, of, bias in [
        (IndexError, z, torch.tensor([0, 5, 1]), None),
        (IndexError, z, torch.tensor([0, IGNORE, -1]), None),
        (TypeError, z, targets.int(), None),
        (TypeError, z.double(), targets, None),
        (TypeError, z, targets, torch.zeros(5).bfloat16()),
        (ValueError, z, targets[:2], None),
        (ValueError, z, targets, torch.zeros(4)),
    ]:
        with pytest.raises(error):
            kernel._fused_cross_entropy(logits, of, 0.0, bias, None, gradient=False)


# ---- liger-kernel, on CPU tensors


@pytest.fixture
def by_liger(monkeypatch):
    """As on a CUDA device; gives how often liger-kernel's was called."""
    made, real = [], kernel.liger
    monkeypatch.setattr(kernel, "choose_loss", lambda wanted, *_: Choice(wanted != "reference", "for the test"))
    monkeypatch.setattr(kernel, "BY_LIGER", "cpu")
    monkeypatch.setattr(kernel, "liger", lambda: made.append(1) or real())
    return made


@LIGER
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 20), st.integers(1, 24), st.integers(1, 53), st.integers(1, 500), st.booleans(),
       st.sampled_from([1.0, -0.25]))  # fmt: skip
def test_value_and_gradients_of_liger_kernel(by_liger, T, D, V, block, even, factor):
    """The same bits each time, also where PyTorch refuses whatever adds up in no fixed order. A `factor` of 1 is a case
    of its own in its backward pass."""
    tensors = inputs(T, D, V, torch.float32 if even else torch.bfloat16)
    bias = torch.linspace(-2, 3, V).requires_grad_() if even else None
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernel, "LIGER_BLOCK_ELEMENTS", block)
            found, again = (ours(*tensors, 0.1, bias, "auto", factor) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert_near(found, reference(*tensors, 0.1, bias, factor), TOLERANCE[tensors[0].dtype])
    assert_same_bits(again, found, Reason.SAME_CALL)
    assert by_liger


@LIGER
def test_what_liger_kernel_cannot_do_is_ours(by_liger):
    h, W, targets = inputs(6, 4, 7, torch.float32)
    (dW,) = torch.autograd.grad(linear_cross_entropy(h.detach(), W, targets), W)
    assert_near([dW], reference(h, W, targets)[2:], TOLERANCE[torch.float32])
    assert linear_cross_entropy(h[:0], W, targets[:0]) == 0
    assert by_liger == []


# ---- the objectives


class Says(nn.Module):
    """As much of a network as the losses need: a row of its matrix for every input, as hidden state and as logits."""

    head_bias = None

    def __init__(self) -> None:
        super().__init__()
        self.head_weight = nn.Parameter(torch.eye(7) + 0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head_weight[tokens]

    body = forward


@pytest.mark.parametrize("objective", [lambda e: SummedLoss(Says(), smoothing=e), lambda e: ClassifierLoss(Says(), e)])
def test_objectives_smooth_in_training_and_measure_without(objective):
    smoothed, plain = objective(0.2), objective(0.0)
    tokens, targets = torch.tensor([0, 3, 6, 1]), torch.tensor([0, IGNORE, 6, 4])
    logits = (torch.eye(7) + 0.1).double()
    if isinstance(plain, SummedLoss):
        logits, tokens, targets = logits @ logits.T, tokens[None], targets[None]
    for value, loss in ((0.2, smoothed), (0.0, plain)):
        expected = F.cross_entropy(logits[tokens.flatten()], targets.flatten(), reduction="sum", label_smoothing=value)
        assert loss(tokens, targets).item() == pytest.approx(expected.item(), rel=1e-6)
    assert_same_bits(smoothed.eval()(tokens, targets), plain(tokens, targets), Reason.SAME_CALL)
