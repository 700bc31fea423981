"""Translation: predict a target sentence from a source sentence; scored by BLEU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from comt_cli import words
from comt_cli.tasks.base import EncoderDecoderTask, Metric, percentage, relative, score

if TYPE_CHECKING:
    from comt_cli.tasks.settings.translation import TranslationSettings

TYPICAL_LENGTH = 32
"""Tokens of a sentence when costs are estimated: a bucket is assumed to be full of such pairs."""

SPLITS = {"": "validation", "test_": "test", "unseen_": "unseen", "last_test_": "test (last weights)"}
"""The translated sets of sentences, by the prefix of their metrics' keys. The test set has a second entry with the last
weights, for runs that end with an average."""

BLEUS = {
    "bleu": ("BLEU", "sacreBLEU, tokenizer 13a, cased"),
    "bleu_tokenised": ("tokenised BLEU", "on the tokens of the files, as multi-bleu counts it"),
    "bleu_intl": ("BLEU intl", "sacreBLEU, tokenizer intl, cased"),
    "bleu_intl_lc": ("BLEU intl, lower-cased", "sacreBLEU, tokenizer intl, lower-cased"),
    "bleu_compound": ("compound BLEU", "on Moses tokens with compounds split, as Vaswani et al. print it"),
    "chrf": ("chrF", "sacreBLEU's chrF2"),
}
"""The scores by key: name, and definition. Columns never mix two of them."""


def _metrics() -> dict[str, Metric]:
    found = {}
    for prefix, split in SPLITS.items():
        for key in BLEUS if prefix in ("test_", "last_test_") else ("bleu",):
            name, how = BLEUS[key]
            said = f"{name} of the {split} sentences ({how})"
            found[prefix + key] = score(said, f"{split} {name}", name, beside=_beside(prefix, key))
        if prefix != "last_test_":
            said = f"values of the {split} sentences (dates, amounts, names) translated exactly, in per cent"
            remark = "Values are counted where the data says what they are."
            found[f"{prefix}slot_accuracy"] = percentage(said, f"{split} values, %", "values", remark=remark)
    said = "perplexity of a validation target token, given those before it"
    return {**found, "target_perplexity": relative(said, "target perplexity", "perplexity")}


def _beside(prefix: str, key: str) -> str | None:
    """The metric next to a score in tables: the accuracy of values, else the same score with the last weights."""
    if prefix == "last_test_":
        return None
    return f"{prefix}slot_accuracy" if key == "bleu" else f"last_{prefix}{key}"


class Translation(EncoderDecoderTask["TranslationSettings"]):
    """Train the translators of a recipe. Write its table with the paper's numbers.

    Finished runs are skipped and stopped runs resume, as with comt train-lm. The test set is translated once, after
    training, with the final weights; a run that is stopped during translation resumes there. More:
    recipes/TRANSLATION.md, recipes/RUNNING.md

    Examples:
      comt train-mt sas/table3
      comt train-mt mine.yaml --set data.corpus=pairs:texts.en,texts.de
    """

    name: ClassVar = "translation"
    command: ClassVar = "train-mt"
    family: ClassVar = "Transformer"
    metrics: ClassVar[Mapping[str, Metric]] = _metrics()
    plain: ClassVar = "the plain Post-LN Transformer of the same size"
    model_kind: ClassVar = "a translator"
    verbs: ClassVar = ("translate", "analyze-gates", "average")
    description: ClassVar = (
        "Transformer {model.size}: {shape.encoder_layers} + {shape.decoder_layers} layers, {shape.width} wide, "
        "{shape.heads} heads{size}. {data.corpus} from {data.source} to {data.target}, a joint vocabulary of "
        "{data.vocabulary_size:,}; {train.steps:,} steps of {buckets} of at most {data.batch_tokens:,} tokens{amount}, "
        "label smoothing {train.label_smoothing:g}{average}; beam {decode.beam}, length penalty {decode.alpha:g} "
        "({decode.penalty})"
    )
    amount: ClassVar = "target tokens a run"
    trained_on: ClassVar = "{corpus}, {languages}"

    def data_name(self, settings: TranslationSettings) -> str:
        data = settings.data
        return f"{data.corpus} {data.source}-{data.target}"

    def dimensions(self, settings: TranslationSettings) -> dict[str, int]:
        data = settings.data
        assert data.vocabulary_size is not None  # the settings guarantee it
        length = min(TYPICAL_LENGTH, data.max_length)
        return {"vocabulary": data.vocabulary_size, "length": length, "pairs": data.batch_tokens // length}

    def step(self, settings: TranslationSettings) -> str:
        return f"{settings.train.batch_size * settings.data.batch_tokens:,} tokens"

    def phrases(self, settings: TranslationSettings) -> dict[str, Any]:
        train = settings.train
        average = ""
        if train.average_every is not None:
            average = f", the mean of the weights of {train.average_last} steps {train.average_every:,} apart"
        return {"average": average, "buckets": words.plural(train.batch_size, "bucket")}

    def own_columns(self, settings: TranslationSettings) -> dict[str, Any]:
        data = settings.data
        languages = f"{data.source}-{data.target}"
        shown = {"corpus": data.corpus, "languages": languages, "batch_tokens": data.batch_tokens}
        return {"width": settings.model.shape().width, **shown}
