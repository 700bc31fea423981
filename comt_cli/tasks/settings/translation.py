"""The settings of encoder-decoder Transformers, their named sizes, training and decoding.

`base` and `big` are from Vaswani et al. 2017, Table 3, with dropout as there (residual branches and embeddings) and in
tensor2tensor's first version; later versions also have 0.1 on attention weights and after the ReLU. `tiny` is
tensor2tensor's; `nano` is half of it, for laptops.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, PositiveFloat, model_validator

from comt_cli.data.pairs.settings import PairData
from comt_cli.recipe.settings import MAX_LENGTH, AttentionSettings, Count, Layers, RunSettings, Section, WholeNumber
from comt_cli.tasks.settings import UNEQUAL_BATCHES, AdamSettings, Dropped


class TransformerShape(NamedTuple):
    """Widths and depths of an encoder-decoder, and the dropout of embeddings and branches."""

    width: int
    ffn_width: int
    encoder_layers: int
    decoder_layers: int
    heads: int
    dropout: float

    @property
    def depths(self) -> dict[str, int]:
        """The blocks of every stack."""
        return {"encoder": self.encoder_layers, "decoder": self.decoder_layers}


TRANSFORMER_SIZES: dict[str, TransformerShape] = {
    "nano": TransformerShape(width=64, ffn_width=256, encoder_layers=2, decoder_layers=2, heads=4, dropout=0.1),
    "tiny": TransformerShape(width=128, ffn_width=512, encoder_layers=2, decoder_layers=2, heads=4, dropout=0.1),
    "base": TransformerShape(width=512, ffn_width=2048, encoder_layers=6, decoder_layers=6, heads=8, dropout=0.1),
    "big": TransformerShape(width=1024, ffn_width=4096, encoder_layers=6, decoder_layers=6, heads=16, dropout=0.3),
}


class EncoderDecoderSettings(AttentionSettings):
    """An encoder-decoder: a named size with overrides, and its dropout. Without `cross_attention` the decoder reads
    zeros instead of the encoded source: a control that has to guess."""

    sizes: ClassVar[Mapping[str, TransformerShape]] = TRANSFORMER_SIZES

    size: str = "base"
    encoder_layers: Layers | None = None
    decoder_layers: Layers | None = None
    dropout: Dropped | None = None
    attention_dropout: Dropped = 0.0
    relu_dropout: Dropped = 0.0
    norm_eps: PositiveFloat = 1e-6
    cross_attention: bool = True

    @model_validator(mode="after")
    def _shape_fits(self) -> Self:
        width = self.shape().width
        if width % 2:
            raise ValueError(f"width: {width} is odd, but position embeddings are pairs of a sine and a cosine")
        return self

    def shape(self) -> TransformerShape:
        return TransformerShape(**self._numbers(TransformerShape._fields[:-1]), dropout=self.residual_dropout)

    @property
    def residual_dropout(self) -> float:
        """The dropout of embeddings and branches: `dropout`, or the size's."""
        return TRANSFORMER_SIZES[self.size].dropout if self.dropout is None else self.dropout


class TransformerSettings(EncoderDecoderSettings):
    """An encoder-decoder Transformer over tokens."""

    family: Literal["transformer"] = "transformer"


MAX_BEAM = 1000


class BeamSettings(Section):
    """Beam search with `beam` live hypotheses (1: greedy); `penalty` and `alpha`: see `generation.beam.PENALTIES`."""

    beam: Annotated[WholeNumber, Field(gt=0, le=MAX_BEAM)] = 4
    alpha: Annotated[float, Field(ge=0, le=10)] = 0.6  # larger values overflow scores
    penalty: Literal["gnmt", "average"] = "gnmt"


class DecodeSettings(BeamSettings):
    """Beam search for targets of at most `max_extra` tokens more than their source."""

    max_extra: Annotated[WholeNumber, Field(ge=0, le=MAX_LENGTH)] = 50


class DecoderTrainSettings(AdamSettings):
    """Training of an encoder-decoder, by default with the schedule and the Adam settings of Vaswani et al."""

    refused: ClassVar = {
        **UNEQUAL_BATCHES,
        "sharding": "beam search takes as many steps as its sentences need, but all shards must take equally many",
    }

    learning_rate: PositiveFloat = 6.99e-4
    schedule: Literal["cosine", "linear", "noam", "constant"] = "noam"
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.98
    epsilon: PositiveFloat = 1e-9
    label_smoothing: Annotated[float, Field(ge=0, le=0.9)] = 0.0


class TranslationTrainSettings(DecoderTrainSettings):
    """Training of a translator. Batch sizes count buckets of pairs with at most `data.batch_tokens` tokens each."""

    batch_size: Count = 1
    label_smoothing: Annotated[float, Field(ge=0, le=0.9)] = 0.1


class TranslationSettings(RunSettings):
    """Everything that decides a run of a translator, apart from its method and its seed."""

    model: TransformerSettings
    data: PairData
    train: TranslationTrainSettings
    decode: DecodeSettings = DecodeSettings()
