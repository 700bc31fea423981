"""Muon for matrices, AdamW for the other parameters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
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


class Muon(torch.optim.AdamW):
    """AdamW, except for parameter groups with `IS_MUON`, whose parameters are matrices G, [M, N], with the update

        B = momentum B + (1 - momentum) dG,   U = (1 - momentum) dG + momentum B,
        G = (1 - rate decay) G - 0.2 sqrt(max(M, N)) rate orthogonal(U)

    (Jordan et al. 2024; the factor is Liu et al.'s, arXiv 2502.16982, `match_rms_adamw` in PyTorch: entries change by
    about as much as AdamW's, so one rate serves all parameters). A parameter in `joined` holds several matrices of so
    many rows, one below the other, each with its own update. Equal to `torch.optim.Muon` except for rounding: it
    computes in bf16 everywhere, this class on a CPU in fp32.
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
                if trained:
                    self._update(trained, group["lr"], group["weight_decay"])
                for parameter in trained:
                    parameter.grad = None  # AdamW leaves it out
        super().step(closure)

    def _update(self, trained: Sequence[nn.Parameter], rate: float, decay: float) -> None:
        gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
        for parameter in trained:
            if not self.state[parameter]:
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        momenta = [self.state[parameter]["momentum_buffer"] for parameter in trained]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        updates = torch._foreach_lerp(gradients, momenta, MOMENTUM)
        torch._foreach_mul_([*trained], 1 - rate * decay)
        pairs = [
            pair
            for parameter, update in zip(trained, updates, strict=True)
            for pair in zip(*(torch.split(each, self._rows(parameter)) for each in (parameter, update)), strict=True)
        ]
        for shape, alike in itertools.groupby(sorted(pairs, key=_shape), key=_shape):
            matrices, changes = zip(*alike, strict=True)
            step = orthogonal(torch.stack(changes)).to(matrices[0].dtype)
            torch._foreach_add_(matrices, step.unbind(), alpha=-rate * 0.2 * math.sqrt(max(shape)))

    def _rows(self, parameter: nn.Parameter) -> list[int]:
        return [*self.joined.get(parameter, [len(parameter)])]


def _shape(pair: tuple[Tensor, Tensor]) -> tuple[int, ...]:
    return tuple(pair[0].shape)


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
