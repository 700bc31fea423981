"""Which run is in which Slurm job, and the states of these jobs. Torch-free, and asks only `squeue`."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from comt_cli.errors import UserError
from comt_cli.files import if_damaged, read_json, write_json
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec

JOB_FILE: Final = "job.json"
"""Next to the logs of a run's jobs: the number of the last one that it was given to."""
LOGS: Final = "slurm"
"""The folder of the jobs' logs, below the run directories."""
ANSWER_SECONDS = 30.0

_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})


class QueueSilent(UserError):
    """Slurm cannot be asked from here; nothing is known of any job."""


@dataclass(frozen=True)
class Job:
    """A job that was submitted for the run that is asked for as `run` (`RunSpec.request`: a job may have to prepare
    the data first, and the run has no id before). `superseded`: the run was begun again without it."""

    number: str
    run: str
    log: Path
    superseded: bool = False


@dataclass(frozen=True)
class JobStanding:
    """State of a job in words, `queued (job 12)`. `is_active`: Slurm says that it waits or runs."""

    words: str
    is_active: bool


def job_name(run: str) -> str:
    """The name of the job of the run that is asked for as `run`; numbers alone are another cluster's too."""
    return f"comt-{run}"


def log_folder(runs: Path, run: str) -> Path:
    """Where the logs of a run's jobs are."""
    return runs / LOGS / run


def note_job(runs: Path, spec: RunSpec, number: str) -> None:
    """Write down that `spec` was given to job `number`. Raises `StorageError` where that is not possible."""
    write_json(log_folder(runs, spec.request) / JOB_FILE, {"job": number})


def job_of(runs: Path, spec: RunSpec) -> Job | None:
    """The job that `spec` was last given to; None if there is none. Raises `UserError` if its file is damaged."""
    folder = log_folder(runs, spec.request)
    file, remedy = folder / JOB_FILE, "Delete it if no job of this run is queued."
    try:
        stored = read_json(file)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{file} cannot be read: {error}", if_damaged(remedy, error)) from None
    number = stored.get("job") if isinstance(stored, dict) else None
    if not isinstance(number, str):
        raise UserError(f"{file} has no number of a job", remedy)
    log = folder / f"{number}_0_log.out"
    # Every start of a run writes environment.json, and a job's start writes more into its log after that.
    started = _modified(RunDirectory.of(runs, spec).environment_file)
    return Job(number, spec.request, log, started > max(_modified(file), _modified(log)))


def readable_jobs(specs: Iterable[RunSpec], runs: Path) -> dict[str, Job]:
    """By request, the jobs of `specs`; to look at, not to act on: one damaged file must not hide the others."""
    jobs = {}
    for spec in specs:
        with contextlib.suppress(UserError):
            if (job := job_of(runs, spec)) is not None:
                jobs[spec.request] = job
    return jobs


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def ask_squeue(jobs: Iterable[Job]) -> dict[str, str]:
    """By request, the states in words of those of `jobs` that Slurm has not done with. Raises `QueueSilent` where there
    is no squeue on this machine, or it gets no answer."""
    asked = {job.number: job.run for job in jobs}
    if not asked:
        return {}
    program = shutil.which("squeue")
    if program is None:
        raise QueueSilent("squeue is not on this machine", "Ask on one that submits to the cluster.")
    command = [program, "--noheader", f"--jobs={','.join(asked)}", "--format=%i|%T|%N|%j"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise QueueSilent(f"squeue does not answer: {error}") from None
    # Asked for a single job that it has forgotten, squeue calls its number invalid; of several it leaves it out.
    if done.returncode and "Invalid job id" not in done.stderr:
        raise QueueSilent(f"squeue does not answer: {done.stderr.strip() or f'status {done.returncode}'}")
    states = {}
    for line in done.stdout.splitlines():
        number, _, rest = line.strip().partition("|")
        if number in asked and rest.endswith(f"|{job_name(asked[number])}"):
            state, node, _ = rest.split("|", 2)
            where = f" on {node}" if node else ""
            words = f"queued (job {number})" if state in _WAITING else f"running (job {number}{where})"
            states[asked[number]] = words
    return states


def job_standings(jobs: Iterable[Job]) -> dict[str, JobStanding]:
    """By request, the state of each job, for runs that have no result. Of a job that is gone from the queue, and
    without which the run was begun again, there is no entry."""
    every = list(jobs)
    try:
        states = ask_squeue(every)
    except QueueSilent as silence:
        return {job.run: JobStanding(f"given to Slurm (job {job.number}; {silence.message})", False) for job in every}
    gone = {job.run: f"failed (job {job.number}, see {job.log})" for job in every if not job.superseded}
    return {run: JobStanding(words, run in states) for run, words in (gone | states).items()}
