"""LLaMA (Touvron et al. 2023): RMSNorm, rotary positions, SwiGLU, untied head; grouped-query attention and tied
embeddings where a public checkpoint needs them.

How a block joins skip and branch, and which projections carry a gate, comes from outside (`Wiring`).
Shapes: B batch, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from comt_cli.layers.attention import Attention, FeedForward, Rotation, rotation_table
from comt_cli.layers.gates import Site
from comt_cli.layers.projection import Projections, TokenEmbedding
from comt_cli.layers.residual import Junction, ResidualConnection
from comt_cli.methods.base import Wiring
from comt_cli.recipe.settings import ModelSettings


class Block(nn.Module):
    """Attention and feed-forward network, each joined to the stream by its residual connection."""

    def __init__(self, settings: ModelSettings, wiring: Wiring, layer: int) -> None:
        super().__init__()
        shape = settings.shape()
        norm = partial(nn.RMSNorm, shape.width, eps=settings.norm_eps)
        junction = partial(Junction, width=shape.width, layer=layer, layers=shape.layers, norm=norm)
        self.attention_connection = wiring.residual(junction(branch="attention"))
        self.mlp_connection = wiring.residual(junction(branch="mlp"))

        def make(connection: ResidualConnection, widths: dict[str, tuple[int, int]]) -> Projections:
            sites = [Site(name, layer, shape.layers, d_in, d_out) for name, (d_in, d_out) in widths.items()]

            def std_of(site: Site) -> float:
                std = connection.initial_std(site)
                return settings.init_std if std is None else std

            return Projections(sites, wiring.gates, std_of)

        self.attention = Attention(shape.width, shape.heads, shape.kv_heads, partial(make, self.attention_connection))
        self.mlp = FeedForward(shape.width, shape.ffn_width, partial(make, self.mlp_connection))

    def forward(self, x_BTD: Tensor, rotation: Rotation) -> Tensor:
        """The residual stream after the block, [B, T, D]."""
        x_BTD = self.attention_connection(x_BTD, lambda h_BTD: self.attention(h_BTD, rotation))
        x_BTD = self.mlp_connection(x_BTD, self.mlp)
        return x_BTD


class Llama(nn.Module):
    """Token ids [B, T] -> logits [B, T, V]. Causal: logits at t depend on tokens up to t."""

    def __init__(self, settings: ModelSettings, vocabulary: int, wiring: Wiring) -> None:
        super().__init__()
        shape = settings.shape()
        self.settings, self.shape, self.vocabulary = settings, shape, vocabulary
        self.activation_checkpointing = False
        self.embedding = TokenEmbedding(vocabulary, shape.width, settings.embedding_init_std)
        blocks = [Block(settings, wiring, layer) for layer in range(shape.layers)]
        self.blocks = nn.ModuleList(blocks)
        keeps_final_norm = blocks[-1].mlp_connection.keeps_final_norm
        self.final_norm = nn.RMSNorm(shape.width, eps=settings.norm_eps) if keeps_final_norm else nn.Identity()
        self.head = None if settings.tied_embeddings else TokenEmbedding(vocabulary, shape.width, settings.init_std)

    @property
    def head_weight(self) -> Tensor:
        """The head's matrix, [V, D]: the embedding's where they are tied."""
        return self.embedding.weight if self.head is None else self.head.weight

    def hidden(self, tokens_BT: Tensor) -> Tensor:
        """What the head reads: the stream after the last block and the final norm, [B, T, D]."""
        x_BTD = self.embedding(tokens_BT)
        rotation = rotation_table(
            tokens_BT.shape[1], self.shape.width // self.shape.heads, self.settings.rope_theta, x_BTD
        )
        for block in self.blocks:
            if self.activation_checkpointing and self.training:
                x_BTD = checkpoint(block, x_BTD, rotation, use_reentrant=False)
            else:
                x_BTD = block(x_BTD, rotation)
        normalised: Tensor = self.final_norm(x_BTD)
        return normalised

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits, [B, T, V], in the parameters' type."""
        return F.linear(self.hidden(tokens_BT), self.head_weight)
