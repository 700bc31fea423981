"""BERT (Devlin et al. 2019): a Transformer encoder over learned token, position and segment embeddings.

Attention has biases, the activation is GELU, and initial values are normal with a standard deviation of 0.02, truncated
at two of them. `post-ln` is the paper's network. `pre-ln` has a norm after the last block, like every method whose last
add does not end in one.
Shapes: B batch, T tokens, K predicted tokens of a sequence, D width, V vocabulary, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.data.tokenizer import PAD
from comt_cli.layers.dropout import Dropout
from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.learned import Affine
from comt_cli.layers.norms import NormPlace, layer_norm
from comt_cli.layers.projection import TokenEmbedding
from comt_cli.layers.residual.base import State, final_stream
from comt_cli.layers.roles import Role
from comt_cli.methods.base import Wiring
from comt_cli.models.base import BlockParts, Model, VocabularyModel, end_of_stack, ids, refuse_absent
from comt_cli.models.transformer import SERVED_BY, EncoderBlock
from comt_cli.tasks.base import ENCODER_SITES
from comt_cli.tasks.settings.masked_lm import BertSettings

SETTINGS = BertSettings
INIT_STD = 0.02
SEGMENTS = 2
"""Number of texts in one sequence, distinguished by an added vector."""


class BertBlock(EncoderBlock):
    """Encoder block with BERT's biases and activation."""

    attention_bias = True
    activation = F.gelu  # by the error function: x Phi(x) (Hendrycks & Gimpel 2016)


class MaskedHead(Initialised):
    """Input of the decoder: N(gelu(W h + b)). The decoder's matrix is the embedding's; its bias, [V], is here."""

    role: Role = "head"

    def __init__(self, vocabulary: int, width: int, norm: nn.Module) -> None:
        super().__init__()
        self.dense = Affine(width, width, truncated=True)
        self.norm = norm
        self.bias = nn.Parameter(torch.empty(vocabulary))

    def forward(self, h_BKD: Tensor) -> Tensor:
        """[B, K, D] -> [B, K, D]."""
        return self.norm(F.gelu(self.dense(h_BKD)))

    def initialise(self, draw: Draw) -> None:
        nn.init.zeros_(self.bias)


class BertEncoder(Model):
    """Body of all BERTs: token ids [B, T] -> vectors [B, T, D]. Its names let a run start from another run's weights.
    Columns of padding do not affect other tokens."""

    stream, stacked = "tokens", {"encoder": "blocks"}

    def __init__(self, settings: BertSettings, vocabulary: int, wiring: Wiring, length: int) -> None:
        super().__init__()
        shape = settings.shape()
        places = ("embedding", "attention", "mlp", "final", "head")
        refuse_absent(wiring, ENCODER_SITES.names, places, "a BERT", SERVED_BY)
        self.settings, self.shape, self.vocabulary, self.length = settings, shape, vocabulary, length
        embedding = partial(TokenEmbedding, width=shape.width, std=INIT_STD, truncated=True)
        self.embedding, self.positions = embedding(vocabulary), embedding(settings.positions)
        self.segments = embedding(SEGMENTS)
        self.entry = nn.Identity() if wiring.entry is None else wiring.entry(shape.width)
        self.embedding_norm = wiring.norm(NormPlace(shape.width, settings.norm_eps, "embedding"), layer_norm)
        self.embedding_dropout = Dropout(settings.dropout)
        parts = partial(
            BlockParts, wiring=wiring, stack="encoder", layers=shape.layers, width=shape.width, parts=BertBlock.parts,
            norm=layer_norm, epsilon=settings.norm_eps, init_std=INIT_STD, truncated=True,
        )  # fmt: skip
        blocks = [BertBlock(settings, parts(layer=layer)) for layer in range(shape.layers)]
        self.blocks = nn.ModuleList(blocks)
        place = NormPlace(shape.width, settings.norm_eps, "final")
        self.read_out, self.final_norm = end_of_stack(wiring, blocks[-1].mlp_connection, place, layer_norm)

    def hidden(self, tokens_BT: Tensor, segments_BT: Tensor | None = None) -> Tensor:
        """Stream after the last block, [B, T, D]; `segments` are 0 (default) or 1. Raises `ValueError` if T is too
        large."""
        length = tokens_BT.shape[1]
        if length > self.settings.positions:
            raise ValueError(f"{length} tokens exceed the model's {self.settings.positions} positions")
        segment = self.segments.weight[0] if segments_BT is None else self.segments(segments_BT)
        x_BTD = self.entry(self.embedding(tokens_BT) + self.positions.weight[:length] + segment)
        state = State(self.embedding_dropout(self.embedding_norm(x_BTD)))
        mask_BT = tokens_BT != PAD
        for block in self.blocks:
            state = self.run_block(block, state, mask_BT)
        return final_stream(state, self.read_out, self.final_norm)


