"""The keys of a recipe: what makes a table or a figure of runs. Which settings the runs have is their task's matter.

Tasks and methods stand above recipes: what a recipe must know of them is said here, and they are handed in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveFloat

from comt_cli.recipe.problems import KeyPath, closest
from comt_cli.recipe.settings import Section, matching

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9+._/-]*"
NAME_FORM = "letters, digits and + . _ / -, a letter or digit first"
NAME_LENGTH = 100
"""Letters of a name at most: two of them are part of the names of files, which file systems end at 255."""
Name = Annotated[str, Field(max_length=NAME_LENGTH), matching(NAME_PATTERN, f"cannot be a name: use {NAME_FORM}")]
SetupName = Annotated[
    str, matching(r"[A-Za-z0-9][A-Za-z0-9._-]*", "is no setup: give the name of a file there without its ending")
]
"""The name of a file in the folder `setups`, without its ending; it cannot lead out of that folder."""
SCALES = ("smoke", "evening", "small", "paper")
"""The scales of the recipes that came with the program, the smallest first; one's own recipes may have others."""
NO_SCALES = ("bench", "diagnose", "figures", "search")
"""What else has folders beside those of scales in the results."""
ScaleName = Annotated[
    str,
    Field(max_length=40),
    matching(
        rf"(?!(?:{'|'.join(NO_SCALES)})$)[a-z0-9][a-z0-9-]*",
        f"cannot be a scale: use small letters, digits and -, and none of {', '.join(NO_SCALES)}",
    ),
]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


def _once_each(what: str) -> AfterValidator:
    def checked(given: Sequence[Any]) -> Sequence[Any]:
        if len(set(given)) < len(given):
            raise ValueError(f"a {what} stands twice")
        return given

    return AfterValidator(checked)


Seeds = Annotated[list[Seed], Field(min_length=1), _once_each("seed")]


PaperIncrease = Annotated[str, matching(r"<?\d+(\.\d+)?%", "is no printed increase, for instance 1%, <1% or 22.9%")]
"""A printed increase of the number of parameters, as text: `<1%` is no number."""
Stream = Literal["tokens", "maps"]
"""What goes from block to block: sequences of vectors, [B, T, D], or feature maps, [B, C, H, W]."""


@dataclass(frozen=True)
class Sites:
    """The offers of a task's models to a method: their stream, the sites that can carry a gate, and what only some
    have: `states`, that more than a stream goes from block to block, and that blocks follow training; `values`, that a
    block attends with other values than its own; `bare embedding`, neither scaled nor normalised."""

    stream: Stream
    names: tuple[str, ...]
    features: tuple[str, ...] = ()


class MethodOptions(Section):
    """A method as recipes know it: its options, and the models it is for."""

    @classmethod
    def fits(cls, sites: Sites) -> bool:
        """Whether models that offer these sites can have the method."""
        raise NotImplementedError

    def absent(self, sites: Sites) -> dict[str, str]:
        """Problems of options that name what models with these sites do not have, by option."""
        raise NotImplementedError

    def stored(self) -> dict[str, Any]:
        """The options as a run's `spec.json` has them, and so its identity: defaults included, but for `later` keys."""
        return self.model_dump(mode="json", exclude=self.later_at_default)


TaskOptions = Any
"""A `tasks.base.Task`: tasks stand above recipes, and are handed in."""


@dataclass(frozen=True)
class Catalogue:
    """Every method by its name, and every task by its command, the usual one first: what a recipe can name."""

    methods: Mapping[str, type[MethodOptions]]
    tasks: Mapping[str, TaskOptions]

    def task(self, command: object) -> TaskOptions:
        """The task of the command with the nearest name, else the usual one: a recipe with a wrong one is checked
        all the same."""
        return self.tasks[closest(str(command), self.tasks) or next(iter(self.tasks))]


Given = dict[str, Any]
"""Settings as the file has them: `load` checks them."""


