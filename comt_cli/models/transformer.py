"""Encoder-decoder Transformer (Vaswani et al. 2017) as in tensor2tensor: sinusoidal positions, LayerNorm with a shift,
a ReLU feed-forward network with biases, attention without. One matrix is the embedding of both sides and the head.

`post-ln` is the paper's network. `pre-ln` has a norm after each stack, like every method whose last connection does not
end in one. tensor2tensor also adds a learned vector of the target language to the source; this does not.
Shapes: B batch, S source tokens, T target tokens, D width, V vocabulary, H heads, E head width, R rows of hypotheses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.data.tokenizer import PAD
from comt_cli.layers.attention import CrossAttention, KeysValues, SelfAttention, TwoLayerFeedForward
from comt_cli.layers.dropout import Dropout
from comt_cli.layers.kv_cache import DecodingCache, LayerColumns
from comt_cli.layers.norms import NormPlace, layer_norm
from comt_cli.layers.positions import sinusoids
from comt_cli.layers.projection import Projections, TokenEmbedding
from comt_cli.layers.residual.base import State, final_stream
from comt_cli.methods.base import Wiring
from comt_cli.models.base import BlockParts, TokenBlock, VocabularyModel, end_of_stack, ids, refuse_absent
from comt_cli.tasks.base import ENCODER_DECODER_SITES
from comt_cli.tasks.settings.masked_lm import BertSettings
from comt_cli.tasks.settings.translation import EncoderDecoderSettings, TransformerSettings

SERVED_BY = {"gate_proj": "up_proj"}
"""SwiGLU has two input projections, the ReLU network one, which a wiring that gates both gates."""


class Memory(NamedTuple):
    """Encoded sources for decoding: keys and values of cross-attention in each decoder block, [B, H, S, E], and the
    mask, [B, S], True at tokens."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    mask_BS: Tensor  # noqa: N815


class EncoderBlock(TokenBlock):
    """Self-attention and feed-forward network, each with its residual connection."""

    attention_bias: ClassVar[bool] = False
    activation: ClassVar[Callable[[Tensor], Tensor]] = F.relu

    def __init__(self, settings: EncoderDecoderSettings | BertSettings, parts: BlockParts) -> None:
        super().__init__()
        shape, dropout = settings.shape(), settings.residual_dropout
        self.attention_connection = parts.connection("attention")
        self.mlp_connection = parts.connection("mlp", self.attention_connection)
        make = partial(parts.projections, self.attention_connection)
        bias, dropped = self.attention_bias, settings.attention_dropout
        self.attention = SelfAttention(shape.width, shape.heads, dropped, make, bias=bias)
        make = partial(parts.projections, self.mlp_connection)
        self.mlp = TwoLayerFeedForward(shape.width, shape.ffn_width, settings.relu_dropout, make, type(self).activation)
        self.attention_path, self.mlp_path = parts.path("attention"), parts.path("mlp")
        self.attention_dropout, self.mlp_dropout = Dropout(dropout), Dropout(dropout)

    def forward(self, state: State, mask_BS: Tensor) -> State:
        """State after the block; `mask` is True at tokens. Post-norm connections: h = norm(x + attention(x)), y =
        norm(h + mlp(h)). Pre-norm connections: h = x + attention(norm(x)), y = h + mlp(norm(h))."""
        h = self.add("attention", state, mask=mask_BS[:, None, None, :])
        return self.add("mlp", h)


