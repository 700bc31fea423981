"""The settings of a task of fine-tuning: which one, the vocabulary of its texts, and how its examples are divided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from comt_cli.data.glue.corpus import Asked, GlueSource, Measure
from comt_cli.data.special_tokens import Extra
from comt_cli.data.text.corpus import Corpus
from comt_cli.data.text.settings import MaskedData, TextSettings
from comt_cli.recipe.settings import MAX_LENGTH, Count, WholeNumber

if TYPE_CHECKING:
    GlueTask = str
else:
    GlueTask = Literal[GlueSource.all_names()]


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

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        # Of an endless corpus pre-training reads a part, so that nobody can say which texts it has not seen.
        is_endless = Corpus.named(self.corpus).endless
        if self.of_text and is_endless:
            yield (
                f"task: {self.task} is made of documents that pre-training holds out, and {self.corpus} is not read to "
                "its end; use corpus: python-docs, files:GLOB or wikitext-103, or another task"
            )
        if self.max_train_tokens is not None and not is_endless:
            yield f"max_train_tokens: the vocabulary of {self.corpus} does not depend on it here; leave the key out"
        if self.glue_folder is not None and "glue_folder" not in GlueSource.named(self.task).keys:
            yield f"glue_folder: this is a key of GLUE's own tasks; leave it out of {self.task}"

    @property
    def text(self) -> MaskedData:
        """The text of the pre-training whose vocabulary this is."""
        return MaskedData(**{key: getattr(self, key) for key in TextSettings.model_fields})

    @property
    def of_text(self) -> bool:
        """Whether the examples are made of the corpus, those of the test split of its validation documents."""
        return GlueSource.named(self.task).is_of_text

    @property
    def classes(self) -> int:
        """How many classes there are; 1 where a number is predicted."""
        return self._asked.classes

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What answers are measured by, the main one first."""
        return self._asked.measures

    @property
    def _asked(self) -> Asked:
        return GlueSource.named(self.task).tasks[self.task]
