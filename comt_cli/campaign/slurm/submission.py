"""Submission of runs as Slurm array jobs through `submitit`, one run per task, and the work of a task. When Slurm warns
a task of its time limit (SIGUSR2), it finishes the step, saves, and submitit requeues it under the same number; after
the failure of a node Slurm does so. It resumes from its checkpoint, in the same log. Torch-free."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from comt_cli.campaign.slurm.jobs import JOB_FILE, Job, ask, ask_squeue, job_name, job_of, log_folder
from comt_cli.campaign.slurm.site import Site
from comt_cli.errors import RunInterrupted, StorageError, UserError
from comt_cli.files import make_folder, write_json
from comt_cli.installing import install_extra
from comt_cli.runs.directory import RunState
from comt_cli.runs.known import SharedRun, adopt_contents, link_runs, needed_runs, set_aside, shared_runs
from comt_cli.runs.plan import RunSpec
from comt_cli.training.processes import check_device, end_process, is_main_process, rank_and_size, share_of_batch
from comt_cli.training.trackers import VARIABLE, trackers_in_use

WARNING_SIGNAL = signal.SIGUSR2
"""Signal that Slurm sends before the time limit; submitit chose it for requeueing."""


class Submission(NamedTuple):
    """The outcome for one run: its job, new or queued earlier; None if its state needs no job."""

    spec: RunSpec
    state: RunState
    job: Job | None
    is_new: bool


class TrainJob:
    """The work of a task; submitit stores it, and calls it again after every requeue, in each of its processes."""

    def __call__(self, spec: dict[str, Any], runs: str, device: str | None, trackers: list[str]) -> None:
        """Train one run (`spec`: a `RunSpec` as plain data) to its end, or until Slurm's warning. Raises `SystemExit`
        if the run failed or was stopped; the log has the reason. One of several processes ends here."""
        from comt_cli.campaign.executor import train_on

        os.environ[VARIABLE] = ",".join(trackers)
        _join_processes()
        status = 0
        try:
            summary = train_on(1, [RunSpec.model_validate(spec)], Path(runs), device, 1)
            if not all(outcome.ended for outcome in summary.outcomes):
                status = 1  # the reason was printed: it failed, or is trained elsewhere
        except UserError as error:
            if is_main_process() or not isinstance(error, RunInterrupted):
                print(f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S} comt: {error}", file=sys.stderr, flush=True)
            if isinstance(error, RunInterrupted) and error.signal_number == WARNING_SIGNAL:
                # Everything is saved, and submitit's handler is active again: in the first process it requeues the job
                # and ends it, in the others it does nothing.
                signal.raise_signal(WARNING_SIGNAL)
            else:
                status = error.exit_status
        if rank_and_size():
            end_process(status)
        if status:
            raise SystemExit(status)

    def checkpoint(self, *arguments: Any) -> Any:
        """The call that submitit requeues: the same call. The run resumes from its own checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments)


def _join_processes() -> None:
    """Set the variables with which torchrun would start this process, if the run has several."""
    from submitit import JobEnvironment

    job = JobEnvironment()
    if job.num_tasks > 1:
        port = 10_000 + int(job.raw_job_id) % 20_000  # below those that Linux gives to clients
        here = {"RANK": job.global_rank, "LOCAL_RANK": job.local_rank, "WORLD_SIZE": job.num_tasks}
        here |= {"MASTER_ADDR": job.hostnames[0], "MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in here.items()}


def submit(specs: Sequence[RunSpec], runs: Path, device: str | None, site: Site) -> Iterator[Submission]:
    """Submit each distinct run of `specs` that has no result, is not being trained and has no queued job, and the runs
    from whose weights they start: in one array of tasks, or several if the cluster limits their size. Runs that wait
    for the same source are an array of their own, which begins after the source's job, also after a failure
    (`afterany`): with `afterok` or `aftercorr` it would stay in the queue for ever. Raises `UserError` if a batch does
    not divide among the processes, or if submitit or Slurm is missing, does not answer or refuses a job;
    `StorageError`."""
    executor_class, processes = _executor_class(), site.nodes * site.processes
    check_device(device, processes)
    distinct = needed_runs(adopt_contents(specs, runs, ambiguous=True), runs)
    for shared in distinct:
        share_of_batch(shared.spec.settings.train.batch_size, processes)
    sources = {shared.spec.source.id for shared in distinct if shared.spec.source is not None}
    states = {shared.id: shared.directory(runs).state() for shared in distinct}
    is_open = {name: state in (RunState.missing, RunState.unfinished) for name, state in states.items()}
    asked = {name for name in states if is_open[name] or (name in sources and states[name] is RunState.running)}
    jobs = {each.id: job for each in distinct if each.id in asked and (job := job_of(runs, each.spec)) is not None}
    queued = ask_squeue(jobs.values())
    numbers = {run: job.number for run, job in jobs.items() if job.run in queued}
    left = {shared.id: shared for shared in distinct if is_open[shared.id] and shared.spec.request not in queued}
    for shared in distinct:
        if shared.id not in left:
            job = jobs.get(shared.id) if is_open[shared.id] else None
            yield Submission(shared.spec, states[shared.id], job, False)
    size = site.array_size or (max_array_size() if len(left) > 1 else 1)
    # A job with a GPU must not fall back to the CPU.
    call = (str(runs.resolve()), device or ("cuda" if site.gpus else None), trackers_in_use())
    while left:
        groups: dict[str | None, list[SharedRun]] = {}
        for shared in left.values():
            source = None if shared.directory(runs).is_begun else shared.spec.source
            if source is None or source.id not in left:
                groups.setdefault(None if source is None else numbers.get(source.id), []).append(shared)
        for after, group in groups.items():
            for begin in range(0, len(group), size):
                array = group[begin : begin + size]
                submitted = _submit_array(executor_class, array, runs, site, after, call)
                for shared, number in zip(array, submitted, strict=True):
                    numbers[shared.id] = number
                    del left[shared.id]
                    yield Submission(shared.spec, states[shared.id], job_of(runs, shared.spec), True)


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


def max_array_size() -> int:
    """The most tasks of an array on this cluster: its MaxArraySize, by which their numbers, from 0 on, are limited; 1
    if it has no arrays. Raises `UserError` if Slurm does not say."""
    done = ask("scontrol", "show", "config")
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)\s*$", done.stdout, re.MULTILINE)
    if found is None:
        reason = done.stderr.strip() or f"status {done.returncode}"
        wrong = f"scontrol does not say the cluster's MaxArraySize: {reason}"
        raise UserError(wrong, "State it in the site file: array_size: 1000")
    return max(1, int(found[1]))


