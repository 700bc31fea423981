"""The keys of a recipe. `settings.py` has what a run is told; here is what makes a table or a figure of it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, create_model

from comt_cli.recipe.settings import DataSettings, ModelSettings, Section, TrainSettings

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9+._/-]*$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
SetupName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""The name of a file in the folder `setups`, without its ending; it cannot lead out of that folder."""
ScaleName = Literal["smoke", "small", "paper"]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


def _once_each(seeds: list[int]) -> list[int]:
    if len(set(seeds)) < len(seeds):
        raise ValueError("a seed stands twice")
    return seeds


Seeds = Annotated[list[Seed], Field(min_length=1), AfterValidator(_once_each)]


def _partial(section: type[Section]) -> type[Section]:
    """The same section with every key optional: what an override may say. Types and limits stay."""
    fields: dict[str, Any] = {}
    for name, info in section.model_fields.items():
        constrained = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        fields[name] = (constrained, None)
    return create_model(f"Partial{section.__name__}", __base__=Section, **fields)


PartialModel = _partial(ModelSettings)
PartialData = _partial(DataSettings)
PartialTrain = _partial(TrainSettings)


class PartialSettings(Section):
    """Overrides: any keys of the three sections. Validated for completeness only after merging."""

    model: PartialModel | None = None  # type: ignore[valid-type]
    data: PartialData | None = None  # type: ignore[valid-type]
    train: PartialTrain | None = None  # type: ignore[valid-type]


MetricName = Literal["perplexity", "galore_perplexity"]
"""What a cell shows: a key of `result.json`."""

DIRECTION: dict[MetricName, Literal["lower", "higher"]] = {"perplexity": "lower", "galore_perplexity": "lower"}
"""Which way each metric is better."""


def _increase(text: str) -> str:
    if not re.fullmatch(r"<?\d+(\.\d+)?%", text):
        raise ValueError(f"{text!r} is no increase as papers print it, for instance 1%, <1% or 22.9%")
    return text


PaperIncrease = Annotated[str, AfterValidator(_increase)]
"""A printed increase of the number of parameters, as text: `<1%` is no number."""


class Row(Section):
    """One method under one name, with the paper's value in every column."""

    method: str | dict[str, Any]
    paper: dict[str, float | None] = Field(default_factory=dict)
    paper_increase: dict[str, PaperIncrease] = Field(default_factory=dict)
    in_paper: bool = True
    settings: PartialSettings = PartialSettings()


class Column(Section):
    """One model and data set. Under a scale, `compare_to` names the paper's column it stands in for."""

    setup: SetupName | None = None
    settings: PartialSettings = PartialSettings()
    compare_to: str | None = None


class Scale(Section):
    """What changes when the table is run smaller. `columns`, where given, replace the paper's."""

    description: str
    settings: PartialSettings = PartialSettings()
    columns: dict[Name, Column] | None = None
    seeds: Seeds | None = None


AblationName = Literal["hidden-size", "modules", "granularity", "context", "sigmoid", "placement-norm", "cost"]


class Ablation(Section):
    """A question that some rows of the table answer: all of them if `rows` is not given.

    `option` is the option of their methods that varies, None where they differ otherwise.
    """

    rows: Annotated[list[str], Field(min_length=1)] | None = None
    option: str | None = None


class Figure(Section):
    """What is drawn of the first run of the baseline, where the recipe is a figure of its paper and no table.

    `site` is the projection whose channels are drawn; `text` is what the network reads, None for the usual one.
    """

    draw: Literal["residual-stream", "gate-values", "channel-gates"]
    site: str | None = None
    text: Annotated[str, Field(min_length=1)] | None = None


class Recipe(Section):
    """One published table, or figure."""

    title: str
    paper: Name
    table: Name
    command: Literal["train-lm"]
    metric: MetricName = "perplexity"
    baseline: str
    seeds: Seeds
    figure: Figure | None = None
    setup: SetupName | None = None
    settings: PartialSettings = PartialSettings()
    rows: dict[Name, Row] = Field(min_length=1)
    columns: dict[Name, Column] = Field(min_length=1)
    ablations: dict[AblationName, Ablation] = Field(default_factory=dict)
    scales: dict[ScaleName, Scale]
