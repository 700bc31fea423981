"""The fused batch norm in C++ against its definition in float64, on random calls.

What lies around the product is NaN, and so are its padding columns: who reads them is found out. Errors are relative to
the largest element of a tensor; of the parameters' gradients, sums over the same pixels, to the largest of all (a norm
undoes what all gates have in common, so that a gate's sum may nearly cancel). fp32: 2e-5, sums of a few hundred terms
(2^-24 a rounding) and a logistic function good to 6e-7. bf16: 2e-2; inputs are the same numbers on both sides, a result
is rounded once (2^-8), and factors of A's gradient are too. Where ReLU follows, both sides let the gradient of the same
pixels through.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from pairwise import pairwise
from same_bits import Reason, assert_same_bits
from torch import Tensor

from comt_cli.kernels.cpu import calls
from comt_cli.kernels.modulated_norm import modulated_norm, reference

pytestmark = pytest.mark.skipif("build.available() is not None", reason="the C++ kernels cannot be built")
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
PARAMETERS = ("window", "A", "b", "weight", "bias")
EPSILON = 1e-5


@dataclass(frozen=True)
class Kind:
    """What of the operation is there. `window` and `pixel`: hidden columns, 0 for no such gate."""

    window: int = 0
    pixel: int = 0
    skip: bool = False
    relu: bool = False
    weight: bool = True


EVERYTHING = Kind(3, 2, True, True)


@dataclass
class Case:
    """The tensors of a call: product, window, A, b, weight, bias, skip; and the gradient of y that comes in."""

    kind: Kind
    tensors: list[Tensor | None]
    dy: Tensor


NAMES = ("product", "window", "A", "b", "weight", "bias", "skip")
Results = dict[str, Tensor]


def make(P: int, C: int, kind: Kind, dtype: torch.dtype = torch.float32, rest: int = 3, mean: float = 1.0) -> Case:
    """`rest` columns of no concern behind the product's. Its rows lie in a wider tensor of NaN, above and below NaN."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    columns = C + kind.window + rest
    around = torch.full((P + 2, columns + 8), torch.nan).to(dtype)
    product = around[1 : P + 1, :columns]
    product[:] = (mean + 2 * normal(P, columns)).to(dtype)
    if rest:
        product[:, -rest:] = torch.nan
    A, b = (normal(kind.pixel, C) * (2 / C) ** 0.5, normal(kind.pixel)) if kind.pixel else (None, None)
    tensors = [
        product,
        normal(kind.window) if kind.window else None,
        A,
        b,
        1 + normal(C) / 4 if kind.weight else None,
        normal(C) / 4,
        normal(P, C).to(dtype) if kind.skip else None,
    ]
    return Case(kind, tensors, normal(P, C).to(dtype))


def run(case: Case) -> Results:
    """What the kernels compute: y, mean, var, and the gradients by the names of what they are of."""
    (product, *gates, _, _), kind = case.tensors, case.kind
    y, mean, var = calls.modulated_norm(product, *case.tensors[1:], kind.relu, EPSILON)
    kept = product, *gates, mean, var
    through_relu = kind.skip and kind.relu  # else the skip path's gradient is dy, and the operator asks for none
    *gradients, dskip = calls.modulated_norm_backward(
        case.dy, y if kind.relu else None, *kept, kind.relu, EPSILON, through_relu
    )
    if kind.skip and not kind.relu:
        assert dskip.shape == (0,)
        dskip = case.dy
    gradients.append(dskip)
    found = {"y": y, "mean": mean, "var": var}
    for name, tensor, gradient in zip(NAMES, case.tensors, gradients, strict=True):
        if tensor is None:
            assert gradient.shape == (0,), name
        else:
            assert gradient.shape == tensor.shape, name
            assert gradient.dtype == (tensor.dtype if name in ("product", "skip") else torch.float32), name
            found[name] = gradient
    return found


