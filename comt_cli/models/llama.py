"""LLaMA (Touvron et al. 2023): RMSNorm, rotary positions, SwiGLU, untied head; grouped-query attention and tied
embeddings where a public checkpoint needs them.

Shapes: B batch, T tokens, D width, V vocabulary.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from comt_cli.layers.attention import Attention, FeedForward
from comt_cli.layers.kv_cache import KeyValueCache, LayerCache
from comt_cli.layers.norms import NormPlace, rms_norm
from comt_cli.layers.positions import Rotation, rotation_table
from comt_cli.layers.projection import TokenEmbedding
from comt_cli.layers.residual.base import State, final_stream
from comt_cli.layers.smear import Smear
from comt_cli.methods.base import Wiring
from comt_cli.models.base import BlockParts, TokenBlock, VocabularyModel, end_of_stack, ids, refuse_absent
from comt_cli.tasks.base import DECODER_SITES
from comt_cli.tasks.settings.language import ModelSettings


class Block(TokenBlock):
    """Attention and feed-forward network, each with its residual connection."""

    def __init__(self, settings: ModelSettings, wiring: Wiring, layer: int, vocabulary: int) -> None:
        super().__init__()
        shape = settings.shape()
        self.is_last = layer == shape.layers - 1
        parts = BlockParts(
            wiring=wiring, stack="decoder", layer=layer, layers=shape.layers, width=shape.width, parts=self.parts,
            norm=rms_norm, epsilon=settings.norm_eps, init_std=settings.init_std, separate_qkv=True,
        )  # fmt: skip
        self.attention_connection = parts.connection("attention")
        self.mlp_connection = parts.connection("mlp", self.attention_connection)
        make = partial(parts.projections, self.attention_connection)
        shared = None if wiring.shared_values is None else wiring.shared_values(layer, shape.kv_heads)
        embedded = None if wiring.value_embedding is None else wiring.value_embedding(layer, shape, vocabulary)
        norms = parts.head_norms(self.attention_connection, shape.width // shape.heads)
        exclude = None if wiring.exclude is None else wiring.exclude()
        self.attention = Attention(shape.width, shape.heads, shape.kv_heads, make, shared, embedded, norms, exclude)
        self.mlp = FeedForward(shape.width, shape.ffn_width, partial(parts.projections, self.mlp_connection))
        self.attention_path, self.mlp_path = parts.path("attention"), parts.path("mlp")

    def forward(
        self, state: State, rotation: Rotation, cache: LayerCache | None = None, tokens: Tensor | None = None
    ) -> State:
        """State after the block. With pre-norm connections: h = x + attention(norm(x)), y = h + mlp(norm(h)). `tokens`,
        [B, T], are the ids for a value embedding."""
        shared_kv = [*state.shared]
        h = self.add("attention", state, rotation=rotation, cache=cache, shared_kv=shared_kv, tokens=tokens)
        y = self.add("mlp", h)
        return y if self.is_last or not shared_kv else y._replace(shared=tuple(shared_kv))


class Llama(VocabularyModel):
    """Token ids [B, T] -> logits [B, T, V]. Causal: logits at t depend on tokens up to t."""

    stream, stacked = "tokens", {"decoder": "blocks"}

    def __init__(self, settings: ModelSettings, vocabulary: int, wiring: Wiring, length: int = 1) -> None:
        super().__init__()
        shape = settings.shape()
        refuse_absent(wiring, DECODER_SITES.names, ("attention", "mlp", "final"), "a LLaMA", changes_values=True)
        self.settings, self.shape, self.vocabulary, self.length = settings, shape, vocabulary, length
        self.embedding = TokenEmbedding(vocabulary, shape.width, settings.embedding_init_std)
        self.entry = nn.Identity() if wiring.entry is None else wiring.entry(shape.width)
        self.looks_back = any(isinstance(part, Smear) for part in self.entry.modules())
        blocks = [Block(settings, wiring, layer, vocabulary) for layer in range(shape.layers)]
        self.blocks = nn.ModuleList(blocks)
        # Blocks that read token ids. Others do not get them: a recomputed block saves what it gets.
        self.read_tokens = {layer for layer, block in enumerate(blocks) if block.attention.value_embedding is not None}
        place, last = NormPlace(shape.width, settings.norm_eps, "final"), blocks[-1].mlp_connection
        self.read_out, self.final_norm = end_of_stack(wiring, last, place, rms_norm, after_norm=True)
        self.head = None if settings.tied_embeddings else TokenEmbedding(vocabulary, shape.width, settings.init_std)
        if self.head is not None:
            self.head.role = "head"

    def example(self, samples: int) -> tuple[Tensor]:
        """Token ids, [B, T]; T is the `length` that the model was built with."""
        return (ids(samples, self.length),)

    @property
    def head_weight(self) -> Tensor:
        """Matrix of the head, [V, D]; the embedding's if they are tied."""
        return self.embedding.weight if self.head is None else self.head.weight

    def initial_stream(self, tokens_BT: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """Stream before the first block, [B, T, D]; see `hidden`."""
        if cache is None or not self.looks_back:
            x_BTD: Tensor = self.entry(self.embedding(tokens_BT))
            return x_BTD
        tokens_BU, is_text_BU = cache.with_previous(tokens_BT)
        # A text has nothing before its first token: a zero vector adds nothing.
        later_BTD: Tensor = self.entry(self.embedding(tokens_BU) * is_text_BU[..., None])[:, 1:]
        return later_BTD

    def hidden(self, tokens_BT: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        """Input of the head: the stream after the last block and the final norm, [B, T, D]. With a cache, the tokens
        follow those in it, and their keys and values are added."""
        x_BTD = self.initial_stream(tokens_BT, cache)
        length = tokens_BT.shape[1]
        if cache is None:
            head_width = self.shape.width // self.shape.heads
            rotation = rotation_table(length, head_width, self.settings.rope_theta, x_BTD)
        else:
            rotation = cache.rotation(length)
        state = State(x_BTD)
        for layer, block in enumerate(self.blocks):
            layer_cache = None if cache is None else cache.layers[layer]
            state = self.run_block(
                block, state, rotation, layer_cache, tokens_BT if layer in self.read_tokens else None
            )
        if cache is not None:
            cache.advance(length)
        return final_stream(state, self.read_out, self.final_norm)

    def body(self, *inputs: Tensor) -> Tensor:
        (tokens_BT,) = inputs
        return self.hidden(tokens_BT)


SETTINGS, build = ModelSettings, Llama
