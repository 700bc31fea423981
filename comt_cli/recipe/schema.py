"""The keys of a recipe. `settings.py` has what a run is told; here is what makes a table or a figure of it.

A recipe is for one command, and that decides what its runs are told: `RECIPES` has the class for each. All of a recipe
but its settings is the same for both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import AfterValidator, Field, create_model

from comt_cli.recipe.image_settings import (
    ImageDataSettings,
    ImageSettings,
    ImageTrainSettings,
    MilestonesOrShares,
    ResNetSettings,
)
from comt_cli.recipe.settings import DataSettings, ModelSettings, Section, Settings, StepsOrShare, TrainSettings

Command = Literal["train-lm", "train-resnet"]
"""The verbs that train. Which one a recipe is for decides the classes of its settings."""

RunSettings = Settings | ImageSettings
"""What a run is told, by its command."""

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9+._/-]*$"
NAME_LENGTH = 100
"""Letters of a name at most: two of them are part of the names of files, which file systems end at 255."""
Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=NAME_LENGTH)]
SetupName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""The name of a file in the folder `setups`, without its ending; it cannot lead out of that folder."""
ScaleName = Literal["smoke", "small", "paper"]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


def _once_each(seeds: list[int]) -> list[int]:
    if len(set(seeds)) < len(seeds):
        raise ValueError("a seed stands twice")
    return seeds


Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(_once_each)]


def _partial(section: type[Section], **wider: Any) -> type[Section]:
    """The same section with every key optional: what an override may say. Types and limits stay, but for those keys
    that `wider` has a type for: only with others can it be told what they come to."""
    fields: dict[str, Any] = {}
    for name, info in section.model_fields.items():
        constrained = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        fields[name] = (wider.get(name, constrained), None)
    return create_model(f"Partial{section.__name__}", __base__=Section, **fields)


PartialModel = _partial(ModelSettings)
PartialData = _partial(DataSettings)
PartialTrain = _partial(TrainSettings, warmup_steps=StepsOrShare)
PartialResNet = _partial(ResNetSettings)
PartialImageData = _partial(ImageDataSettings)
PartialImageTrain = _partial(ImageTrainSettings, warmup_steps=StepsOrShare, milestones=MilestonesOrShares)


class Partial(Section):
    """Overrides: any keys of the three sections, of either command. Complete only after merging, and checked then."""


class PartialSettings(Partial):
    """Overrides of what a language model is told."""

    model: PartialModel | None = None  # type: ignore[valid-type]
    data: PartialData | None = None  # type: ignore[valid-type]
    train: PartialTrain | None = None  # type: ignore[valid-type]


class PartialImageSettings(Partial):
    """Overrides of what an image classifier is told."""

    model: PartialResNet | None = None  # type: ignore[valid-type]
    data: PartialImageData | None = None  # type: ignore[valid-type]
    train: PartialImageTrain | None = None  # type: ignore[valid-type]


Overrides_co = TypeVar("Overrides_co", bound=Partial, covariant=True)

LanguageMetric = Literal["perplexity", "galore_perplexity"]
ImageMetric = Literal["accuracy"]
MetricName = Literal["perplexity", "galore_perplexity", "accuracy"]
"""What a cell shows: a key of `result.json`."""

DIRECTION: dict[MetricName, Literal["lower", "higher"]] = {
    "perplexity": "lower",
    "galore_perplexity": "lower",
    "accuracy": "higher",
}
"""Which way each metric is better."""


def _increase(text: str) -> str:
    if not re.fullmatch(r"<?\d+(\.\d+)?%", text):
        raise ValueError(f"{text!r} is no increase as papers print it, for instance 1%, <1% or 22.9%")
    return text


PaperIncrease = Annotated[str, AfterValidator(_increase)]
"""A printed increase of the number of parameters, as text: `<1%` is no number."""


Stream = Literal["tokens", "maps"]
"""What goes from block to block: sequences of vectors, [B, T, D], or feature maps, [B, C, H, W]."""


@dataclass(frozen=True)
class Sites:
    """What models offer to a method: what their stream is, and the names of the sites that can carry a gate."""

    stream: Stream
    names: tuple[str, ...]


