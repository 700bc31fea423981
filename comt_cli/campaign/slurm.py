"""`--slurm`: every run as a job of its own, through `submitit`; and what such a job does.

A job that Slurm warns of its time limit (SIGUSR2) finishes the step, saves, and has itself requeued by submitit under
the same number; it resumes from its checkpoint, in the same log.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comt_cli.campaign.slurm_queue import LOGS, Job, ask_squeue, job_name, job_of, log_folder, note_job
from comt_cli.campaign.slurm_site import Site
from comt_cli.errors import RunInterrupted, StorageError, UserError
from comt_cli.installing import install_extra
from comt_cli.runs.contents import adopt_contents
from comt_cli.runs.directory import RunState
from comt_cli.runs.plan import RunSpec
from comt_cli.runs.shared import needed_runs, set_aside, shared_runs
from comt_cli.training.trackers import VARIABLE, trackers_in_use

WARNING_SIGNAL = signal.SIGUSR2
"""Signal that Slurm sends before the time limit; submitit's choice, which its requeueing listens to."""
UNFINISHED_STATUS = 1


@dataclass(frozen=True)
class Submission:
    """The outcome for one run: its job, new or queued earlier; no job if its state asks for none."""

    spec: RunSpec
    state: RunState
    job: Job | None
    is_new: bool


