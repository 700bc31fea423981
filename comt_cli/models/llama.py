"""LLaMA (Touvron et al. 2023): RMSNorm, rotary positions, SwiGLU, untied head; grouped-query attention and tied
embeddings where a public checkpoint needs them.

How a block joins skip and branch, and which sites carry a gate, comes from outside (`Wiring`).
Shapes: B batch, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from comt_cli.kernels.modulation import Modulation
from comt_cli.layers.attention import Attention, FeedForward
from comt_cli.layers.gates import Site
from comt_cli.layers.norms import NormPlace, rms_norm
from comt_cli.layers.projection import GatedPath, Projections, TokenEmbedding
from comt_cli.layers.residual import Junction, ResidualConnection, State, normalised, settled
from comt_cli.layers.rotary import Rotation, rotation_table
from comt_cli.methods.base import Wiring
from comt_cli.recipe.settings import ModelSettings

if TYPE_CHECKING:
    from comt_cli.layers.kv_cache import KeyValueCache, LayerCache


class Block(nn.Module):
    """Attention and feed-forward network, each joined to the stream by its residual connection."""

    def __init__(self, settings: ModelSettings, wiring: Wiring, layer: int) -> None:
        super().__init__()
        shape = settings.shape()
        site = partial(Site, layer=layer, layers=shape.layers)

        def connection(branch: Literal["attention", "mlp"], first: ResidualConnection | None) -> ResidualConnection:
            place = NormPlace(shape.width, settings.norm_eps, branch)
            norm = partial(wiring.norm or rms_norm, place)
            return wiring.residual(Junction(shape.width, layer, shape.layers, branch, norm, first))

        def make(joined: ResidualConnection, widths: dict[str, tuple[int, int]], heads: int = 0) -> Projections:
            def std_of(site: Site) -> float:
                return joined.initial_std(site, settings.init_std)

            sites = [site(name, d_in=d_in, d_out=d_out) for name, (d_in, d_out) in widths.items()]
            later = [site("sdpa", d_in=shape.width, d_out=shape.width, heads=heads)] if heads else []
            return Projections(sites, wiring.gates, std_of, later)

        def path(name: str) -> GatedPath | None:
            if name not in wiring.gates:
                return None
            return GatedPath(site(name, d_in=shape.width, d_out=shape.width), wiring.gates[name])

        self.attention_connection = connection("attention", None)
        self.mlp_connection = connection("mlp", self.attention_connection)
        self.attention = Attention(shape.width, shape.heads, shape.kv_heads, partial(make, self.attention_connection))
        self.mlp = FeedForward(shape.width, shape.ffn_width, partial(make, self.mlp_connection))
        self.attention_path, self.mlp_path = path("attention"), path("mlp")

    def forward(self, state: State, rotation: Rotation, cache: LayerCache | None = None) -> State:
        """The residual stream after the block, [B, T, D], with what the connections remember (`State`)."""
        attend = _Branch(
            partial(self.attention.mixed, rotation=rotation, cache=cache), self.attention.output, self.attention_path
        )
        feed_forward = _Branch(self.mlp.inner, self.mlp.down, self.mlp_path)
        return self.mlp_connection.step(self.attention_connection.step(state, attend), feed_forward)


@dataclass(frozen=True)
class _Branch:
    """A branch up to its last projection, that projection, and the gate on the whole branch, if there is one."""

    inner: Callable[[Tensor], Tensor]
    last: Projections
    path: GatedPath | None

    def __call__(self, h_BTD: Tensor) -> Tensor:
        y_BTD: Tensor = self.last(self.inner(h_BTD))[0]
        return y_BTD if self.path is None else self.path(h_BTD, y_BTD)

    def before_gate(self, h_BTD: Tensor) -> tuple[Tensor, Modulation] | None:
        modulation = self.last.modulation()
        if self.path is not None or modulation is None:
            return None
        return self.last.product(self.inner(h_BTD)), modulation


class Llama(nn.Module):
    """Token ids [B, T] -> logits [B, T, V]. Causal: logits at t depend on tokens up to t."""

    def __init__(self, settings: ModelSettings, vocabulary: int, wiring: Wiring) -> None:
        super().__init__()
        shape = settings.shape()
        self.settings, self.shape, self.vocabulary = settings, shape, vocabulary
        self.activation_checkpointing = False
        self.embedding = TokenEmbedding(vocabulary, shape.width, settings.embedding_init_std)
        self.entry = nn.Identity() if wiring.entry is None else wiring.entry(shape.width)
        blocks = [Block(settings, wiring, layer) for layer in range(shape.layers)]
        self.blocks = nn.ModuleList(blocks)
        norm = partial(wiring.norm or rms_norm, NormPlace(shape.width, settings.norm_eps, "final"))
        self.final_norm = norm() if blocks[-1].mlp_connection.keeps_final_norm else nn.Identity()
        self.head = None if settings.tied_embeddings else TokenEmbedding(vocabulary, shape.width, settings.init_std)

    @property
    def head_weight(self) -> Tensor:
        """The head's matrix, [V, D]: the embedding's where they are tied."""
        return self.embedding.weight if self.head is None else self.head.weight

    def hidden(self, tokens_BT: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """What the head reads: the stream after the last block and the final norm, [B, T, D].

        With a cache, the tokens follow on those whose keys and values it holds, and theirs are added to it.
        """
        x_BTD: Tensor = self.entry(self.embedding(tokens_BT))
        length = tokens_BT.shape[1]
        if cache is None:
            head_width = self.shape.width // self.shape.heads
            rotation = rotation_table(length, head_width, self.settings.rope_theta, x_BTD)
        else:
            rotation = cache.rotation(length)
        state: State = x_BTD
        for layer, block in enumerate(self.blocks):
            if self.activation_checkpointing and self.training:
                # What goes in is kept: of a pending sum that would be both terms.
                state = checkpoint(block, settled(state), rotation, use_reentrant=False)
            else:
                state = block(state, rotation, cache.layers[layer] if cache is not None else None)
        if cache is not None:
            cache.advance(length)
        return normalised(state, self.final_norm)[1]

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits, [B, T, V], in the parameters' type."""
        return self.logits(self.hidden(tokens_BT))

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        """What the head makes of `hidden`, [B, T, V]."""
        return F.linear(hidden_BTD, self.head_weight)
