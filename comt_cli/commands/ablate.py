"""`comt ablate`: one question of the papers, trained, tabled and drawn beside their answer."""

from __future__ import annotations

from typing import Annotated, get_args

import typer

from comt_cli.commands import options


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
    runs: options.Runs = options.DEFAULT_RUNS,
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
    from comt_cli.verbs import ablate as body
    from comt_cli.verbs.cost import Where

    if name is None:
        typer.echo(context.get_help())
        typer.echo("\nRecipes:")
        for ablation, recipes in body.ablations().items():
            typer.echo(f"  {ablation:<15}  {', '.join(recipes)}")
        return
    paper = options.one_of(recipe, paper, "--paper", f"comt ablate {name} {paper}")
    where = Where(runs, results, device, gpus, jobs, slurm, track, overwrite)
    body.ablate(name, paper, scale, values, seeds, set_, also, where, dry_run=dry_run)