def sbatch_parameters(site: Site, specs: Sequence[RunSpec], logs: Path, after: str | None = None) -> dict[str, Any]:
    """The parameters of submitit's Slurm executor for an array of `specs`, or the job of one, with the log folder
    `logs`. `after` is the number of a job that must end before."""
    further: dict[str, Any] = {"requeue": True}  # some clusters do not requeue by default
    further |= {name: value for name, value in site.sbatch.items() if value is not False}
    if after is not None:  # in addition to the site file's dependency
        further["dependency"] = ",".join([*map(str, filter(None, [further.get("dependency")])), f"afterany:{after}"])
    number, threads = "%A_%a" if len(specs) > 1 else "%j", max(1, site.cpus // site.processes)
    parameters = {
        "job_name": job_name(specs[0].request),
        "comment": os.path.commonpath([spec.relative_path for spec in specs]) or None,
        "time": site.time,
        "nodes": site.nodes,
        "gpus_per_node": site.gpus or None,
        "ntasks_per_node": site.processes,
        "cpus_per_task": threads,
        "mem": site.memory,
        "array_parallelism": site.at_once or len(specs),
        "signal_delay_s": site.warning,
        "stderr_to_stdout": True,
        # The same number of threads at every start of a run: it decides the last bits.
        "setup": [f"export OMP_NUM_THREADS={threads}", *site.setup],
        "srun_args": [
            f"--cpus-per-task={threads}",  # since Slurm 22.05 a step does not inherit it
            "--kill-on-bad-exit=1",  # the other processes of the run would wait for one that failed
            f"--output={logs}/{number}_0_log.out",  # one log of all processes
        ],
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
            wrong = f"--slurm needs {program}, which is not on this machine"
            raise UserError(wrong, "Use a login node of the cluster.")
    return SlurmExecutor


def _submit_array(
    executor_class: Any, array: Sequence[SharedRun], runs: Path, site: Site, after: str | None, call: tuple[Any, ...]
) -> list[str]:
    """Submit runs as one array, and note their jobs. `call` are the further arguments of `TrainJob`. Returns the
    numbers."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    for shared in array:
        make_folder(log_folder(runs, shared.spec.request))
        if shared.spec.is_known:  # else the job prepares the data first, and the hash of the data names the directory
            shared.directory(runs).create(shared.spec)
            link_runs(shared.specs, runs)
    specs = [shared.spec for shared in array]
    first = specs[0].request
    folder = log_folder(runs, first).resolve()
    executor = executor_class(folder=folder, max_num_timeout=site.requeues)
    executor.update_parameters(**sbatch_parameters(site, specs, folder, after))
    try:
        plain = [spec.model_dump(mode="json") for spec in specs]
        jobs = executor.map_array(TrainJob(), plain, *([each] * len(specs) for each in call))
    except (FailedJobError, FailedSubmissionError, subprocess.CalledProcessError) as error:
        reasons = [line for line in str(error).splitlines() if "sbatch: error" in line] or [str(error)]
        hint = "Earlier jobs stay in the queue. Fix the reason; the same command then submits the rest."
        raise UserError(f"Slurm refused a job: {' '.join(reasons)}", hint) from None
    except OSError as error:
        raise StorageError(f"cannot submit a job: {error}") from error
    numbers = [str(job.job_id) for job in jobs]
    for spec, number in zip(specs, numbers, strict=True):
        write_json(log_folder(runs, spec.request) / JOB_FILE, {"job": number, "array": first})
    return numbers
