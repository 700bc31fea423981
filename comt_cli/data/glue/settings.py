"""The settings of a task of fine-tuning: which one, the vocabulary of its texts, and how its examples are divided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from comt_cli.data.settings import MaskedData, TextSettings
from comt_cli.data.special_tokens import Extra
from comt_cli.recipe.settings import MAX_LENGTH, Count, WholeNumber

Measure = Literal["accuracy", "f1", "mcc", "pearson", "spearman"]
"""Accuracy, F1 of class 1, Matthews' correlation, and the correlations of numbers; `scoring.classification`."""

GlueTask = Literal[
    "acceptability",
    "follows",
    "scene-nli",
    "scene-similarity",
    "cola",
    "sst2",
    "mrpc",
    "qqp",
    "stsb",
    "mnli",
    "qnli",
    "rte",
    "wnli",
]


@dataclass(frozen=True)
class Asked:
    """What a task asks for: one of so many classes, or a number (`classes` 1), and how answers are measured, the main
    measure first."""

    classes: int
    measures: tuple[Measure, ...]


TASKS: Mapping[GlueTask, Asked] = {
    "acceptability": Asked(2, ("mcc",)),
    "follows": Asked(2, ("accuracy", "f1")),
    "scene-nli": Asked(3, ("accuracy",)),
    "scene-similarity": Asked(1, ("pearson", "spearman")),
    "cola": Asked(2, ("mcc",)),
    "sst2": Asked(2, ("accuracy",)),
    "mrpc": Asked(2, ("accuracy", "f1")),
    "qqp": Asked(2, ("accuracy", "f1")),
    "stsb": Asked(1, ("pearson", "spearman")),
    "mnli": Asked(3, ("accuracy",)),
    "qnli": Asked(2, ("accuracy",)),
    "rte": Asked(2, ("accuracy",)),
    "wnli": Asked(2, ("accuracy",)),
}

OF_TEXT: tuple[GlueTask, ...] = ("acceptability", "follows")
"""Tasks whose examples are made of sentences of the corpus."""
OF_SCENES: tuple[GlueTask, ...] = ("scene-nli", "scene-similarity")
"""Tasks whose examples are drawn."""
WITHOUT_DOCUMENTS = ("c4", "openwebtext")
"""Corpora of which pre-training reads a part, so that nobody can say which texts it has not seen."""


class GlueData(TextSettings):
    """What the model judges: the task, and its texts as tokens of the vocabulary that pre-training had.

    `corpus`, `tokenizer`, `vocabulary`, `validation_fraction`, `max_train_tokens` and `folder` are those of the
    pre-training that fine-tuning starts from. `held_out` is the share of the training examples, by the hash of their
    first text, that is no longer trained on but is the validation split; `train_examples` how many of the others are
    used. An example has at most `sequence_length` tokens with the special ones.
    """

    extras: ClassVar[tuple[Extra, ...]] = MaskedData.extras

    tokenizer: Literal["sentencepiece", "bytes"] = "sentencepiece"
    task: GlueTask = "acceptability"
    sequence_length: Annotated[WholeNumber, Field(ge=5, le=MAX_LENGTH)] = 128
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.1
    train_examples: Count | None = None
    glue_folder: str | None = None

    @model_validator(mode="after")
    def _task_fits(self) -> Self:
        if wrong := list(self._contradictions()):
            raise ValueError(*wrong)  # all at once: `validate` makes a problem of each
        return self

    def _contradictions(self) -> Iterator[str]:
        if self.of_text and self.corpus in WITHOUT_DOCUMENTS:
            yield (
                f"task: {self.task} is made of documents that pre-training holds out, and {self.corpus} is not read to "
                "its end; use corpus: python-docs, files:GLOB or wikitext-103, or another task"
            )
        if self.max_train_tokens is not None and self.corpus not in WITHOUT_DOCUMENTS:
            yield f"max_train_tokens: the vocabulary of {self.corpus} does not depend on it here; leave the key out"
        if self.glue_folder is not None and self.task in (*OF_TEXT, *OF_SCENES):
            yield f"glue_folder: this is a key of GLUE's own tasks; leave it out of {self.task}"

    @property
    def text(self) -> MaskedData:
        """The text of the pre-training whose vocabulary this is."""
        return MaskedData(**{key: getattr(self, key) for key in TextSettings.model_fields})

    @property
    def of_text(self) -> bool:
        """Whether the examples are made of the corpus, those of the test split of its validation documents."""
        return self.task in OF_TEXT

    @property
    def classes(self) -> int:
        """How many classes there are; 1 where a number is predicted."""
        return TASKS[self.task].classes

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What answers are measured by, the main one first."""
        return TASKS[self.task].measures
