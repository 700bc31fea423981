"""The fused batch norm and the window convolution against their definitions, in float64 with autograd.

Errors are relative to the largest element of a tensor; of the parameters' gradients, sums over the same pixels, to the
largest of all (a norm undoes what all gates have in common, so that a gate's sum may nearly cancel). fp32: 2e-5, sums
of a few hundred terms in fp32 (2^-24 a rounding) and a logistic function good to 6e-7. bf16: 1e-2; inputs are the same
numbers on both sides, a result is rounded once (2^-8), and the nine taps of a window gate once each. Where ReLU
follows, both sides let the gradient of the same pixels through: one that rounding moves across zero would differ by all
of it.
"""

from __future__ import annotations

import pytest
import torch
from same_bits import Reason, assert_same_bits
from torch import Tensor

from comt_cli.kernels import modulated_norm, window_convolution
from comt_cli.kernels.cpu import build

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
"""Of the largest. bf16: half a unit of at most 2^-7 and a neighbour, of a result and of what it is computed from."""
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp32", "bf16"])
NAMES = ("product", "u", "window", "A", "b", "weight", "bias", "skip")
PARAMETERS = NAMES[2:7]
EPSILON = 1e-5


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    if reason := build.available():
        pytest.skip(reason)


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def operands(
    P: int, C: int, h: int, r: int, *, weight: bool, skip: bool, apart: bool, dtype: torch.dtype
) -> list[Tensor | None]:
    """Of the function, up to the flags; the product has a mean of 3, and u planes where it is `apart`."""
    columns = C + (0 if apart else h)
    return [
        (normal(0, P, columns) + 3).to(dtype),
        normal(1, h, P).T if apart and h else None,
        normal(2, h) if h else None,
        normal(3, r, C) / C**0.5 if r else None,
        normal(4, r) if r else None,
        normal(5, C) if weight else None,
        normal(6, C),
        normal(7, P, C, dtype=dtype) if skip else None,
    ]


def relative(found: Tensor, exact: Tensor, scale: float | None = None) -> float:
    scale = max(exact.abs().max().item(), 1e-12) if scale is None else scale
    return (found.double() - exact).abs().max().item() / scale


def compare(given: list[Tensor | None], relu: bool, dtype: torch.dtype) -> None:
    leaves = [None if each is None else each.detach().requires_grad_() for each in given]
    y, mean, var = modulated_norm.modulated_norm(*leaves, relu, EPSILON)
    dy = normal(9, *y.shape, dtype=dtype)
    wide = [None if each is None else each.double().requires_grad_() for each in given]
    exact, exact_mean, exact_var = modulated_norm.reference(*wide, False, EPSILON)
    let_through = y.detach() > 0 if relu else torch.ones_like(y, dtype=torch.bool)
    errors = {
        "y": relative(y, exact.relu() if relu else exact),
        "mean": relative(mean, exact_mean),
        "var": relative(var, exact_var),
    }
    names = [name for name, each in zip(NAMES, given, strict=True) if each is not None]
    gradients = torch.autograd.grad(y, [each for each in leaves if each is not None], dy)
    exact_gradients = torch.autograd.grad(exact, [e for e in wide if e is not None], dy.double() * let_through)
    largest = max(g.abs().max().item() for name, g in zip(names, exact_gradients, strict=True) if name in PARAMETERS)
    for name, gradient, of_exact in zip(names, gradients, exact_gradients, strict=True):
        errors[f"d{name}"] = relative(gradient, of_exact, largest if name in PARAMETERS else None)
    assert max(errors.values()) < TOLERANCE[dtype], errors


SHAPES = [(37, 3), (512, 17), (300, 64), (131, 65), (70, 130)]


@DTYPES
@pytest.mark.parametrize("gates", [(0, 0), (1, 0), (3, 0), (0, 2), (0, 8), (2, 2)], ids=str)
@pytest.mark.parametrize("behind", ["", "relu", "skip", "relu, skip"])
@pytest.mark.parametrize("apart", [False, True], ids=["joined", "apart"])
def test_it_is_what_the_definition_says(dtype, gates, behind, apart):
    for P, C in SHAPES:
        for weight in (True, False):
            given = operands(P, C, *gates, weight=weight, skip="skip" in behind, apart=apart, dtype=dtype)
            compare(given, "relu" in behind, dtype)