def expect(case: Case, positive: Tensor | None = None) -> Results:
    """The same by the definition in float64. `positive`: where the ReLU lets through, if rounding decides that."""
    kind, used = case.kind, len(case.tensors[5]) + case.kind.window
    leaves = [None if tensor is None else tensor.double().requires_grad_() for tensor in case.tensors]
    relu = kind.relu and positive is None
    product, window, A, b, weight, bias, skip = leaves
    y, mean, var = reference(product[:, :used], window, A, b, weight, bias, skip, relu, EPSILON)
    passed = y if positive is None else y * positive
    wanted = [leaf for leaf in leaves if leaf is not None]
    found = iter(torch.autograd.grad(passed, wanted, case.dy.double()))
    gradients = {name: next(found) for name, leaf in zip(NAMES, leaves, strict=True) if leaf is not None}
    return {"y": torch.relu(y).detach() if kind.relu else y.detach(), "mean": mean, "var": var} | gradients


def assert_agree(case: Case, tolerance: float) -> None:
    found = run(case)
    right = expect(case, found["y"] > 0 if case.kind.relu else None)
    assert found.keys() == right.keys()
    right = {name: expected.detach() for name, expected in right.items()}
    largest = max(float(right[name].abs().max()) for name in PARAMETERS if name in right)
    for name, expected in right.items():
        scale = largest if name in PARAMETERS else float(expected.abs().max().clamp_min(1e-12))
        error = (found[name].double() - expected).abs().max() / scale
        assert error <= (TOLERANCE[torch.float32] if name in ("mean", "var") else tolerance), f"{name}: {error:.2e}"


@pairwise(
    dtype=list(TOLERANCE),
    window=[0, 1, 19],
    pixel_and_weight=[(0, True), (2, True), (2, False), (8, True)],
    shape=[(7, 3), (37, 17), (70, 35), (40, 40)],
    skip=[False, True],
    relu=[False, True],
)
def test_it_is_what_the_definition_says(dtype, window, pixel_and_weight, shape, skip, relu):
    pixel, weight = pixel_and_weight
    assert_agree(make(*shape, Kind(window, pixel, skip, relu, weight), dtype), TOLERANCE[dtype])


@pytest.mark.parametrize("kind", [Kind(), Kind(pixel=2, weight=False), EVERYTHING])
def test_through_the_operator(kind):
    """As layers call it, with the bits of its kernels, and gradients in the types of their leaves. PyTorch refuses
    operators whose results share memory."""
    case = make(20, 17, kind)
    leaves = [None if tensor is None else tensor.detach().requires_grad_() for tensor in case.tensors]
    y, mean, var = modulated_norm(leaves[0], *leaves[1:], kind.relu, EPSILON)
    wanted = {name: leaf for name, leaf in zip(NAMES, leaves, strict=True) if leaf is not None}
    gradients = torch.autograd.grad(y, list(wanted.values()), case.dy)
    mine = {"y": y, "mean": mean, "var": var, **dict(zip(wanted, gradients, strict=True))}
    found = run(case)
    kernels = {name: found[name].to(tensor.dtype) for name, tensor in mine.items()}
    assert_same_bits(mine, kernels, Reason.SAME_CALL, "the operator and its kernels")


def test_what_does_not_fit_is_refused():
    product, window, A, b, weight, bias, skip = make(4, 5, EVERYTHING, rest=0).tensors
    for of, *gates, added in (
        (product[:0], window, A, b, skip[:0]),
        (product[:, :7], window, A, b, skip),  # no columns for u
        (product, window, A, None, skip),  # half a pixel gate
        (product, window, A[:, 1:], b, skip),
    ):
        with pytest.raises(ValueError, match=r"pixel|product|A "):
            calls.modulated_norm(of, *gates, weight, bias, added, True, EPSILON)
    with pytest.raises(ValueError, match="output"):
        calls.modulated_norm_backward(skip, None, product, window, A, b, weight, bias, bias, True, EPSILON, True)


def test_a_mean_far_from_zero_and_an_outlier_cost_no_digits_of_the_variance():
    """1000 standard deviations off: in fp32, sums of squares would be wrong in the first digit."""
    case = make(200, 5, Kind(), mean=2000.0)
    case.tensors[0][0, 0] = -2000.0  # a first pixel far from the others
    found, right = run(case), expect(case)
    assert ((found["var"] - right["var"]).abs() / right["var"]).max() <= 1e-5
    assert ((found["mean"] - right["mean"]).abs() / right["mean"]).max() <= 1e-6
