"""Attention to keys and values of earlier blocks: ResFormer and SVFormer (Zhou et al. 2024) and LIMe (Gerasimov et al.
2025).

Shared keys and values are an input and an output of every block, so that a recomputed block gets the same ones.
Shapes: B batch, K key-value heads, T tokens, E head width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.learned import Constant, UpdateRule, factors, wide
from comt_cli.layers.roles import Role


class SharedValues(nn.Module):
    """Keys and values of one block, `layer` from 0, made from its own and from shared ones."""

    has_values = True
    """Whether the block has its own values."""

    mixes_keys = False
    """Whether keys change too, which happens before their rotation."""

    def forward(self, k_BKTE: Tensor, v_BKTE: Tensor | None, shared: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values, [B, K, T, E] each. Those that later blocks read are appended to `shared`."""
        raise NotImplementedError

    def mixing(self) -> dict[str, Tensor]:
        """Learned mixing weights of keys and values by name, as in `ResidualConnection.mixing`."""
        return {}


class ValueResidual(SharedValues):
    """V_n' = own V_n + first V_1 in all blocks after the first."""

    def __init__(self, layer: int, own: float = 0.5, first: float = 0.5, *, learned: bool = False) -> None:
        super().__init__()
        self.own, self.first = own, first
        # Added to the two.
        self.shares = Constant(0.0, 2) if learned and layer else None

    def forward(self, k_BKTE: Tensor, v_BKTE: Tensor | None, shared: list[Tensor]) -> tuple[Tensor, Tensor]:
        assert v_BKTE is not None
        if not shared:
            shared.append(v_BKTE)
            return k_BKTE, v_BKTE
        (first_BKTE,) = shared
        if self.shares is None:
            return k_BKTE, self.own * v_BKTE + self.first * first_BKTE
        own_1, first_1 = factors(self.shares())
        mixed_BKTE = (self.own + own_1) * v_BKTE + (self.first + first_1) * first_BKTE
        return k_BKTE, mixed_BKTE.to(v_BKTE.dtype)

    def mixing(self) -> dict[str, Tensor]:
        if self.shares is None:
            return {}
        own, first = wide(self.shares()).unbind()
        return {"first-own": torch.stack([self.first + first, self.own + own])}


class SingleValue(SharedValues):
    """V_1 in every block."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.has_values = layer == 0

    def forward(self, k_BKTE: Tensor, v_BKTE: Tensor | None, shared: list[Tensor]) -> tuple[Tensor, Tensor]:
        if v_BKTE is not None:
            shared[:] = [v_BKTE]
        return k_BKTE, shared[0]


class LayerRouter(SharedValues, Initialised):
    """LIMe: [K; V]'_h = sum_j R_hj [K; V]_j over all heads of all blocks so far, with keys before rotation. R is [K,
    (layer + 1) K], the newest block's heads last. The first block has none."""

    mixes_keys = True
    role: Role = "scalar"

    def __init__(self, layer: int, heads: int, rate: float = 1.0) -> None:
        super().__init__()
        self.update_rule = UpdateRule(rate)
        # Weights of all heads up to this block's, minus their start (its own heads); none in the first block.
        self.router = nn.Parameter(torch.empty(heads, (layer + 1) * heads)) if layer else None

    def forward(self, k_BKTE: Tensor, v_BKTE: Tensor | None, shared: list[Tensor]) -> tuple[Tensor, Tensor]:
        assert v_BKTE is not None
        shared += [k_BKTE, v_BKTE]
        if self.router is None:
            return k_BKTE, v_BKTE
        every = torch.cat(shared[::2], 1), torch.cat(shared[1::2], 1)
        k_more, v_more = (torch.einsum("kj,bjte->bkte", self.router, each_BJTE) for each_BJTE in every)
        return k_BKTE + k_more, v_BKTE + v_more

    def mixing(self) -> dict[str, Tensor]:
        """R: weights of all heads so far in this block's heads."""
        if self.router is None:
            return {}
        heads, sources = self.router.shape
        own = torch.eye(heads, sources, device=self.router.device).roll(sources - heads, 1)
        return {"heads": own + wide(self.router)}

    def initialise(self, draw: Draw) -> None:
        if self.router is None:
            return
        heads, sources = self.router.shape
        draw.uniform_(self.router, "router", math.sqrt(3 / sources))
        with torch.no_grad():
            self.router[:, sources - heads :] = 0
