"""What a sweep with trials costs in all, before it is started."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from comt_cli.commands.plan_costs import Trained
    from comt_cli.commands.planning import Planned


def sweep_cost(planned: Planned, runs: Path, trained: Trained | None) -> str:
    """Runs, FLOPs and estimated time of trials and of what follows them, in two lines. Runs whose values the trials
    have not chosen yet are counted as one for the baseline's best and one for the cell's own, which may be the same.
    No time is estimated where `trained` is None: for jobs that train on another machine.

    Raises:
        UserError: there is no such device.
    """
    from comt_cli.campaign.estimate import finished_runs
    from comt_cli.commands.plan_costs import Counting, checked_hardware, estimator_for, time_left
    from comt_cli.models.accounting import total_flops
    from comt_cli.report.format import duration, plural
    from comt_cli.report.sweep import read_sweep
    from comt_cli.runs.directory import ENDED, RunDirectory
    from comt_cli.runs.known import adopt_contents

    known = adopt_contents(planned.specs, runs, ambiguous=True)
    state = read_sweep(planned.loaded, planned.scale, known, runs)
    specs = state.at_most
    trials = {spec.request for spec in state.trials}
    with Counting(specs) as counting:
        counting.count(specs)
    states = [RunDirectory.of(runs, spec).state().value for spec in specs]
    left = sum(state not in ENDED for state in states)
    most = "" if len(specs) == len(state.specs) else "at most "
    time = ""
    if trained is not None:
        where = checked_hardware(trained, planned.specs)
        estimator = estimator_for(specs, where, finished_runs(runs, where, trained.gpus), trained)
        at_once = f", {estimator.at_once} at a time" if estimator.at_once > 1 else ""
        time = f", about {duration(time_left(specs, states, estimator))}{at_once} on {where.name}"
    return (
        f"Sweep: {plural(len(trials), 'trial')} of {plural(len(state.grid.points), 'point')} and "
        f"{plural(len(state.grid.seeds), 'seed')} for {plural(len(state.tuned), 'cell')}, then {most}"
        f"{len(specs) - len(trials)} runs to show.\n"
        f"In all {most}{len(specs)} runs and {sum(map(total_flops, specs)):.2g} FLOPs; {left} to do{time}."
    )
