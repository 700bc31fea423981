"""`comt ablate`: one question of the papers, trained, tabled and drawn beside their answer."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from comt_cli.commands import options

if TYPE_CHECKING:
    from comt_cli.campaign.slurm_site import Site
    from comt_cli.commands.plan_costs import Trained
    from comt_cli.commands.planning import Planned
    from comt_cli.recipe.load import LoadedRecipe
    from comt_cli.recipe.schema import AblationName
    from comt_cli.runs.plan import RunSpec


def _names(incomplete: str) -> list[str]:
    from comt_cli.recipe.schema import AblationName

    return [name for name in get_args(AblationName) if name.startswith(incomplete)]


def ablate(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="The question: see above.", show_default=False, autocompletion=_names)
    ] = None,
    recipe: Annotated[
        str | None, typer.Argument(help="Only this recipe, or this paper's: comt/tableA7, comt.", show_default=False)
    ] = None,
    *,
    paper: Annotated[
        str | None, typer.Option(metavar="PAPER or PAPER/TABLE", help="The same, as an option; all if not given.")
    ] = None,
    scale: options.Scale = "smoke",
    values: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Further points: 1,2,64, or sets of projections: only_qk,q_proj+v_proj."),
    ] = None,
    seeds: options.Seeds = None,
    set_: options.Set = None,
    also: options.Also = None,
    device: options.Device = None,
    gpus: options.Gpus = 1,
    jobs: options.Jobs = None,
    slurm: options.Slurm = None,
    track: options.Track = None,
    runs: options.Runs = Path("runs"),
    results: options.Results = options.DEFAULT_RESULTS,
    overwrite: options.Overwrite = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and print the plan; train nothing.")] = False,
) -> None:
    """Train, tabulate and draw an ablation of the papers.

    The figure has the metric against what is ablated, ours with error bars and the paper's beside it. Runs that are
    done, for whichever table, are not trained again.

    hidden-size: the width of the gates' bottleneck, CoMT's h (of its pixel modulators too) or Transponder's r.

    window-ratio: input channels to a hidden channel of CoMT's sliding-window modulators.

    modules: which projections carry a gate.

    granularity: one factor for a token, one for every channel, or both; per projection or per path.

    context: gates that see their input against learned constants.

    sigmoid: Transponder's learnable sigmoid against a fixed one.

    gate-form: SAS's scaling gate of one layer and of two, and the Highway network's transform gate.

    gate-start: SAS with a branch that starts at a larger share.

    placement-norm: gates with the norm before and with the norm after the residual addition.

    residual-norm: layer norm and batch norm in SAS's third term.

    cost: the gain at equal cost, against plain networks made wider to the same parameters or FLOPs.

    Examples:

      comt ablate hidden-size comt/table5

      comt ablate hidden-size --paper transponder --values 1,64 --seeds 1-3

      comt ablate modules --values only_qk,q_proj+v_proj --dry-run
    """
    from comt_cli.commands.planning import Planned, also_rows, check_added, plan_recipe
    from comt_cli.commands.slurm_jobs import read_slurm_site, submit_runs
    from comt_cli.report.exhibits.ablation import ablation_rows
    from comt_cli.training.processes import is_main_process

    known = _ablations()
    if name is None:
        typer.echo(context.get_help())
        typer.echo("\nRecipes:")
        for ablation, recipes in known.items():
            typer.echo(f"  {ablation:<15}  {', '.join(recipes)}")
        return
    paper = options.one_of(recipe, paper, "--paper", f"comt ablate {name} {paper}")
    question, chosen = _chosen(known, name, paper)
    site = read_slurm_site(slurm, gpus, jobs) if slurm is not None else None
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
    if dry_run:
        from comt_cli.commands.plan_costs import Trained

        _print_plans(wanted, runs, Trained(device, jobs, gpus), site)
        return

    from comt_cli.campaign.executor import train_on
    from comt_cli.commands.outcome import check_results, end, write_outcomes
    from comt_cli.training.trackers import tracking

    specs = [spec for planned in wanted for spec in planned.specs]
    check_results(tables, results)
    with tracking(track):
        if site is not None:
            submit_runs(specs, runs, device, site)
            typer.echo("The tables and figures, once the jobs are done: the same command without --slurm")
            return
        summary = train_on(gpus, specs, runs, device, jobs)
    unwritten: list[str] = []
    if is_main_process():
        # The whole tables, not only the rows of the ablation: training some must not erase the others.
        unwritten = write_outcomes(tables, runs, results, overwrite=overwrite, shown=wanted)
    end(summary, unwritten)


def _chosen(known: dict[str, dict[str, Path]], name: str, paper: str | None) -> tuple[AblationName, dict[str, Path]]:
    """The ablation of that name, and the files of those of its recipes that are chosen, by their names.

    Raises:
        UserError: there is no such ablation, or `paper` has none.
    """
    from comt_cli.errors import UserError
    from comt_cli.recipe.find import full_name
    from comt_cli.recipe.problems import nearest

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


def _ablations() -> dict[str, dict[str, Path]]:
    """Ablation -> recipe -> file, in the order of the schema, read from the recipes without checking them whole.

    A recipe that cannot be read is named and left out: it must not stand in the way of the others.
    """
    from comt_cli.recipe.load import available_recipes
    from comt_cli.recipe.problems import RecipeError
    from comt_cli.recipe.schema import AblationName
    from comt_cli.recipe.yaml_lines import read

    found: dict[str, dict[str, Path]] = {name: {} for name in get_args(AblationName)}
    for recipe, path in available_recipes().items():
        try:
            data = read(path).data
        except RecipeError as error:
            typer.echo(f"comt: {recipe} is left out: {error.message}", err=True)
            continue
        ablations = data.get("ablations") if isinstance(data, dict) else None
        for name in ablations if isinstance(ablations, dict) else ():
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
    from comt_cli.errors import UserError
    from comt_cli.report.exhibits.ablation import ablation_rows

    option = loaded.recipe.ablations[name].option
    if option is None:
        raise UserError(
            f"--values {values}: the rows of {loaded.name} differ by more than one option, so {name} has no values to "
            "add",
            "--also METHOD adds a row of your own.",
        )
    first = next(row for row in ablation_rows(loaded, name) if option in loaded.methods[row])
    texts = list(dict.fromkeys(text.strip() for text in values.split(",") if text.strip()))
    if not texts:
        raise UserError(f"--values {values}: there is no value", "for instance 1,2,64")
    rows: dict[str, Any] = {}
    methods = dict(loaded.methods)
    for text in texts:
        method = _with_value(methods[first], option, text)
        if method not in methods.values():
            row = _row_name(option, text, methods)
            methods[row] = rows[row] = method
    return rows


def _row_name(option: str, text: str, taken: Iterable[str]) -> str:
    """The name of the row that a value adds."""
    from comt_cli.errors import UserError
    from comt_cli.recipe.schema import NAME_LENGTH, NAME_PATTERN

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
    from comt_cli.commands.plan_costs import Counting
    from comt_cli.models.accounting import cost_of
    from comt_cli.report.format import listing

    sized = [spec for spec in specs if type(spec.method.get(option)) is int]
    alike: dict[tuple[str, str, int], dict[str, None]] = {}
    with Counting(sized) as counting:
        counting.count(sized)
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
    """`method` with one option changed, all of them checked by the method's own types."""
    from comt_cli.errors import UserError
    from comt_cli.methods import methods
    from comt_cli.recipe.problems import Problem
    from comt_cli.recipe.validate import validate

    config = methods()[method["name"]]
    others = {key: given for key, given in method.items() if key != "name"}
    problems: list[Problem] = []
    for value in _readings(text, several=isinstance(method[option], list)):
        problems.clear()
        checked = validate(config, {**others, option: value}, (), lambda _: None, problems)
        if checked is not None:
            return {"name": method["name"], **checked.stored()}
    key = problems[0].key or option
    raise UserError(
        f"--values {text}: {key} of {method['name']}: {problems[0].message}",
        f"The rows have, for instance, {_shown(method[option])}.",
    )


def _readings(text: str, *, several: bool) -> list[Any]:
    """What a value may mean: a number or a name; of an option that is a list, its entries joined with `+`, or a set's
    name."""
    from comt_cli.recipe.problems import RecipeError
    from comt_cli.recipe.yaml_lines import parse

    entries = [part.strip() for part in text.split("+")]
    if several:  # the last is what an error is about
        return [entries] if len(entries) > 1 else [entries, text]
    try:
        return [parse(text, "--values").data]
    except RecipeError:
        return [text]


def _shown(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def _print_plans(plans: list[Planned], runs: Path, trained: Trained, site: Site | None) -> None:
    from comt_cli.commands.show import print_plan

    for position, planned in enumerate(plans):
        if position:
            typer.echo()
        print_plan(planned, runs, trained, site=site)
