"""`--slurm`: submit the runs of a verb as Slurm jobs, and say how to follow them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from comt_cli.campaign.slurm import Job
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
    from comt_cli.campaign.slurm import begin_anew, submit
    from comt_cli.errors import UserError
    from comt_cli.runs.directory import RunState

    for moved in begin_anew(specs, runs) if fresh else ():
        typer.echo(f"moved aside: {moved}", err=True)
    counts: Counter[str] = Counter()
    try:
        for each in submit(specs, runs, device, site):
            if each.job is not None:
                before = "" if each.is_new else ", submitted before"
                typer.echo(f"job {each.job.number}{before}: {run_name(each.spec, with_table=True)}")
                counts["submitted" if each.is_new else "in the queue before"] += 1
            else:
                counts["being trained" if each.state is RunState.running else "done"] += 1
    except UserError as error:
        if counts["submitted"] and error.exit_status == UserError.exit_status:  # bad input's says: nothing was started
            raise TrainingFailed(error.message, error.hint) from error
        raise
    finally:
        if total := counts.total():
            words = ("submitted", "in the queue before", "being trained", "done")
            listed = ", ".join(f"{counts[word]} {word}" for word in words if counts[word])
            typer.echo(f"{total} {'run' if total == 1 else 'runs'}: {listed}")
    where = "" if runs == Path("runs") else f" --runs {runs}"
    typer.echo(f"To follow them: comt status{where}, with the same --set, --seeds and --also")


def add_standings(tables: Iterable[dict[str, Any]], jobs: Mapping[str, Job]) -> None:
    """Give the open runs of `comt status` their `job`, and `job_state`: where Slurm says that it is. Asks it once.

    Of a run that some process is training, only a queued job is shown: another job may be training it.
    """
    from comt_cli.campaign.slurm import job_standings

    standings = job_standings(jobs.values())
    for run in (run for table in tables for run in table.get("open", ())):
        standing = standings.get(run["request"])
        is_shown = standing is not None and (standing.is_active or run["state"] != "running")
        run["job"] = jobs[run["request"]].number if is_shown else None
        run["job_state"] = standing.words if standing is not None and is_shown else None
