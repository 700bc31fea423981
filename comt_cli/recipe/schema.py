"""The keys of a recipe, except the settings of runs (see the tasks), and the checks of their consistency."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, PositiveFloat, model_validator
from pydantic_core import CoreSchema, core_schema

from comt_cli.recipe.problems import Document, KeyPath, closest, nearest
from comt_cli.recipe.settings import RunSettings, Section, matching

NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9+._/-]*"
NAME_FORM = "letters, digits and + . _ / -, a letter or digit first"
NAME_LENGTH = 100
"""Maximum length of a name: two of them are part of file names, which file systems limit to 255 bytes."""
Name = Annotated[str, Field(max_length=NAME_LENGTH), matching(NAME_PATTERN, f"cannot be a name: use {NAME_FORM}")]
SetupName = Annotated[
    str, matching(r"[A-Za-z0-9][A-Za-z0-9._-]*", "is no setup: give the name of a file there without its ending")
]
"""The name of a file in the folder `setups`, without its ending; it cannot lead out of that folder."""
SCALES = ("smoke", "evening", "small", "paper")
"""The scales of the recipes that came with the program, smallest first; other recipes may have others."""
NO_SCALES = ("bench", "diagnose", "figures", "search")
"""Folders of the results that are not scales."""
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
            raise ValueError(f"a {what} is given twice")
        return given

    return AfterValidator(checked)


Seeds = Annotated[list[Seed], Field(min_length=1), _once_each("seed")]
PaperIncrease = Annotated[str, matching(r"<?\d+(\.\d+)?%", "is no printed increase, for instance 1%, <1% or 22.9%")]
"""A published increase of the number of parameters, as text, because `<1%` is not a number."""


@dataclass(frozen=True)
class Catalogue:
    """The names that a recipe can use: method classes (`methods.base.Method`) by name, and tasks (`tasks.base.Task`) by
    command, the default first. They are arguments, because this package may not import them."""

    methods: Mapping[str, Any]
    tasks: Mapping[str, Any]

    def task(self, command: object) -> Any:
        """The task with the nearest command, else the default: a recipe with a wrong command is checked too."""
        return self.tasks[closest(str(command), self.tasks) or next(iter(self.tasks))]


Given = dict[str, Any]  # settings as the file has them: `load` checks them
_PART = matching(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*", "is no part of a model: letters, digits and _, with dots between")
Part = Annotated[str, _PART]
"""A part of a model, as a prefix of parameter names: `classifier` for `classifier.weight`."""
Parts = Annotated[tuple[Part, ...], _once_each("part")]


_NO_WEIGHTS = "is not hub:OWNER/MODEL, package:NAME/FILE, a folder or a .gguf file; for a run write {recipe: ...}"
Weights = Annotated[
    str,
    Field(max_length=1000),
    matching(r"hub:[\w.-]+/[\w.-]+|package:[A-Za-z_]\w*/(?!/|.*\.\.).+|(?!hub:|package:)(?!.*\.ya?ml$).+", _NO_WEIGHTS),
]


class Start(Section):
    """Trained weights from which a run starts: those of a run of another `recipe`, or published `weights`.

    A run has the same scale, and the same `row`, `column` (or the only one) and `seed` if these are not given. `new`
    are parts of the model that the source does not have, `drop` parts of the source alone. The method's gates and
    connections are `added` to published weights so that the function is unchanged (`identity`), or as in the paper.
    """

    recipe: Annotated[str, Field(min_length=1, max_length=250)] | None = None
    weights: Weights | None = None
    added: Literal["identity", "paper"] | None = None
    row: str | None = None
    column: str | None = None
    seed: Seed | None = None
    new: Parts = ()
    drop: Parts = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """A string is read as published weights."""
        named = core_schema.no_info_after_validator_function(lambda text: cls(weights=text), handler(Weights))
        kinds = {"text": named, "group": handler(source)}
        return core_schema.tagged_union_schema(kinds, lambda given: "text" if isinstance(given, str) else "group")

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler.resolve_ref_schema(handler(schema["choices"]["group"]))

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.recipe is None and self.weights is None:
            raise ValueError("recipe: is missing; name a recipe whose runs are started from, or give published weights")
        others = {"recipe", "row", "column", "seed", "new", "drop"} if self.recipe is None else {"weights", "added"}
        if wrong := sorted(others & self.model_fields_set):
            of = "another recipe's runs" if self.recipe is None else "published weights"
            raise ValueError(*(f"{key}: applies only to starts from {of}; leave it out" for key in wrong))
        return self


class Sweep(Section):
    """A grid: every cell trains all combinations of the values (by dotted key), and the best by `metric` on validation
    data is shown. With `seeds`, trials of these seeds select the point, and the table's runs are trained there."""

    settings: dict[str, list[Any]]
    metric: str
    seeds: Seeds | None = None


