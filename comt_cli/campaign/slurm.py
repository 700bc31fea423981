"""`--slurm`: the site file, which has what a job of one cluster asks for (plain YAML, errors with lines); every run as
a job of its own, through `submitit`; the work of such a job; and which run is in which job, as `squeue` says it. A job
that Slurm warns of its time limit (SIGUSR2) finishes the step, saves, and has itself requeued by submitit under the
same number; it resumes from its checkpoint, in the same log. Torch-free."""

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
"""Signal that Slurm sends before the time limit; submitit's choice, which its requeueing listens to."""
UNFINISHED_STATUS = 1
JOB_FILE: Final = "job.json"
"""Next to the logs of a run's jobs: the number of the last one that it was given to."""
LOGS: Final = "slurm"
"""The folder of the jobs' logs, below the run directories."""
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
"""sbatch's options that have a key of their own, and those on which `--slurm` relies: one job a run, on one node."""


def minutes(value: object) -> object:
    """Slurm's H:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS in whole minutes, rounded up; what is no text as it is. Raises
    `ValueError` for any other text, MM:SS too: `12:00` looks like twelve hours."""
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
            raise ValueError(f"{name} is said by a key of the site file, or decided by comt")
        if not _OPTION.fullmatch(name):
            raise ValueError(f"{name!r} is no long option of sbatch; write one without dashes, for instance mail-type")
    return values


Text = Annotated[str, matching(r"[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+", "should be one line of text")]
Memory = Annotated[str, matching(r"[1-9]\d*[KMGT]", "is not an amount of memory; write a number and unit, such as 32G")]


class Site(Section):
    """Resources and options of every job. `time` limits one start of a job, in minutes (a file may have Slurm's text).
    `warning` seconds before its end the run stops, saves, and its job is requeued, at most `requeues` times. `cpus` and
    `memory` are the whole job's; `gpus` share every batch. `sbatch` holds further options by their long names, `true`
    for one without a value; `setup` the lines of shell that a job begins with."""

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
        """The processes that train a run: one a GPU, one without."""
        return max(1, self.gpus)

    @model_validator(mode="after")
    def _leaves_time_to_train(self) -> Self:
        if self.warning >= self.time * 60:
            raise ValueError(f"warning: {self.warning} seconds are all of the time that a job has")
        return self


def read_site(path: Path) -> Site:
    """Read and check a site file. Raises `RecipeError` with everything that is wrong, each with its line."""
    document = read(path)
    if isinstance(document.data, dict):
        site = validate(Site, document.data, document)
        if site is not None and not document.problems:
            return site
    else:
        document.problems.append(Problem("", "should be a group of keys, for instance time: 12:00:00", 1))
    raise RecipeError(path, document.problems)


# ---- submission


class Submission(NamedTuple):
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
        """Train one run (`spec`: a `RunSpec` as plain data) to its end, or until Slurm's warning. Raises `SystemExit`
        where it could not be trained, or was asked to stop; the log says why."""
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
    """Submit each distinct run of `specs` that has no result, is not being trained and is in no queued job; before them
    the runs from whose weights they start. A job of a started run begins after its source's job, however that ended
    (`afterany`): with `afterok` it would stay in the queue for ever. Raises `UserError` where submitit or Slurm is not
    there, does not answer or refuses, and `StorageError`."""
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
        if spec.is_known:  # else its directory is known once the job has prepared the data
            directory.create(spec)
            link_runs(shared.specs, runs)
        executor = executor_class(folder=log_folder(runs, spec.request).resolve(), max_num_timeout=site.requeues)
        after = numbers.get(source.id) if source is not None and not directory.is_begun else None
        executor.update_parameters(**sbatch_parameters(site, spec, after))
        # A job that paid for a GPU must not fall back on the CPU.
        wanted = device or ("cuda" if site.gpus else None)
        arguments = (spec.model_dump(mode="json"), str(runs.resolve()), wanted, site.processes, trackers_in_use())
        numbers[shared.id] = _submit_one(executor, arguments)
        write_json(log_folder(runs, spec.request) / JOB_FILE, {"job": numbers[shared.id]})
        yield Submission(spec, states[shared.id], job_of(runs, spec), True)


