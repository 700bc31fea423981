"""Plans from the options of the command line, for the verbs that work on recipes. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from comt_cli.commands.options import Selection
from comt_cli.errors import UserError
from comt_cli.files import read_json
from comt_cli.methods import catalogue
from comt_cli.recipe.find import MARK, also_called, as_arguments, find_recipe, place_of, split_variant
from comt_cli.recipe.load import LoadedRecipe, load_recipe
from comt_cli.recipe.problems import parse
from comt_cli.runs.known import adopt_contents
from comt_cli.runs.plan import CHANGED, RunSpec, parse_seeds, plan, table_folder, with_sources


@dataclass(frozen=True)
class Planned:
    """A checked recipe at a scale, and its selected runs."""

    loaded: LoadedRecipe
    scale: str
    specs: list[RunSpec]

    @property
    def has_trials(self) -> bool:
        """Whether trials decide which runs are trained next."""
        return self.loaded.has_trials(self.scale)

    def with_contents(self, runs: Path) -> Planned:
        """The plan with the known hashes of its data: of the data prepared here, else of the runs. Raises as
        `adopt_contents`."""
        asked = {spec.data_fingerprint: spec for spec in with_sources(self.specs)}
        # Data that has changed since the plan was made has another fingerprint.
        here = dict(spec.task.identify(spec.settings) for spec in asked.values())
        contents = {fingerprint: content for fingerprint, content in here.items() if content is not None}
        specs = [spec.with_contents(contents) for spec in self.specs]
        return replace(self, specs=adopt_contents(specs, runs))


def with_settings(name: str, overrides: Sequence[str] | None, runs: Path) -> tuple[Path, list[str]]:
    """The file of a recipe and the `--set` arguments, preceded by the stored settings of a name such as
    `table3@steps-12`. Raises `UserError` if there are no such runs."""
    recipe, variant = split_variant(name)
    path = find_recipe(recipe)
    if not variant:
        return path, list(overrides or ())
    paper, table = place_of(path)
    file = runs / table_folder(paper, f"{table}{MARK}{variant}") / CHANGED
    try:
        return path, [*as_arguments(dict(read_json(file))), *(overrides or ())]
    except (OSError, ValueError, TypeError):
        names = [f"{paper}/{each.parent.name}" for each in file.parent.parent.glob(f"{table}{MARK}*/{CHANGED}")]
        there = f"Known names: {', '.join(sorted(names))}. " if names else ""
        why = f"{file} is damaged" if file.exists() else f"no run of {paper}/{table} has settings called {variant}"
        raise UserError(why, f"{there}Or give the settings: --set KEY=VALUE.") from None


def plan_recipe(
    recipe: str | Path,
    scale: str,
    overrides: Sequence[str] | None = None,
    *,
    command: str | None = None,
    runs: Path | None = None,
    also: Mapping[str, Any] | None = None,
    also_fits_all: bool = True,
    sweep: Sequence[str] | None = None,
    **selection: str | None,
) -> Planned:
    """Find, check and expand a recipe; with `command`, only a recipe of that command. `also` holds added rows (see
    `load_recipe`), `selection` the arguments of `plan_loaded`. With `runs`, the name may include changed settings
    (`table3@steps-12`). Raises `UserError` (`RecipeError`) with all problems."""
    if runs is not None:
        path, overrides = with_settings(str(recipe), overrides, runs)
    else:
        path = recipe if isinstance(recipe, Path) else find_recipe(recipe)
    loaded = load_recipe(
        path, catalogue(), overrides or (), scale, also, also_fits_all=also_fits_all, sweep=sweep or ()
    )
    if command not in (None, loaded.recipe.command):
        others, instead = also_called(str(recipe)), f"Use comt {loaded.recipe.command} {recipe}."
        raise UserError(
            f"{recipe} is a recipe of comt {loaded.recipe.command}, not of comt {command}",
            instead if others is None else f"{instead}\n  {others}",
        )
    return plan_loaded(loaded, scale, **selection)


def plan_selected(recipe: str, of: Selection, **more: Any) -> Planned:
    """`plan_recipe` with the options of the command line."""
    selection: dict[str, Any] = {"rows": of.rows, "columns": of.columns, "seeds": of.seeds}
    return plan_recipe(recipe, of.scale, of.set_, also=also_rows(of.also), sweep=of.sweep, **selection, **more)


def plan_loaded(loaded: LoadedRecipe, scale: str, *, seeds: str | None = None, **selection: str | None) -> Planned:
    """Expand a checked recipe to its runs: the named `rows`, `columns` and `seeds`, or all. Raises `UserError` if the
    recipe has no such row, column or scale."""
    return Planned(loaded, scale, plan(loaded, scale, seeds=parse_seeds(seeds), **selection))


def also_rows(arguments: Sequence[str] | None) -> dict[str, Any]:
    """`--also` arguments as rows: name -> method. `half-gate` adds a row of that name, `NAME=METHOD` a row with another
    name. A method is a name or a YAML mapping: `wide={name: comt, hidden: 64}`. The recipe checks whether the method
    exists. Raises `UserError` if an argument has another form, or if two arguments name the same row."""
    rows: dict[str, Any] = {}
    for argument in arguments or ():
        before, equals, after = argument.partition("=")
        name, text = (before.strip(), after.strip()) if equals and "{" not in before else ("", argument.strip())
        document = parse(text)
        method, problem = document.data, next((each.message for each in document.problems), "")
        if isinstance(method, dict) and isinstance(method.get("name"), str):
            name = name or method["name"]
        elif isinstance(method, dict | list) or not text:
            problem = problem or "it should be METHOD or NAME=METHOD"
        else:
            name, method = name or text, text
        if rows.get(name, method) != method:
            problem = problem or f"two rows are called {name!r}; rename one: other-{name}=..."
        if problem:
            hint = "For example: half-gate, or wide='{name: comt, hidden: 64}'. comt show lists the rows of a recipe."
            raise UserError(f"--also {argument}: {problem}", hint)
        rows[name] = method
    return rows


def check_added(rows: Mapping[str, Any], recipes: Iterable[LoadedRecipe]) -> None:
    """Raise `UserError` if a row of `--also` was added to no recipe, since its method fits none of them."""
    there = {row for loaded in recipes for row in loaded.recipe.rows}
    if missing := [name for name in rows if name not in there]:
        hint = "comt recipes lists the recipes with the command that trains each."
        raise UserError(f"--also {missing[0]}: its method fits none of these recipes", hint)
