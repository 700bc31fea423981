"""Residual adds whose branch has a factor: a fixed number, a learned one a block or an add, one that follows training,
or a gate a channel, as Highway (Srivastava et al. 2015) and Gated Residual Connections (Dhayalkar 2024) have."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.learned import Affine, Constant
from comt_cli.layers.residual.base import Branch, NormedResidual, ResidualConnection, ResidualSite

Scale = float | Literal["depth", "learned"]


class ScaledBranch(NormedResidual):
    """y = x + s F(N(x)), s fixed, one learned number, 1 at the start, or with `depth` 1 / sqrt(L) of L blocks: the sum
    of L independent branches has the variance of one."""

    name = "scaled"

    def __init__(self, site: ResidualSite, scale: Scale = 0.1) -> None:
        super().__init__(site)
        self.learned = Constant(1.0) if scale == "learned" else None
        self.fixed = 1 / math.sqrt(site.layers) if isinstance(scale, str) else scale

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        s = self.fixed if self.learned is None else self.learned()
        return x_BTD + s * branch(self.norm(x_BTD))


class ReZero(ResidualConnection):
    """y = x + a F(x) (Bachlechner et al. 2021), no norm anywhere, a = 0 at the start: one a for all adds of a block, as
    in the authors' code."""

    name = "rezero"
    keeps_final_norm = False

    def __init__(self, site: ResidualSite) -> None:
        super().__init__(site)
        shared = [earlier.a for earlier in site.before if isinstance(earlier, ReZero)]
        self.a: Constant = shared[0] if shared else Constant(0.0)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        return x_BTD + self.a() * branch(x_BTD)


class FollowsTraining(Initialised):
    """A number that depends on the update that training is at: a buffer, and so in a checkpoint. A network that is not
    in training keeps that of its last update."""

    value: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.empty(()))

    def number(self, update: int) -> float:
        """Its value in update `update`, counted from 0."""
        raise NotImplementedError

    def at_update(self, update: int) -> None:
        """Set it."""
        self.value.fill_(self.number(update))

    def initialise(self, draw: Draw) -> None:
        self.at_update(0)


class Ramp(FollowsTraining):
    """min(t / length, 1), t the number of the update from 0."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def number(self, update: int) -> float:
        return min(update / self.length, 1.0)


class ProgressiveResidual(NormedResidual):
    """Progressive residuals (ProRes, 2026, arXiv 2603.05369): y = x + a F(N(x)), a = min(t / (T l), 1) at update t in
    block l, counted from 1; `updates` is T. At update 0 y = x; nothing is learned."""

    name = "progressive"
    needs = ("states",)

    def __init__(self, site: ResidualSite, updates: int = 1000) -> None:
        super().__init__(site)
        self.share = Ramp(updates * (site.layer + 1))

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        return x_BTD + self.share.value.to(x_BTD.dtype) * branch(self.norm(x_BTD))


class Highway(NormedResidual):
    """y = T(x) F(N(x)) + (1 - T(x)) x, T(x) = sigmoid(W x + b), which reads the stream, before the norm. A negative b
    starts the network near the identity."""

    name = "highway"

    def __init__(self, site: ResidualSite, bias: float = -2.0) -> None:
        super().__init__(site)
        self.transform_gate = Affine(site.width, site.width, bias)

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        T_BTD = torch.sigmoid(self.transform_gate(x_BTD))
        return x_BTD + T_BTD * (branch(self.norm(x_BTD)) - x_BTD)


class GatedResidual(NormedResidual):
    """y = x + g F(N(x)), or with `norm: post` y = N(x + g F(x)); g = sigmoid(W . + b) reads x, F, or both side by side.
    With `at: ffn` only the feed-forward network's add has a gate."""

    name = "grc"

    def __init__(
        self, site: ResidualSite, reads: Literal["skip", "sublayer", "both"] = "skip", *,
        at: Literal["all", "ffn"] = "all", norm: Literal["pre", "post"] = "pre",
    ) -> None:  # fmt: skip
        super().__init__(site)
        self.reads = reads
        self.ends_in_norm = norm == "post"
        is_gated = at == "all" or site.part == "mlp"
        self.gate = Affine(site.width * (2 if reads == "both" else 1), site.width) if is_gated else None

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        s_BTD = branch(x_BTD if self.ends_in_norm else self.norm(x_BTD))
        if self.gate is not None:
            read = {"skip": (x_BTD,), "sublayer": (s_BTD,), "both": (x_BTD, s_BTD)}[self.reads]
            s_BTD = torch.sigmoid(self.gate(torch.cat(read, dim=-1) if len(read) > 1 else read[0])) * s_BTD
        y_BTD = x_BTD + s_BTD
        return self.norm(y_BTD) if self.ends_in_norm else y_BTD