class Published(Section):
    """Values of a row and its baseline in another paper, `of` a network and a text, in perplexity or nats per token."""

    of: Annotated[str, Field(min_length=1)]
    metric: Literal["perplexity", "loss"] = "perplexity"
    baseline: PositiveFloat
    value: PositiveFloat

    @property
    def percent(self) -> float:
        """The increase of perplexity over the baseline, in per cent."""
        if self.metric == "loss":
            return 100 * math.expm1(self.value - self.baseline)
        return 100 * (self.value / self.baseline - 1)


class Row(Section):
    """One method under one name, with the paper's value in every column. `notes` are footnotes by scale."""

    method: str | dict[str, Any]
    paper: dict[str, float | None] = Field(default_factory=dict)
    paper_increase: dict[str, PaperIncrease] = Field(default_factory=dict)
    in_paper: bool = True
    published: Published | None = None
    notes: dict[ScaleName, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    settings: Given | None = None
    start: Start | None = None


class Column(Section):
    """One model and data set, or, with its own `metric`, another number of the same runs. Under a scale, `compare_to`
    names the paper's column to compare with."""

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
    "hidden-size", "window-ratio", "modules", "granularity", "context", "sigmoid", "gate-form", "gate-start",
    "placement-norm", "residual-norm", "cost",
]  # fmt: skip


class Ablation(Section):
    """A question that some `rows` of the table answer (default: all). `option` is the method option that varies."""

    rows: Annotated[list[str], Field(min_length=1)] | None = None
    option: str | None = None


class Figure(Section):
    """The drawing of a recipe that reproduces a figure, from the first seed under the first column."""

    draw: str
    site: str | None = None
    text: Annotated[str, Field(min_length=1)] | None = None


class Recipe(Section):
    """One table or figure, published or one's own (then without `paper`). `command` names the task. With `ladder`, the
    columns are sizes, and the report has each row's gain against compute."""

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
        """Every place that may have settings, with its path: the recipe, rows, columns, scales and their columns."""
        yield (), self
        yield from ((("rows", name), row) for name, row in self.rows.items())
        yield from ((("columns", name), column) for name, column in self.columns.items())
        for scale_name, scale in self.scales.items():
            yield ("scales", scale_name), scale
            yield from ((("scales", scale_name, "columns", name), each) for name, each in (scale.columns or {}).items())

    def column_path(self, scale: str, column: str) -> KeyPath:
        """The path of a scale's column."""
        return ("scales", scale, "columns", column) if self.scales[scale].columns else ("columns", column)

    def columns_at(self, scale: str) -> dict[str, Column]:
        """The columns of a scale: its own, or the paper's."""
        return self.scales[scale].columns or self.columns

    def start_of(self, scale: str, column: str, row: str) -> tuple[KeyPath, Start | None]:
        """The start of a cell and the path of the place that gives it: the row, else the column, else the recipe."""
        places: dict[KeyPath, Recipe | Row | Column] = {("rows", row): self.rows[row]}
        places |= {self.column_path(scale, column): self.columns_at(scale)[column], (): self}
        at = next((at for at, place in places.items() if "start" in place.model_fields_set), ())
        return at, places[at].start

    def metric_at(self, scale: str, column: str) -> str:
        """The metric that a column shows: its own, else that of the column it is compared with, else the recipe's."""
        own = self.columns_at(scale)[column]
        paper = None if own.compare_to is None else self.columns.get(own.compare_to)
        return own.metric or (paper.metric if paper is not None else None) or self.metric


Place = Recipe | Row | Column | Scale  # what may have settings


# ---- what must agree

