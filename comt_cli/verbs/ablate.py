"""One question of the papers: the recipes that ask it, its rows, and rows for further values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from comt_cli.commands import options
from comt_cli.commands.options import Where
from comt_cli.errors import UserError
from comt_cli.methods import methods
from comt_cli.recipe.find import available_recipes, full_name
from comt_cli.recipe.load import LoadedRecipe
from comt_cli.recipe.problems import Document, RecipeError, nearest, parse, read, validate
from comt_cli.recipe.schema import NAME_LENGTH, NAME_PATTERN, AblationName
from comt_cli.report.exhibits.ablation import ablation_rows
from comt_cli.verbs.plan import Planned, also_rows, check_added, plan_recipe
from comt_cli.verbs.show import print_plan
from comt_cli.verbs.train import AFTER_JOBS, read_slurm_site, train_tables

_VALUES = "Further points: 1,2,64, or sets of projections: only_qk,q_proj+v_proj."
_RECIPE = "Only this recipe, or this paper's: comt/tableA7, comt."


def ablate(
    name: Annotated[str | None, typer.Argument(help="The question: see above.", show_default=False)] = None,
    recipe: Annotated[str | None, typer.Argument(help=_RECIPE, show_default=False)] = None,
    *,
    scale: options.Scale = "smoke",
    values: Annotated[str | None, typer.Option(metavar="A,B", help=_VALUES)] = None,
    seeds: options.Seeds = None,
    set_: options.Set = None,
    also: options.Also = None,
    where: Where,
    dry_run: options.DryRun = False,
) -> None:
    """Train, tabulate and draw an ablation of the papers.

    The figure has the metric against what is ablated, ours with error bars and the paper's beside it. Runs that are
    done, for whichever table, are not trained again. Without a name the ablations are listed, with their recipes.

    hidden-size is the width of the gates' bottleneck, window-ratio that of CoMT's sliding-window modulators; modules
    are the projections with a gate; granularity: one factor for a token, for every channel, or both; context: gates
    that see their input against learned constants; sigmoid: Transponder's learnable one against a fixed one; gate-form
    and gate-start: SAS's scaling gate; placement-norm: gates before and after a norm; residual-norm: the norm in SAS's
    third term; cost: the gain at equal cost, against plain networks made wider.

    Examples:

      comt ablate hidden-size comt/table5

      comt ablate hidden-size --values 1,64 --seeds 1-3

      comt ablate modules --values only_qk,q_proj+v_proj --dry-run
    """
    known = _ablations()
    if name is None:
        for ablation, recipes in known.items():
            typer.echo(f"{ablation:<15}  {', '.join(recipes)}")
        return
    if name not in known:
        listed = "; ".join(f"{ablation} ({', '.join(recipes)})" for ablation, recipes in known.items())
        raise UserError(f"no recipe has an ablation {name!r}", f"There are {listed}.")
    meant = {recipe, full_name(recipe)} if recipe is not None else {*known[name]}
    chosen = [path for each, path in known[name].items() if meant & {each, each.partition("/")[0]}]
    if not chosen:
        raise UserError(f"{recipe} has no ablation {name}", nearest(str(recipe), known[name]))
    question: AblationName = name  # type: ignore[assignment]  # a key of a checked schema
    site = read_slurm_site(where)
    tables, wanted = [], []
    for path in chosen:
        added = also_rows(also)
        whole = plan_recipe(path, scale, set_, seeds=seeds, also=added, also_fits_all=False)
        if values is not None:
            added |= further_rows(whole.loaded, question, values)
            whole = plan_recipe(path, scale, set_, seeds=seeds, also=added, also_fits_all=False)
        rows = {*ablation_rows(whole.loaded, question), *added}
        tables.append(whole)
        wanted.append(Planned(whole.loaded, scale, [spec for spec in whole.specs if spec.row in rows]))
    check_added(also_rows(also), (table.loaded for table in tables))
    if not dry_run:
        train_tables(tables, wanted, where, site, AFTER_JOBS)
        return
    for planned in wanted:
        print_plan(planned, where, site=site)
        typer.echo()


def _ablations() -> dict[str, dict[str, Path]]:
    """Ablation -> recipe -> file, in the order of the schema. A recipe that cannot be read is named and left out."""
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
    Each is the first row that has the ablation's option, with another value, and is called by it, or by the option and
    its value: `beta_bias--5`. Raises `UserError` where the rows do not differ by one option, or it cannot have a
    value."""
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
    for text in texts:
        taken = loaded.methods | rows
        method = _with_value(taken[first], option, text)
        if method not in taken.values():
            value = "".join(text.split())
            is_name = re.fullmatch(NAME_PATTERN, value) and len(value) <= NAME_LENGTH and value not in taken
            rows[value if is_name else f"{option}-{value}"] = method
    return rows


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
    for value in meant:
        found = Document()
        checked = validate(config, {**others, option: value}, found)
        if checked is not None:
            return {"name": method["name"], **checked.stored()}
    wrong, given = found.problems[0], method[option]
    shown = "+".join(map(str, given)) if isinstance(given, list) else str(given)
    raise UserError(
        f"--values {text}: {wrong.key or option} of {method['name']}: {wrong.message}",
        f"The rows have, for instance, {shown}.",
    )
