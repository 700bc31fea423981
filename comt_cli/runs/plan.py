"""A recipe at a scale, spelt out: one `RunSpec` per row, column and seed, each with its identity."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_serializer

from comt_cli.data.published import content_hash
from comt_cli.errors import UserError
from comt_cli.files import canonical_json, sha256
from comt_cli.recipe.find import table_name
from comt_cli.recipe.load import LoadedRecipe, select
from comt_cli.recipe.problems import nearest
from comt_cli.recipe.schema import Name, ScaleName, Seed
from comt_cli.recipe.settings import RunSettings, Section
from comt_cli.tasks import Task, task_of

SPEC_VERSION = 3
"""Part of every run's identity: raised when the meaning of a setting changes, so that old runs are not mistaken."""
MAX_SEEDS = 1000
BY_ID = "by-id"
"""The folder below `runs` that holds every run once; what stands elsewhere there are links to them."""
CHANGED = "changed-settings.json"
"""The file in the folder of links of a table of changed settings: these, by dotted key."""
RESULTS = "results"  # the folder below `runs` that tables and figures are written to, unless another is named

NO_WEIGHTS = "There are no weights to start from: change that run's settings, or leave this row out."
"""The reason given for a run whose source has diverged."""
S = TypeVar("S", bound=RunSettings)


class RunStart(Section):
    """The run from whose trained weights another one starts, its source. `new` are parts of the started model, by the
    beginnings of their parameters' names, that the source does not have, `drop` those that it has for itself."""

    run: RunSpec
    new: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


class WeightsStart(Section):
    """Published weights from which a run starts, as asked for; the hash of their `content`, None where that is not
    known here; and how what its method adds to them starts."""

    weights: str
    added: Literal["identity", "paper"] = "identity"
    content: str | None = None

    @property
    def key(self) -> str:
        """The name of the request among those for data."""
        return f"weights:{self.weights}"


