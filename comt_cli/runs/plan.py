"""The runs of a recipe at a scale: one `RunSpec` per row, column and seed, each with its id."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from operator import getitem
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, SerializeAsAny, ValidationInfo, field_validator, model_serializer

from comt_cli.data.published import content_hash
from comt_cli.errors import UserError
from comt_cli.files import canonical_json, sha256
from comt_cli.recipe.find import table_name
from comt_cli.recipe.load import LoadedRecipe, select
from comt_cli.recipe.problems import nearest, read
from comt_cli.recipe.schema import Name, ScaleName, Seed
from comt_cli.recipe.settings import RunSettings, Section
from comt_cli.tasks import Task, task_of

SPEC_VERSION = 3
"""Part of every run id. It is raised when the meaning of a setting changes, so that old runs are not reused."""
MAX_SEEDS = 1000
BY_ID = "by-id"
"""The folder in `runs` that stores every run once; the other folders there have links."""
CHANGED = "changed-settings.json"
"""The file of changed settings, by dotted key, in a table's folder of links."""
RESULTS = "results"  # the default folder in `runs` for tables and figures

NO_WEIGHTS = "There are no weights to start from: change that run's settings, or leave this row out."
"""The hint for a run whose source has diverged."""
S = TypeVar("S", bound=RunSettings)


class RunStart(Section):
    """The run (source) from whose trained weights another one starts. `new` are the parts of the started model that the
    source does not have, `drop` the parts of the source alone, both as prefixes of parameter names."""

    run: RunSpec
    new: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


class WeightsStart(Section):
    """Published weights from which a run starts: the request, the initialisation of what the method adds, and the hash
    of their `content` (None if it is unknown here)."""

    weights: str
    added: Literal["identity", "paper"] = "identity"
    content: str | None = None

    @property
    def key(self) -> str:
        """The key of the request in `RunSpec.contents`."""
        return f"weights:{self.weights}"


