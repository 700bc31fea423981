"""Random calls of the fused batch norm's kernels, and what autograd makes of its definition in float64 for the same
inputs: used by the interpreted tests and by those on a GPU."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import torch
from same_bits import Reason, assert_same_bits
from torch import Tensor

from comt_cli.kernels.modulated_norm import modulated_norm, reference

EPSILON = 1e-5


@dataclass(frozen=True)
class Kind:
    """What of the operation is there. `window` and `pixel`: hidden columns, 0 for no such gate."""

    window: int = 0
    pixel: int = 0
    skip: bool = False
    relu: bool = False
    weight: bool = True

    def __str__(self) -> str:
        words = [f"window{self.window}" * (self.window > 0), f"pixel{self.pixel}" * (self.pixel > 0)]
        words += ["skip" * self.skip, "relu" * self.relu, "unweighted" * (not self.weight)]
        return "-".join(word for word in words if word) or "plain"


@dataclass
class Case:
    """The tensors of a call: product, window, A, b, weight, bias, skip; and the gradient of y that comes in."""

    kind: Kind
    tensors: list[Tensor | None]
    dy: Tensor


NAMES = ("product", "window", "A", "b", "weight", "bias", "skip")
Results = dict[str, Tensor]


def make(
    P: int, C: int, kind: Kind, dtype: torch.dtype = torch.float32, device: str = "cpu", rest: int = 3,
    mean: float = 1.0, seed: int = 0,
) -> Case:  # fmt: skip
    """`rest` columns of no concern behind the product's. Its rows lie in a wider tensor of NaN, above and below NaN."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    columns = C + kind.window + rest
    around = torch.full((P + 2, columns + 8), torch.nan).to(device, dtype)
    product = around[1 : P + 1, :columns]
    product[:] = (mean + 2 * normal(P, columns)).to(device, dtype)
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
    tensors = [None if tensor is None else tensor.to(device) for tensor in tensors]
    return Case(kind, tensors, normal(P, C).to(device, dtype))


def run(case: Case, by: str = "modulated_norm.triton") -> Results:
    """What the kernels compute: y, mean, var, and the gradients by the names of what they are of. `by`: the module of
    `comt_cli.kernels` that computes."""
    module = importlib.import_module(f"comt_cli.kernels.{by}")
    modulated_norm, modulated_norm_backward = module.modulated_norm, module.modulated_norm_backward
    (product, *gates, _, _), kind = case.tensors, case.kind
    y, mean, var = modulated_norm(product, *case.tensors[1:], kind.relu, EPSILON)
    kept = product, *gates, mean, var
    through_relu = kind.skip and kind.relu  # else the skip path's gradient is dy, and the operator asks for none
    *gradients, dskip = modulated_norm_backward(
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


def assert_operator_agrees(case: Case) -> None:
    """The operator that layers call gives the bits of its kernels, and gradients in the types of their leaves."""
    leaves = [None if tensor is None else tensor.detach().requires_grad_() for tensor in case.tensors]
    y, mean, var = modulated_norm(leaves[0], *leaves[1:], case.kind.relu, EPSILON)
    wanted = {name: leaf for name, leaf in zip(NAMES, leaves, strict=True) if leaf is not None}
    gradients = torch.autograd.grad(y, list(wanted.values()), case.dy)
    found = run(case)
    mine = {"y": y, "mean": mean, "var": var, **dict(zip(wanted, gradients, strict=True))}
    kernels = {name: found[name].to(tensor.dtype) for name, tensor in mine.items()}
    assert_same_bits(mine, kernels, Reason.SAME_CALL, "the operator and its kernels")