class Bert(BertEncoder, VocabularyModel):
    """Token ids [B, T], some masked -> logits of the original ones, [B, T, V], or [B, K, V] at the masked positions,
    int64 [B, K]. A loss over masked tokens needs only these."""

    def __init__(self, settings: BertSettings, vocabulary: int, wiring: Wiring, length: int, masked: int) -> None:
        super().__init__(settings, vocabulary, wiring, length)
        self.masked = self.read_by_head = masked
        self.keeps_attention = settings.attention_dropout > 0
        width = self.shape.width
        self.head = MaskedHead(vocabulary, width, wiring.norm(NormPlace(width, settings.norm_eps, "head"), layer_norm))

    def example(self, samples: int) -> tuple[Tensor, Tensor]:
        return ids(samples, self.length), ids(samples, self.masked)

    @property
    def places(self) -> Mapping[int, int]:
        return {1: self.length}

    @property
    def head_bias(self) -> Tensor:
        return self.head.bias

    def body(self, *inputs: Tensor) -> Tensor:
        """Input of the decoder: [B, K, D] for tokens and masked positions, [B, T, D] for tokens alone."""
        tokens_BT, *masked = inputs
        h_BTD = self.hidden(tokens_BT)
        if masked:
            h_BTD = h_BTD.gather(1, masked[0][:, :, None].expand(-1, -1, h_BTD.shape[-1]))
        return self.head(h_BTD)


class BertClassifier(BertEncoder):
    """Token ids and segments, [B, T] each -> logits [B, C] of the sequences' classes, or one number. In a run that
    starts from a masked language model, `pooler` and `classifier` are new, and that model's `head` is dropped."""

    def __init__(self, settings: BertSettings, vocabulary: int, wiring: Wiring, length: int, classes: int) -> None:
        super().__init__(settings, vocabulary, wiring, length)
        self.pooler = Affine(self.shape.width, self.shape.width, truncated=True)
        self.pooled_dropout = Dropout(settings.dropout)
        self.classifier = Affine(self.shape.width, classes, truncated=True)
        self.classifier.role = "head"

    def example(self, samples: int) -> tuple[Tensor, Tensor]:
        return ids(samples, self.length), ids(samples, self.length)

    @property
    def largest(self) -> int:
        return int(self.shape.heads * self.length**2)

    def forward(self, tokens_BT: Tensor, segments_BT: Tensor | None = None) -> Tensor:
        """The summary of a sequence is tanh(W h + b) of its first token, the begin token."""
        pooled_BD = torch.tanh(self.pooler(self.hidden(tokens_BT, segments_BT)[:, 0]))
        return self.classifier(self.pooled_dropout(pooled_BD))


def build(
    settings: BertSettings, wiring: Wiring, *, vocabulary: int, length: int = 1, masked: int = 1,
    classes: int | None = None,
) -> Bert | BertClassifier:  # fmt: skip
    """A masked language model, or with `classes` a classifier of sequences. `length` and `masked` are the tokens and
    predicted tokens of an example sequence."""
    if classes is not None:
        return BertClassifier(settings, vocabulary, wiring, length, classes)
    return Bert(settings, vocabulary, wiring, length, masked)
