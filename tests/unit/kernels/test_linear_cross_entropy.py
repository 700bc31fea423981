"""The blocked head and loss, in PyTorch and in C++, against `F.cross_entropy` on the whole matrix of logits.

Tolerances. float64 and float32: two orders of summing at most 40 products and 60 exponentials, some tens of roundings.
bfloat16 has 8 significant bits: products are rounded to 2^-8 relative, and logits of size 3 so to about 0.01, which
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
from comt_cli.kernels.choice import Choice, Wanted
from comt_cli.kernels.cpu import build
from comt_cli.kernels.linear_cross_entropy import linear_cross_entropy
from comt_cli.kernels.linear_cross_entropy.cpu import cross_entropy as cpu_cross_entropy

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2}
IN_CPP = pytest.mark.skipif(build.available() is not None, reason=str(build.available()))
WAYS = pytest.mark.parametrize("wanted", ["reference", pytest.param("fused", marks=IN_CPP)])
TYPES = pytest.mark.parametrize(
    ("wanted", "dtype"),
    [("reference", dtype) for dtype in TOLERANCE]
    + [pytest.param("fused", dtype, marks=IN_CPP) for dtype in (torch.float32, torch.bfloat16)],
    ids=str,
)


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


def ours(h: Tensor, W: Tensor, targets: Tensor, factor: float = 1.0, wanted: Wanted = "reference") -> list[Tensor]:
    loss = linear_cross_entropy(h, W, targets, wanted)
    return [loss.detach(), *torch.autograd.grad(loss * factor, (h, W))]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch):
    """Blocks of `rows` rows for a vocabulary of `V`."""

    def set_rows(rows: int, V: int) -> None:
        monkeypatch.setitem(kernel.BLOCK_ELEMENTS, "cpu", rows * V)
        monkeypatch.setattr(kernel, "FUSED_BLOCK_ELEMENTS", rows * V)

    return set_rows


@TYPES
@pytest.mark.parametrize("rows", [1, 5, 8, 16, 17, 1000])  # of 16: one at a time, with a rest, two halves, all
def test_value_and_gradients(wanted, dtype, rows, small_blocks):
    small_blocks(rows, 29)
    h, W, targets = inputs(16, 40, 29, dtype)
    for mine, expected in zip(ours(h, W, targets, wanted=wanted), reference(h, W, targets), strict=True):
        scale = expected.abs().max()
        assert (mine.double() - expected).abs().max() <= TOLERANCE[dtype] * scale
    loss = linear_cross_entropy(h, W, targets, wanted)
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
    # Sums of terms of size one.
    torch.testing.assert_close([-3 * once[1], -3 * once[2]], thrice[1:], rtol=1e-14, atol=1e-14)


@TYPES
@pytest.mark.parametrize("rows", [5, 1000])
def test_a_bias_is_added_to_every_row(wanted, dtype, rows, small_blocks):
    small_blocks(rows, 29)
    h, W, targets = inputs(16, 40, 29, dtype)
    b = torch.linspace(-2, 3, 29, dtype=dtype).requires_grad_()
    found = linear_cross_entropy(h, W, targets, wanted, 0.1, b)
    exact = [tensor.detach().double().requires_grad_() for tensor in (h, W, b)]
    logits = exact[0] @ exact[1].T + exact[2]
    expected = F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum", label_smoothing=0.1)
    pairs = zip(torch.autograd.grad(found * 3, (h, W, b)), torch.autograd.grad(expected * 3, exact), strict=True)
    for mine, theirs in ((found, expected), *pairs):
        assert mine.dtype == (torch.promote_types(dtype, torch.float32) if mine is found else dtype)
        assert (mine.double() - theirs).abs().max() <= TOLERANCE[dtype] * theirs.abs().max()
    with torch.no_grad():
        without = linear_cross_entropy(h, W, targets, wanted, 0.1, b)
    # Products without a gradient may be of another order; of a mean over rows, rounded to bf16, half a rounding stays.
    rtol = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2**-9}[dtype]
    torch.testing.assert_close(without, found.detach(), rtol=rtol, atol=0)


def test_gradcheck(small_blocks):
    small_blocks(2, 6)
    h, W, targets = inputs(5, 4, 6)
    assert torch.autograd.gradcheck(linear_cross_entropy, (h, W, targets))


@WAYS
def test_large_logits_do_not_overflow(wanted):
    h, W, targets = inputs(4, 3, 5, torch.float32, ignored=0)
    found = ours((h * 1e4).detach().requires_grad_(), W, targets, wanted=wanted)
    assert all(tensor.isfinite().all() for tensor in found)
    expected = reference(h.detach() * 1e4, W, targets)[0]
    assert abs(found[0] - expected) <= 1e-4 * expected


@WAYS
def test_under_autocast(wanted):
    """fp32 weights, bf16 products; the gradient of the weights comes back in fp32."""
    h, W, targets = inputs(12, 16, 20, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = linear_cross_entropy(h.to(torch.bfloat16), W, targets, wanted)
    dh, dW = torch.autograd.grad(loss, (h, W))
    assert loss.dtype == dh.dtype == dW.dtype == torch.float32
    for mine, expected in zip((loss, dh, dW), reference(h, W, targets), strict=True):
        assert (mine.double() - expected).abs().max() <= 3e-2 * expected.abs().max()
    # The products did run in bf16: without, the error would be some 1e-7.
    assert (loss.double() - reference(h, W, targets)[0]).abs() > 1e-6
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kept = linear_cross_entropy(h, W, targets, wanted)  # what comes in fp32 stays in it
    torch.testing.assert_close(kept.double(), reference(h, W, targets)[0], rtol=5e-6, atol=0)


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


# ---- in C++ alone


@IN_CPP
@given(st.integers(0, 40), st.integers(1, 70), st.floats(0, 0.99), st.booleans(), st.booleans())
def test_any_shape_in_cpp(T, V, smoothing, has_bias, is_bf16):
    h, W, targets = inputs(T, 9, V, torch.bfloat16 if is_bf16 else torch.float32)
    b = torch.linspace(-2, 3, V, dtype=h.dtype).requires_grad_() if has_bias else None
    given = [tensor for tensor in (h, W, b) if tensor is not None]
    found = linear_cross_entropy(h, W, targets, "fused", smoothing, b)
    gradients = torch.autograd.grad(found, given)
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    logits = exact[0] @ exact[1].T + (exact[2] if has_bias else 0)
    expected = F.cross_entropy(logits, targets, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)
    for mine, right in zip((found, *gradients), (expected, *torch.autograd.grad(expected, exact)), strict=True):
        error = (mine.double() - right).abs().max() if mine.numel() else 0
        assert error <= TOLERANCE[h.dtype] * max(1.0, right.abs().max() if right.numel() else 0)


@IN_CPP
def test_of_any_number_of_threads_the_same_numbers():
    h, W, targets = inputs(300, 8, 130, torch.float32)
    logits = h.detach() @ W.detach().T  # once: a library's product may depend on the number of threads
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            z = logits.clone()
            found.append((cpu_cross_entropy(z, targets, 0.1, None, None, gradient=True), z))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-6, atol=1e-6)  # logits of size one, in fp32


@IN_CPP
def test_a_nan_stays_in_its_row_and_ignored_rows_are_not_read():
    h, W, targets = inputs(6, 4, 21, torch.float32, ignored=0)
    targets[0] = IGNORE
    z = h.detach() @ W.detach().T
    z[0], z[1, 20], z[2, 3] = torch.nan, torch.nan, torch.inf
    losses = cpu_cross_entropy(z, targets, 0.0, None, None, gradient=True)
    assert losses.isnan().tolist() == [False, True, True, False, False, False]
    assert losses[0] == 0
    assert not z[0].any()
    assert z[3:].isfinite().all()


@IN_CPP
def test_what_cpp_does_not_take_is_refused():
    z, targets = torch.zeros(3, 5), torch.tensor([0, 5, 1])
    with pytest.raises(IndexError, match="the target 5 is none of 5 words"):
        cpu_cross_entropy(z, targets, 0.0, None, None, gradient=False)
    with pytest.raises(IndexError, match="the target -1 is none of 5 words"):
        cpu_cross_entropy(z, torch.tensor([0, IGNORE, -1]), 0.0, None, None, gradient=False)
    with pytest.raises(ValueError, match=r"targets are torch\.int32"):
        cpu_cross_entropy(z, targets.int(), 0.0, None, None, gradient=False)
    with pytest.raises(ValueError, match=r"a bias is torch\.float32 of the shape"):
        cpu_cross_entropy(z, targets % 5, 0.0, torch.zeros(4), None, gradient=False)
    with pytest.raises(TypeError, match="float64"):
        cpu_cross_entropy(z.double(), targets % 5, 0.0, None, None, gradient=False)


class Liger080(torch.autograd.Function):
    """With the arguments of liger-kernel 0.8.0's, and of no more use than to say what it was given."""

    @staticmethod
    def forward(ctx, _input, weight, target, bias=None, ce_weight=None, ignore_index=-100, lse_square_scale=0.0,
                label_smoothing=0.0, reduction="mean", softcap=None, return_z_loss=False, accum_dtype=None,
                use_token_scaling=False):  # fmt: skip
        given.append({name: value for name, value in locals().items() if name != "ctx"})
        return torch.zeros(()), None