class RunSpec(Section):
    """One training, fully resolved: all settings that can change its numbers, and its position in a table. `paper` and
    `table` are the folder and the name of the recipe's runs (`find.place_of`)."""

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
    """Hash of the data request: its settings, its source, and the versions of the code that prepares it."""
    data_content: str | None = None
    """Hash of the tokens or pixels themselves (ImageNet: of file names and sizes); None: not prepared here."""
    start: RunStart | WeightsStart | None = None
    """The run or published weights that it starts from; None: it starts from its initialisation."""
    point: dict[str, Any] = Field(default_factory=dict)
    """Its values of the recipe's grid by dotted key: a label, stored if there is a grid."""
    changed: dict[str, Any] = Field(default_factory=dict)
    """The settings that `--set` changed (`merge.changed`): a label, stored if there are any."""

    @model_serializer(mode="wrap")
    def _without_empty_labels(self, as_usual: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {key: value for key, value in as_usual(self).items() if value or key not in ("point", "changed")}

    @field_validator("settings", mode="before")
    @classmethod
    def _of_the_task(cls, given: Any, info: ValidationInfo) -> Any:
        if not isinstance(given, Mapping) or "command" not in info.data:
            return given
        return task_of(info.data["command"]).settings.model_validate(given)

    @property
    def task(self) -> Task[Any]:
        """The task that the network is trained for."""
        return task_of(self.command)

    def settings_as(self, kind: type[S]) -> S:
        """The settings, checked to be of this kind. Raises `TypeError` if they are another task's."""
        if not isinstance(self.settings, kind):
            raise TypeError(f"run {self.request} has {type(self.settings).__name__}, not {kind.__name__}")
        return self.settings

    @property
    def method_words(self) -> str:
        """The name of its method; with that of the inner method (`of`) if it has one."""
        other = self.method.get("of")
        return f"{self.method['name']} of {other['name']}" if isinstance(other, dict) else str(self.method["name"])

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that are part of the run id, as plain data."""
        return identity_of(self.settings, self.task)

    @property
    def id(self) -> str:
        """12 hex digits: the hash of everything that can change the run's numbers, and nothing else. It covers the
        content of the data, not the versions of the code that prepares it, and the id of the source run or the content
        of the published weights. It does not cover row, column or table, so that two tables can share a training. Until
        the content is known it equals `request`, under which nothing is stored."""
        if self.data_content is None or not self.is_known:
            return self.request
        return self._hash(self.begun_with, content=self.data_content)

    @property
    def begun_with(self) -> str | None:
        """The id of the source run, or the content of the published weights; None without a start."""
        if isinstance(self.start, WeightsStart):
            return self.start.content
        return None if self.start is None else self.start.run.id

    @property
    def is_known(self) -> bool:
        """Whether the content of its data and of its start is known, so that its id is final."""
        return None not in self.contents.values() and (self.source is None or self.source.is_known)

    @property
    def contents(self) -> dict[str, str | None]:
        """The content hashes of its inputs: of its data by fingerprint, of published weights by `WeightsStart.key`."""
        start = self.start
        return {self.data_fingerprint: self.data_content} | (
            {start.key: start.content} if isinstance(start, WeightsStart) else {}
        )

    @property
    def request(self) -> str:
        """12 hex digits that are known before the data is prepared, and do not change afterwards."""
        asked = self.start.weights if isinstance(self.start, WeightsStart) else None
        begun = asked if self.source is None else self.source.request
        return self._hash(begun, fingerprint=self.data_fingerprint)

    @property
    def source(self) -> RunSpec | None:
        """The run that it starts from."""
        return self.start.run if isinstance(self.start, RunStart) else None

    @property
    def sources(self) -> list[RunSpec]:
        """The run that it starts from, preceded by that run's sources; [] if there is none."""
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
        elif self.start is not None:  # runs without a start keep their older ids
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
        """The readable path `<paper>/<table>/<row>/<column>/seed<k>-<id>`; `<table>@<settings>` if settings are
        changed. Slashes in names become dashes, because a recipe from anywhere must not name a folder outside."""
        table = table_folder(self.paper, table_name(self.table, self.changed, type(self.settings)))
        row, column = (name.replace("/", "-") for name in (self.row, self.column))
        return table / row / column / f"seed{self.seed}-{self.id}"


def table_folder(paper: str, table: str) -> Path:
    """The folder of a table's links, relative to the runs."""
    paper, table = (name.replace("/", "-") for name in (paper, table))
    return Path(f"paper-{paper}" if paper.casefold() in (BY_ID, RESULTS) else paper, table)


RunStart.model_rebuild()
RunSpec.model_rebuild()


def point_in_words(point: Mapping[str, Any]) -> str:
    """A point as text: `learning_rate 0.001`, several keys with commas; "" without a grid."""
    values = ((key, each if isinstance(each, str) else json.dumps(each)) for key, each in point.items())
    return ", ".join(f"{key.partition('.')[2]} {value}" for key, value in values)


def sources_of(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """The direct and indirect sources of `specs`: each once, after its own source."""
    return list({source.id: source for spec in specs for source in spec.sources}.values())


def with_sources(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """The sources of `specs`, followed by `specs`."""
    every = list(specs)
    return [*sources_of(every), *every]


def identity_of(settings: RunSettings, task: Task[Any]) -> dict[str, Any]:
    """The settings that are part of a run id, as plain data."""
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
    said = f"--seeds {text}: should be 1 to {MAX_SEEDS} whole numbers from 0 to 2147483647"
    raise UserError(said, "for instance 1,2,3 or 1-3")


def plan(
    loaded: LoadedRecipe,
    scale: str,
    *,
    rows: str | None = None,
    columns: str | None = None,
    seeds: list[int] | None = None,
) -> list[RunSpec]:
    """Every run of the recipe at `scale`, in the order column, seed, point of the grid, row. With trials, a sweep's
    trials come first, the baseline's included because every row is shown at the points it selects, then the runs at the
    recipe's own values; the selected runs are not known yet (`chosen_runs`). `rows` and `columns` are comma-separated
    selections; rows of `--also` are always selected. Raises `UserError` for an unknown scale, row or column, or a seed
    that trials use."""
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
            said = f"seed {shared[0]} is a seed of the sweep's trials"
            raise UserError(said, f"Give --seeds other than {', '.join(map(str, sorted(grid.seeds)))}.")
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


def at_line(path: Path, data: Section, error: UserError) -> UserError:
    """An error about a key of `data`, `key: what is wrong`, with the recipe's file, and the line that gives the key. A
    key of a setup or of an argument has no line."""
    name, _, said = error.message.removeprefix("data.").partition(": ")
    document, value = read(path), getattr(data, name, None)
    for at in (each for each in document.lines if each[-2:] == ("data", name)):
        if functools.reduce(getitem, at, document.data) == value:
            return UserError(f"{path}: {document.problem(at, said)}", error.hint)
    return UserError(f"{path}: {error.message}", error.hint)


def chosen_runs(
    loaded: LoadedRecipe, scale: str, points: Mapping[tuple[str, str], int], seeds: Iterable[int]
) -> dict[tuple[str, str], list[RunSpec]]:
    """The runs of cells (row, column) at the given point (index into `LoadedGrid.planned`), one per seed."""
    run, every = _planner(scale), list(seeds)
    return {cell: [run(loaded, *cell, seed, point) for seed in every] for cell, point in points.items()}


def _planner(scale: str) -> Callable[[LoadedRecipe, str, str, int, int], RunSpec]:
    """A function that makes the run of a cell at the point of that index, with its sources; each data set is identified
    once. Raises `UserError` if data cannot be identified, or one table reads it from two folders."""
    data: dict[tuple[str, str], tuple[str, str | None]] = {}
    folders: dict[str, tuple[str | None, str]] = {}
    weights: dict[str, str | None] = {}

    def run(loaded: LoadedRecipe, row: str, column: str, seed: int, point: int) -> RunSpec:
        settings, command = loaded.points[scale][row, column][point], loaded.recipe.command
        key = (command, settings.data.model_dump_json())
        if key not in data:
            try:
                data[key] = task_of(command).identify(settings)
            except UserError as error:
                if type(error) is not UserError:  # of the disk, not of a key
                    raise
                raise at_line(loaded.path, settings.data, error) from error
        fingerprint, content = data[key]
        folder, cell = getattr(settings.data, "folder", None), f"{row} at {column}"
        first, where = folders.setdefault(fingerprint, (folder, cell))
        if first != folder:
            said = f"{where} and {cell} read the same data from two folders, {first} and {folder}"
            hint = "Give data.folder once for each data set, or make two tables."
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
