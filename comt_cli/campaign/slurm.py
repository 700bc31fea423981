"""`--slurm`: the site file with the resources of a cluster's jobs (plain YAML; errors name their lines); submission of
every run as one job through `submitit`; the work of a job; and the jobs of runs, by `squeue`. When Slurm warns a job of
its time limit (SIGUSR2), the job finishes the step, saves, and submitit requeues it under the same number; it resumes
from its checkpoint, in the same log. Torch-free."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from comt_cli.errors import RunInterrupted, StorageError, UserError
from comt_cli.files import if_damaged, read_json, write_json
from comt_cli.installing import install_extra
from comt_cli.recipe.problems import Problem, RecipeError, read, validate
from comt_cli.recipe.settings import Section, matching
from comt_cli.runs.directory import RunState
from comt_cli.runs.known import adopt_contents, link_runs, needed_runs, set_aside, shared_runs
from comt_cli.runs.plan import RunSpec
from comt_cli.training.trackers import VARIABLE, trackers_in_use

WARNING_SIGNAL = signal.SIGUSR2
"""Signal that Slurm sends before the time limit; submitit chose it for requeueing."""
UNFINISHED_STATUS = 1
JOB_FILE: Final = "job.json"
"""Next to the logs of a run's jobs: the number of its last job."""
LOGS: Final = "slurm"
"""Folder of the job logs, below the run directories."""
ANSWER_SECONDS = 30.0
_TIME = re.compile(
    r"(?:(?P<days>\d+)-(?=\d+(?::\d\d){0,2}$)|(?=\d+:\d\d:\d\d$))"
    r"(?P<hours>\d+)(?::(?P<minutes>[0-5]\d)(?::(?P<seconds>[0-5]\d))?)?"
)
_OPTION = re.compile(r"[a-z][a-z0-9-]*")
_SAID: Final = re.compile(
    "account|constraint|partition|qos|time|gres|gpus(-per-(node|socket|task))?|cpus-per-task|mem|(no-)?requeue|signal|"
    "array|chdir|error|job-name|nodes|ntasks|ntasks-per-node|open-mode|output|parsable|test-only|wait|wrap"
)
"""Options of sbatch that have a key in the site file, or that `--slurm` sets itself: one job per run, on one node."""


