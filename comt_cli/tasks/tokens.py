"""What tasks over tokens of a vocabulary have in common: those of one text, and encoder-decoders."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from comt_cli import words
from comt_cli.tasks.base import Metric, S, Task, Unit, relative

if TYPE_CHECKING:
    from comt_cli.recipe.schema import Sites
    from comt_cli.tasks.settings.captioning import CaptioningSettings
    from comt_cli.tasks.settings.language import Settings
    from comt_cli.tasks.settings.masked_lm import MaskedSettings
    from comt_cli.tasks.settings.translation import TranslationSettings

Text = TypeVar("Text", bound="Settings | MaskedSettings")
Coded = TypeVar("Coded", bound="CaptioningSettings | TranslationSettings")


class TokenTask(Task[S]):
    """Networks read or write tokens of a vocabulary; `family` is what they are called."""

    family: ClassVar[str]
    unit: ClassVar = Unit("tokens", "tok")
    differs: ClassVar = "whose width and vocabulary are other ones"
    runtime_keys: ClassVar = {
        "train": frozenset({"save_every", "keep_every", "sharding", "kernels", "cuda_graphs"}),
        "data": frozenset({"folder"}),
    }
    checkpoint_parts: ClassVar = ("vocabulary", "tokenizer")

    @abstractmethod
    def step(self, settings: S) -> str:
        """What a step is of: `32 images`."""

    def _titled(self, settings: Any, layers: str, data: str, size: Sequence[str]) -> str:
        what = ", ".join([f"{layers} layers", f"{settings.model.shape().width} wide", *size])
        steps = f"{words.plural(settings.train.steps, 'step')} of {self.step(settings)}"
        return f"{self.family} {settings.model.size} ({what}) on {data}, {steps}"

    def networks(self, sizes: Sequence[str]) -> str:
        return f"{self.family} {words.listing(sizes)}"


class TextTask(TokenTask[Text]):
    """Networks read sequences of so many tokens of a corpus."""

    def data_name(self, settings: Text) -> str:
        return settings.data.corpus

    def positions(self, settings: Text) -> int:
        return settings.data.sequence_length

    def work(self, settings: Text) -> float:
        shape = settings.model.shape()
        return float(settings.data.sequence_length * shape.layers * shape.width**2)

    def step(self, settings: Text) -> str:
        return f"{settings.train.batch_size:,} x {settings.data.sequence_length:,} tokens"

    def network_and_data(self, settings: Text, size: Sequence[str] = ()) -> str:
        layers = str(settings.model.shape().layers)
        return self._titled(settings, layers, words.in_words(settings.data.corpus), size)

    def own_columns(self, settings: Text) -> dict[str, Any]:
        data = settings.data
        return {"corpus": data.corpus, "vocabulary": data.vocabulary_size, "sequence_length": data.sequence_length}


class EncoderDecoderTask(TokenTask[Coded]):
    """Networks encode a source of any kind and decode a text."""

    plain_method: ClassVar = "post-ln"
    counts_targets: ClassVar = True

    @property
    def sites(self) -> Sites:
        from comt_cli.tasks.settings.transformer import ENCODER_DECODER_SITES

        return ENCODER_DECODER_SITES

    def network_and_data(self, settings: Coded, size: Sequence[str] = ()) -> str:
        shape = settings.model.shape()
        layers = f"{shape.encoder_layers}+{shape.decoder_layers}"
        return self._titled(settings, layers, self.data_name(settings), size)


def perplexity(of: str, label: str) -> Metric:
    """The metric `target_perplexity`: that of the tokens of texts, each given those before it."""
    return relative(f"perplexity of {of}, given those before it", label, "perplexity")
