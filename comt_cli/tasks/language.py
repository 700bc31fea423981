"""Language modelling: predict every token from those before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from comt_cli.tasks.base import DECODER_SITES, Drawing, Metric, TextTask, relative

if TYPE_CHECKING:
    from comt_cli.tasks.settings.language import Settings

COLLAPSED_PERPLEXITY = 1000.0
"""A published perplexity above this is a collapsed run's. These papers print 1088 to 1415 for runs that diverged, about
the perplexity of a network that predicts token frequencies alone; all other published values are below 260. It counts
as worse than any other, without a difference in per cent."""

ORIGINAL = "validation perplexity as the original scripts print it"

_perplexity = partial(relative, beside="bits_per_byte", collapsed_above=COLLAPSED_PERPLEXITY)
_bits = partial(relative, decimals=3, remark="Bits per byte do not depend on the vocabulary, as perplexities do.")
_OF_VALIDATION = {
    "perplexity": _perplexity("validation perplexity", "validation perplexity", "perplexity"),
    "galore_perplexity": _perplexity(ORIGINAL, ORIGINAL, "galore perplexity"),
    "bits_per_byte": _bits("validation loss in bits a byte of text", "bits/byte", "bits per byte"),
}


def _of_test(metric: Metric) -> Metric:
    return replace(
        metric,
        words=metric.words.replace("validation", "test"),
        label=metric.label.replace("validation", "test"),
        brief=f"test {metric.brief}",
        beside=None if metric.beside is None else f"test_{metric.beside}",
    )


class LanguageModelling(TextTask["Settings"]):
    """Train the language models of a recipe. Write its table with the paper's numbers.

    Finished runs are skipped and stopped runs resume, so the same command can be repeated, also on several machines
    that share the folder of runs. A run that fails does not stop the others. An existing table is kept if the new one
    lacks some of its finished runs. Runs with --set get a table of their own. More: recipes/RUNNING.md

    Examples:
      comt train-lm table3
      comt train-lm table3 --scale paper --slurm site.yaml --track tensorboard
    """

    name: ClassVar = "language"
    command: ClassVar = "train-lm"
    family: ClassVar = "LLaMA"
    model_kind: ClassVar = "a language model"
    verbs: ClassVar = ("analyze-gates", "plot-cosine", "generate", "export")
    metrics: ClassVar[Mapping[str, Metric]] = {
        **_OF_VALIDATION,
        **{f"test_{key}": _of_test(metric) for key, metric in _OF_VALIDATION.items()},
    }
    drawings: ClassVar = {
        "residual-stream": Drawing(takes_text=True),
        "gate-values": Drawing(takes_text=True),
        "channel-gates": Drawing(takes_text=True, takes_site=True),
        "gates-moved": Drawing(of_all_rows=True, takes_text=True),
    }
    sites: ClassVar = DECODER_SITES
    plain_method: ClassVar = "pre-ln"
    plain: ClassVar = "the plain Pre-LN model of the same size"
    description: ClassVar = (
        "LLaMA {model.size}: {shape.layers} layers, {shape.width} wide{size}. Corpus {data.corpus}, "
        "{data.vocabulary_size:,} tokens ({data.tokenizer}); {train.steps:,} steps of {train.batch_size} x "
        "{data.sequence_length}{amount}"
    )
    amount: ClassVar = "tokens a run, padding apart"
    trained_on: ClassVar = "{corpus}"
    takes_weights: ClassVar = True

    @property
    def result_keys(self) -> tuple[str, ...]:
        return tuple(key for key in super().result_keys if not key.startswith("test_"))  # few runs have a test split

    def lacks(self, settings: Settings, metric: str) -> str | None:
        if metric.startswith("test_") and settings.train.test_share is None:
            split = "the share of the validation sequences for the test split"
            return f"set train.test_share, {split}, for instance --set train.test_share=0.5"
        return None

    def dimensions(self, settings: Settings) -> dict[str, int]:
        return {"vocabulary": settings.data.vocabulary_size, "length": settings.data.sequence_length}