Part = Annotated[
    str,
    matching(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*", "is no part of a model: letters, digits and _, with dots between"),
]
"""A part of a model, by the beginning of its parameters' names: `classifier` for `classifier.weight`."""
Parts = Annotated[tuple[Part, ...], _once_each("part")]


class Start(Section):
    """The run of another recipe, at the same scale, from whose weights a run starts: of the same `row`, `column` (or
    the only one) and `seed` if not given. `new` are parts that the source does not have, `drop` those of the source
    alone."""

    recipe: Annotated[str, Field(min_length=1, max_length=250)]
    row: str | None = None
    column: str | None = None
    seed: Seed | None = None
    new: Parts = ()
    drop: Parts = ()


class Sweep(Section):
    """Values by dotted key of which every cell tries all combinations (its grid), to show the best by `metric` on
    validation. With `seeds` they are tried by runs of these seeds alone, the trials, and the table's seeds are trained
    at what was chosen."""

    settings: dict[str, list[Any]]
    metric: str
    seeds: Seeds | None = None


class Published(Section):
    """Another paper's values of a row and its baseline, `of` a network and a text, in perplexity or nats."""

    of: Annotated[str, Field(min_length=1)]
    metric: Literal["perplexity", "loss"] = "perplexity"
    baseline: PositiveFloat
    value: PositiveFloat

    @property
    def percent(self) -> float:
        """The ratio of the perplexities, in per cent beyond 1."""
        if self.metric == "loss":
            return 100 * math.expm1(self.value - self.baseline)
        return 100 * (self.value / self.baseline - 1)


class Row(Section):
    """One method under one name, with the paper's value in every column. `notes` are footnotes of its cells."""

    method: str | dict[str, Any]
    paper: dict[str, float | None] = Field(default_factory=dict)
    paper_increase: dict[str, PaperIncrease] = Field(default_factory=dict)
    in_paper: bool = True
    published: Published | None = None
    notes: dict[ScaleName, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    settings: Given | None = None
    start: Start | None = None


class Column(Section):
    """One model and data set, or, with a `metric` of its own, another number of the same runs. Under a scale,
    `compare_to` names the paper's column it stands in for."""

    setup: SetupName | None = None
    settings: Given | None = None
    start: Start | None = None
    metric: str | None = None
    compare_to: str | None = None


class Scale(Section):
    """The differences of a smaller table. `columns`, where given, replace the paper's."""

    description: str
    setup: SetupName | None = None
    settings: Given | None = None
    columns: dict[Name, Column] | None = None
    seeds: Seeds | None = None
    sweep: Sweep | None = None


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
    """A question that some `rows` of the table answer, all if not given. `option` is what varies of their methods."""

    rows: Annotated[list[str], Field(min_length=1)] | None = None
    option: str | None = None


class Figure(Section):
    """The drawing of a recipe that is a figure of its paper and no table, of the first seed under the first column."""

    draw: str
    site: str | None = None
    text: Annotated[str, Field(min_length=1)] | None = None


class Recipe(Section):
    """One table, or figure: a published one, or one's own, which has no `paper`. `command` says which task its runs are
    of. With `ladder` its columns are sizes, and the report has each row's gain against compute."""

    title: str
    paper: Name | None = None
    table: Name | None = None
    command: str
    metric: str
    baseline: str
    seeds: Seeds
    figure: Figure | None = None
    ladder: bool = False
    setup: SetupName | None = None
    settings: Given | None = None
    start: Start | None = None
    sweep: Sweep | None = None
    rows: dict[Name, Row] = Field(min_length=1)
    columns: dict[Name, Column] = Field(min_length=1)
    ablations: dict[AblationName, Ablation] = Field(default_factory=dict)
    scales: dict[ScaleName, Scale]

    def places(self) -> Iterator[tuple[KeyPath, Place]]:
        """Every place that may have settings, by its path: the recipe, rows, columns, scales and their columns."""
        yield (), self
        yield from ((("rows", name), row) for name, row in self.rows.items())
        yield from ((("columns", name), column) for name, column in self.columns.items())
        for scale_name, scale in self.scales.items():
            yield ("scales", scale_name), scale
            yield from ((("scales", scale_name, "columns", name), each) for name, each in (scale.columns or {}).items())

    def column_path(self, scale: str, column: str) -> KeyPath:
        """The place of a scale's column."""
        return ("scales", scale, "columns", column) if self.scales[scale].columns else ("columns", column)

    def columns_at(self, scale: str) -> dict[str, Column]:
        """The columns of a scale: its own, or the paper's."""
        return self.scales[scale].columns or self.columns

    def sweep_at(self, scale: str) -> Sweep | None:
        """The sweep of a scale: its own, which may be none, or the recipe's."""
        own = self.scales[scale]
        return own.sweep if "sweep" in own.model_fields_set else self.sweep

    def metric_at(self, scale: str, column: str) -> str:
        """The metric that a column shows: its own, that of the paper's column that it is compared to, or the
        recipe's."""
        own = self.columns_at(scale)[column]
        paper = None if own.compare_to is None else self.columns.get(own.compare_to)
        return own.metric or (paper.metric if paper is not None else None) or self.metric


Place = Recipe | Row | Column | Scale
"""What may have settings."""
