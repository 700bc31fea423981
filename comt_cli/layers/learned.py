"""The small learned parts of residual connections, each with its own initial value.

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


@dataclass(frozen=True)
class UpdateRule:
    """Update of a module's own parameters where that differs from the others: `rate` times the learning rate, and
    perhaps without weight decay."""

    rate: float = 1.0
    decays: bool = True


NO_DECAY = UpdateRule(decays=False)


def wide(tensor: Tensor) -> Tensor:
    """The tensor in fp32, or in its own type where that is wider: what coefficients of mixtures are computed in."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def factors(numbers: Tensor) -> tuple[Tensor, ...]:
    """Each of the numbers, [1], `wide`: of no dimension it would be rounded to the type of what it multiplies."""
    return torch.split(wide(numbers).reshape(-1), 1)


class Constant(Initialised):
    """Learned numbers that all start at `start`. A module, so that two connections can hold the very same ones. Numbers
    that matter by what they differ from 1 or from a pattern are better stored as that difference, starting at 0: beside
    1, bf16 has no number nearer than 0.004, and steps of a thousandth would move nothing."""

    update_rule: UpdateRule | None

    def __init__(self, start: float, *shape: int, update_rule: UpdateRule | None = None) -> None:
        super().__init__()
        self.start, self.update_rule = start, update_rule
        self.value = nn.Parameter(torch.empty(shape))

    def forward(self) -> Tensor:
        """The numbers, of the shape given; a scalar without one."""
        return self.value

    def initialise(self, draw: Draw) -> None:
        nn.init.constant_(self.value, self.start)


class Fixed(nn.Module):
    """Numbers that are never learned, which `make` makes: on the model's device, in their own type, and in no
    checkpoint. No buffer: a model that was made on the meta device would be loaded without its numbers."""

    def __init__(self, make: Callable[[], Tensor]) -> None:
        super().__init__()
        with torch.device("cpu"):  # also while a model is made on the meta device
            self.value = make()

    def forward(self, beside: Tensor) -> Tensor:
        """The numbers, on the device of the tensor `beside` them: their own, but while shapes are counted."""
        return self.value.to(beside.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Called on every module when a model moves to another device, or type."""
        device = fn(self.value).device
        if device.type != "meta":
            self.value = self.value.to(device)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


class Affine(Initialised):
    """x W^T + b, [T, D] -> [T, N]; W starts as N(0, 0.02^2), the model's own, or `truncated` as BERT's, b at `bias`."""

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


class Classifier(Affine):
    """x W^T + b, [B, D] -> [B, classes]; both start as U(+-1 / sqrt(D)), torch's own."""

    def initialise(self, draw: Draw) -> None:
        bound = 1 / math.sqrt(self.weight.shape[1])
        draw.uniform_(self.weight, "weight", bound)
        draw.uniform_(self.bias, "bias", bound)


class LowRank(Initialised):
    """B A x, [T, D] -> [T, D] (LAuReL, Menghani et al. 2024, section 2.2). At the start B is zero, and the rows of A,
    [r, D], orthogonal: A_ji is 1 / sqrt(r D) where i mod r is j, and 0 elsewhere, the authors' choice."""

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
