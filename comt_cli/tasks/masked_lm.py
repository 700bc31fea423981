"""Masked language modelling: predict hidden tokens of a text from those on both sides."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from comt_cli.tasks.base import ENCODER_SITES, DifferenceUnit, Metric, TextTask, percentage, relative

if TYPE_CHECKING:
    from comt_cli.tasks.settings.masked_lm import MaskedSettings

NATS = DifferenceUnit("nats", "nats", "nats")  # differences of a loss, which is a logarithm already
_loss = partial(Metric, better="lower", difference=NATS, decimals=3, beside="masked_accuracy")
_perplexity = partial(relative, beside="masked_accuracy")


class MaskedLanguageModelling(TextTask["MaskedSettings"]):
    """Train the masked language models of a recipe. Write its table with the paper's numbers.

    Finished runs are skipped and stopped runs resume, as with comt train-lm. The loss counts masked tokens only. In
    validation the same tokens are masked in every run. More: recipes/BERT.md, recipes/RUNNING.md

    Examples:
      comt train-bert eau-grc/bert
      comt train-bert mine.yaml --set "data.corpus=files:texts/*.txt"
    """

    name: ClassVar = "masked_lm"
    command: ClassVar = "train-bert"
    family: ClassVar = "BERT"
    model_kind: ClassVar = "a masked language model"
    verbs: ClassVar = ("analyze-gates", "plot-cosine", "export")
    metrics: ClassVar[Mapping[str, Metric]] = {
        "masked_loss": _loss("loss of a hidden validation token, in nats", "masked loss, nats", "masked loss"),
        "masked_perplexity": _perplexity(
            "perplexity of a hidden validation token", "masked perplexity", "masked perplexity"
        ),
        "masked_accuracy": percentage(
            "hidden validation tokens that are predicted exactly, in per cent", "masked accuracy, %", "masked accuracy"
        ),
    }
    sites: ClassVar = ENCODER_SITES
    plain_method: ClassVar = "post-ln"
    plain: ClassVar = "the plain Post-LN BERT of the same size"
    description: ClassVar = (
        "BERT {model.size}: {shape.layers} layers, {shape.width} wide, {shape.heads} heads{size}. Corpus "
        "{data.corpus}, {data.vocabulary_size:,} tokens ({data.tokenizer}), {percent:g} % of them hidden; "
        "{train.steps:,} steps of {train.batch_size} x {data.sequence_length}{amount}"
    )
    amount: ClassVar = "hidden tokens a run"
    trained_on: ClassVar = "{corpus}"

    def dimensions(self, settings: MaskedSettings) -> dict[str, int]:
        data = settings.data
        return {"vocabulary": data.vocabulary_size, "length": data.sequence_length, "masked": data.masked}

    def phrases(self, settings: MaskedSettings) -> dict[str, Any]:
        return {"percent": 100 * settings.data.mask_share}
