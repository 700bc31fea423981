"""Training tables, sweeps among them: the trials, and then the runs at the values that they chose."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from comt_cli.campaign.outcomes import Summary
    from comt_cli.commands.options import Where
    from comt_cli.commands.planning import Planned
    from comt_cli.report.sweep import SweepState
    from comt_cli.runs.plan import RunSpec

POLL_SECONDS = 2.0


def known_runs(planned: Planned, runs: Path) -> list[RunSpec]:
    """The runs of a plan that are known by now: of a sweep the trials, the runs at the recipe's own values, and those
    at values that the trials have chosen.

    Raises:
        UserError: see `adopt_contents`.
    """
    return _state(planned, runs).specs if planned.loaded.has_trials(planned.scale) else planned.specs


def _state(planned: Planned, runs: Path) -> SweepState:
    from comt_cli.commands.planning import with_contents
    from comt_cli.report.sweep import read_sweep

    return read_sweep(planned.loaded, planned.scale, with_contents(planned, runs).specs, runs)


def sweeps_among(tables: Sequence[Planned]) -> list[Planned]:
    """Those of which trials decide what is trained next."""
    return [planned for planned in tables if planned.loaded.has_trials(planned.scale)]


def check_processes(tables: Sequence[Planned]) -> None:
    """Raise `UserError` for a sweep under torchrun, whose processes cannot see together what the trials chose."""
    from comt_cli.errors import UserError
    from comt_cli.training.processes import launched_by_torchrun

    if sweeps_among(tables) and launched_by_torchrun():
        raise UserError("a sweep under torchrun: it is trained in two parts", "Leave torchrun out, and give --gpus.")


def train_planned(tables: Sequence[Planned], runs: Path, where: Where) -> Summary:
    """Train the selected runs of all tables as one queue; of sweeps, whose cost is printed first, also those that
    follow from their trials.

    Raises:
        see `train_on`.
    """
    from comt_cli.campaign.executor import train_on

    if sweeps_among(tables):
        print_cost(tables, runs, where)
        return _train_sweeps(tables, runs, where)
    return train_on(where.gpus, _known(tables, runs), runs, where.device, where.jobs)


def _known(tables: Sequence[Planned], runs: Path) -> list[RunSpec]:
    return [spec for planned in tables for spec in known_runs(planned, runs)]


def print_cost(tables: Sequence[Planned], runs: Path, where: Where) -> None:
    """Print what each sweep costs in all, before it is started; of other tables nothing."""
    import typer

    from comt_cli.commands.plan_costs import Trained
    from comt_cli.commands.sweep_cost import sweep_cost

    trained = None if where.slurm is not None else Trained(where.device, where.jobs, where.gpus)
    for planned in sweeps_among(tables):
        name = f"{planned.loaded.name}: " if len(tables) > 1 else ""
        typer.echo(f"{name}{sweep_cost(planned, runs, trained)}", err=True)


def check_edges(tables: Sequence[Planned], runs: Path) -> None:
    """After training: raise `TrainingFailed` where the best of a row's trials is at the edge of the grid."""
    from comt_cli.campaign.outcomes import TrainingFailed

    found = [problem for planned in sweeps_among(tables) for problem in _state(planned, runs).problems.values()]
    if found:
        raise TrainingFailed(
            "\n  ".join(["nothing is chosen for some rows", *found]),
            "Nothing that was trained is lost: with a wider grid the same command trains the new values alone.",
        )


def _train_sweeps(tables: Sequence[Planned], runs: Path, where: Where) -> Summary:
    """Train the selected runs of tables, sweeps among them, until nothing follows from trials any more.

    Each pass trains what is known: first the trials and the runs at the recipe's own values, then those at values that
    were chosen. What another process trains is waited for where a choice depends on it;
    a run that it leaves is taken over. So any number of processes can be given the same command.

    Raises:
        see `train_on`.
    """
    from comt_cli.campaign.executor import train_on

    while True:
        before = _known(tables, runs)
        summary = train_on(where.gpus, before, runs, where.device, where.jobs)
        after = _known(tables, runs)
        if {spec.request for spec in after} - {spec.request for spec in before}:
            continue
        waiting = _awaited(summary, tables)
        if not waiting:
            return summary
        _wait(waiting, runs)


def _awaited(summary: Summary, tables: Sequence[Planned]) -> list[RunSpec]:
    """The trials that another process is training."""
    from comt_cli.campaign.outcomes import Ending

    seeds = {seed for planned in sweeps_among(tables) for seed in planned.loaded.grids[planned.scale].seeds}
    return [outcome.spec for outcome in summary.having(Ending.elsewhere) if outcome.spec.seed in seeds]


def _wait(waiting: Sequence[RunSpec], runs: Path) -> None:
    """Return when one of the trials that other processes train is left or has ended. Raises `RunInterrupted`."""
    import typer

    from comt_cli.errors import RunInterrupted
    from comt_cli.report.format import plural
    from comt_cli.runs.directory import RunDirectory
    from comt_cli.training.processes import StopSignal

    said = f"waiting for {plural(len(waiting), 'trial')} that other processes train"
    typer.echo(said, err=True)
    with StopSignal() as stop:
        while all(RunDirectory.of(runs, spec).owner() is not None for spec in waiting):
            if stop.number is not None:
                raise RunInterrupted(f"stopped while {said}", "The same command resumes from there.", stop.number)
            sleep(POLL_SECONDS)
