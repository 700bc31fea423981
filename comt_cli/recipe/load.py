"""Read a recipe and the files that it names, and report all of their problems at once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from comt_cli.errors import UserError
from comt_cli.recipe.find import SETUPS, as_arguments, find_recipe, is_named, place_of, recipe_roots, table_name
from comt_cli.recipe.merge import (
    Cell,
    Layer,
    LoadedGrid,
    changed,
    layer_of,
    load_grids,
    merged_cells,
    overridden,
    parse_arguments,
    same_runs,
    with_sweep,
)
from comt_cli.recipe.problems import Document, KeyPath, Problem, RecipeError, nearest, read, salvage, validate
from comt_cli.recipe.schema import Catalogue, Recipe, Settings, Start, disagreements, undrawable, unmeasured
from comt_cli.recipe.settings import Overrides, RunSettings, overrides_of

Also = Mapping[str, Any]
"""Row name -> its method, as in a recipe: a name, or a group with `name` and options."""


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe that passed every check, with the overrides of the command line applied.

    `methods` maps each row to its method's name and all options. The following map a scale to cells (row, column):
    `points` to the settings at each point of the scale's grid (`LoadedGrid.planned`), or the only settings; `settings`
    to the first of these; `starts` to the source recipe (None: published weights) and the start with its row and
    column, for cells that have one. `changes` maps a scale to what `--set` changed (`merge.changed`). `added` are the
    rows of `--also`.
    """

    path: Path
    recipe: Recipe
    task: Any
    methods: dict[str, dict[str, Any]]
    points: dict[str, dict[Cell, list[RunSettings]]]
    settings: Settings
    starts: dict[str, dict[Cell, tuple[LoadedRecipe | None, Start]]]
    grids: dict[str, LoadedGrid]
    changes: dict[str, dict[str, Any]]
    added: tuple[str, ...]

    @property
    def folder(self) -> str:
        """The folder of its runs and results: `comt`; `own` for a file outside the recipe roots."""
        return place_of(self.path)[0]

    @property
    def stem(self) -> str:
        """The name of its runs and results within that folder: `table3`."""
        return place_of(self.path)[1]

    @property
    def name(self) -> str:
        """Folder and stem: `comt/table3`."""
        return "/".join(place_of(self.path))

    def outputs(self, scale: str) -> str:
        """The base name of its result files at a scale: `table3`; with changed settings `table3@steps-12`."""
        return table_name(self.stem, self.changes.get(scale, {}), self.task.settings)

    def changed(self, scale: str) -> tuple[str, ...]:
        """The `--set` arguments that changed settings at a scale, sorted by key."""
        return as_arguments(self.changes.get(scale, {}))

    @property
    def file(self) -> str:
        """The file as printed: `comt/table3.yaml`; `my-table.yaml` for a file outside the recipe roots."""
        shown = f"{self.folder}/{self.path.resolve().name}" if is_named(self.path) else self.path.name
        return "".join(letter if letter.isprintable() else " " for letter in shown)

    @property
    def origin(self) -> str:
        """The unambiguous path: as `file` for a named recipe, else the whole path with `~` for the home folder."""
        if is_named(self.path):
            return self.file
        whole, home = self.path.resolve(), Path.home()
        return f"~/{whole.relative_to(home)}" if whole.is_relative_to(home) else str(whole)

    @property
    def is_published(self) -> bool:
        """Whether the recipe has any published value."""
        return any(row.paper_increase or {*row.paper.values()} - {None} for row in self.recipe.rows.values())

    def has_trials(self, scale: str) -> bool:
        """Whether the sweep of this scale has trials with their own seeds."""
        return scale in self.grids and bool(self.grids[scale].seeds)

    def compared_column(self, scale: str, column: str) -> str | None:
        """The paper's column that `column` is compared with; None if there is none."""
        if not self.recipe.scales[scale].columns:
            return column
        return self.recipe.columns_at(scale)[column].compare_to

    def printed_increase(self, scale: str, row: str, column: str) -> str | None:
        """The paper's increase of the number of parameters for a cell, such as `<1%`; None if there is none."""
        compared = self.compared_column(scale, column)
        return None if compared is None else self.recipe.rows[row].paper_increase.get(compared)


