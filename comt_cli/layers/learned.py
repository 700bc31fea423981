"""Small learned parts of residual connections, each with its own initial value.

Shapes: T tokens (any leading dimensions), D input width, N output width, r rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.roles import Role


@dataclass(frozen=True)
class UpdateRule:
    """Update of a module's own parameters: `rate` times the learning rate, and optionally without weight decay."""

    rate: float = 1.0
    decays: bool = True


NO_DECAY = UpdateRule(decays=False)


def wide(tensor: Tensor) -> Tensor:
    """The tensor in fp32 or its own type if that is wider. Mixing weights are computed in this type."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def factors(numbers: Tensor) -> tuple[Tensor, ...]:
    """Each number, [1], `wide`. Without a dimension it would take the type of the tensor that it multiplies."""
    return torch.split(wide(numbers).reshape(-1), 1)


class Constant(Initialised):
    """Learned numbers that start at `start`. A module, so that two connections can share them. Numbers near 1, or near
    a pattern, are better stored as their difference from it, starting at 0: bf16 has no number within 0.004 of 1, so
    steps of a thousandth would have no effect."""

    role: Role = "scalar"
    update_rule: UpdateRule | None

    def __init__(self, start: float, *shape: int, update_rule: UpdateRule | None = None) -> None:
        super().__init__()
        self.start, self.update_rule = start, update_rule
        self.value = nn.Parameter(torch.empty(shape))

    def forward(self) -> Tensor:
        """The numbers in the given shape; a scalar without one."""
        return self.value

    def initialise(self, draw: Draw) -> None:
        nn.init.constant_(self.value, self.start)


class Fixed(nn.Module):
    """Numbers that are never learned, made by `make`: on the model's device, in their own type, and not in checkpoints.
    They are not a buffer, since a model built on the meta device would be loaded without their values."""

    def __init__(self, make: Callable[[], Tensor]) -> None:
        super().__init__()
        with torch.device("cpu"):  # also while a model is built on the meta device
            self.value = make()

    def forward(self, beside: Tensor) -> Tensor:
        """The numbers on the device of `beside`. It is their own except while shapes are counted."""
        return self.value.to(beside.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        device = fn(self.value).device
        if device.type != "meta":
            self.value = self.value.to(device)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


class Affine(Initialised):
    """x W^T + b, [T, D] -> [T, N]. W starts as N(0, 0.02^2), or `truncated` as in BERT; b starts at `bias`."""

    role: Role | None = None

    def __init__(self, d_in: int, d_out: int, bias: float = 0.0, *, truncated: bool = False) -> None:
        super().__init__()
        self.start, self.truncated = bias, truncated
        self.weight = nn.Parameter(torch.empty(d_out, d_in))
        self.bias = nn.Parameter(torch.empty(d_out))

    def forward(self, x_TD: Tensor) -> Tensor:
        return F.linear(x_TD, self.weight, self.bias)

    def initialise(self, draw: Draw) -> None:
        (draw.truncated_ if self.truncated else draw.normal_)(self.weight, "weight", 0.02)
        nn.init.constant_(self.bias, self.start)


class GateMap(Affine):
    """x W^T + b, the logits of a gate."""

    role = "gate"


class Classifier(Affine):
    """x W^T + b, [B, D] -> [B, classes]; both start as U(+-1 / sqrt(D)), torch's own."""

    role = "head"

    def initialise(self, draw: Draw) -> None:
        bound = 1 / math.sqrt(self.weight.shape[1])
        draw.uniform_(self.weight, "weight", bound)
        draw.uniform_(self.bias, "bias", bound)


class NarrowGate(Initialised):
    """sigmoid(W x'), [T, D] -> [T, N], where x' are the first `channels` channels of x (all of them if x is narrower).
    W starts as U(0, `start`)."""

    role: Role = "gate"

    def __init__(self, d_in: int, d_out: int, channels: int, start: float = 0.0) -> None:
        super().__init__()
        self.start = start
        self.W = nn.Parameter(torch.empty(d_out, min(channels, d_in)))

    def forward(self, x_TD: Tensor) -> Tensor:
        return torch.sigmoid(F.linear(x_TD[..., : self.W.shape[1]], self.W))

    def initialise(self, draw: Draw) -> None:
        draw.uniform_(self.W, "W", self.start / 2)
        with torch.no_grad():
            self.W.add_(self.start / 2)


class LowRank(Initialised):
    """B A x, [T, D] -> [T, D] (LAuReL, Menghani et al. 2024, section 2.2). B starts at zero. The rows of A, [r, D],
    start orthogonal: A_ji is 1 / sqrt(r D) where i mod r is j, and 0 elsewhere, the authors' choice."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.empty(rank, width))
        self.B = nn.Parameter(torch.empty(width, rank))

    def forward(self, x_TD: Tensor) -> Tensor:
        return F.linear(F.linear(x_TD, self.A), self.B)

    def initialise(self, draw: Draw) -> None:
        rank, width = self.A.shape
        with torch.no_grad():
            self.A.copy_(torch.eye(rank).repeat(1, -(-width // rank))[:, :width] / math.sqrt(rank * width))
        nn.init.zeros_(self.B)
