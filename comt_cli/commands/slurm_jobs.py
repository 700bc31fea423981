"""`--slurm`: submit the runs of a verb as Slurm jobs, and say how to follow them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from comt_cli.campaign.slurm_queue import Job
    from comt_cli.campaign.slurm_site import Site
    from comt_cli.runs.plan import RunSpec


def read_slurm_site(slurm: Path, gpus: int, jobs: int | None) -> Site:
    """The site file, checked, and that no option says what it says.

    Raises:
        UserError: the site file is wrong, or --gpus, --jobs or torchrun are used with it.
    """
    from comt_cli.campaign.slurm_site import read_site
    from comt_cli.errors import UserError
    from comt_cli.training.processes import launched_by_torchrun

    site = read_site(slurm)
    if gpus != 1:
        raise UserError("--gpus with --slurm: the site file says how many GPUs a job has", f"gpus: {gpus} in {slurm}")
    if jobs is not None:
        raise UserError("--jobs with --slurm: every run is a job, and Slurm runs as many as there is room for")
    if launched_by_torchrun():
        raise UserError("--slurm under torchrun: jobs are submitted by one process", "Leave torchrun out.")
    return site


def submit_runs(specs: Sequence[RunSpec], runs: Path, device: str | None, site: Site, *, fresh: bool = False) -> None:
    """Submit those of `specs` that are open and not submitted yet; print a line for every job, and what comes next.

    Raises:
        UserError, StorageError: see `comt_cli.campaign.slurm.submit`.
    """
    from comt_cli.campaign.outcomes import TrainingFailed, run_name
    from comt_cli.campaign.slurm import check_slurm, refuse_queued, submit
    from comt_cli.errors import UserError
    from comt_cli.runs.contents import adopt_contents
    from comt_cli.runs.directory import RunState
    from comt_cli.runs.shared import set_aside

    if fresh:
        check_slurm()
        refuse_queued(specs, runs)
        for moved in set_aside(adopt_contents(specs, runs, ambiguous=True), runs):
            typer.echo(f"moved aside: {moved}", err=True)
    counts = {"submitted": 0, "in the queue before": 0, "being trained": 0, "done": 0}
    try:
        for each in submit(specs, runs, device, site):
            name = run_name(each.spec, with_table=True)
            if each.job is not None:
                counts["submitted" if each.is_new else "in the queue before"] += 1
                typer.echo(f"job {each.job.number}{'' if each.is_new else ', submitted before'}: {name}")
            elif each.state is RunState.running:
                counts["being trained"] += 1
            else:
                counts["done"] += 1
    except UserError as error:
        if counts["submitted"] and error.exit_status == UserError.exit_status:  # bad input's says: nothing was started
            raise TrainingFailed(error.message, error.hint) from error
        raise
    finally:
        total = sum(counts.values())
        listed = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
        if total:
            typer.echo(f"{total} {'run' if total == 1 else 'runs'}: {listed}")
    where = "" if runs == Path("runs") else f" --runs {runs}"
    typer.echo(f"To follow them: comt status{where}, with the same --set, --seeds and --also")


def add_standings(tables: Iterable[dict[str, Any]], jobs: Mapping[str, Job]) -> None:
    """Give the open runs of `comt status` their `job`, and `job_state`: where Slurm says that it is. Asks it once.

    Of a run that some process is training, only a queued job is shown: another job may be training it.
    """
    from comt_cli.campaign.slurm_queue import job_standings

    standings = job_standings(jobs.values())
    for run in (run for table in tables for run in table.get("open", ())):
        standing = standings.get(run["request"])
        is_shown = standing is not None and (standing.is_active or run["state"] != "running")
        run["job"] = jobs[run["request"]].number if is_shown else None
        run["job_state"] = standing.words if standing is not None and is_shown else None
