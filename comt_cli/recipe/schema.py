"""The keys of a recipe, but for the settings of its runs, which are their task's, and what must agree among them."""

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


@dataclass(frozen=True)
class Catalogue:
    """Every class of a method (`methods.base.Method`) by its name, and every task (`tasks.base.Task`) by its command,
    the usual one first: what a recipe can name. Both stand above recipes, and are handed in."""

    methods: Mapping[str, Any]
    tasks: Mapping[str, Any]

    def task(self, command: object) -> Any:
        """The task of the command with the nearest name, else the usual one: what has a wrong one is checked, too."""
        return self.tasks[closest(str(command), self.tasks) or next(iter(self.tasks))]


Given = dict[str, Any]  # settings as the file has them: `load` checks them
_PART = matching(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*", "is no part of a model: letters, digits and _, with dots between")
Part = Annotated[str, _PART]
"""A part of a model, by the beginning of its parameters' names: `classifier` for `classifier.weight`."""
Parts = Annotated[tuple[Part, ...], _once_each("part")]


_NO_WEIGHTS = "names no weights: hub:OWNER/MODEL, package:NAME/FILE, a folder or a .gguf file; {recipe: ...} is a run's"
Weights = Annotated[
    str,
    Field(max_length=1000),
    matching(r"hub:[\w.-]+/[\w.-]+|package:[A-Za-z_]\w*/(?!/|.*\.\.).+|(?!hub:|package:)(?!.*\.ya?ml$).+", _NO_WEIGHTS),
]


class Start(Section):
    """The trained weights from which a run starts. Of the run of another `recipe`, at the same scale: of the same
    `row`, `column` (or the only one) and `seed` if not given; `new` are parts that the source does not have, `drop`
    those of the source alone. Or published `weights`, to which the method's gates and connections are `added`: so that
    the network computes what it did, or as the paper starts them."""

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
        """Text stands for published weights."""
        named = core_schema.no_info_after_validator_function(lambda text: cls(weights=text), handler(Weights))
        kinds = {"text": named, "group": handler(source)}
        return core_schema.tagged_union_schema(kinds, lambda given: "text" if isinstance(given, str) else "group")

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler.resolve_ref_schema(handler(schema["choices"]["group"]))

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.recipe is None and self.weights is None:
            raise ValueError("recipe: is missing: name the recipe whose runs are started from, or published weights")
        others = {"recipe", "row", "column", "seed", "new", "drop"} if self.recipe is None else {"weights", "added"}
        if wrong := sorted(others & self.model_fields_set):
            of = "another recipe's runs" if self.recipe is None else "published weights"
            raise ValueError(*(f"{key}: is of starts from {of}, and this one is not; leave it out" for key in wrong))
        return self


class Sweep(Section):
    """Values by dotted key of which every cell tries all combinations (its grid), to show the best by `metric` on
    validation. With `seeds` runs of these seeds alone try them, the trials, and the table's are trained at the best."""

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
    "hidden-size", "window-ratio", "modules", "granularity", "context", "sigmoid", "gate-form", "gate-start",
    "placement-norm", "residual-norm", "cost",
]  # fmt: skip


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

    def start_of(self, scale: str, column: str, row: str) -> tuple[KeyPath, Start | None]:
        """What a cell starts from, and where that is said: at the row, else the column, else the recipe."""
        places: dict[KeyPath, Recipe | Row | Column] = {("rows", row): self.rows[row]}
        places |= {self.column_path(scale, column): self.columns_at(scale)[column], (): self}
        at = next((at for at, place in places.items() if "start" in place.model_fields_set), ())
        return at, places[at].start

    def metric_at(self, scale: str, column: str) -> str:
        """The metric that a column shows: its own, that of the paper's column beside it, or the recipe's."""
        own = self.columns_at(scale)[column]
        paper = None if own.compare_to is None else self.columns.get(own.compare_to)
        return own.metric or (paper.metric if paper is not None else None) or self.metric


Place = Recipe | Row | Column | Scale  # what may have settings