class Liger085(torch.autograd.Function):
    """The same of 0.8.5, and with its arguments in another order."""

    @staticmethod
    def forward(ctx, _input, weight, target, reduction="mean", bias=None, ignore_index=-100, label_smoothing=0.0,
                ce_mode=None, chunk_mem_const=1, accum_dtype=None):  # fmt: skip
        given.append({name: value for name, value in locals().items() if name != "ctx"})
        return torch.zeros(()), None


given: list[dict[str, object]] = []


@pytest.mark.parametrize("function", [Liger080, Liger085])
@pytest.mark.parametrize(("T", "D", "times"), [(65536, 512, 8), (65536, 2048, 2), (8192, 512, 64), (2**20, 1024, 1)])
def test_liger_kernel_is_called_by_names_and_with_larger_blocks_where_it_takes_them(monkeypatch, function, T, D, times):
    """`times` h's elements are 2^28: half a GiB of bf16 logits, if h is not larger itself."""
    given.clear()
    monkeypatch.setattr(kernel, "choose_loss", lambda *_: Choice(True, "for the test"))
    monkeypatch.setitem(kernel.FUSED, "cpu", kernel.FUSED["cuda"])
    monkeypatch.setattr(kernel, "liger", lambda: ("0.8", function))
    h, W, targets = torch.empty(1, 1).expand(T, D), torch.empty(7, D), torch.empty(1, dtype=torch.long).expand(T)
    bias = torch.empty(7)
    assert linear_cross_entropy(h, W, targets, "fused", 0.1, bias) == 0
    (found,) = given
    assert found["_input"].shape == h.shape
    assert found["bias"] is not None
    names = ("ignore_index", "label_smoothing", "reduction", "accum_dtype")
    assert [found[name] for name in names] == [IGNORE, 0.1, "sum", torch.float32]
    assert found.get("chunk_mem_const") == (times if function is Liger085 else None)
    others = {"lse_square_scale": 0.0, "softcap": None, "return_z_loss": False, "use_token_scaling": False}
    assert {name: found[name] for name in others if name in found}.items() <= others.items()