def test_the_definition_is_differentiated_as_it_is_computed():
    given = operands(5, 3, 2, 2, weight=True, skip=True, apart=False, dtype=torch.float64)
    leaves = [None if each is None else each.double().requires_grad_() for each in given]
    present = [each for each in leaves if each is not None]

    def y(*tensors: Tensor) -> Tensor:
        rest = iter(tensors)
        return modulated_norm.reference(*(None if each is None else next(rest) for each in leaves), False, EPSILON)[0]

    assert torch.autograd.gradcheck(y, present)


def test_columns_that_are_no_business_of_it_get_no_gradient():
    product = normal(0, 20, 9).requires_grad_()
    y, _, _ = modulated_norm.modulated_norm(
        product, None, normal(1, 2), None, None, None, normal(2, 5), None, True, EPSILON
    )
    (gradient,) = torch.autograd.grad(y, product, normal(3, 20, 5))
    assert gradient[:, :7].abs().min() > 0
    assert_same_bits(gradient[:, 7:], torch.zeros(20, 2), Reason.EXACT)


def test_a_mean_far_above_the_deviation_loses_no_digits_of_the_variance():
    """1000 +- 1 in fp32: sums of squares would leave two digits of the variance."""
    product = 1000 + normal(0, 4096, 16)
    _, mean, var = modulated_norm.modulated_norm(
        product, None, None, None, None, None, torch.zeros(16), None, False, EPSILON
    )
    torch.testing.assert_close(mean.double(), product.double().mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(var.double(), product.double().var(0, correction=0), rtol=1e-5, atol=0)


def test_a_first_pixel_far_from_all_others_loses_no_digits_of_the_variance():
    product = normal(0, 32768, 16)
    product[0] = 100
    _, _, var = modulated_norm.modulated_norm(
        product, None, None, None, None, None, torch.zeros(16), None, False, EPSILON
    )
    torch.testing.assert_close(var.double(), product.double().var(0, correction=0), rtol=1e-4, atol=0)


@DTYPES
def test_a_channel_that_is_constant_and_a_nan_come_through(dtype):
    product = normal(0, 40, 3, dtype=dtype)
    product[:, 0] = 2
    product[7, 1] = torch.nan
    y, _, var = modulated_norm.modulated_norm(product, None, None, None, None, None, torch.ones(3), None, True, EPSILON)
    assert_same_bits(y[:, 0], torch.ones(40, dtype=dtype), Reason.EXACT)
    assert var[0] == 0
    assert y[:, 1].isnan().all()
    assert y[:, 2].isfinite().all()


@DTYPES
@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_bits_come_out_every_time(dtype, threads):
    given = operands(3000, 48, 2, 2, weight=True, skip=True, apart=True, dtype=dtype)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        runs = []
        for _ in range(3):
            leaves = [each.detach().requires_grad_() for each in given if each is not None]
            y, mean, var = modulated_norm.modulated_norm(*leaves, True, EPSILON)
            runs.append((y, mean, var, *torch.autograd.grad(y, leaves, normal(9, *y.shape, dtype=dtype))))
    finally:
        torch.set_num_threads(before)
    for run in runs[1:]:
        assert_same_bits(run, runs[0], Reason.SAME_CALL)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the checker's own
@pytest.mark.parametrize("gates", [(0, 0), (1, 0), (0, 2)], ids=str)
@pytest.mark.parametrize("apart", [False, True], ids=["joined", "apart"])
def test_pytorch_accepts_the_operator(gates, apart):
    given = operands(12, 5, *gates, weight=True, skip=True, apart=apart, dtype=torch.float32)
    leaves = [None if each is None else each.detach().requires_grad_() for each in given]
    torch.library.opcheck(torch.ops.comt.modulated_norm.default, (*leaves, True, EPSILON))


@pytest.mark.parametrize("relu", [False, True])
def test_neither_gates_nor_normalised_features_are_kept(relu):
    given = operands(50, 16, 1, 2, weight=True, skip=True, apart=False, dtype=torch.float32)
    leaves = [None if each is None else each.detach().requires_grad_() for each in given]
    theirs = {each.data_ptr() for each in leaves if each is not None}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in theirs:
            kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = modulated_norm.modulated_norm(*leaves, relu, EPSILON)
    assert sum(kept.values()) == 2 * 16 + (50 * 16 if relu else 0)  # mean and variance; y
    del y


def test_shapes_that_do_not_fit_are_refused():
    bias = torch.zeros(4)
    for product, rest in [
        (torch.zeros(6, 3), (None, None, None, None, None)),
        (torch.zeros(6, 4), (None, torch.zeros(2), None, None, None)),  # no columns for u
        (torch.zeros(6, 4), (torch.zeros(5, 1), torch.zeros(1), None, None, None)),
        (torch.zeros(6, 4), (None, None, torch.zeros(2, 4), None, None)),  # half a pixel gate
        (torch.zeros(0, 4), (None, None, None, None, None)),
    ]:
        with pytest.raises(ValueError, match=r"shape|pixel gate"):
            modulated_norm.modulated_norm(product, *rest, bias, None, True, EPSILON)
    with pytest.raises(TypeError, match="float64"):
        modulated_norm.modulated_norm(torch.zeros(6, 4).double(), *[None] * 5, bias, None, True, EPSILON)


@DTYPES
@pytest.mark.parametrize(
    ("sizes", "k", "stride", "h"),
    [
        ((2, 16, 8, 8, 8), 3, 1, 1),
        ((3, 17, 5, 7, 9), 3, 2, 3),
        ((2, 3, 4, 6, 5), 1, 1, 2),
        ((1, 8, 8, 9, 35), 3, 1, 2),
        ((2, 8, 8, 9, 9), 1, 2, 2),
        ((2, 8, 8, 1, 1), 3, 1, 1),
        ((2, 4, 4, 10, 11), 7, 2, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=["last", "first"])
def test_a_windows_filters_see_what_a_convolution_sees(dtype, sizes, k, stride, h, layout):
    B, C, out, H, W = sizes
    x = normal(0, B, C, H, W, dtype=dtype).contiguous(memory_format=layout)
    given = [x, normal(1, out, C, k, k, dtype=dtype), normal(2, h, C, k, k, dtype=dtype)]
    leaves = [each.detach().requires_grad_() for each in given]
    wide = [each.double().requires_grad_() for each in given]
    found = window_convolution.window_convolution(*leaves, stride, k // 2)
    exact = window_convolution.reference(*wide, stride, k // 2)
    incoming = [normal(3, *each.shape) for each in exact]
    gradients = torch.autograd.grad(found, leaves, [g.to(f.dtype) for g, f in zip(incoming, found, strict=True)])
    as_given = [g.to(f.dtype).double() for g, f in zip(incoming, found, strict=True)]
    exact_gradients = torch.autograd.grad(exact, wide, as_given)
    for one, other in zip((*found, *gradients), (*exact, *exact_gradients), strict=True):
        assert relative(one, other) < TOLERANCE[dtype]


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=["last", "first"])
def test_pytorch_accepts_the_convolution(layout):
    leaves = [normal(0, 2, 4, 5, 6), normal(1, 3, 4, 3, 3), normal(2, 2, 4, 3, 3)]
    leaves = [each.contiguous(memory_format=layout).requires_grad_() for each in leaves]
    torch.library.opcheck(torch.ops.comt.window_convolution.default, (*leaves, 2, 1))


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=["last", "first"])
def test_the_compiler_is_told_how_the_convolutions_gradients_lie(layout):
    """Compiled code trusts the strides that it was told, or stops at them; opcheck does not compare a gradient's."""
    x, weight, filters = (
        normal(seed, *shape).contiguous(memory_format=layout)
        for seed, shape in enumerate([(2, 8, 5, 6), (16, 8, 3, 3), (2, 8, 3, 3)])
    )
    given = [normal(3, 2 * 3 * 3, 16), normal(4, 2, 2 * 3 * 3), x, weight, filters]
    real = window_convolution._window_convolution_backward(*given, 2, 1)
    told = window_convolution._window_convolution_backward(*(each.to("meta") for each in given), 2, 1)
    assert [each.stride() for each in real] == [each.stride() for each in told]