class DecoderBlock(TokenBlock):
    """Causal self-attention, cross-attention and feed-forward network, each with its residual connection."""

    parts = ("attention", "cross", "mlp")

    def __init__(self, settings: EncoderDecoderSettings, wiring: Wiring, layer: int) -> None:
        super().__init__()
        shape, dropout = settings.shape(), settings.residual_dropout
        parts = _parts(settings, wiring, "decoder", layer, *self.parts)
        self.attention_connection = parts.connection("attention")
        self.cross_connection = parts.connection("cross", self.attention_connection)
        self.mlp_connection = parts.connection("mlp", self.attention_connection, self.cross_connection)
        attend = shape.width, shape.heads, settings.attention_dropout
        self.attention = SelfAttention(*attend, partial(parts.projections, self.attention_connection))
        self.cross = CrossAttention(*attend, partial(parts.projections, self.cross_connection))
        make = partial(parts.projections, self.mlp_connection)
        self.mlp = TwoLayerFeedForward(shape.width, shape.ffn_width, settings.relu_dropout, make, F.relu)
        self.attention_path, self.mlp_path = parts.path("attention"), parts.path("mlp")
        self.cross_path = parts.path("cross", "attention")
        self.attention_dropout, self.cross_dropout, self.mlp_dropout = (Dropout(dropout) for _ in range(3))

    def forward(self, state: State, encoded_BSD: Tensor, mask_BS: Tensor) -> State:
        return self.decoded(state, self.cross.keys_values(encoded_BSD, mask_BS))

    def decoded(self, state: State, source: KeysValues, columns: LayerColumns | None = None) -> State:
        """As `forward`, from the keys and values of the source; with `columns`, of one token that follows those. With
        pre-norm connections h = x + attention(norm(x)), c = h + cross(norm(h), source), y = c + mlp(norm(c))."""
        h = self.add("attention", state, columns=columns)
        c = self.add("cross", h, source=source)
        return self.add("mlp", c)


def _parts(settings: EncoderDecoderSettings, wiring: Wiring, stack: str, layer: int, *names: str) -> BlockParts:
    shape = settings.shape()
    return BlockParts(
        wiring=wiring, stack=stack, layer=layer, layers=shape.depths[stack], width=shape.width, parts=names,
        norm=layer_norm, epsilon=settings.norm_eps,
        init_std=None,  # Glorot's: tensor2tensor's `uniform_unit_scaling`
        depths=shape.depths,
    )  # fmt: skip