LADDER_SIZES = 3  # fewer sizes give no line with an interval
Wrong = Iterator[tuple[KeyPath, str]]  # key paths with messages
Methods = Mapping[str, Mapping[str, Any]]
"""Every row's method with all options; rows with a wrong method are missing."""
Settings = Mapping[str, Mapping[tuple[str, str], RunSettings]]  # by scale, then by row and column


def disagreements(recipe: Recipe, methods: Methods, catalogue: Catalogue, task: Any, document: Document) -> Wrong:
    """Everything in `recipe` that names something unknown or contradicts something else."""
    has_paper = document.data.get("paper") is not None
    metrics: Iterable[str] | None = task.metrics
    if recipe.command not in catalogue.tasks:
        yield ("command",), _none("command", recipe.command, catalogue.tasks)
        metrics = None
    if recipe.baseline not in recipe.rows:
        yield ("baseline",), _none("row", recipe.baseline, recipe.rows)
    if not has_paper and recipe.table is not None:
        yield ("table",), "names a table of a paper, but the recipe has no `paper`"
    for name, row in recipe.rows.items():
        for key, message in _printed(row, recipe, has_paper=has_paper):
            yield ("rows", name, *key), message
        for scale in row.notes:
            if scale not in recipe.scales:
                yield ("rows", name, "notes", scale), _none("scale", scale, recipe.scales)
    for ablation_name, ablation in recipe.ablations.items():
        yield from _ablation(("ablations", ablation_name), ablation, recipe, methods)
    for path, place in recipe.places():
        yield from _shown(path, place, recipe, metrics, has_paper=has_paper)
    if recipe.ladder:
        yield from _ladder(recipe)
    for scale in recipe.scales:
        for column, name in itertools.product(recipe.columns_at(scale), recipe.rows):
            yield from _unfit(*recipe.start_of(scale, column, name), name, methods.get(name, {}), catalogue, task)


def _unfit(
    at: KeyPath, start: Start | None, row: str, method: Mapping[str, Any], catalogue: Catalogue, task: Any
) -> Wrong:
    if start is None or start.weights is None:
        return
    if not task.takes_weights:
        yield (*at, "start"), f"published weights are those of language models, but {task.command} trains others"
    elif method and start.added != "paper" and "scale" in catalogue.methods[method["name"]].later - method.keys():
        at_one = f"{{name: {method['name']}, scale: 2}}, or start: {{weights: ..., added: paper}}"
        said = "its gates start below 1, so the network would not compute what its weights did; use"
        yield ("rows", row, "method"), f"{said} {at_one}"


def _none(what: str, name: str, names: Iterable[str]) -> str:
    return f"there is no {what} {name!r}; {nearest(name, names)}"


def _shown(path: KeyPath, place: Place, recipe: Recipe, metrics: Iterable[str] | None, *, has_paper: bool) -> Wrong:
    metric, paper = getattr(place, "metric", None), getattr(place, "compare_to", None)
    if metrics is not None and metric is not None and metric not in metrics:
        yield (*path, "metric"), _none("metric", metric, metrics)
    if paper is None:
        return
    if path[0] == "columns":
        yield (*path, "compare_to"), "is for the columns of a scale; this is a column of the paper"
    elif paper not in recipe.columns:
        yield (*path, "compare_to"), _none("column", paper, recipe.columns)
    elif not has_paper:
        yield (*path, "compare_to"), "names a paper's column, but the recipe has no `paper`"
    elif metric not in (None, theirs := recipe.columns[paper].metric or recipe.metric):
        yield (*path, "metric"), f"cannot be compared with the paper's column {paper}, whose metric is {theirs}"


def _ladder(recipe: Recipe) -> Wrong:
    at = ("ladder",)
    if recipe.figure is not None:
        yield at, "is for tables, and this recipe is a figure; leave one of them out"
    if len(recipe.rows) < 2:
        yield at, "compares rows with the baseline, and the recipe has no other row"
    for scale in recipe.scales:
        columns = recipe.columns_at(scale)
        if len(columns) < LADDER_SIZES:
            yield at, f"needs {LADDER_SIZES} columns or more, one per size; scale {scale} has {len(columns)} columns"
        if len(shown := dict.fromkeys(recipe.metric_at(scale, column) for column in columns)) > 1:
            yield at, f"needs one metric for all sizes; the columns of scale {scale} have {', '.join(shown)}"