class TrainJob:
    """The work of a job; submitit stores it, and calls it anew after every requeue."""

    def __call__(
        self, spec: dict[str, Any], runs: str, device: str | None, processes: int, trackers: list[str]
    ) -> None:
        """Train one run (`spec`: a `RunSpec` as plain data) to its end, or until Slurm's warning.

        Raises:
            SystemExit: the run could not be trained, or was asked to stop; the log says why.
        """
        from comt_cli.campaign.executor import train_on

        os.environ[VARIABLE] = ",".join(trackers)
        try:
            summary = train_on(processes, [RunSpec.model_validate(spec)], Path(runs), device, 1)
        except UserError as error:
            print(f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S} comt: {error}", file=sys.stderr, flush=True)
            if not (isinstance(error, RunInterrupted) and error.signal_number == WARNING_SIGNAL):
                raise SystemExit(error.exit_status) from None
            # Everything is saved and submitit's own handler is back in place: it requeues the job, and ends it.
            signal.raise_signal(WARNING_SIGNAL)
        else:
            if not all(outcome.ended for outcome in summary.outcomes):
                raise SystemExit(UNFINISHED_STATUS)  # it failed, or is trained elsewhere: that was printed

    def checkpoint(self, *arguments: Any) -> Any:
        """The call that submitit requeues: the same one again. The run's own checkpoint has the rest."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments)


def submit(specs: Sequence[RunSpec], runs: Path, device: str | None, site: Site) -> Iterator[Submission]:
    """Submit each distinct run of `specs` that has no result, is not being trained and is in no queued job; before
    them, in the same way, the runs from whose weights they start.

    A job of a started run begins after its source's job, however that ended (`afterany`): after a success there are the
    weights. Else the first such job to begin tries the source again, or says why its run cannot start, where with
    `afterok` it would stay in the queue for ever.

    Yields the outcome for each as soon as it is known: the caller can print what was submitted before an error.

    Raises:
        UserError: submitit or Slurm is not installed, Slurm does not answer, or it refuses a job; says why.
        StorageError: the run directories cannot be written.
    """
    executor_class = _executor_class()
    distinct = needed_runs(adopt_contents(specs, runs, ambiguous=True), runs)
    sources = {shared.spec.start.run.id for shared in distinct if shared.spec.start is not None}
    with _only_submitter(runs):
        states = {shared.id: shared.directory(runs).state() for shared in distinct}
        is_open = {name: state in (RunState.missing, RunState.unfinished) for name, state in states.items()}
        asked = [
            each
            for each in distinct
            if is_open[each.id] or (each.id in sources and states[each.id] is RunState.running)
        ]
        jobs = {each.id: job for each in asked if (job := job_of(runs, each.spec)) is not None}
        queued = ask_squeue(jobs.values())
        numbers = {run: job.number for run, job in jobs.items() if job.run in queued}
        for shared in distinct:
            spec, directory, start = shared.spec, shared.directory(runs), shared.spec.start
            if not is_open[shared.id] or spec.request in queued:
                job = jobs.get(shared.id) if is_open[shared.id] else None
                yield Submission(spec, states[shared.id], job, False)
                continue
            if spec.is_known:  # else its directory is known once the job has prepared the data
                directory.create(spec)
                shared.link(runs)
            executor = executor_class(folder=log_folder(runs, spec.request).resolve(), max_num_timeout=site.requeues)
            after = numbers.get(start.run.id) if start is not None and not directory.is_begun else None
            executor.update_parameters(**sbatch_parameters(site, spec, after))
            # A job that paid for a GPU must not fall back on the CPU.
            wanted = device or ("cuda" if site.gpus else None)
            arguments = (spec.model_dump(mode="json"), str(runs.resolve()), wanted, site.processes, trackers_in_use())
            numbers[shared.id] = _submit_one(executor, arguments)
            note_job(runs, spec, numbers[shared.id])
            yield Submission(spec, states[shared.id], job_of(runs, spec), True)


def begin_anew(specs: Sequence[RunSpec], runs: Path) -> list[Path]:
    """Move the run directories of `specs` out of the way, so that jobs train them anew; returns where they went.

    Raises:
        UserError: a job is about to train one of them, or is training it; or Slurm does not answer or is not here.
    """
    _executor_class()
    jobs = [job for shared in shared_runs(specs) if (job := job_of(runs, shared.spec)) is not None]
    queued = ask_squeue(jobs)
    if numbers := [job.number for job in jobs if job.run in queued]:
        raise UserError(
            f"--fresh: {len(numbers)} of these runs are in Slurm's queue",
            f"End their jobs first: scancel {' '.join(numbers)}",
        )
    return set_aside(adopt_contents(specs, runs, ambiguous=True), runs)


def sbatch_parameters(site: Site, spec: RunSpec, after: str | None = None) -> dict[str, Any]:
    """The parameters of submitit's Slurm executor: its names are sbatch's, exceptions are explained here. `after`
    is the number of a job that must have ended before."""
    further: dict[str, Any] = {"requeue": True}  # also where the cluster's default is that jobs are not requeued
    further |= {name: value for name, value in site.sbatch.items() if value is not False}
    if after is not None:  # and what the site file waits for
        further["dependency"] = ",".join([*map(str, filter(None, [further.get("dependency")])), f"afterany:{after}"])
    parameters = {
        "job_name": job_name(spec.request),
        "comment": f"{spec.relative_path}",
        "time": site.minutes,
        "gpus_per_node": site.gpus or None,
        "cpus_per_task": site.cpus,
        "mem": site.memory,
        "ntasks_per_node": 1,  # comt starts the processes that share a batch itself
        "signal_delay_s": site.warning,
        "stderr_to_stdout": True,
        # As many threads at every start of a run, whichever node it is on: their number decides the last bits.
        "setup": [f"export OMP_NUM_THREADS={max(1, site.cpus // site.processes)}", *site.setup],
        # Since Slurm 22.05 a step does not inherit how many processors its job has for each task.
        "srun_args": [f"--cpus-per-task={site.cpus}"],
        "additional_parameters": further,
        **site.model_dump(include={"partition", "account", "qos", "constraint"}),
    }
    return {name: value for name, value in parameters.items() if value is not None}


def _executor_class() -> Any:
    try:
        from submitit import SlurmExecutor
    except ImportError:
        raise UserError(
            "--slurm needs the package submitit, which is not installed here", install_extra("slurm")
        ) from None
    for program in ("sbatch", "srun"):
        if shutil.which(program) is None:
            raise UserError(
                f"--slurm needs Slurm, but {program} is not on this machine",
                "Submit on a machine of the cluster that may (often called its login node).",
            )
    return SlurmExecutor


def _submit_one(executor: Any, arguments: tuple[Any, ...]) -> str:
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        return str(executor.submit(TrainJob(), *arguments).job_id)
    except (FailedJobError, FailedSubmissionError, subprocess.CalledProcessError) as error:
        reasons = [line for line in str(error).splitlines() if "sbatch: error" in line] or [str(error)]
        raise UserError(
            f"Slurm refused a job: {' '.join(reasons)}",
            "What was submitted before stays; the same command submits the rest, once the reason is fixed.",
        ) from None
    except OSError as error:
        raise StorageError(f"cannot submit a job: {error}") from error


@contextlib.contextmanager
def _only_submitter(runs: Path) -> Iterator[None]:
    """Wait until no one else submits runs of this folder: two at once would both find a run that is in no job."""
    with contextlib.ExitStack() as resources:
        try:
            folder = runs / LOGS
            folder.mkdir(parents=True, exist_ok=True)
            handle = resources.enter_context((folder / ".lock").open("a"))
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            raise StorageError(f"cannot lock {runs / LOGS}: {error.strerror or error}") from error
        yield
