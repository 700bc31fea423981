"""Tasks of fine-tuning: sources of examples, settings and identity. Importing it imports no NumPy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, NonNegativeInt

from comt_cli.data.prepare import Manifest, Prepared
from comt_cli.data.settings import Named, name_of
from comt_cli.data.storage import ProgressCallback
from comt_cli.data.text.settings import Corpus, MaskedData, TextSettings, vocabulary_identity
from comt_cli.data.tokenizer import Extra
from comt_cli.recipe.settings import MAX_LENGTH, Count, WholeNumber

GLUE_FORMAT = 2  # version, as tests/contract/test_cache_versions.py says

GlueSplitName = Literal["train", "validation", "test", "unseen"]

Measure = Literal["accuracy", "f1", "mcc", "pearson", "spearman"]  # of `scoring.classification`


class Asked(NamedTuple):
    """Answer of a task: one of so many classes, or a number (`classes` 1); its measures, the main one first."""

    classes: int
    measures: tuple[Measure, ...]


class Example(NamedTuple):
    """One text or two, and the class or the number that is right."""

    first: str
    second: str | None
    label: float

    @property
    def texts(self) -> str:
        return self.first if self.second is None else f"{self.first}\n{self.second}"


class GlueSource(Named):
    """The examples of tasks, which are its `names`."""

    package = "comt_cli.data.glue.sources"
    tasks: ClassVar[Mapping[str, Asked]]
    is_of_text: ClassVar[bool] = False  # made of the pre-training's corpus, the test of its validation documents
    data: GlueData

    @abstractmethod
    def read(self, progress: ProgressCallback) -> dict[GlueSplitName, list[Example]]:
        """The examples of training, "train", of "test" and perhaps of "unseen". Raises `UserError`."""


class GlueData(TextSettings):
    """Data of fine-tuning: the task, and the text of the pre-training. The share `held_out` of the training examples is
    the validation split; of the others there are `train_examples`, of at most `sequence_length` tokens each."""

    extras: ClassVar[tuple[Extra, ...]] = MaskedData.extras

    tokenizer: Literal["sentencepiece", "bytes"] = "sentencepiece"
    task: Annotated[str, name_of(GlueSource)] = "acceptability"
    sequence_length: Annotated[WholeNumber, Field(ge=5, le=MAX_LENGTH)] = 128
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.1
    train_examples: Count | None = None
    glue_folder: str | None = None

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        # Of an endless corpus pre-training reads a part, so that nobody can say which texts it has not seen.
        is_endless = Corpus.named(self.corpus).endless
        if self.source.is_of_text and is_endless:
            said = f"is made of documents that pre-training holds out, and {self.corpus} is not read to its end"
            yield f"task: {self.task} {said}; use corpus: python-docs, files:GLOB or wikitext-103, or another task"
        if self.max_train_tokens is not None and not is_endless:
            yield f"max_train_tokens: the vocabulary of {self.corpus} does not depend on it here; leave the key out"
        if self.glue_folder is not None and "glue_folder" not in self.source.keys:
            yield f"glue_folder: this is a key of GLUE's own tasks; leave it out of {self.task}"

    @property
    def text(self) -> MaskedData:
        """The text of the pre-training whose vocabulary this is."""
        return MaskedData(**{key: getattr(self, key) for key in TextSettings.model_fields})

    @property
    def source(self) -> type[GlueSource]:
        return GlueSource.named(self.task)

    @property
    def classes(self) -> int:
        return self.source.tasks[self.task].classes

    @property
    def measures(self) -> tuple[Measure, ...]:
        return self.source.tasks[self.task].measures


class GlueManifest(Manifest):
    """Record of prepared examples."""

    format: int
    source: list[Any]
    examples: dict[GlueSplitName, NonNegativeInt]


class Kind(Prepared[GlueData, GlueSource]):
    """The examples of a task, and the vocabulary of the pre-training that fine-tuning starts from."""

    cache = "glue"
    manifest = GlueManifest
    keys = ("sequence_length", "held_out", "train_examples")

    def __init__(self, data: GlueData) -> None:
        super().__init__(data, data.source(data))

    def identity(self, progress: ProgressCallback) -> dict[str, Any]:
        made_of = {"task": self.data.task, "source": self.corpus.identity(progress)}
        vocabulary = vocabulary_identity(self.data, self.data.make_corpus(), progress)
        return {"format": GLUE_FORMAT, **made_of, "vocabulary": vocabulary}