def minutes(value: object) -> object:
    """Slurm's H:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS in whole minutes, rounded up; a value that is no text is returned
    unchanged. Raises `ValueError` for other text, including MM:SS: `12:00` looks like twelve hours."""
    if not isinstance(value, str):
        return value
    found = _TIME.fullmatch(value)
    if found is None:
        raise ValueError(f"{value!r} is not a time; write hours as 12:00:00, two days as 2-00, or minutes as a number")
    days, hours, minute, second = (int(found[key] or 0) for key in ("days", "hours", "minutes", "seconds"))
    return -(-(((days * 24 + hours) * 60 + minute) * 60 + second) // 60)


def _option_names(values: dict[str, Any]) -> dict[str, Any]:
    for name in values:
        if _SAID.fullmatch(name):
            raise ValueError(f"{name} has its own key in the site file, or is set by comt")
        if not _OPTION.fullmatch(name):
            raise ValueError(f"{name!r} is not a long option of sbatch; omit the dashes, for example mail-type")
    return values


Text = Annotated[str, matching(r"[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+", "should be one line of text")]
Memory = Annotated[str, matching(r"[1-9]\d*[KMGT]", "is not an amount of memory; write a number and a unit: 32G")]


class Site(Section):
    """Resources and options of every job. `time` limits one start of a job, in minutes (files may use Slurm's format).
    `warning` seconds before the limit the run stops and saves, and its job is requeued, at most `requeues` times.
    `cpus` and `memory` are for the whole job; `gpus` share every batch. `sbatch` holds further options by their long
    names (`true` for options without a value), `setup` the shell lines at the start of a job."""

    model_config = ConfigDict(strict=True)

    time: Annotated[PositiveInt, BeforeValidator(minutes)]
    partition: Text | None = None
    gpus: NonNegativeInt = 0
    cpus: PositiveInt = 1
    memory: Memory | None = None
    account: Text | None = None
    qos: Text | None = None
    constraint: Text | None = None
    sbatch: Annotated[dict[str, Text | int | bool], AfterValidator(_option_names)] = Field(default_factory=dict)
    setup: tuple[Text, ...] = ()
    warning: PositiveInt = 120
    requeues: NonNegativeInt = 100

    @property
    def processes(self) -> int:
        """The number of processes per run: one per GPU, or one."""
        return max(1, self.gpus)

    @model_validator(mode="after")
    def _leaves_time_to_train(self) -> Self:
        if self.warning >= self.time * 60:
            raise ValueError(f"warning: {self.warning} seconds are not less than the time of a job")
        return self


def read_site(path: Path) -> Site:
    """Read and check a site file. Raises `RecipeError` with all problems and their lines."""
    document = read(path)
    if isinstance(document.data, dict):
        site = validate(Site, document.data, document)
        if site is not None and not document.problems:
            return site
    else:
        document.problems.append(Problem("", "should be a group of keys, for example time: 12:00:00", 1))
    raise RecipeError(path, document.problems)


# ---- submission


class Submission(NamedTuple):
    """The outcome for one run: its job, new or queued earlier; None if its state needs no job."""

    spec: RunSpec
    state: RunState
    job: Job | None
    is_new: bool


class TrainJob:
    """The work of a job; submitit stores it, and calls it again after every requeue."""

    def __call__(
        self, spec: dict[str, Any], runs: str, device: str | None, processes: int, trackers: list[str]
    ) -> None:
        """Train one run (`spec`: a `RunSpec` as plain data) to its end, or until Slurm's warning. Raises `SystemExit`
        if the run failed or was stopped; the log has the reason."""
        from comt_cli.campaign.executor import train_on

        os.environ[VARIABLE] = ",".join(trackers)
        try:
            summary = train_on(processes, [RunSpec.model_validate(spec)], Path(runs), device, 1)
        except UserError as error:
            print(f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S} comt: {error}", file=sys.stderr, flush=True)
            if not (isinstance(error, RunInterrupted) and error.signal_number == WARNING_SIGNAL):
                raise SystemExit(error.exit_status) from None
            # Everything is saved, and submitit's handler is active again: it requeues the job and ends it.
            signal.raise_signal(WARNING_SIGNAL)
        else:
            if not all(outcome.ended for outcome in summary.outcomes):
                raise SystemExit(UNFINISHED_STATUS)  # the reason was printed: it failed, or is trained elsewhere

    def checkpoint(self, *arguments: Any) -> Any:
        """The call that submitit requeues: the same call. The run resumes from its own checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments)


def submit(specs: Sequence[RunSpec], runs: Path, device: str | None, site: Site) -> Iterator[Submission]:
    """Submit each distinct run of `specs` that has no result, is not being trained and has no queued job, preceded by
    the runs from whose weights they start. The job of such a run begins after its source's job, also after a failure
    (`afterany`): with `afterok` it would stay in the queue for ever. Raises `UserError` if submitit or Slurm is
    missing, does not answer or refuses a job; `StorageError`."""
    executor_class = _executor_class()
    distinct = needed_runs(adopt_contents(specs, runs, ambiguous=True), runs)
    sources = {shared.spec.source.id for shared in distinct if shared.spec.source is not None}
    states = {shared.id: shared.directory(runs).state() for shared in distinct}
    is_open = {name: state in (RunState.missing, RunState.unfinished) for name, state in states.items()}
    asked = {name for name in states if is_open[name] or (name in sources and states[name] is RunState.running)}
    jobs = {each.id: job for each in distinct if each.id in asked and (job := job_of(runs, each.spec)) is not None}
    queued = ask_squeue(jobs.values())
    numbers = {run: job.number for run, job in jobs.items() if job.run in queued}
    for shared in distinct:
        spec, directory, source = shared.spec, shared.directory(runs), shared.spec.source
        if not is_open[shared.id] or spec.request in queued:
            job = jobs.get(shared.id) if is_open[shared.id] else None
            yield Submission(spec, states[shared.id], job, False)
            continue
        if spec.is_known:  # else the job prepares the data first, and the hash of the data names the directory
            directory.create(spec)
            link_runs(shared.specs, runs)
        executor = executor_class(folder=log_folder(runs, spec.request).resolve(), max_num_timeout=site.requeues)
        after = numbers.get(source.id) if source is not None and not directory.is_begun else None
        executor.update_parameters(**sbatch_parameters(site, spec, after))
        # A job with a GPU must not fall back to the CPU.
        wanted = device or ("cuda" if site.gpus else None)
        arguments = (spec.model_dump(mode="json"), str(runs.resolve()), wanted, site.processes, trackers_in_use())
        numbers[shared.id] = _submit_one(executor, arguments)
        write_json(log_folder(runs, spec.request) / JOB_FILE, {"job": numbers[shared.id]})
        yield Submission(spec, states[shared.id], job_of(runs, spec), True)


def begin_anew(specs: Sequence[RunSpec], runs: Path) -> list[Path]:
    """Move the run directories of `specs` aside, so that jobs train them again; returns the new folders. Raises
    `UserError` if one of the runs is in Slurm's queue, or Slurm does not answer."""
    _executor_class()
    jobs = [job for shared in shared_runs(specs) if (job := job_of(runs, shared.spec)) is not None]
    queued = ask_squeue(jobs)
    if numbers := [job.number for job in jobs if job.run in queued]:
        wrong = f"--fresh: {len(numbers)} of these runs are in Slurm's queue"
        raise UserError(wrong, f"End their jobs first: scancel {' '.join(numbers)}")
    return set_aside(adopt_contents(specs, runs, ambiguous=True), runs)


def sbatch_parameters(site: Site, spec: RunSpec, after: str | None = None) -> dict[str, Any]:
    """The parameters of submitit's Slurm executor. `after` is the number of a job that must end before this one."""
    further: dict[str, Any] = {"requeue": True}  # some clusters do not requeue by default
    further |= {name: value for name, value in site.sbatch.items() if value is not False}
    if after is not None:  # in addition to the site file's dependency
        further["dependency"] = ",".join([*map(str, filter(None, [further.get("dependency")])), f"afterany:{after}"])
    parameters = {
        "job_name": f"comt-{spec.request}",
        "comment": f"{spec.relative_path}",
        "time": site.time,
        "gpus_per_node": site.gpus or None,
        "cpus_per_task": site.cpus,
        "mem": site.memory,
        "ntasks_per_node": 1,  # comt starts the processes that share a batch itself
        "signal_delay_s": site.warning,
        "stderr_to_stdout": True,
        # The same number of threads at every start of a run: it decides the last bits.
        "setup": [f"export OMP_NUM_THREADS={max(1, site.cpus // site.processes)}", *site.setup],
        # Since Slurm 22.05 a step does not inherit the number of CPUs per task.
        "srun_args": [f"--cpus-per-task={site.cpus}"],
        "additional_parameters": further,
        **site.model_dump(include={"partition", "account", "qos", "constraint"}),
    }
    return {name: value for name, value in parameters.items() if value is not None}


def _executor_class() -> Any:
    try:
        from submitit import SlurmExecutor
    except ImportError:
        raise UserError("--slurm needs the package submitit, which is missing", install_extra("slurm")) from None
    for program in ("sbatch", "srun"):
        if shutil.which(program) is None:
            raise UserError(
                f"--slurm needs {program}, which is not on this machine", "Use a login node of the cluster."
            )
    return SlurmExecutor


def _submit_one(executor: Any, arguments: tuple[Any, ...]) -> str:
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        return str(executor.submit(TrainJob(), *arguments).job_id)
    except (FailedJobError, FailedSubmissionError, subprocess.CalledProcessError) as error:
        reasons = [line for line in str(error).splitlines() if "sbatch: error" in line] or [str(error)]
        hint = "Earlier jobs stay in the queue. Fix the reason; the same command then submits the rest."
        raise UserError(f"Slurm refused a job: {' '.join(reasons)}", hint) from None
    except OSError as error:
        raise StorageError(f"cannot submit a job: {error}") from error


# ---- which run is in which job

_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})


