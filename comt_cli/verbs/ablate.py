"""One question of the papers: the recipes that ask it, its rows, and rows for further values."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import typer

from comt_cli.errors import UserError
from comt_cli.methods import methods
from comt_cli.models.accounting import cost_of
from comt_cli.recipe.find import available_recipes, full_name
from comt_cli.recipe.load import LoadedRecipe
from comt_cli.recipe.problems import Problem, RecipeError, nearest
from comt_cli.recipe.schema import NAME_LENGTH, NAME_PATTERN, AblationName
from comt_cli.recipe.validate import validate
from comt_cli.recipe.yaml_lines import parse, read
from comt_cli.report.exhibits.ablation import ablation_rows
from comt_cli.runs.plan import RunSpec
from comt_cli.training.processes import is_main_process
from comt_cli.verbs.cost import Where, count
from comt_cli.verbs.plan import Planned, also_rows, check_added, plan_recipe
from comt_cli.verbs.show import print_plan
from comt_cli.verbs.train import AFTER_JOBS, read_slurm_site, train_tables
from comt_cli.words import listing


def ablate(
    name: str,
    paper: str | None,
    scale: str,
    values: str | None,
    seeds: str | None,
    set_: list[str] | None,
    also: list[str] | None,
    where: Where,
    *,
    dry_run: bool,
) -> None:
    """Train the rows of the ablation `name` in all its recipes, or those of `paper`, and write their tables, or print
    the plan.

    Raises:
        UserError: there is no such ablation, or `paper` has none, or a value cannot be. See also `train_tables`.
    """
    question, chosen = _chosen(ablations(), name, paper)
    site = read_slurm_site(where)
    tables, wanted = [], []
    for path in chosen.values():
        added = also_rows(also)
        whole = plan_recipe(path, scale, set_, seeds=seeds, also=added, also_fits_all=False)
        if values is not None:
            added |= further_rows(whole.loaded, question, values)
            whole = plan_recipe(path, scale, set_, seeds=seeds, also=added, also_fits_all=False)
        rows = {*ablation_rows(whole.loaded, question), *added}
        tables.append(whole)
        wanted.append(Planned(whole.loaded, scale, [spec for spec in whole.specs if spec.row in rows]))
        option = whole.loaded.recipe.ablations[question].option
        if added and option is not None and is_main_process():
            for line in _equal_networks(wanted[-1].specs, option, added):
                typer.echo(f"comt: {line}", err=True)
    check_added(also_rows(also), (table.loaded for table in tables))
    if not dry_run:
        train_tables(tables, wanted, where, site, AFTER_JOBS)
        return
    for position, planned in enumerate(wanted):
        if position:
            typer.echo()
        print_plan(planned, where, site=site)


def _chosen(known: Mapping[str, dict[str, Path]], name: str, paper: str | None) -> tuple[AblationName, dict[str, Path]]:
    """The ablation of that name, and the files of those of its recipes that are chosen, by their names."""
    if name not in known:
        listed = "; ".join(f"{ablation} ({', '.join(recipes)})" for ablation, recipes in known.items())
        raise UserError(f"no recipe has an ablation {name!r}", f"There are {listed}.")
    meant = (paper, full_name(paper)) if paper is not None else tuple(known[name])
    chosen = {
        recipe: path for recipe, path in known[name].items() if recipe in meant or recipe.partition("/")[0] in meant
    }
    if not chosen:
        papers = dict.fromkeys([*(recipe.partition("/")[0] for recipe in known[name]), *known[name]])
        raise UserError(f"{paper} has no ablation {name}", f"{nearest(str(paper), papers)}")
    return name, chosen  # type: ignore[return-value]  # a key of a checked schema


def ablations() -> dict[str, dict[str, Path]]:
    """Ablation -> recipe -> file, in the order of the schema, read from the recipes without checking them whole.

    A recipe that cannot be read is named and left out: it must not stand in the way of the others.
    """
    found: dict[str, dict[str, Path]] = {name: {} for name in get_args(AblationName)}
    for recipe, path in available_recipes().items():
        try:
            data = read(path).data
        except RecipeError as error:
            typer.echo(f"comt: {recipe} is left out: {error.message}", err=True)
            continue
        there = data.get("ablations") if isinstance(data, dict) else None
        for name in there if isinstance(there, dict) else ():
            found.setdefault(str(name), {})[recipe] = path
    return {name: recipes for name, recipes in found.items() if recipes}


def further_rows(loaded: LoadedRecipe, name: AblationName, values: str) -> dict[str, Any]:
    """Rows for those of the comma-separated `values` that no row has yet: name -> method, as `--also` would add them.

    Each is the first row that has the ablation's option, with another value. It is called by its value, or, where that
    is no name of a row or another row's, by the option and its value: `beta_bias--5`.

    Raises:
        UserError: the rows do not differ by one option, a value is none that the option can have, or no row can be
            called by it; names the value.
    """
    option = loaded.recipe.ablations[name].option
    if option is None:
        raise UserError(
            f"--values {values}: the rows of {loaded.name} differ by more than one option, so {name} has no values",
            "--also METHOD adds a row of your own.",
        )
    first = next(row for row in ablation_rows(loaded, name) if option in loaded.methods[row])
    texts = list(dict.fromkeys(text.strip() for text in values.split(",") if text.strip()))
    if not texts:
        raise UserError(f"--values {values}: there is no value", "for instance 1,2,64")
    rows: dict[str, Any] = {}
    taken = dict(loaded.methods)
    for text in texts:
        method = _with_value(taken[first], option, text)
        if method not in taken.values():
            row = _row_name(option, text, taken)
            taken[row] = rows[row] = method
    return rows


def _row_name(option: str, text: str, taken: Iterable[str]) -> str:
    """The name of the row that a value adds."""
    value = "".join(text.split())
    names = (value, f"{option}-{value}")
    for name in names:
        if re.fullmatch(NAME_PATTERN, name) and len(name) <= NAME_LENGTH and name not in taken:
            return name
    raise UserError(
        f"--values {text}: its row can be called neither {names[0]!r} nor {names[1]!r}",
        f"A name is of at most {NAME_LENGTH} letters, digits and + . _ / -, and no other row has it. "
        "--also NAME=METHOD adds a row by a name of your own.",
    )


def _equal_networks(specs: Sequence[RunSpec], option: str, added: Container[str]) -> Iterator[str]:
    """A line for added rows that differ from others in a size alone, and have as many parameters all the same: a gate
    with one channel gets no narrower. Of other options, such as the sites of gates, equal numbers say nothing."""
    sized = [spec for spec in specs if type(spec.method.get(option)) is int]
    alike: dict[tuple[str, str, int], dict[str, None]] = {}
    count(sized)
    for spec in sized:
        others = json.dumps({**spec.method, option: None}, sort_keys=True)
        alike.setdefault((spec.column, others, cost_of(spec).parameters), {})[spec.row] = None
    columns: dict[tuple[str, ...], list[str]] = {}
    for (column, *_), rows in alike.items():
        if len(rows) > 1 and any(row in added for row in rows):
            columns.setdefault(tuple(rows), []).append(column)
    for equal, there in columns.items():
        yield (
            f"the rows {listing(equal)} have equally many parameters under {listing(there)}: their {option} differs, "
            f"but they are probably one network, trained {len(equal)} times"
        )


def _with_value(method: dict[str, Any], option: str, text: str) -> dict[str, Any]:
    """`method` with one option changed, all of them checked by the method's own types. A text may mean a number or a
    name; of an option that is a list, its entries joined with `+`, or a set's name."""
    entries = [part.strip() for part in text.split("+")]
    if isinstance(method[option], list):  # the last is what an error is about
        meant: list[Any] = [entries] if len(entries) > 1 else [entries, text]
    else:
        try:
            meant = [parse(text, "--values").data]
        except RecipeError:
            meant = [text]
    config = methods()[method["name"]]
    others = {key: given for key, given in method.items() if key != "name"}
    problems: list[Problem] = []
    for value in meant:
        problems.clear()
        checked = validate(config, {**others, option: value}, (), lambda _: None, problems)
        if checked is not None:
            return {"name": method["name"], **checked.stored()}
    key, given = problems[0].key or option, method[option]
    shown = "+".join(map(str, given)) if isinstance(given, list) else str(given)
    raise UserError(
        f"--values {text}: {key} of {method['name']}: {problems[0].message}", f"The rows have, for instance, {shown}."
    )
