"""The jobs of runs: their numbers, kept beside their logs, and their states by `squeue`."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from comt_cli.errors import UserError
from comt_cli.files import if_damaged, read_json
from comt_cli.runs.plan import RunSpec

JOB_FILE: Final = "job.json"
"""In a run's folder below `LOGS`: the number of its last job, and the request of the first run of its array."""
LOGS: Final = "slurm"
"""Folder of the job logs, below the run directories."""
ANSWER_SECONDS = 30.0
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})


class Job(NamedTuple):
    """A job of the run with the request `run` (`RunSpec.request`: a run has no id before its data is prepared): its
    number, `12`, or as a task of an array `12_3`, and its name in the queue."""

    number: str
    name: str
    run: str
    log: Path


class JobStanding(NamedTuple):
    """A job's number, and its state as text, `queued (job 12)`. `is_active`: squeue lists it as waiting or running."""

    number: str
    words: str
    is_active: bool


def log_folder(runs: Path, run: str) -> Path:
    """Folder of the logs of a run's jobs, or of the arrays whose first run it is."""
    return runs / LOGS / run


def job_name(first: str) -> str:
    """Name in the queue of the array whose first run has the request `first`."""
    return f"comt-{first}"


def job_of(runs: Path, spec: RunSpec) -> Job | None:
    """The last job of `spec`; None if there is none. Raises `UserError` if its file is damaged."""
    file = log_folder(runs, spec.request) / JOB_FILE
    try:
        noted = read_json(file)
        number, first = str(noted["job"]), str(noted.get("array", spec.request))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        remedy = if_damaged("Delete it if no job of this run is queued.", error)
        raise UserError(f"{file} cannot be read: {error}", remedy) from None
    return Job(number, job_name(first), spec.request, log_folder(runs, first) / f"{number}_0_log.out")


def ask(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The answer of one of Slurm's programs. Raises `UserError` if it is missing or does not end in time."""
    path = shutil.which(program)
    if path is None:
        raise UserError(f"{program} is not on this machine", "Use a login node of the cluster.")
    try:
        return subprocess.run([path, *arguments], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{program} does not answer: {error}") from None


def ask_squeue(jobs: Iterable[Job]) -> dict[str, str]:
    """The states, as text by request, of those `jobs` that are waiting or running. Raises `UserError` if squeue is
    missing or does not answer."""
    runs = {(job.number, job.name): job.run for job in jobs}
    if not runs:
        return {}
    # Of an array every task, since squeue would sum up those that wait: 12_[3-7].
    arrays = dict.fromkeys(number.partition("_")[0] for number, _ in runs)
    done = ask("squeue", "--noheader", "--array", f"--jobs={','.join(arrays)}", "--format=%i|%T|%N|%j")
    # For a single job that has ended, squeue reports an invalid number; of several it leaves that one out.
    if done.returncode and "Invalid job id" not in done.stderr:
        raise UserError(f"squeue does not answer: {done.stderr.strip() or f'status {done.returncode}'}")
    states = {}
    for line in done.stdout.splitlines():
        number, state, node, name = [*line.strip().split("|", 3), *[""] * 3][:4]
        if (run := runs.get((number, name))) is not None:
            where = f" on {node}" if node else ""
            states[run] = f"queued (job {number})" if state in _WAITING else f"running (job {number}{where})"
    return states


def job_standings(specs: Iterable[RunSpec], runs: Path) -> dict[str, JobStanding]:
    """The last job of each of `specs` (which have no result), by request. Damaged job files are skipped."""
    jobs: dict[str, Job] = {}
    for spec in specs:
        with contextlib.suppress(UserError):
            if (job := job_of(runs, spec)) is not None:
                jobs[job.run] = job
    gone = {run: f"failed (job {job.number}, see {job.log})" for run, job in jobs.items()}
    try:
        states = ask_squeue(jobs.values())
    except UserError as silence:
        states = {}
        gone = {run: f"submitted to Slurm (job {job.number}; {silence.message})" for run, job in jobs.items()}
    return {run: JobStanding(jobs[run].number, states.get(run, gone[run]), run in states) for run in jobs}