class Job(NamedTuple):
    """A job of the run with the request `run` (`RunSpec.request`: a run has no id before its data is prepared)."""

    number: str
    run: str
    log: Path


class JobStanding(NamedTuple):
    """A job's number, and its state as text, `queued (job 12)`. `is_active`: squeue lists it as waiting or running."""

    number: str
    words: str
    is_active: bool


def log_folder(runs: Path, run: str) -> Path:
    """Folder of a run's job logs."""
    return runs / LOGS / run


def job_of(runs: Path, spec: RunSpec) -> Job | None:
    """The last job of `spec`; None if there is none. Raises `UserError` if its file is damaged."""
    folder = log_folder(runs, spec.request)
    try:
        number = read_json(folder / JOB_FILE)["job"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        remedy = if_damaged("Delete it if no job of this run is queued.", error)
        raise UserError(f"{folder / JOB_FILE} cannot be read: {error}", remedy) from None
    return Job(str(number), spec.request, folder / f"{number}_0_log.out")


def ask_squeue(jobs: Iterable[Job]) -> dict[str, str]:
    """The states, as text by request, of those `jobs` that are waiting or running. Raises `UserError` if squeue is
    missing or does not answer."""
    asked = {job.number: job.run for job in jobs}
    if not asked:
        return {}
    program = shutil.which("squeue")
    if program is None:
        raise UserError("squeue is not on this machine", "Use a login node of the cluster.")
    command = [program, "--noheader", f"--jobs={','.join(asked)}", "--format=%i|%T|%N|%j"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"squeue does not answer: {error}") from None
    # For a single job that has ended, squeue reports an invalid number; of several it leaves that one out.
    if done.returncode and "Invalid job id" not in done.stderr:
        raise UserError(f"squeue does not answer: {done.stderr.strip() or f'status {done.returncode}'}")
    states = {}
    for line in done.stdout.splitlines():
        number, state, node, name = [*line.strip().split("|", 3), *[""] * 3][:4]
        if number in asked and name == f"comt-{asked[number]}":
            where = f" on {node}" if node else ""
            words = f"queued (job {number})" if state in _WAITING else f"running (job {number}{where})"
            states[asked[number]] = words
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