class MethodOptions(Section):
    """What recipes know of a method: its options, and which models it is for. Methods stand above recipes."""

    @classmethod
    def fits(cls, sites: Sites) -> bool:
        """Whether models that offer these sites can have the method."""
        raise NotImplementedError

    @classmethod
    def commands(cls) -> tuple[str, ...]:
        """The commands whose recipes may have the method."""
        raise NotImplementedError


class Row(Section, Generic[Overrides_co]):
    """One method under one name, with the paper's value in every column."""

    method: str | dict[str, Any]
    paper: dict[str, float | None] = Field(default_factory=dict)
    paper_increase: dict[str, PaperIncrease] = Field(default_factory=dict)
    in_paper: bool = True
    settings: Overrides_co | None = None


class Column(Section, Generic[Overrides_co]):
    """One model and data set. Under a scale, `compare_to` names the paper's column it stands in for."""

    setup: SetupName | None = None
    settings: Overrides_co | None = None
    compare_to: str | None = None


class Scale(Section, Generic[Overrides_co]):
    """What changes when the table is run smaller. `columns`, where given, replace the paper's."""

    description: str
    setup: SetupName | None = None
    settings: Overrides_co | None = None
    columns: dict[Name, Column[Overrides_co]] | None = None
    seeds: Seeds | None = None


AblationName = Literal[
    "hidden-size",
    "window-ratio",
    "modules",
    "granularity",
    "context",
    "sigmoid",
    "gate-form",
    "gate-start",
    "placement-norm",
    "residual-norm",
    "cost",
]


class Ablation(Section):
    """A question that some rows of the table answer: all of them if `rows` is not given.

    `option` is the option of their methods that varies, None where they differ otherwise.
    """

    rows: Annotated[list[str], Field(min_length=1)] | None = None
    option: str | None = None


Drawing = Literal[
    "residual-stream", "gate-values", "channel-gates", "conv-gradients", "residual-shares", "block-gradients"
]

DRAWINGS: dict[Command, tuple[Drawing, ...]] = {
    "train-lm": ("residual-stream", "gate-values", "channel-gates"),
    "train-resnet": ("conv-gradients", "residual-shares", "block-gradients"),
}
"""What can be drawn of what each command trains."""

DRAWINGS_OF_ALL_ROWS: tuple[Drawing, ...] = ("conv-gradients", "block-gradients")
"""Drawings that compare the rows of a recipe; the others are of its baseline alone."""


class Figure(Section):
    """What is drawn of the first seed under the first column, where the recipe is a figure of its paper and no table.

    `site` is the projection whose channels are drawn; `text` is what the network reads, None for the usual one.
    """

    draw: Drawing
    site: str | None = None
    text: Annotated[str, Field(min_length=1)] | None = None


class Recipe(Section, Generic[Overrides_co]):
    """One table, or figure: a published one, or one's own, which has no `paper`.

    A command's class says what its runs are told, and what a cell can show.
    """

    settings_class: ClassVar[type[RunSettings]]
    overrides_class: ClassVar[type[Partial]]

    title: str
    paper: Name | None = None
    table: Name | None = None
    command: Command
    metric: MetricName
    baseline: str
    seeds: Seeds
    figure: Figure | None = None
    setup: SetupName | None = None
    settings: Overrides_co | None = None
    rows: dict[Name, Row[Overrides_co]] = Field(min_length=1)
    columns: dict[Name, Column[Overrides_co]] = Field(min_length=1)
    ablations: dict[AblationName, Ablation] = Field(default_factory=dict)
    scales: dict[ScaleName, Scale[Overrides_co]]


class LanguageRecipe(Recipe[PartialSettings]):
    """A recipe for `comt train-lm`."""

    settings_class: ClassVar = Settings
    overrides_class: ClassVar = PartialSettings

    metric: LanguageMetric = "perplexity"


class ImageRecipe(Recipe[PartialImageSettings]):
    """A recipe for `comt train-resnet`."""

    settings_class: ClassVar = ImageSettings
    overrides_class: ClassVar = PartialImageSettings

    metric: ImageMetric = "accuracy"


AnyRecipe = Recipe[Partial]
"""A recipe of either command, to whoever need not know what its runs are told."""

RECIPES: Mapping[Command, type[AnyRecipe]] = {
    "train-lm": LanguageRecipe,
    "train-resnet": ImageRecipe,
}
"""The class of the recipes of each command."""