def begin_anew(specs: Sequence[RunSpec], runs: Path) -> list[Path]:
    """Move the run directories of `specs` out of the way, so that jobs train them anew; returns where they went. Raises
    `UserError` where a job is about to train one of them, or Slurm does not answer."""
    _executor_class()
    jobs = [job for shared in shared_runs(specs) if (job := job_of(runs, shared.spec)) is not None]
    queued = ask_squeue(jobs)
    if numbers := [job.number for job in jobs if job.run in queued]:
        said = f"--fresh: {len(numbers)} of these runs are in Slurm's queue"
        raise UserError(said, f"End their jobs first: scancel {' '.join(numbers)}")
    return set_aside(adopt_contents(specs, runs, ambiguous=True), runs)


def sbatch_parameters(site: Site, spec: RunSpec, after: str | None = None) -> dict[str, Any]:
    """The parameters of submitit's Slurm executor. `after` is the number of a job that must have ended before."""
    further: dict[str, Any] = {"requeue": True}  # also where the cluster's default is that jobs are not requeued
    further |= {name: value for name, value in site.sbatch.items() if value is not False}
    if after is not None:  # and what the site file waits for
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
        raise UserError("--slurm needs the package submitit, which is missing", install_extra("slurm")) from None
    for program in ("sbatch", "srun"):
        if shutil.which(program) is None:
            raise UserError(f"--slurm needs Slurm, but {program} is not on this machine", "Use a login node.")
    return SlurmExecutor


def _submit_one(executor: Any, arguments: tuple[Any, ...]) -> str:
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        return str(executor.submit(TrainJob(), *arguments).job_id)
    except (FailedJobError, FailedSubmissionError, subprocess.CalledProcessError) as error:
        reasons = [line for line in str(error).splitlines() if "sbatch: error" in line] or [str(error)]
        hint = "What was submitted before stays; the same command submits the rest, once the reason is fixed."
        raise UserError(f"Slurm refused a job: {' '.join(reasons)}", hint) from None
    except OSError as error:
        raise StorageError(f"cannot submit a job: {error}") from error


# ---- which run is in which job

_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})


class Job(NamedTuple):
    """A job for the run that is asked for as `run` (`RunSpec.request`: before its data is prepared it has no id)."""

    number: str
    run: str
    log: Path


class JobStanding(NamedTuple):
    """A job's number, and its state in words, `queued (job 12)`. `is_active`: Slurm says that it waits or runs."""

    number: str
    words: str
    is_active: bool


def log_folder(runs: Path, run: str) -> Path:
    """The folder of a run's job logs."""
    return runs / LOGS / run


def job_of(runs: Path, spec: RunSpec) -> Job | None:
    """The job that `spec` was last given to; None if there is none. Raises `UserError` if its file is damaged."""
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
    """By request, the states in words of those of `jobs` that Slurm has not done with. Raises `UserError` where there
    is no squeue on this machine, or it gets no answer."""
    asked = {job.number: job.run for job in jobs}
    if not asked:
        return {}
    program = shutil.which("squeue")
    if program is None:
        raise UserError("squeue is not on this machine", "Ask on one that submits to the cluster.")
    command = [program, "--noheader", f"--jobs={','.join(asked)}", "--format=%i|%T|%N|%j"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"squeue does not answer: {error}") from None
    # Asked for a single job that it has forgotten, squeue calls its number invalid; of several it leaves it out.
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
    """By request, the last job of each of `specs`, which have no result. One damaged file hides no other."""
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
        gone = {run: f"given to Slurm (job {job.number}; {silence.message})" for run, job in jobs.items()}
    return {run: JobStanding(jobs[run].number, states.get(run, gone[run]), run in states) for run in jobs}
