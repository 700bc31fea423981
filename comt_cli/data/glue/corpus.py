"""What the examples of a task are, as preparation gets them, and how those of training are divided. Importing it
imports no NumPy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from comt_cli.data.registry import Named
from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.data.text.corpus import split_of
from comt_cli.errors import UserError
from comt_cli.files import sha256

if TYPE_CHECKING:
    from comt_cli.data.glue.settings import GlueData

GlueSplitName = Literal["train", "validation", "test", "unseen"]


Measure = Literal["accuracy", "f1", "mcc", "pearson", "spearman"]
"""Accuracy, F1 of class 1, Matthews' correlation, and the correlations of numbers; `scoring.classification`."""


@dataclass(frozen=True)
class Asked:
    """What a task asks for: one of so many classes, or a number (`classes` 1), and how answers are measured, the main
    measure first."""

    classes: int
    measures: tuple[Measure, ...]


class Example(NamedTuple):
    """One text or two, and the class or the number that is right."""

    first: str
    second: str | None
    label: float

    @property
    def texts(self) -> str:
        """Both texts, a line each."""
        return self.first if self.second is None else f"{self.first}\n{self.second}"


class GlueSource(Named):
    """The examples of tasks, with an identity that is known before any of them is made. `names` are the tasks."""

    package = "comt_cli.data.glue.sources"
    tasks: ClassVar[Mapping[str, Asked]]
    is_of_text: ClassVar[bool] = False
    """The examples are made of the corpus of the pre-training, those of the test split of its validation documents."""
    data: GlueData

    @abstractmethod
    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        """What decides the examples, as JSON. Raises `UserError`."""

    @abstractmethod
    def read(self, progress: ProgressCallback) -> dict[GlueSplitName, list[Example]]:
        """The examples of training, "train", of "test" and perhaps of "unseen". Raises `UserError`."""


def divided(read: Mapping[GlueSplitName, Sequence[Example]], data: GlueData) -> dict[GlueSplitName, Sequence[Example]]:
    """The same with those of training divided into training and validation, of which `data` says how many are used.

    Which ones these are depends on their own text alone: more of them are the fewer and others. Validation goes by the
    first text, so that all examples of a premise are on one side.

    Raises:
        UserError: a split is without examples, or there are not as many as were asked for.
    """
    held: list[Example] = []
    kept: list[Example] = []
    for example in read["train"]:
        (held if split_of(example.first, data.held_out) == "validation" else kept).append(example)
    wanted = data.train_examples
    if wanted is not None and wanted > len(kept):
        raise UserError(
            f"train_examples: {data.task} has {len(kept):,} to train on beside those held out, not {wanted:,}",
            f"Use at most {len(kept):,}, or leave the key out for all of them.",
        )
    if wanted is not None:
        by_hash = sorted(range(len(kept)), key=lambda number: sha256(kept[number].texts))
        kept = [kept[number] for number in sorted(by_hash[:wanted])]
    splits: dict[GlueSplitName, Sequence[Example]] = {**read, "train": kept, "validation": held}
    if empty := [split for split, examples in splits.items() if not examples]:
        raise UserError(
            f"task: {data.task} has no example in the {empty[0]} split",
            "Use more text, or another held_out or validation_fraction.",
        )
    return splits


def unique(examples: Iterable[Example], seen: set[str]) -> Iterable[Example]:
    """Those whose texts are not in `seen`, which they are put into."""
    for example in examples:
        if example.texts not in seen:
            seen.add(example.texts)
            yield example
