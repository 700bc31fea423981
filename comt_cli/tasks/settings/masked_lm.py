"""The settings of a BERT, its named sizes, and its training.

`base` is Devlin et al.'s (2019); the others are the miniatures published later (Turc et al. 2019), with heads of width
64 and feed-forward networks four times as wide as the stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import PositiveFloat, model_validator

from comt_cli.data.text.settings import MaskedData
from comt_cli.recipe.settings import AttentionSettings, Count, Layers, Length, NonNegative, RunSettings, Tokens
from comt_cli.tasks.settings import AdamName, AdamSettings, Dropped


class BertShape(NamedTuple):
    """Widths and depth of a BERT. The vocabulary comes from the tokenizer; named sizes give the first two."""

    width: int
    layers: int
    ffn_width: int = 0
    heads: int = 0


BERT_SIZES: dict[str, BertShape] = {
    "tiny": BertShape(width=128, layers=2),
    "mini": BertShape(width=256, layers=4),
    "small": BertShape(width=512, layers=4),
    "medium": BertShape(width=512, layers=8),
    "base": BertShape(width=768, layers=12),
}
HEAD_WIDTH = 64


class BertSettings(AttentionSettings):
    """A BERT: a named size with overrides, its longest sequence, and its dropout."""

    sizes: ClassVar[Mapping[str, BertShape]] = BERT_SIZES

    family: Literal["bert"] = "bert"
    size: str = "base"
    layers: Layers | None = None
    positions: Length = 512
    dropout: Dropped = 0.1
    attention_dropout: Dropped = 0.1
    norm_eps: PositiveFloat = 1e-12

    relu_dropout: ClassVar[float] = 0.0  # BERT has no dropout inside the feed-forward network

    def shape(self) -> BertShape:
        width, layers = self._numbers(("width", "layers")).values()
        return BertShape(width, layers, self.ffn_width or 4 * width, self.heads or max(1, width // HEAD_WIDTH))

    @property
    def residual_dropout(self) -> float:
        """The probability of dropout on embeddings and branches."""
        return self.dropout


class BertTrainSettings(AdamSettings):
    """Pre-training and fine-tuning with BERT's defaults. Biases and norms have no weight decay."""

    decays_matrices_alone: ClassVar[bool] = True
    refused: ClassVar = {"sharding": "evaluations compute more than the loss, which needs unsharded parameters"}

    schedule: Literal["cosine", "linear", "noam", "constant"] = "linear"
    optimizer: AdamName = "adamw"
    epsilon: PositiveFloat = 1e-6
    weight_decay: NonNegative = 0.01
    gradient_clipping: NonNegative = 1.0


def check_positions(settings: Any) -> Any:
    """Return the settings. Raises `ValueError` if their sequences are longer than the model's positions."""
    length, positions = settings.data.sequence_length, settings.model.positions
    if length > positions:
        said = f"data: sequence_length {length:,} is longer than the model's {positions:,} positions"
        raise ValueError(f"{said}; reduce it, or increase model.positions")
    return settings


class MaskedTrainSettings(BertTrainSettings):
    """Pre-training with BERT's defaults. Batch sizes count sequences."""

    batch_size: Count = 256
    learning_rate: PositiveFloat = 1e-4
    evaluation_tokens: Tokens | None = None


class MaskedSettings(RunSettings):
    """Everything that decides a run of a masked language model, apart from its method and its seed."""

    model: BertSettings
    data: MaskedData
    train: MaskedTrainSettings

    _rows_fit = model_validator(mode="after")(check_positions)
