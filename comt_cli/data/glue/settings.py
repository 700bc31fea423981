"""Tasks of fine-tuning: sources of examples, settings and identity. Importing it imports no NumPy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, NonNegativeInt

from comt_cli.data.prepare import Manifest, Prepared
from comt_cli.data.settings import Named, name_of
from comt_cli.data.storage import ProgressCallback
from comt_cli.data.text.settings import SHARED, Corpus, MaskedData, TextSettings, vocabulary_identity
from comt_cli.data.tokenizer import Extra
from comt_cli.recipe.settings import MAX_LENGTH, Count, WholeNumber

GLUE_FORMAT = 2  # version, as tests/contract/test_cache_versions.py says

GlueSplitName = Literal["train", "validation", "test", "unseen"]

Measure = Literal["accuracy", "f1", "mcc", "pearson", "spearman"]  # of `scoring.classification`


class Labels(NamedTuple):
    """The labels of a task: `classes` classes, or a number (`classes` 1); and its measures, the main one first."""

    classes: int
    measures: tuple[Measure, ...]


class Example(NamedTuple):
    """One text or two, with the correct class or number."""

    first: str
    second: str | None
    label: float

    @property
    def texts(self) -> str:
        return self.first if self.second is None else f"{self.first}\n{self.second}"


class GlueSource(Named):
    """A source of examples; its `names` are tasks."""

    package = "comt_cli.data.glue.sources"
    tasks: ClassVar[Mapping[str, Labels]]
    is_of_text: ClassVar[bool] = False  # made from the pre-training corpus; tests use its validation documents
    data: GlueData

    @abstractmethod
    def read(self, progress: ProgressCallback) -> dict[GlueSplitName, list[Example]]:
        """The examples of "train", "test" and, for some tasks, "unseen". Raises `UserError`."""


class GlueData(TextSettings):
    """Data of fine-tuning: the task, and the text of the pre-training. The share `held_out` of the training examples is
    the validation split; `train_examples` of the others are used, each of at most `sequence_length` tokens."""

    extras: ClassVar[tuple[Extra, ...]] = MaskedData.extras

    tokenizer: Literal["sentencepiece", "bytes"] = "sentencepiece"
    task: Annotated[str, name_of(GlueSource)] = "acceptability"
    sequence_length: Annotated[WholeNumber, Field(ge=5, le=MAX_LENGTH)] = 128
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.1
    train_examples: Count | None = None
    glue_folder: str | None = None

    def contradictions(self) -> Iterator[str]:
        yield from super().contradictions()
        # Pre-training reads only a part of an endless corpus, and maybe of one of the hub: unseen texts are unknown.
        is_endless = Corpus.named(self.corpus).endless
        if self.source.is_of_text and (is_endless or self.corpus.startswith("hf:")):
            said = f"uses documents that pre-training holds out, which are unknown for {self.corpus}, read in part"
            yield f"task: {self.task} {said}; use corpus: python-docs, files:GLOB or wikitext-103, or another task"
        if self.max_train_tokens is not None and not is_endless:
            yield f"max_train_tokens: does not change the vocabulary of {self.corpus}; leave the key out"
        if self.glue_folder is not None and "glue_folder" not in self.source.keys:
            yield f"glue_folder: applies to GLUE's own tasks, not to {self.task}; leave it out"

    @property
    def text(self) -> MaskedData:
        """The text settings of the pre-training with this vocabulary."""
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
    shares_documents: bool = False

    @property
    def note(self) -> str | None:
        return SHARED if self.shares_documents else None


class Kind(Prepared[GlueData, GlueSource]):
    """The examples of a task, and the vocabulary of the pre-trained model."""

    cache = "glue"
    manifest = GlueManifest
    keys = ("sequence_length", "held_out", "train_examples")

    def __init__(self, data: GlueData) -> None:
        super().__init__(data, data.source(data))

    def identity(self, progress: ProgressCallback) -> dict[str, Any]:
        made_of = {"task": self.data.task, "source": self.corpus.identity(progress)}
        vocabulary = vocabulary_identity(self.data, self.data.make_corpus(), progress)
        return {"format": GLUE_FORMAT, **made_of, "vocabulary": vocabulary}