_STAND_INS: dict[str, Any] = {
    **dict.fromkeys(("title", "baseline", "method", "description"), "x"),
    **{"seeds": [0], "settings": {}},
}
"""Values for keys that are missing or wrong, used to check the rest of the recipe. Each is valid for its key."""


def load_recipe(
    path: Path,
    catalogue: Catalogue,
    overrides: Sequence[str] = (),
    scale: str | None = None,
    also: Also | None = None,
    *,
    also_fits_all: bool = True,
    sweep: Sequence[str] = (),
    started: tuple[Path, ...] = (),
) -> LoadedRecipe:
    """Read and check the recipe at `path`.

    `overrides` are `--set` arguments such as `train.steps=200`. They apply to `scale` alone if it is given: steps that
    suit `smoke` may contradict the warm-up of `paper`. `also` adds rows after `rows`. If a row's method is for another
    task, that is a problem, or, with `also_fits_all=False`, the row is left out. `sweep` are `--sweep` arguments
    (`with_sweep`) for `scale`. `started` are the recipes whose runs start from this one's.

    The shape of the file is checked first, then the relations between its keys, even if the first check failed. Raises
    `RecipeError` with all problems of the file, its setups and the arguments, each with line and dotted key, or
    argument.
    """
    document = read(path)
    if not isinstance(document.data, dict) or not document.data:
        raise RecipeError(path, [Problem("", "is not a recipe: the file has no keys")])
    if {*document.data} <= {name for task in catalogue.tasks.values() for name in task.settings.model_fields}:
        message = "is a setup, not a recipe; name it in a recipe, by the key setup of the recipe or of a column"
        raise RecipeError(path, [Problem("", message)])
    task = catalogue.task(document.data.get("command"))
    also = {name: given for name, given in (also or {}).items() if also_fits_all or _fits(given, task, catalogue)}

    document, methods = _with_rows(document, also, catalogue, task)
    if sweep and scale is not None:
        document = with_sweep(document, sweep, scale, task, overrides)
    data, problems = {"metric": task.metric, **document.data}, document.problems
    valid = validate(Recipe, data, document)
    recipe = valid or salvage(Recipe, data, {**_STAND_INS, "command": task.command, "metric": task.metric})
    kind = overrides_of(task.settings)
    arguments = parse_arguments(overrides, kind, problems)
    if recipe is None:
        raise RecipeError(path, problems)
    own: dict[KeyPath, Layer] = {}
    for at, place in recipe.places():
        given = place.settings or {}
        checked = validate(kind, given, document, (*at, "settings"))
        own[at] = layer_of(checked or salvage(kind, given, {}) or kind(), document, (*at, "settings"))
    grids = load_grids(recipe, task, document)
    setups = _setups(recipe, path, document, kind)
    layers = {at: [*setups.get(getattr(place, "setup", None), ()), own[at]] for at, place in recipe.places()}

    whole = replace(document, problems=[])  # the same file; collects the problems that depend on several keys
    for wrong in (*disagreements(recipe, methods, catalogue, task, document), *overridden(recipe, grids, own)):
        whole.note(*wrong)
    given_at: dict[str, Layer] = {name: arguments if scale in (None, name) else {} for name in recipe.scales}
    tried = {name: left for name, grid in grids.items() if (left := grid.without(given_at[name])) is not None}

    def cells_at(name: str, given: Layer, found: list[Problem]) -> dict[Cell, list[RunSettings]]:
        grid = grids[name].without(given) if name in grids else None
        return merged_cells(recipe, name, task, layers, grid, given, document, found, complete=not problems)

    points = {name: cells_at(name, given, whole.problems) for name, given in given_at.items()}
    settings = {name: {cell: several[0] for cell, several in cells.items()} for name, cells in points.items()}
    for wrong in (
        *same_runs(tried, points),
        *undrawable(recipe, task, methods.get(recipe.baseline, {}), settings),
        *unmeasured(recipe, task, settings, document),
    ):
        whole.note(*wrong)

    here = (*started, path.resolve())

    def load(theirs: Path) -> LoadedRecipe:
        """Without `--set`. With `--also`, because a run starts from the row of the same name."""
        if theirs.resolve() in here:
            circle = (*here[here.index(theirs.resolve()) :], theirs)
            raise UserError(f"the starts form a circle: {' -> '.join(each.name for each in circle)}")
        return load_recipe(theirs, catalogue, also=also, also_fits_all=False, started=here)

    starts = _starts(recipe, path, whole, load, problems)
    problems += [problem for problem in whole.problems if not _follows(problem, problems)]
    if valid is None or problems:
        raise RecipeError(path, problems)
    changes = {name: changed(given, task, points[name], partial(cells_at, name)) for name, given in given_at.items()}
    return LoadedRecipe(path, valid, task, methods, points, settings, starts, tried, changes, tuple(also))


