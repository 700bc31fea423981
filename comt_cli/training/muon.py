"""Muon for matrices, AdamW for the other parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
ITERATIONS, COEFFICIENTS = 5, (3.4445, -4.7750, 2.0315)
"""Of Newton and Schulz's method. All three are the authors' (Jordan et al. 2024) and `torch.optim.Muon`'s defaults."""
EPSILON = 1e-7
"""Least norm by which an update is divided."""

IS_MUON = "muon"
"""Key of parameter groups: whether Muon updates the group."""


AT_ONCE = 2**25
"""Numbers in the matrices of one shape that are updated together. Each takes about 30 bytes of temporary memory."""


class Muon(torch.optim.AdamW):
    """AdamW, except for parameter groups with `IS_MUON`, whose parameters are matrices W, [M, N], with the update

        B = momentum B + (1 - momentum) dW,   U = (1 - momentum) dW + momentum B,
        W = W - rate (decay W + 0.2 sqrt(max(M, N)) orthogonal(U))

    (Jordan et al. 2024; the factor is Liu et al.'s, arXiv 2502.16982, `match_rms_adamw` in PyTorch: entries change by
    about as much as AdamW's, so one rate serves all parameters). A parameter in `joined` holds several matrices of so
    many rows, one below the other, each with its own update. `torch.optim.Muon` is equal except for rounding: it
    computes directions in bf16 on every device, and loses the decay of bf16 weights.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], lr: float, joined: Mapping[nn.Parameter, Sequence[int]], **adamw: Any
    ) -> None:
        super().__init__(groups, lr=lr, **adamw)
        self.joined = joined

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.optim.Optimizer.__setstate__(self, state)  # Adam's would expect its own state for every parameter

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient. Gradients of matrices are then None."""
        for group in self.param_groups:
            if group[IS_MUON]:
                trained = [parameter for parameter in group["params"] if parameter.grad is not None]
                matrices = sorted(chain.from_iterable(map(self._matrices, trained)), key=_shape)
                for shape, alike in groupby(matrices, key=_shape):
                    each, most = [*alike], max(1, AT_ONCE // math.prod(shape))
                    for start in range(0, len(each), most):
                        _update(each[start : start + most], group["lr"], group["weight_decay"])
                for parameter in trained:
                    parameter.grad = None  # AdamW leaves it out
        super().step(closure)

    def _matrices(self, parameter: nn.Parameter) -> Iterator[tuple[Tensor, ...]]:
        """(W, dW, B) of every matrix in a parameter, as views."""
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        rows = [*self.joined.get(parameter, [len(parameter)])]
        parts = (torch.split(each, rows) for each in (parameter, gradient, state["momentum_buffer"]))
        return zip(*parts, strict=True)


def _shape(matrix: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple(matrix[0].shape)


def _update(matrices: Sequence[tuple[Tensor, ...]], rate: float, decay: float) -> None:
    weights, gradients, momenta = map(list, zip(*matrices, strict=True))
    torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
    directions = orthogonal(torch.stack(torch._foreach_lerp(gradients, momenta, MOMENTUM)))
    # One sum, rounded once: alone, the decay is less than half a unit of bf16.
    changes = 0.2 * math.sqrt(max(weights[0].shape)) * directions.float() + decay * torch.stack(weights).float()
    torch._foreach_add_(weights, changes.to(weights[0].dtype).unbind(), alpha=-rate)


def orthogonal(G_BMN: Tensor) -> Tensor:
    """U V^T of each matrix G = U S V^T, approximately: singular values that are not small become about 0.7 to 1.2. Five
    steps of X = a X + (b X X^T + c (X X^T)^2) X from X = G / |G|, in bf16, on a CPU in fp32. Zero if G is zero."""
    a, b, c = COEFFICIENTS
    X = G_BMN if G_BMN.shape[-2] <= G_BMN.shape[-1] else G_BMN.mT
    X = X.to(torch.float32 if X.device.type == "cpu" else torch.bfloat16)
    X = X / torch.linalg.matrix_norm(X, keepdim=True).clamp(min=EPSILON)
    for _ in range(ITERATIONS):
        A = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return X if G_BMN.shape[-2] <= G_BMN.shape[-1] else X.mT
