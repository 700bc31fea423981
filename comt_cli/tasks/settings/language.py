"""The settings of a LLaMA, its named sizes, and the training of language models.

The sizes are the papers' (from the public configuration files of their scripts). 250m has width 768: Transponder's
Table 7 prints 1024, which gives 355 million parameters and not the paper's parameter increases. `tiny` is for laptops.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, PositiveFloat, model_validator

from comt_cli.data.text.settings import DataSettings
from comt_cli.recipe.settings import AttentionSettings, CapturedTraining, Count, Layers, RunSettings, Tokens, Width
from comt_cli.tasks.settings import StartedTraining


class LlamaShape(NamedTuple):
    """Widths and depth of a LLaMA; the vocabulary comes from the tokenizer. Named sizes have no shared heads."""

    width: int
    ffn_width: int
    layers: int
    heads: int
    kv_heads: int = 0


LLAMA_SIZES: dict[str, LlamaShape] = {
    "tiny": LlamaShape(width=128, ffn_width=344, layers=4, heads=4),
    "60m": LlamaShape(width=512, ffn_width=1376, layers=8, heads=8),
    "71m": LlamaShape(width=512, ffn_width=1368, layers=12, heads=8),
    "130m": LlamaShape(width=768, ffn_width=2048, layers=12, heads=12),
    "250m": LlamaShape(width=768, ffn_width=2560, layers=24, heads=16),
    "350m": LlamaShape(width=1024, ffn_width=2736, layers=24, heads=16),
    "1b": LlamaShape(width=2048, ffn_width=5461, layers=24, heads=32),
}


class ModelSettings(AttentionSettings):
    """A LLaMA: a named size with overrides, and its initialisation."""

    sizes: ClassVar[Mapping[str, LlamaShape]] = LLAMA_SIZES

    family: Literal["llama"] = "llama"
    size: str = "130m"
    layers: Layers | None = None
    kv_heads: Width | None = None
    tied_embeddings: bool = False
    rope_theta: PositiveFloat = 10000.0
    norm_eps: PositiveFloat = 1e-6
    init_std: PositiveFloat = 0.02
    embedding_init_std: PositiveFloat = 0.02

    @model_validator(mode="after")
    def _shape_fits(self) -> Self:
        shape = self.shape()
        if (shape.width // shape.heads) % 2:
            raise ValueError(f"heads: the width of {shape.heads} heads is odd; rotary embeddings need an even one")
        if shape.heads % shape.kv_heads:
            raise ValueError(f"kv_heads: {shape.kv_heads} does not divide the {shape.heads} heads")
        return self

    def shape(self) -> LlamaShape:
        shape = LlamaShape(**self._numbers(("width", "ffn_width", "layers", "heads")))
        return shape._replace(kv_heads=self.kv_heads or shape.heads)


class TrainSettings(StartedTraining, CapturedTraining):
    """Training of a language model. Batch sizes count sequences of tokens. The last `test_share` of the validation
    sequences become the test split, on which only the final weights are evaluated."""

    later: ClassVar[frozenset[str]] = StartedTraining.later | {"test_share"}

    batch_size: Count = 512
    evaluation_tokens: Tokens | None = None
    test_share: Annotated[float, Field(gt=0, lt=1)] | None = None


class Settings(RunSettings):
    """Everything that decides a run of a language model, apart from its method and its seed."""

    model: ModelSettings
    data: DataSettings
    train: TrainSettings