def _printed(row: Row, recipe: Recipe, *, has_paper: bool) -> Wrong:
    given: dict[str, Mapping[str, object]] = {"paper": row.paper, "paper_increase": row.paper_increase}
    for key, cells in given.items():
        if cells and not has_paper:
            yield (key,), "has values, but the recipe has no `paper`"
            continue
        for column in cells:
            if column not in recipe.columns:
                yield (key, column), _none("column", column, recipe.columns)
        if cells and not row.in_paper:
            yield (key,), "has values, but the row has in_paper: false"
    if not has_paper:
        if "in_paper" in row.model_fields_set and row.in_paper:
            yield ("in_paper",), "is true, but the recipe has no `paper`"
    elif row.in_paper:
        if missing := [column for column in recipe.columns if column not in row.paper]:
            mend = "give the paper's value (null if it has none), or set in_paper: false"
            yield ("paper",), f"has no value for {', '.join(missing)}; {mend}"
        if row.published is not None:
            yield ("published",), "is for values of other papers, but the row is in this paper; use the key paper"


def _ablation(path: KeyPath, ablation: Ablation, recipe: Recipe, methods: Methods) -> Wrong:
    rows = ablation.rows if ablation.rows is not None else list(recipe.rows)
    for position, row in enumerate(rows):
        if row not in recipe.rows:
            yield (*path, "rows", position), _none("row", row, recipe.rows)
    # A wrong method is reported elsewhere, and its options are unknown.
    if ablation.option is None or any(row not in methods for row in rows):
        return
    option, at = ablation.option, (*path, "option")
    values = [methods[row][option] for row in rows if option != "name" and option in methods[row]]
    if len(values) < 2:
        options = dict.fromkeys(key for row in rows for key in methods[row] if key != "name")
        hint = nearest(option, options) if option not in options else "name rows that have it"
        yield at, f"{option!r} is an option of {'only one' if values else 'none'} of the rows; {hint}"
    elif all(value == values[0] for value in values):
        yield at, f"{option!r} has the same value in all rows that have it; name an option that varies, or null"


def unmeasured(recipe: Recipe, task: Any, settings: Settings, document: Document) -> Wrong:
    """Columns with a metric that their runs do not compute."""
    for scale, cells in settings.items():
        for (_, name), cell in cells.items():
            metric, own = recipe.metric_at(scale, name), recipe.columns_at(scale)[name].metric
            if metric in task.metrics and (reason := task.lacks(cell, metric)) is not None:
                at = (*recipe.column_path(scale, name), *(["metric"] if own else []))
                if document.argument(("metric",)):  # --sweep replaced it by a metric of the test split
                    at = ("metric",)
                yield at, f"there is no {metric} at scale {scale}: {reason}"


def undrawable(recipe: Recipe, task: Any, method: Mapping[str, Any], settings: Settings) -> Wrong:
    """Reasons that the recipe's figure, if it is one, cannot be drawn; `method` is the baseline's."""
    if (figure := recipe.figure) is None:
        return
    draw, drawing = figure.draw, task.drawings.get(figure.draw)
    if drawing is None:
        yield ("figure", "draw"), _none(f"drawing for {task.command} called", draw, task.drawings)
        return
    if drawing.from_log is not None:
        section, _, name = drawing.from_log.partition(".")
        for scale, cells in settings.items():
            if any(getattr(getattr(cell, section), name) is None for cell in cells.values()):
                yield ("figure", "draw"), f"is drawn from {drawing.from_log}, which is not set at scale {scale}"
    if drawing.of_method is not None and method and method["name"] != drawing.of_method:
        yield ("figure", "draw"), f"requires the method {drawing.of_method}; the row {recipe.baseline} has another"
    sites = method.get("sites")
    if (figure.site is not None) != drawing.takes_site:
        message = f"is missing; {draw} is drawn for one site" if drawing.takes_site else f"{draw} does not use it"
        yield ("figure", "site"), message
    elif figure.site is not None and isinstance(sites, list) and figure.site not in sites:
        yield ("figure", "site"), _none(f"gate in the row {recipe.baseline} at", figure.site, sites)
    if figure.text is not None and not drawing.takes_text:
        yield ("figure", "text"), f"{draw} does not read a text; leave the key out"
