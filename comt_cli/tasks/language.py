"""Language modelling: every token is predicted from those before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from comt_cli import words
from comt_cli.tasks.base import PERCENT, Drawing, Metric, Task, Unit

if TYPE_CHECKING:
    from comt_cli.data.dataset import Dataset
    from comt_cli.data.storage import ProgressCallback
    from comt_cli.recipe.schema import Sites
    from comt_cli.tasks.settings.language import Settings

COLLAPSED_PERPLEXITY = 1000.0
"""A published perplexity above this is a collapsed run. These papers print 1088 to 1415 for runs that diverged: about
what a network reaches that predicts token frequencies and nothing else; every other published value is below 260.
It is read as worse than any other, and no difference in per cent is taken from it."""

ORIGINAL = "validation perplexity as the original scripts print it"


class LanguageModelling(Task["Settings"]):
    """Train every run of a language-model recipe and write the table beside the paper's numbers.

    Finished runs are skipped and stopped ones resume, so the same command can always be given again; on several
    machines that share the folder of the runs too, which then divide them. A run that fails does not stop the others.
    A table that is there already and has more finished runs, or was made with other settings than --set asks for, is
    kept.

    Examples:

      comt train-lm --recipe table3.yaml

      comt train-lm --recipe table3.yaml --rows pre-ln,pre-ln+comt --seeds 1-3

      comt train-lm --recipe table3.yaml --scale small --device cuda --set train.steps=2000

      comt train-lm --recipe table3.yaml --scale paper --slurm site.yaml --track tensorboard
    """

    name: ClassVar = "language"
    command: ClassVar = "train-lm"
    unit: ClassVar = Unit("tokens", "tok")
    model_kind: ClassVar = "a language model"
    verbs: ClassVar = ("analyze-gates", "plot-cosine", "generate", "export")
    metrics: ClassVar[Mapping[str, Metric]] = {
        "perplexity": Metric(
            words="validation perplexity",
            label="validation perplexity",
            brief="perplexity",
            better="lower",
            difference=PERCENT,
            beside="bits_per_byte",
            collapsed_above=COLLAPSED_PERPLEXITY,
        ),
        "galore_perplexity": Metric(
            words=ORIGINAL,
            label=ORIGINAL,
            brief="galore perplexity",
            better="lower",
            difference=PERCENT,
            beside="bits_per_byte",
            collapsed_above=COLLAPSED_PERPLEXITY,
        ),
        "bits_per_byte": Metric(
            words="validation loss in bits a byte of text",
            label="bits/byte",
            brief="bits per byte",
            better="lower",
            difference=PERCENT,
            decimals=3,
            remark="Bits per byte do not depend on the vocabulary, as perplexities do.",
        ),
    }
    drawings: ClassVar = {
        "residual-stream": Drawing(takes_text=True),
        "gate-values": Drawing(takes_text=True),
        "channel-gates": Drawing(takes_text=True, takes_site=True),
    }
    plain_method: ClassVar = "pre-ln"
    plain: ClassVar = "the plain Pre-LN model of the same size"
    differs: ClassVar = "whose width and vocabulary are other ones"
    runtime_keys: ClassVar = {"train": frozenset({"save_every", "sharding", "kernels"}), "data": frozenset({"folder"})}
    checkpoint_parts: ClassVar = ("vocabulary", "tokenizer")
    provenance: ClassVar = (
        "Networks: {model:networks}{parameters}.",
        "Text: {corpus}.",
        "Tokens a run, padding apart: {tokens:done}.",
    )

    @property
    def settings(self) -> type[Settings]:
        from comt_cli.tasks.settings.language import Settings

        return Settings

    @property
    def sites(self) -> Sites:
        from comt_cli.recipe.schema import Sites

        projections = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
        return Sites("tokens", (*projections, "sdpa", "attention", "mlp"))

    def fingerprint(self, settings: Settings, progress: ProgressCallback | None = None) -> str:
        from comt_cli.data.identity import fingerprint

        return fingerprint(settings.data, progress)

    def known_content(self, settings: Settings, fingerprint: str) -> str | None:
        from comt_cli.data.identity import known_content

        return known_content(fingerprint)

    def prepare(self, settings: Settings, progress: ProgressCallback | None = None) -> Dataset:
        from comt_cli.data.prepare import prepare

        return prepare(settings.data, progress)

    def data_name(self, settings: Settings) -> str:
        return settings.data.corpus

    def dimensions(self, settings: Settings) -> dict[str, int]:
        return {"vocabulary": settings.data.vocabulary_size, "length": settings.data.sequence_length}

    def positions(self, settings: Settings) -> int:
        return settings.data.sequence_length

    def work(self, settings: Settings) -> float:
        shape = settings.model.shape()
        return float(settings.data.sequence_length * shape.layers * shape.width**2)

    def network_and_data(self, settings: Settings, size: Sequence[str] = ()) -> str:
        shape, data, train = settings.model.shape(), settings.data, settings.train
        what = ", ".join([f"{shape.layers} layers", f"{shape.width} wide", *size])
        return (
            f"LLaMA {settings.model.size} ({what}) on {words.in_words(data.corpus)}, "
            f"{words.plural(train.steps, 'step')} of {train.batch_size:,} x {data.sequence_length:,} tokens"
        )

    def describe(self, settings: Settings, size: str = "", seen: str = "") -> str:
        model, data, train = settings.model, settings.data, settings.train
        shape = model.shape()
        amount = f" ({seen} tokens a run, padding apart)" if seen else ""
        return (
            f"LLaMA {model.size}: {shape.layers} layers, {shape.width} wide{size}. Corpus {data.corpus}, "
            f"{data.vocabulary_size:,} tokens ({data.tokenizer}); {train.steps:,} steps of {train.batch_size} x "
            f"{data.sequence_length}{amount}"
        )

    def columns(self, settings: Settings) -> dict[str, Any]:
        model, data, train = settings.model, settings.data, settings.train
        return {
            "model": model.size,
            "corpus": data.corpus,
            "vocabulary": data.vocabulary_size,
            "sequence_length": data.sequence_length,
            "batch_size": train.batch_size,
            "precision": train.precision,
        }

    def networks(self, sizes: Sequence[str]) -> str:
        return f"LLaMA {words.listing(sizes)}"