# ---- what must agree

LADDER_SIZES = 3  # through fewer there is no line with an interval
Wrong = Iterator[tuple[KeyPath, str]]  # where something is wrong, and what
Methods = Mapping[str, Mapping[str, Any]]
"""Every row's method with all its options; without the rows whose method is wrong."""
Settings = Mapping[str, Mapping[tuple[str, str], RunSettings]]  # by scale, then by row and column


def disagreements(recipe: Recipe, methods: Methods, catalogue: Catalogue, task: Any, document: Document) -> Wrong:
    """Everything in `recipe` that names what is not there, or says what contradicts something else."""
    has_paper = document.data.get("paper") is not None
    metrics: Iterable[str] | None = task.metrics
    if recipe.command not in catalogue.tasks:
        yield ("command",), _none("command", recipe.command, catalogue.tasks)
        metrics = None
    if recipe.baseline not in recipe.rows:
        yield ("baseline",), _none("row", recipe.baseline, recipe.rows)
    if not has_paper and recipe.table is not None:
        yield ("table",), "says which table of a paper it is, but the recipe has no `paper`"
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
    """Reasons why a row cannot start from published weights, as far as its names tell."""
    if start is None or start.weights is None:
        return
    if not task.takes_weights:
        yield (*at, "start"), f"published weights are those of language models, and {task.command} trains others"
    elif method and start.added != "paper" and "scale" in catalogue.methods[method["name"]].later - method.keys():
        at_one = f"{{name: {method['name']}, scale: 2}}, or start: {{weights: ..., added: paper}}"
        said = "its gates are below one, and the weights are to compute what they did"
        yield ("rows", row, "method"), f"{said}: {at_one}"


def _none(what: str, name: str, names: Iterable[str]) -> str:
    return f"there is no {what} {name!r}; {nearest(name, names)}"


def _shown(path: KeyPath, place: Place, recipe: Recipe, metrics: Iterable[str] | None, *, has_paper: bool) -> Wrong:
    """Problems of the metric that a place's cells show, and of the column that they are compared to."""
    metric, paper = getattr(place, "metric", None), getattr(place, "compare_to", None)
    if metrics is not None and metric is not None and metric not in metrics:
        yield (*path, "metric"), _none("metric", metric, metrics)
    if paper is None:
        return
    if path[0] == "columns":
        yield (*path, "compare_to"), "belongs to the columns of a scale: this is the paper's own"
    elif paper not in recipe.columns:
        yield (*path, "compare_to"), _none("column", paper, recipe.columns)
    elif not has_paper:
        yield (*path, "compare_to"), "names a column of a paper's, but the recipe has no `paper`"
    elif metric not in (None, theirs := recipe.columns[paper].metric or recipe.metric):
        yield (*path, "metric"), f"cannot stand beside the paper's column {paper}, which has {theirs}"


def _ladder(recipe: Recipe) -> Wrong:
    """Reasons why a scale of a ladder has no line of gain against compute."""
    at = ("ladder",)
    if recipe.figure is not None:
        yield at, "is of a table, and this recipe is a figure; leave one of them out"
    if len(recipe.rows) < 2:
        yield at, "compares rows with the baseline, and there is no other row"
    for scale in recipe.scales:
        columns = recipe.columns_at(scale)
        if len(columns) < LADDER_SIZES:
            yield at, f"takes {LADDER_SIZES} columns or more, one a size; scale {scale} has {len(columns)} columns"
        if len(shown := dict.fromkeys(recipe.metric_at(scale, column) for column in columns)) > 1:
            yield at, f"compares one metric over all sizes; the columns of scale {scale} show {', '.join(shown)}"