def _follows(problem: Problem, earlier: Iterable[Problem]) -> bool:
    """Whether `problem` concerns a key, or a section of settings, with an earlier problem."""
    section = _settings_section(problem)
    return any(
        problem.touches(other) or (section and _settings_section(other) in (section, "all")) for other in earlier
    )


def _settings_section(problem: Problem) -> str | None:
    """`train` for `columns.c4.settings.train.steps` and a setup's `train.steps`; `all` for `settings`; else None."""
    if problem.source is not None:
        return problem.key.partition(".")[0] or "all"
    found = re.search(r"(?:^|\.)settings(?:\.(\w+))?", problem.key)
    return (found[1] or "all") if found else None


# ---- methods of rows


def _fits(given: Any, task: Any, catalogue: Catalogue) -> bool:
    """Whether a row's method is for the task, or is unknown, which is reported elsewhere."""
    name = given.get("name") if isinstance(given, dict) else given
    return not isinstance(name, str) or name not in catalogue.methods or catalogue.methods[name].fits(task.sites)


def resolve_method(
    given: Any, path: KeyPath, document: Document, catalogue: Catalogue, task: Any
) -> dict[str, Any] | None:
    """A row's method as its name and all options. None if something is wrong, which the document's problems have."""
    if isinstance(given, dict) and not isinstance(given.get("name"), str):
        document.note((*path, "name"), "is missing: name the method")
        return None
    if not isinstance(given, str | dict):
        return None  # missing or of a wrong type: the schema reports it
    options = dict(given) if isinstance(given, dict) else {"name": given}
    name = options.pop("name")
    if name not in catalogue.methods or not catalogue.methods[name].fits(task.sites):
        fitting = [each for each, kind in catalogue.methods.items() if kind.fits(task.sites)]
        document.note(path, f"there is no method for {task.command} called {name!r}; {nearest(name, fitting)}")
        return None
    config = validate(catalogue.methods[name], options, document, path)
    absent = {} if config is None else config.absent(task.sites)
    for key, text in absent.items():
        document.note((*path, key), text)
    return None if config is None or absent else {"name": name, **config.stored()}


def _with_rows(
    document: Document, also: Also, catalogue: Catalogue, task: Any
) -> tuple[Document, dict[str, dict[str, Any]]]:
    """`document` with the rows of `also` after its own, and every row's method with all options. It works on the raw
    data, so that a broken row hides no other. A row that the recipe already has with the same method is not added: one
    argument can serve many recipes."""
    rows = document.data.get("rows")
    if not isinstance(rows, dict):
        return document, {}
    added = {name: {"method": given, "in_paper": False} for name, given in also.items() if name not in rows}
    arguments = document.arguments | {f"rows.{name}": f"--also {name}" for name in added}
    document = replace(document, data={**document.data, "rows": rows | added}, arguments=arguments)
    methods: dict[str, dict[str, Any]] = {}
    for name, row in (rows | added).items():
        said = row.get("method") if isinstance(row, dict) else None
        method = resolve_method(said, ("rows", name, "method"), document, catalogue, task)
        methods |= {} if method is None else {name: method}
    for name in (each for each in also if each in rows and each in methods):
        if resolve_method(also[name], (), Document(), catalogue, task) != methods[name]:
            message = f"the recipe already has another row {name!r}; give yours another name, for instance {name}-2="
            document.problems.append(Problem(f"--also {name}", message))
    return document, methods


# ---- the other files that a recipe names


