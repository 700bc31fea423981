"""One question of the papers: the recipes that ask it, and their rows that answer it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import typer

from comt_cli.commands import options
from comt_cli.commands.options import Where
from comt_cli.errors import UserError
from comt_cli.recipe.find import available_recipes, full_name
from comt_cli.recipe.problems import RecipeError, nearest
from comt_cli.recipe.schema import AblationName
from comt_cli.recipe.yaml_lines import read
from comt_cli.report.exhibits.ablation import ablation_rows
from comt_cli.verbs.plan import Planned, also_rows, check_added, plan_recipe
from comt_cli.verbs.train import train_tables

_RECIPE = "Only this recipe, or this paper's: comt/tableA7, comt."


def ablate(
    name: Annotated[str | None, typer.Argument(help="The question: see above.", show_default=False)] = None,
    recipe: Annotated[str | None, typer.Argument(help=_RECIPE, show_default=False)] = None,
    *,
    scale: options.Scale = "smoke",
    seeds: options.Seeds = None,
    set_: options.Set = None,
    also: options.Also = None,
    where: Where,
    dry_run: options.DryRun = False,
) -> None:
    """Train, tabulate and draw an ablation of the papers.

    The figure has the metric against what is ablated, ours with error bars and the paper's beside it. Runs that are
    done, for whichever table, are not trained again. Without a name the ablations are listed, with their recipes. A row
    that --also adds is a further point.

    hidden-size is the width of the gates' bottleneck, window-ratio that of CoMT's sliding-window modulators; modules
    are the projections with a gate; granularity: one factor for a token, for every channel, or both; context: gates
    that see their input against learned constants; sigmoid: Transponder's learnable one against a fixed one; gate-form
    and gate-start: SAS's scaling gate; placement-norm: gates before and after a norm; residual-norm: the norm in SAS's
    third term; cost: the gain at equal cost, against plain networks made wider.

    Examples:

      comt ablate hidden-size comt/table5

      comt ablate hidden-size --also 64='{name: comt, hidden: 64}' --seeds 1-3
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
    tables, wanted, added = [], [], also_rows(also)
    for path in chosen:
        whole = plan_recipe(path, scale, set_, seeds=seeds, also=added, also_fits_all=False)
        rows = {*ablation_rows(whole.loaded, question), *added}
        tables.append(whole)
        wanted.append(Planned(whole.loaded, scale, [spec for spec in whole.specs if spec.row in rows]))
    check_added(added, (table.loaded for table in tables))
    train_tables(tables, wanted, where, dry_run=dry_run)


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