def _printed(row: Row, recipe: Recipe, *, has_paper: bool) -> Wrong:
    """Problems of what a row says of the paper's columns."""
    given: dict[str, Mapping[str, object]] = {"paper": row.paper, "paper_increase": row.paper_increase}
    for key, cells in given.items():
        if cells and not has_paper:
            yield (key,), "has values, but the recipe has no `paper` that prints them"
            continue
        for column in cells:
            if column not in recipe.columns:
                yield (key, column), _none("column", column, recipe.columns)
        if cells and not row.in_paper:
            yield (key,), "has values, but the row says in_paper: false"
    if not has_paper:
        if "in_paper" in row.model_fields_set and row.in_paper:
            yield ("in_paper",), "is true, but the recipe has no `paper`"
    elif row.in_paper:
        if missing := [column for column in recipe.columns if column not in row.paper]:
            mend = "give the paper's (null where it prints none), or say in_paper: false"
            yield ("paper",), f"has no value for {', '.join(missing)}: {mend}"
        if row.published is not None:
            yield ("published",), "is of other papers, and the row is in this one's: use paper"


def _ablation(path: KeyPath, ablation: Ablation, recipe: Recipe, methods: Methods) -> Wrong:
    rows = ablation.rows if ablation.rows is not None else list(recipe.rows)
    for position, row in enumerate(rows):
        if row not in recipe.rows:
            yield (*path, "rows", position), _none("row", row, recipe.rows)
    # Where a row's method is wrong, that is reported, and nothing is known of its options.
    if ablation.option is None or any(row not in methods for row in rows):
        return
    option, at = ablation.option, (*path, "option")
    values = [methods[row][option] for row in rows if option != "name" and option in methods[row]]
    if len(values) < 2:
        options = dict.fromkeys(key for row in rows for key in methods[row] if key != "name")
        hint = nearest(option, options) if option not in options else "name rows that have it"
        yield at, f"{option!r} is an option of {len(values) or 'none'} of the rows; {hint}"
    elif all(value == values[0] for value in values):
        yield at, f"{option!r} has the same value in every row that has it; name the option that varies, or null"


def unmeasured(recipe: Recipe, task: Any, settings: Settings, document: Document) -> Wrong:
    """Columns that show a metric which their runs have no number for."""
    for scale, cells in settings.items():
        for (_, name), cell in cells.items():
            metric, own = recipe.metric_at(scale, name), recipe.columns_at(scale)[name].metric
            if metric in task.metrics and (reason := task.lacks(cell, metric)) is not None:
                at = (*recipe.column_path(scale, name), *(["metric"] if own else []))
                if document.argument(("metric",)):  # a sweep made it a metric of the test split
                    at = ("metric",)
                yield at, f"there is no {metric} at scale {scale}: {reason}"


def undrawable(recipe: Recipe, task: Any, method: Mapping[str, Any], settings: Settings) -> Wrong:
    """Everything that keeps the recipe's figure, where it is one, from being drawn; `method` is the baseline's."""
    if (figure := recipe.figure) is None:
        return
    draw, drawing = figure.draw, task.drawings.get(figure.draw)
    if drawing is None:
        yield ("figure", "draw"), _none(f"drawing of what {task.command} trains called", draw, task.drawings)
        return
    if drawing.from_log is not None:
        section, _, name = drawing.from_log.partition(".")
        for scale, cells in settings.items():
            if any(getattr(getattr(cell, section), name) is None for cell in cells.values()):
                yield ("figure", "draw"), f"set {drawing.from_log} (scale {scale}): it is drawn of that"
    if drawing.of_method is not None and method and method["name"] != drawing.of_method:
        yield ("figure", "draw"), f"is of the method {drawing.of_method}; the row {recipe.baseline} has another"
    sites = method.get("sites")
    if (figure.site is not None) != drawing.takes_site:
        message = f"is missing: {draw} are drawn of one site" if drawing.takes_site else f"{draw} has no use for it"
        yield ("figure", "site"), message
    elif figure.site is not None and isinstance(sites, list) and figure.site not in sites:
        yield ("figure", "site"), _none(f"gate in the row {recipe.baseline} at", figure.site, sites)
    if figure.text is not None and not drawing.takes_text:
        yield ("figure", "text"), f"{draw} reads none; leave the key out"