class EncoderDecoder(VocabularyModel):
    """A source and token ids [B, T] -> logits [B, T, V]. Logits at t depend on the source and on targets up to t.
    Columns of padding on either side have no effect. Subclasses define the encoder's input (`source_stream`)."""

    stream, stacked = "tokens", {"encoder": "encoder", "decoder": "decoder"}

    def __init__(
        self, settings: EncoderDecoderSettings, vocabulary: int, wiring: Wiring, length: int = 1, pairs: int = 1,
        source_length: int | None = None,
    ) -> None:  # fmt: skip
        """A sample of the `example` has `pairs` of a source (of `source_length`) and a target of `length` tokens."""
        super().__init__()
        shape = settings.shape()
        places = ("attention", "cross", "mlp", "final")
        refuse_absent(wiring, ENCODER_DECODER_SITES.names, places, "an encoder-decoder", SERVED_BY)
        self.settings, self.shape, self.keeps_attention = settings, shape, settings.attention_dropout > 0
        self.vocabulary, self.length, self.sequences = vocabulary, length, pairs
        self.source_length = length if source_length is None else source_length
        self.embedding = TokenEmbedding(vocabulary, shape.width, shape.width**-0.5)
        self.entry = None if wiring.entry is None else wiring.entry(shape.width)
        self.encoder_dropout, self.decoder_dropout = (Dropout(settings.residual_dropout) for _ in range(2))
        parts = partial(_parts, settings, wiring, "encoder")
        encoder = [EncoderBlock(settings, parts(layer, *EncoderBlock.parts)) for layer in range(shape.encoder_layers)]
        decoder = [DecoderBlock(settings, wiring, layer) for layer in range(shape.decoder_layers)]
        self.encoder, self.decoder = nn.ModuleList(encoder), nn.ModuleList(decoder)
        place = NormPlace(shape.width, settings.norm_eps, "final")
        ends = [end_of_stack(wiring, stack[-1].mlp_connection, place, layer_norm) for stack in (encoder, decoder)]
        self.encoder_read_out, self.decoder_read_out = (aggregation for aggregation, _ in ends)
        self.encoder_norm, self.decoder_norm = (norm for _, norm in ends)

    def source_stream(self, *source: Tensor) -> tuple[Tensor, Tensor]:
        """Input of the encoder before dropout, [B, S, D], and the mask of a source, [B, S], False at padding."""
        raise NotImplementedError

    def embedded(self, tokens_BT: Tensor, positions_TD: Tensor) -> Tensor:
        """Input of a stack before dropout, [B, T, D]: sqrt(D), or the method's factor, times embedding, + positions."""
        x_BTD: Tensor = self.embedding(tokens_BT)
        x_BTD = math.sqrt(self.shape.width) * x_BTD if self.entry is None else self.entry(x_BTD)
        return x_BTD + positions_TD

    def _positions(self, length: int) -> Tensor:
        return sinusoids(length, self.shape.width, self.embedding.weight)

    def encoded(self, *source: Tensor) -> tuple[Tensor, Tensor]:
        """Input of cross-attention: the encoder's output, [B, S, D] (zeros if switched off), and the source's mask."""
        x_BSD, mask_BS = self.source_stream(*source)
        state = State(self.encoder_dropout(x_BSD))
        for block in self.encoder:
            state = self.run_block(block, state, mask_BS)
        encoded_BSD = final_stream(state, self.encoder_read_out, self.encoder_norm)
        # A product, so that all parameters get gradients: data parallel training waits for each.
        return (encoded_BSD if self.settings.cross_attention else 0 * encoded_BSD), mask_BS

    def body(self, *inputs: Tensor) -> Tensor:
        """Input of the head, [B, T, D], from the tensors of a source, followed by the target so far, [B, T]."""
        *source, target_BT = inputs
        encoded_BSD, mask_BS = self.encoded(*source)
        state = State(self.decoder_dropout(self.embedded(target_BT, self._positions(target_BT.shape[1]))))
        for block in self.decoder:
            state = self.run_block(block, state, encoded_BSD, mask_BS)
        return final_stream(state, self.decoder_read_out, self.decoder_norm)

    def decoder_blocks(self) -> list[DecoderBlock]:
        return [block for block in self.decoder if isinstance(block, DecoderBlock)]

    @torch.no_grad()
    def encode(self, *source: Tensor) -> Memory:
        """Sources for `step`, encoded once."""
        encoded_BSD, mask_BS = self.encoded(*source)
        each = [block.cross.keys_values(encoded_BSD, mask_BS) for block in self.decoder_blocks()]
        # In the order in which steps read them.
        return Memory(tuple(one.k.contiguous() for one in each), tuple(one.v.contiguous() for one in each), mask_BS)

    def decoding_cache(self, rows: int, capacity: int) -> DecodingCache:
        """Empty cache for hypotheses of up to `capacity` tokens, including the begin token. Outside training the
        projections are frozen. Raises `UserError` if there is not enough memory."""
        if not self.training:
            for module in self.modules():
                if isinstance(module, Projections):
                    module.freeze()
        return DecodingCache(len(self.decoder), rows, self.shape.heads, self._positions(capacity).detach())

    @torch.no_grad()
    def step(self, tokens_R1: Tensor, cache: DecodingCache, memory: Memory) -> Tensor:
        """Feed each row its next token; logits of the one after, [R, V]. Rows b K to b K + K - 1 belong to source b."""
        state = State(self.decoder_dropout(self.embedded(tokens_R1, cache.position)))
        mask_B11S = memory.mask_BS[:, None, None, :]
        for layer, block in enumerate(self.decoder_blocks()):
            source = KeysValues(memory.keys[layer], memory.values[layer], mask_B11S)
            state = block.decoded(state, source, cache.columns(layer))
        cache.advance()
        return self.outputs(final_stream(state, self.decoder_read_out, self.decoder_norm)[:, -1])

    @property
    def attended(self) -> set[tuple[int, int]]:
        T, S = self.length, self.source_length
        return {(T, T), (S, S), (T, S)}


class Transformer(EncoderDecoder):
    """Encoder-decoder whose source is token ids, [B, S], of the target's vocabulary."""

    def example(self, samples: int) -> tuple[Tensor, Tensor]:
        """Source and target, [B, T] each: B is the model's `pairs` per sample, T its `length`."""
        return ids(samples * self.sequences, self.length), ids(samples * self.sequences, self.length)

    def source_stream(self, *source: Tensor) -> tuple[Tensor, Tensor]:
        (source_BS,) = source
        return self.embedded(source_BS, self._positions(source_BS.shape[1])), source_BS != PAD


SETTINGS, build = TransformerSettings, Transformer
