"""Norms: RMSNorm (LLaMA), LayerNorm (encoder-decoder, BERT), and functions that can replace both."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.layers.gates import Gate
from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.roles import Role


@dataclass(frozen=True)
class NormPlace:
    """Position of a norm, with its width and epsilon. `of` is the branch next to the norm (`attention`, `mlp` ...),
    `final` after all blocks, or in image models its name (`norm1` ...), where `gate` scales normalised values. `usual`
    makes the model's own norm."""

    width: int
    epsilon: float
    of: str
    gate: Gate | None = None
    usual: NormFactory | None = None


NormFactory = Callable[[NormPlace], nn.Module]


def rms_norm(place: NormPlace) -> nn.Module:
    """RMSNorm with a gain that starts at 1."""
    return nn.RMSNorm(place.width, eps=place.epsilon)


def layer_norm(place: NormPlace) -> nn.Module:
    """LayerNorm with a gain that starts at 1 and a shift that starts at 0."""
    return nn.LayerNorm(place.width, eps=place.epsilon)


class GatedNorm(Initialised):
    """n * sigmoid(B silu(A n)) with n = norm(x), [B, T, D] (Qiu et al. 2026). A, [r, D], and B, [D, r], start as N(0,
    0.02^2), so factors start near 1/2."""

    role: Role = "gate"

    def __init__(self, norm: nn.Module, width: int, rank: int) -> None:
        super().__init__()
        self.norm = norm
        norm.role = "scalar"  # type: ignore[assignment]
        self.A = nn.Parameter(torch.empty(rank, width))
        self.B = nn.Parameter(torch.empty(width, rank))

    def forward(self, x_BTD: Tensor) -> Tensor:
        n_BTD = self.norm(x_BTD)
        return n_BTD * torch.sigmoid(F.linear(F.silu(F.linear(n_BTD, self.A)), self.B))

    def initialise(self, draw: Draw) -> None:
        draw.normal_(self.A, "A", 0.02)
        draw.normal_(self.B, "B", 0.02)


class DynamicTanh(Initialised):
    """g * tanh(a x), which replaces a norm (Zhu et al. 2025): a is one learned number, g a gain that starts at 1. As in
    the authors' LLaMA there is no shift."""

    def __init__(self, width: int, alpha: float) -> None:
        super().__init__()
        self.start = alpha
        self.alpha = nn.Parameter(torch.empty(()))
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.weight * torch.tanh(self.alpha * x_BTD)

    def initialise(self, draw: Draw) -> None:
        nn.init.constant_(self.alpha, self.start)
        nn.init.ones_(self.weight)


class DynamicErf(DynamicTanh):
    """g * erf(a x + s) + b, which replaces a norm (Chen et al. 2025, Eq. 10): s is one learned number, b a shift per
    channel. Both start at 0."""

    def __init__(self, width: int, alpha: float) -> None:
        super().__init__(width, alpha)
        self.shift = nn.Parameter(torch.empty(()))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.weight * torch.erf(self.alpha * x_BTD + self.shift) + self.bias

    def initialise(self, draw: Draw) -> None:
        super().initialise(draw)
        nn.init.zeros_(self.shift)
        nn.init.zeros_(self.bias)


class EmbeddingScale(Initialised):
    """Learned factor on the embedded tokens, sqrt(D) at the start. Without norms nothing else would scale them up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.start = math.sqrt(width)
        self.factor = nn.Parameter(torch.empty(()))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.factor * x_BTD

    def initialise(self, draw: Draw) -> None:
        nn.init.constant_(self.factor, self.start)


class EmbeddingNorm(nn.Module):
    """RMSNorm without a gain, of the embedded tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, x_BTD: Tensor) -> Tensor:
        return F.rms_norm(x_BTD, x_BTD.shape[-1:])
