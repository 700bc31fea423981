"""The settings of a BERT, the sizes that a recipe can name, and how BERTs learn.

`base` is that of Devlin et al. 2019, the others are the miniatures that were published with it (Turc et al. 2019):
heads of 64, feed-forward networks four times as wide as the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, PositiveFloat, model_validator

from comt_cli.data.text.settings import MaskedData
from comt_cli.recipe.settings import (
    MAX_LENGTH,
    Count,
    FFNWidth,
    Layers,
    NetworkSettings,
    NonNegative,
    RunSettings,
    Tokens,
    WholeNumber,
    Width,
)
from comt_cli.tasks.settings import AdamName, AdamSettings, Dropped


class BertSize(NamedTuple):
    """Width and depth of a BERT; the vocabulary comes from the tokenizer."""

    width: int
    layers: int


BERT_SIZES: dict[str, BertSize] = {
    "tiny": BertSize(width=128, layers=2),
    "mini": BertSize(width=256, layers=4),
    "small": BertSize(width=512, layers=4),
    "medium": BertSize(width=512, layers=8),
    "base": BertSize(width=768, layers=12),
}
HEAD_WIDTH = 64


class BertShape(NamedTuple):
    """The widths and depth of a BERT, all given."""

    width: int
    ffn_width: int
    layers: int
    heads: int


class BertSettings(NetworkSettings):
    """A BERT: a named size, any of whose numbers may be overridden, its longest sequence, and its dropout."""

    sizes: ClassVar[Mapping[str, BertSize]] = BERT_SIZES

    family: Literal["bert"] = "bert"
    size: str = "base"
    width: Width | None = None
    ffn_width: FFNWidth | None = None
    layers: Layers | None = None
    heads: Width | None = None
    positions: Annotated[WholeNumber, Field(gt=0, le=MAX_LENGTH)] = 512
    dropout: Dropped = 0.1
    attention_dropout: Dropped = 0.1
    norm_eps: PositiveFloat = 1e-12

    relu_dropout: ClassVar[float] = 0.0  # dropout within the feed-forward network, which BERT has not

    @model_validator(mode="after")
    def _shape_fits(self) -> Self:
        shape = self.shape()
        if shape.width % shape.heads:
            raise ValueError(f"heads: width {shape.width} must split evenly into {shape.heads} heads")
        return self

    def shape(self) -> BertShape:
        width, layers = self._numbers(BertSize._fields).values()
        return BertShape(width, self.ffn_width or 4 * width, layers, self.heads or max(1, width // HEAD_WIDTH))

    @property
    def residual_dropout(self) -> float:
        """The probability of dropout on embeddings and branches."""
        return self.dropout


class BertTrainSettings(AdamSettings):
    """Pre-training and fine-tuning as BERT had them. Biases and norms have no weight decay."""

    decays_matrices_alone: ClassVar[bool] = True

    schedule: Literal["cosine", "linear", "noam", "constant"] = "linear"
    optimizer: AdamName = "adamw"
    epsilon: PositiveFloat = 1e-6
    weight_decay: NonNegative = 0.01
    gradient_clipping: NonNegative = 1.0

    def _contradictions(self) -> Iterator[str]:
        yield from super()._contradictions()
        if self.sharding == "fsdp":
            yield "sharding: an evaluation reads more than the loss, for which no shards are gathered; leave it out"


def check_positions(model: BertSettings, length: int) -> None:
    """Raises `ValueError` where sequences of so many tokens are longer than a model's positions."""
    if length > model.positions:
        raise ValueError(
            f"data: sequence_length {length:,} is longer than the model's {model.positions:,} positions; use a shorter "
            "one, or more model.positions"
        )


class MaskedTrainSettings(BertTrainSettings):
    """Pre-training as BERT had it, unless said otherwise. Batch sizes count sequences."""

    batch_size: Count = 256
    learning_rate: PositiveFloat = 1e-4
    evaluation_tokens: Tokens | None = None


class MaskedSettings(RunSettings):
    """Everything that decides a run of a masked language model, apart from its method and its seed."""

    model: BertSettings
    data: MaskedData
    train: MaskedTrainSettings

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        check_positions(self.model, self.data.sequence_length)
        return self
