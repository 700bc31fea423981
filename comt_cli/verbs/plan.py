"""From what the user typed to the runs it means: shared by the verbs that work on recipes. Torch-free."""

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
    """A checked recipe at a scale, and the runs selected of it."""

    loaded: LoadedRecipe
    scale: str
    specs: list[RunSpec]

    @property
    def has_trials(self) -> bool:
        """Whether trials decide what is trained next."""
        return self.loaded.has_trials(self.scale)

    def with_contents(self, runs: Path) -> Planned:
        """The plan with the content of its data as it is known by now: of what is prepared here, else of the runs.
        Raises as `adopt_contents`."""
        asked = {spec.data_fingerprint: spec for spec in with_sources(self.specs)}
        # Of data that has changed since it was planned, another fingerprint.
        here = dict(spec.task.identify(spec.settings) for spec in asked.values())
        contents = {fingerprint: content for fingerprint, content in here.items() if content is not None}
        specs = [spec.with_contents(contents) for spec in self.specs]
        return replace(self, specs=adopt_contents(specs, runs))


def with_settings(name: str, overrides: Sequence[str] | None, runs: Path) -> tuple[Path, list[str]]:
    """The file of a recipe, and the `--set` arguments: with those of `table3@steps-12`, as they are kept beside its
    links. Raises `UserError` where there are no such runs."""
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
        there = f"There are {', '.join(sorted(names))}; " if names else ""
        why = f"{file} is damaged" if file.exists() else f"no run of {paper}/{table} has settings called {variant}"
        raise UserError(why, f"{there}--set KEY=VALUE says them, too.") from None


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
    """Find, check and expand a recipe, of `command` where that is given. `also` are rows added to it, see
    `load_recipe`; `selection` is as `plan_loaded` takes it. With `runs` its name may say changed settings,
    `table3@steps-12`. Raises `UserError` (`RecipeError`) with everything that is wrong."""
    if runs is not None:
        path, overrides = with_settings(str(recipe), overrides, runs)
    else:
        path = recipe if isinstance(recipe, Path) else find_recipe(recipe)
    loaded = load_recipe(
        path, catalogue(), overrides or (), scale, also, also_fits_all=also_fits_all, sweep=sweep or ()
    )
    if command not in (None, loaded.recipe.command):
        others, instead = also_called(str(recipe)), f"comt {loaded.recipe.command} --recipe {recipe}"
        raise UserError(
            f"{recipe} is a recipe of comt {loaded.recipe.command}, not of comt {command}",
            instead if others is None else f"{instead}\n  {others}",
        )
    return plan_loaded(loaded, scale, **selection)


def plan_selected(recipe: str, of: Selection, **more: Any) -> Planned:
    """`plan_recipe` with the options of the command line, and what else that takes."""
    selection: dict[str, Any] = {"rows": of.rows, "columns": of.columns, "seeds": of.seeds}
    return plan_recipe(recipe, of.scale, of.set_, also=also_rows(of.also), sweep=of.sweep, **selection, **more)


def plan_loaded(loaded: LoadedRecipe, scale: str, *, seeds: str | None = None, **selection: str | None) -> Planned:
    """Expand a recipe that was read and checked: the `rows`, `columns` and `seeds` that are named, or all. Raises
    `UserError` where the selection or the scale is not in it."""
    return Planned(loaded, scale, plan(loaded, scale, seeds=parse_seeds(seeds), **selection))


def also_rows(arguments: Sequence[str] | None) -> dict[str, Any]:
    """`--also` arguments as rows: name -> method. `half-gate` is a row of that name; `NAME=METHOD` names it otherwise.
    A method is a name, or a group in YAML's braces: `wide={name: comt, hidden: 64}`. Whether there is such a method is
    checked with the recipe. Raises `UserError` where an argument is not of that form, or two name one row."""
    rows: dict[str, Any] = {}
    for argument in arguments or ():
        before, equals, after = argument.partition("=")
        name, text = (before.strip(), after.strip()) if equals and "{" not in before else ("", argument.strip())
        document = parse(text)
        method, problem = document.data, next((each.message for each in document.problems), "")
        if isinstance(method, dict) and isinstance(method.get("name"), str):
            name = name or method["name"]
        elif isinstance(method, dict | list) or not text:
            problem = problem or "should be METHOD or NAME=METHOD"
        else:
            name, method = name or text, text
        if rows.get(name, method) != method:
            problem = problem or f"there are two rows {name!r}; call one other-{name}=..."
        if problem:
            hint = "for instance half-gate, or wide='{name: comt, hidden: 64}' (comt show lists what a recipe has)"
            raise UserError(f"--also {argument}: {problem}", hint)
        rows[name] = method
    return rows


def check_added(rows: Mapping[str, Any], recipes: Iterable[LoadedRecipe]) -> None:
    """Refuse a row that was to be added to several recipes, and is in none of them, since none can have its method."""
    there = {row for loaded in recipes for row in loaded.recipe.rows}
    if missing := [name for name in rows if name not in there]:
        hint = "comt recipes says by which verb each is run."
        raise UserError(f"--also {missing[0]}: its method is for none of these recipes", hint)