class RunSpec(Section):
    """One training, fully resolved: everything that can change its numbers, and where it stands in its table. `paper`
    and `table` are the folder and the name that the recipe's file gives its runs (`find.place_of`)."""

    paper: Name
    table: Name
    command: str
    scale: ScaleName
    row: Name
    column: Name
    seed: Seed
    method: dict[str, Any]
    settings: SerializeAsAny[RunSettings]
    data_fingerprint: str
    """What is asked of the data: its settings, its source, and the versions of what prepares it."""
    data_content: str | None = None
    """The hash of the tokens or pixels themselves (ImageNet: of files' names and sizes); None: not prepared here."""
    start: RunStart | WeightsStart | None = None
    """The run, or published weights, that it starts from; None where it starts from initial values of its own."""
    point: dict[str, Any] = Field(default_factory=dict)
    """Its values of the recipe's grid, by dotted key: a label, stored where there is a grid."""
    changed: dict[str, Any] = Field(default_factory=dict)
    """What `--set` changed of its recipe (`merge.changed`): a label, too, and stored only where there is some."""

    @model_serializer(mode="wrap")
    def _without_empty_labels(self, as_usual: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {key: value for key, value in as_usual(self).items() if value or key not in ("point", "changed")}

    @field_validator("settings", mode="before")
    @classmethod
    def _of_the_task(cls, given: Any, info: ValidationInfo) -> Any:
        """Settings in a file are those of the task that the command names."""
        if not isinstance(given, Mapping) or "command" not in info.data:
            return given
        return task_of(info.data["command"]).settings.model_validate(given)

    @property
    def task(self) -> Task[Any]:
        """The task that the network is trained for."""
        return task_of(self.command)

    def settings_as(self, kind: type[S]) -> S:
        """The settings, where they are of this kind. Raises `TypeError` where they are another task's."""
        if not isinstance(self.settings, kind):
            raise TypeError(f"run {self.request} has {type(self.settings).__name__}, not {kind.__name__}")
        return self.settings

    @property
    def method_words(self) -> str:
        """The name of its method; of one that is made of another (`of`) with that one's."""
        other = self.method.get("of")
        return f"{self.method['name']} of {other['name']}" if isinstance(other, dict) else str(self.method["name"])

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that are part of the run's identity, as plain data."""
        return identity_of(self.settings, self.task)

    @property
    def id(self) -> str:
        """12 hex digits: the hash of everything that can change the run's numbers, and of nothing else: the content of
        the data, not the versions of what prepares it; the id of the run, or content of the weights, that it starts
        from; no row, column or table, so that two tables share a training. While the content is not known this is
        `request`, under which nothing is stored."""
        if self.data_content is None or not self.is_known:
            return self.request
        return self._hash(self.begun_with, content=self.data_content)

    @property
    def begun_with(self) -> str | None:
        """The id of the run that it starts from, or the content of the published weights; None: of neither."""
        if isinstance(self.start, WeightsStart):
            return self.start.content
        return None if self.start is None else self.start.run.id

    @property
    def is_known(self) -> bool:
        """Whether the content of its data is known, and that of what it starts from: then its id is final."""
        return None not in self.contents.values() and (self.source is None or self.source.is_known)

    @property
    def contents(self) -> dict[str, str | None]:
        """The content of what it reads, by what is asked for: of its data by fingerprint, of published weights."""
        start = self.start
        return {self.data_fingerprint: self.data_content} | (
            {start.key: start.content} if isinstance(start, WeightsStart) else {}
        )

    @property
    def request(self) -> str:
        """12 hex digits that are known before the data is prepared, and stay as they are afterwards."""
        asked = self.start.weights if isinstance(self.start, WeightsStart) else None
        begun = asked if self.source is None else self.source.request
        return self._hash(begun, fingerprint=self.data_fingerprint)

    @property
    def source(self) -> RunSpec | None:
        """The run that it starts from."""
        return self.start.run if isinstance(self.start, RunStart) else None

    @property
    def sources(self) -> list[RunSpec]:
        """The run that it starts from, after the one that this starts from, and so on; [] where it starts from none."""
        return [] if self.source is None else [*self.source.sources, self.source]

    def _hash(self, begun: str | None, **data: str) -> str:
        identity: dict[str, Any] = {
            "version": SPEC_VERSION,
            "command": self.command,
            "method": self.method,
            "settings": self.identity,
            "seed": self.seed,
            "data": data,
        }
        if isinstance(self.start, WeightsStart):
            identity["start"] = {"weights": begun, "added": self.start.added}
        elif self.start is not None:  # else the ids are those from before there were starts
            identity["start"] = {"run": begun, "new": sorted(self.start.new), "drop": sorted(self.start.drop)}
        return sha256(canonical_json(identity))[:12]

    def with_content(self, content: str | None) -> RunSpec:
        """The same run on data of this content."""
        return self.model_copy(update={"data_content": content})

    def with_contents(self, contents: Mapping[str, str]) -> RunSpec:
        """The same run, and its sources, with the `contents` that are given."""
        spec, start = self.with_content(contents.get(self.data_fingerprint, self.data_content)), self.start
        if isinstance(start, WeightsStart) and (content := contents.get(start.key)) is not None:
            return spec.model_copy(update={"start": start.model_copy(update={"content": content})})
        if not isinstance(self.start, RunStart) or (run := self.start.run.with_contents(contents)) == self.start.run:
            return spec
        return spec.model_copy(update={"start": self.start.model_copy(update={"run": run})})

    @property
    def relative_path(self) -> Path:
        """The path for people: `<paper>/<table>/<row>/<column>/seed<k>-<id>`, `<table>@<settings>` where they are
        changed. Slashes in names are dashes: a recipe, which may come from anywhere, names no folder outside."""
        table = table_folder(self.paper, table_name(self.table, self.changed, type(self.settings)))
        row, column = (name.replace("/", "-") for name in (self.row, self.column))
        return table / row / column / f"seed{self.seed}-{self.id}"


def table_folder(paper: str, table: str) -> Path:
    """The folder of a table's links, below the runs."""
    paper, table = (name.replace("/", "-") for name in (paper, table))
    return Path(f"paper-{paper}" if paper.casefold() in (BY_ID, RESULTS) else paper, table)


RunStart.model_rebuild()
RunSpec.model_rebuild()


def point_in_words(point: Mapping[str, Any]) -> str:
    """`learning_rate 0.001`, of several keys with commas; "" where there is no grid."""
    values = ((key, each if isinstance(each, str) else json.dumps(each)) for key, each in point.items())
    return ", ".join(f"{key.partition('.')[2]} {value}" for key, value in values)


def sources_of(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """The runs that `specs` start from, directly or not: each once, none before its own source."""
    return list({source.id: source for spec in specs for source in spec.sources}.values())


def with_sources(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """`specs` and, before them, the runs that they start from."""
    every = list(specs)
    return [*sources_of(every), *every]


def identity_of(settings: RunSettings, task: Task[Any]) -> dict[str, Any]:
    """The settings that are part of the identity of a task's run, as plain data."""
    return {name: section.stored(*task.runtime_keys.get(name, ())) for name, section in settings}


def parse_seeds(text: str | None) -> list[int] | None:
    """`1,2,3` or `1-3` as a list; None for None. Raises `UserError` for anything else."""
    if text is None:
        return None
    seeds: list[int] = []
    with contextlib.suppress(ValueError):
        for part in text.split(","):
            first, dash, last = part.strip().partition("-")
            seeds.extend(range(int(first), min(int(last), int(first) + MAX_SEEDS) + 1) if dash else [int(first)])
        if seeds and len(seeds) <= MAX_SEEDS and min(seeds) >= 0 and max(seeds) < 2**31:
            return list(dict.fromkeys(seeds))
    said = f"--seeds {text}: give 1 to {MAX_SEEDS} whole numbers from 0 to 2147483647"
    raise UserError(said, "for instance 1,2,3 or 1-3")


def plan(
    loaded: LoadedRecipe,
    scale: str,
    *,
    rows: str | None = None,
    columns: str | None = None,
    seeds: list[int] | None = None,
) -> list[RunSpec]:
    """Every run of the recipe at `scale`: columns outermost, then seeds, points of a grid, and rows, so that a table
    fills evenly. Of a sweep with trials these, the baseline's too since every row is shown at what they choose, then
    the runs at the recipe's own values; what the trials choose is not known yet (`chosen_runs`). `rows` and `columns`
    are comma-separated selections; rows of `--also` are always selected. Raises `UserError` where there is no such
    scale, row or column, or a seed is one of the trials."""
    recipe = loaded.recipe
    if scale not in recipe.scales:
        raise UserError(f"{loaded.path}: there is no scale {scale!r}", nearest(scale, recipe.scales))
    chosen_rows = [row for row in recipe.rows if row in {*select(rows, recipe.rows, "row"), *loaded.added}]
    chosen_columns = select(columns, recipe.columns_at(scale), "column")
    chosen_seeds = seeds or recipe.scales[scale].seeds or recipe.seeds
    grid = loaded.grids.get(scale)
    numbers = range(1 if grid is None else len(grid.planned))
    if grid is not None and grid.seeds:
        if shared := sorted({*grid.seeds} & {*chosen_seeds}):
            raise UserError(f"seed {shared[0]} is one of the sweep's trials", "Give --seeds that no trial has.")
        tuned_rows = [row for row in recipe.rows if row in chosen_rows or row == recipe.baseline]
        tried = [(seed, point, tuned_rows) for seed in grid.seeds for point in numbers[1:]]
        tried += [(seed, 0, chosen_rows) for seed in chosen_seeds]
    else:
        tried = [(seed, point, chosen_rows) for seed in chosen_seeds for point in numbers]
    run = _planner(scale)
    return [
        run(loaded, row, column, seed, point)
        for column in chosen_columns
        for seed, point, these in tried
        for row in these
    ]


def chosen_runs(
    loaded: LoadedRecipe, scale: str, points: Mapping[tuple[str, str], int], seeds: Iterable[int]
) -> dict[tuple[str, str], list[RunSpec]]:
    """The runs of cells (row, column), each at the point of that number (`LoadedGrid.planned`), one a seed."""
    run, every = _planner(scale), list(seeds)
    return {cell: [run(loaded, *cell, seed, point) for seed in every] for cell, point in points.items()}


def _planner(scale: str) -> Callable[[LoadedRecipe, str, str, int, int], RunSpec]:
    """Makes the run of a cell at the point of that number of the grid, and those that it starts from; each data set is
    identified once. Raises `UserError` where data cannot be identified, or the table reads it from two folders."""
    data: dict[tuple[str, str], tuple[str, str | None]] = {}
    folders: dict[str, tuple[str | None, str]] = {}
    weights: dict[str, str | None] = {}

    def run(loaded: LoadedRecipe, row: str, column: str, seed: int, point: int) -> RunSpec:
        settings, command = loaded.points[scale][row, column][point], loaded.recipe.command
        key = (command, settings.data.model_dump_json())
        if key not in data:
            data[key] = task_of(command).identify(settings)
        fingerprint, content = data[key]
        folder, cell = getattr(settings.data, "folder", None), f"{row} at {column}"
        first, where = folders.setdefault(fingerprint, (folder, cell))
        if first != folder:
            said = f"{where} and {cell} read the same data from two folders, {first} and {folder}"
            hint = "One data set is read from one folder: give data.folder once, or make two tables."
            raise UserError(f"{loaded.path}: {said}", hint)
        start: RunStart | WeightsStart | None = None
        source, begun = loaded.starts[scale].get((row, column), (None, None))
        if source is not None and begun is not None:
            own_seed = seed if begun.seed is None else begun.seed
            first_run = run(source, str(begun.row), str(begun.column), own_seed, 0)
            start = RunStart(run=first_run, new=begun.new, drop=begun.drop)
        elif begun is not None:
            if (asked := str(begun.weights)) not in weights:
                weights[asked] = content_hash(asked)
            start = WeightsStart(weights=asked, added=begun.added or "identity", content=weights[asked])
        return RunSpec(
            paper=loaded.folder,
            table=loaded.stem,
            command=command,
            scale=scale,
            row=row,
            column=column,
            seed=seed,
            method=loaded.methods[row],
            settings=settings,
            data_fingerprint=fingerprint,
            data_content=content,
            start=start,
            point=loaded.grids[scale].of(settings) if scale in loaded.grids else {},
            changed=loaded.changes.get(scale, {}),
        )

    return run
