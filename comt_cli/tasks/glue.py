"""Fine-tuning on GLUE: a pre-trained BERT classifies texts, or predicts a number for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from comt_cli import words
from comt_cli.tasks.base import ENCODER_SITES, Metric, TokenTask, Unit, percentage, score

if TYPE_CHECKING:
    from comt_cli.recipe.settings import RunSettings
    from comt_cli.tasks.settings.glue import GlueSettings

TYPICAL_LENGTH = 64
"""Tokens of an example when costs are estimated: about the longest of a batch, to which the others are padded."""

MEASURES = {
    "accuracy": ("accuracy", "examples that are put into their class, in per cent"),
    "f1": ("F1", "F1 of class 1, times 100"),
    "mcc": ("MCC", "Matthews' correlation of classes, times 100"),
    "pearson": ("Pearson", "Pearson's correlation of numbers, times 100"),
    "spearman": ("Spearman", "Spearman's correlation of numbers, times 100"),
}
"""The measures of examples: name, and definition."""

CUT_BY = ("corpus", "tokenizer", "vocabulary", "validation_fraction")
"""The keys that decide the vocabulary, which is trained on the training documents, and those documents."""


def _metrics() -> dict[str, Metric]:
    main = "the task's main measure on validation examples, held out of training's, times 100"
    found = {"score": score(main, "validation score", "score")}
    for prefix, which, measures in (("test", "test", [*MEASURES]), ("unseen", "the other test set's", ["accuracy"])):
        for key in measures:
            name, said = MEASURES[key]
            kind = percentage if key == "accuracy" else score
            found[f"{prefix}_{key}"] = kind(f"{which} examples: {said}", f"{prefix} {name}", name)
    return found


class Glue(TokenTask["GlueSettings"]):
    """Fine-tune BERTs on the tasks of a recipe. Write its table with the paper's numbers.

    Finished runs are skipped and stopped runs resume, as with comt train-lm. The comt train-bert runs that they start
    from are trained first. For GLUE's own tasks the development set is the test set. The validation score uses a tenth
    of the training examples, which are not trained on. More: recipes/BERT.md, recipes/RUNNING.md

    Examples:
      comt finetune eau-grc/glue
      comt finetune eau-grc/glue --scale paper --columns mrpc/accuracy,mrpc/f1 --set data.glue_folder=glue
    """

    name: ClassVar = "glue"
    command: ClassVar = "finetune"
    family: ClassVar = "BERT"
    unit: ClassVar = Unit("examples", "ex")
    metrics: ClassVar[Mapping[str, Metric]] = _metrics()
    model_kind: ClassVar = "a fine-tuned BERT"
    verbs: ClassVar = ("analyze-gates", "plot-cosine", "export")
    sites: ClassVar = ENCODER_SITES
    plain_method: ClassVar = "post-ln"
    plain: ClassVar = "the plain Post-LN BERT of the same size"
    runtime_keys: ClassVar = {**TokenTask.runtime_keys, "data": frozenset({"folder", "dtype", "glue_folder"})}
    shows_median: ClassVar = True
    description: ClassVar = (
        "BERT {model.size}: {shape.layers} layers, {shape.width} wide, {shape.heads} heads{size}. {data.task}, "
        "{predicted}, {data.vocabulary_size:,} tokens ({data.tokenizer}, of {corpus}); {train.steps:,} steps of "
        "{step}{amount}"
    )
    amount: ClassVar = "examples a run, repeated ones included"
    trained_on: ClassVar = "{task}"

    def lacks(self, settings: GlueSettings, metric: str) -> str | None:
        task, measures = settings.data.task, settings.data.measures
        split, _, measure = metric.partition("_")
        if metric == self.metric:
            return None
        if measure not in measures:
            return f"the measures of {task} are {words.listing(measures)}"
        if split == "unseen" and task != "mnli":
            return f"{task} has no second test set; only mnli has one"
        return None

    def start_mismatch(self, settings: GlueSettings, source: RunSettings) -> str | None:
        own, theirs = settings.data.text, getattr(source.data, "text", None)
        if theirs is None:
            return "its data is not text of masked sequences"
        limit = () if own.max_train_tokens is None else ("max_train_tokens",)
        wrong = [key for key in (*CUT_BY, *limit) if getattr(own, key) != getattr(theirs, key)]
        if not wrong:
            return None
        said = words.listing(
            f"data.{key} is {getattr(own, key)} here and {getattr(theirs, key)} there" for key in wrong
        )
        is_of_text = settings.data.source.is_of_text
        seen = ", and it may have been pre-trained on test documents" if is_of_text else ""
        text = "text" if wrong == [*limit] else "vocabulary"
        return f"{said}, so that its {text} differs{seen}"

    def data_name(self, settings: GlueSettings) -> str:
        return settings.data.task

    def dimensions(self, settings: GlueSettings) -> dict[str, int]:
        data = settings.data
        length = min(TYPICAL_LENGTH, data.sequence_length)
        return {"vocabulary": data.vocabulary_size, "length": length, "classes": data.classes}

    def step(self, settings: GlueSettings) -> str:
        return words.plural(settings.train.batch_size, "example")

    def phrases(self, settings: GlueSettings) -> dict[str, Any]:
        classes = settings.data.classes
        predicted = "a number" if classes == 1 else f"{classes} classes"
        return {"predicted": predicted, "corpus": words.in_words(settings.data.corpus), "step": self.step(settings)}

    def own_columns(self, settings: GlueSettings) -> dict[str, Any]:
        data = settings.data
        shown = {"task": data.task, "corpus": data.corpus, "vocabulary": data.vocabulary_size}
        return {**shown, "learning_rate": settings.train.learning_rate}