def _setups(recipe: Recipe, path: Path, document: Document, kind: type[Overrides]) -> dict[str | None, list[Layer]]:
    """The settings of every setup (`setups/NAME.yaml`) that `recipe` names. Each setup's problems are reported once."""
    beside = [Path(os.path.normpath(path.parent / ".." / SETUPS))] if path.is_file() else []
    folders = [folder for folder in (*beside, *(root / SETUPS for root in recipe_roots())) if folder.is_dir()]
    files = {file.stem: file for folder in folders[::-1] for file in sorted(folder.glob("*.yaml"))}
    found: dict[str | None, list[Layer]] = {}
    for at, place in recipe.places():
        name = getattr(place, "setup", None)
        if name is None or name in found:
            continue
        found[name], source = [], str(files.get(name))
        if name not in files:
            document.note((*at, "setup"), f"there is no setup {name!r}; {nearest(name, sorted(files))}")
            continue
        try:
            setup = read(files[name])
        except RecipeError as error:
            document.problems += [replace(problem, source=source) for problem in error.problems]
            continue
        setup.source = source
        checked = validate(kind, setup.data, setup)
        found[name] = [layer_of(checked or salvage(kind, setup.data, {}) or kind(), setup)]
        document.problems += [replace(problem, source=source) for problem in setup.problems]
    return found


def _starts(
    recipe: Recipe, path: Path, document: Document, load: Callable[[Path], LoadedRecipe], problems: list[Problem]
) -> dict[str, dict[Cell, tuple[LoadedRecipe | None, Start]]]:
    """By scale the start of every cell that has one: the row's, else the column's, else the recipe's. `problems`
    receives recipes that are not found, their own problems, and wrong rows and columns."""

    def source_of(name: str, key: KeyPath) -> LoadedRecipe | None:
        """The recipe in a file next to this one, else the one that `find_recipe` finds."""
        beside = path.parent / name
        try:
            file = beside if beside.is_file() else find_recipe(name)
            return load(file)
        except RecipeError as error:
            wrong = [replace(problem, source=problem.source or str(file)) for problem in error.problems]
        except UserError as error:
            wrong = [document.problem(key, f"{error.message}; {error.hint}" if error.hint else error.message)]
        problems.extend(wrong)
        return None

    sources: dict[str, LoadedRecipe | None] = {}
    starts: dict[str, dict[Cell, tuple[LoadedRecipe | None, Start]]] = {scale: {} for scale in recipe.scales}
    for scale, column, row in ((s, c, r) for s in recipe.scales for c in recipe.columns_at(s) for r in recipe.rows):
        at, start = recipe.start_of(scale, column, row)
        if start is None:
            continue
        if start.recipe is None:
            starts[scale][row, column] = None, start
            continue
        if start.recipe not in sources:
            sources[start.recipe] = source_of(start.recipe, (*at, "start", "recipe"))
        if (source := sources[start.recipe]) is None:
            continue
        columns = list(source.recipe.columns_at(scale)) if scale in source.recipe.scales else []
        theirs = start.column or (column if column in columns or len(columns) != 1 else columns[0])
        begun = start.model_copy(update={"row": start.row or row, "column": theirs})
        wrong = [document.problem((*at, "start", key), message) for key, message in _wrong(source, begun, scale)]
        document.problems += wrong
        if not wrong:
            starts[scale][row, column] = source, begun
    return starts


def _wrong(source: LoadedRecipe, begun: Start, scale: str) -> Iterator[tuple[str, str]]:
    """The keys of a start that are wrong, with a message. `begun` is the start with its row and column filled in."""
    if scale not in source.recipe.scales:
        yield "recipe", f"{source.file} has no scale {scale}; it has {', '.join(source.recipe.scales)}"
        return
    if scale in source.grids:
        message = f"{source.file} has a sweep at scale {scale}, whose best run is unknown until all have ended"
        yield "recipe", f"{message}; start from a recipe that has one value of it"
        return
    rows, columns = source.recipe.rows, source.recipe.columns_at(scale)
    if begun.row not in rows:
        yield "row", f"{source.file} has no row {begun.row!r}; {nearest(str(begun.row), rows)}"
    if begun.column not in columns:
        hint = nearest(str(begun.column), columns)
        yield "column", f"{source.file} has no column {begun.column!r} at scale {scale}; {hint}"


def select(names: str | None, available: Iterable[str], what: str) -> list[str]:
    """The names of a comma-separated selection, in the table's order; all for None. Raises `UserError` for unknown
    names."""
    order = list(available)
    if names is None:
        return order
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in order:
            raise UserError(f"there is no {what} {name!r}", nearest(name, order))
    if not wanted:
        raise UserError(f"no {what} was selected", f"valid: {', '.join(order)}")
    return [name for name in order if name in wanted]
