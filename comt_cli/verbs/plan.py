"""From what the user typed to the runs it means: shared by the verbs that work on recipes. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from comt_cli.commands.options import Selection
from comt_cli.errors import UserError
from comt_cli.methods import catalogue
from comt_cli.recipe.find import also_called, find_recipe
from comt_cli.recipe.load import LoadedRecipe, load_recipe, select
from comt_cli.recipe.problems import RecipeError
from comt_cli.recipe.yaml_lines import parse
from comt_cli.runs.known import adopt_contents
from comt_cli.runs.plan import RunSpec, parse_seeds, plan, with_sources
from comt_cli.verbs.table import with_settings


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

    def only(self, rows: str | None, columns: str | None) -> Planned:
        """The part of a whole plan with these rows and columns, as `plan` selects them. Raises `UserError` where one is
        not there."""
        chosen = {*select(rows, self.loaded.recipe.rows, "row"), *self.loaded.added}
        under = select(columns, self.loaded.columns(self.scale), "column")
        trials = self.loaded.grids[self.scale].seeds if self.has_trials else ()
        baseline = self.loaded.recipe.baseline
        specs = [
            spec
            for spec in self.specs
            if spec.column in under and (spec.row in chosen or (spec.row == baseline and spec.seed in trials))
        ]
        return replace(self, specs=specs)

    def with_contents(self, runs: Path) -> Planned:
        """The plan with the content of its data as it is known by now: of what is prepared here, else of the runs.
        Raises as `adopt_contents`."""
        asked = {spec.data_fingerprint: spec for spec in with_sources(self.specs)}
        # Of data that has changed since it was planned, another fingerprint.
        here = dict(spec.task.identify(spec.settings) for spec in asked.values())
        contents = {fingerprint: content for fingerprint, content in here.items() if content is not None}
        specs = [spec.with_contents(contents) for spec in self.specs]
        return replace(self, specs=adopt_contents(specs, runs))


def plan_recipe(
    recipe: str | Path,
    scale: str,
    overrides: Sequence[str] | None = None,
    *,
    command: str | None = None,
    runs: Path | None = None,
    rows: str | None = None,
    columns: str | None = None,
    seeds: str | None = None,
    also: Mapping[str, Any] | None = None,
    also_fits_all: bool = True,
    sweep: Sequence[str] | None = None,
) -> Planned:
    """Find, check and expand a recipe, of `command` where that is given. `also` are rows added to it, see
    `load_recipe`. With `runs` its name may say changed settings, `table3@steps-12`, and `rows` those that `--also` gave
    runs there. Raises `UserError` (`RecipeError`) with everything that is wrong."""
    if runs is not None:
        path, overrides, also = with_settings(str(recipe), overrides, scale, runs, rows, also)
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
    return plan_loaded(loaded, scale, rows=rows, columns=columns, seeds=seeds)


def plan_selected(recipe: str, of: Selection, **more: Any) -> Planned:
    """`plan_recipe` with the options of the command line, and what else that takes."""
    own: dict[str, Any] = {"rows": of.rows, "columns": of.columns, "seeds": of.seeds, "sweep": of.sweep}
    return plan_recipe(recipe, of.scale, of.set_, also=also_rows(of.also), **own, **more)


def plan_loaded(
    loaded: LoadedRecipe, scale: str, *, rows: str | None = None, columns: str | None = None, seeds: str | None = None
) -> Planned:
    """Expand a recipe that was read and checked. Raises `UserError` where the selection or the scale is not in it."""
    return Planned(loaded, scale, plan(loaded, scale, rows=rows, columns=columns, seeds=parse_seeds(seeds)))


def also_rows(arguments: Sequence[str] | None) -> dict[str, Any]:
    """`--also` arguments as rows: name -> method. `half-gate` is a row of that name; `NAME=METHOD` names it otherwise.
    A method is a name, or a group in YAML's braces: `wide={name: comt, hidden: 64}`. Whether there is such a method is
    checked with the recipe. Raises `UserError` where an argument is not of that form, or two name one row."""
    rows: dict[str, Any] = {}
    for argument in arguments or ():
        before, equals, after = argument.partition("=")
        is_named = bool(equals) and "{" not in before
        name, text = (before.strip(), after) if is_named else ("", argument)
        method = _method(argument, text)
        name = name or (method if isinstance(method, str) else str(method["name"]))
        if name in rows and rows[name] != method:
            raise UserError(f"--also {argument}: there are two rows {name!r}", f"name one of them: other-{name}=...")
        rows[name] = method
    return rows


def check_added(rows: Mapping[str, Any], recipes: Iterable[LoadedRecipe]) -> None:
    """Refuse a row that was to be added to several recipes, and is in none of them, since none can have its method."""
    there = {row for loaded in recipes for row in loaded.recipe.rows}
    for name in rows:
        if name not in there:
            raise UserError(
                f"--also {name}: its method is for none of these recipes",
                "comt recipes says by which verb each is run.",
            )


def _method(argument: str, text: str) -> str | dict[str, Any]:
    hint = "for instance half-gate, or wide='{name: comt, hidden: 64}' (comt show lists what a recipe has)"
    try:
        document = parse(text, "--also")
    except RecipeError as error:
        raise UserError(f"--also {argument}: {error.problems[0].message}", hint) from None
    if document.problems:
        raise UserError(f"--also {argument}: {document.problems[0]}", hint)
    method = document.data
    if isinstance(method, dict) and isinstance(method.get("name"), str):
        return method
    if isinstance(method, dict | list) or not text.strip():
        raise UserError(f"--also {argument}: should be METHOD or NAME=METHOD", hint)
    return text.strip()
