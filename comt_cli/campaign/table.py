"""A list of runs, one after the other in this process: finished ones are skipped, unfinished ones are resumed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from comt_cli.campaign.attempt import attempt
from comt_cli.campaign.display import Display
from comt_cli.campaign.opening import Workload
from comt_cli.campaign.outcomes import Ending, RunOutcome, Summary, TrainingFailed
from comt_cli.campaign.plain_display import make_display
from comt_cli.campaign.preparing import prepare_all
from comt_cli.campaign.queue import RunQueue
from comt_cli.errors import RunInterrupted, UserError
from comt_cli.models.accounting import check_methods
from comt_cli.runs.plan import RunSpec
from comt_cli.runs.shared import SharedRun
from comt_cli.tasks.base import AnyDataset
from comt_cli.training.devices import device_name
from comt_cli.training.events import Event
from comt_cli.training.parallel import World, join_world, share_of_batch
from comt_cli.training.processes import StopSignal, is_main_process
from comt_cli.training.start import check_starts

WAIT = "wait"
"""What processes receive instead of a run's id."""
WAIT_SECONDS = 1.0


def train_table(specs: Sequence[RunSpec], runs: Path, device: str | None) -> Summary:
    """Train every run of `specs` that has no result yet, in this process and those that torchrun started beside it.

    A run that fails does not keep the others from being trained, and is no error here: the summary has its reason
    (`Summary.check` raises it). A run that another process is training is left to that one.

    Raises:
        UserError: the data cannot be prepared, or there is no such device: nothing was started. With several
            processes also a run that failed (`TrainingFailed`).
        RunInterrupted: a signal came; the state is saved.
        StorageError: something could not be written; runs that were finished stay finished.
    """
    queue, display = RunQueue(specs, runs), make_display(is_main_process())
    try:
        with StopSignal(display.stopping) as stop:
            return train_queue(queue, device, display, stop)
    finally:
        display.close()


def train_queue(
    queue: RunQueue,
    device: str | None,
    display: Display,
    stop: StopSignal,
    datasets: Mapping[str, AnyDataset] | None = None,
) -> Summary:
    """`train_table` for a queue that is made already, which has the outcome of each run, also after an error.

    `datasets` are the queue's, where they are prepared already.
    """
    with join_world(device) as world:
        _train_all(queue, world, display, stop, datasets)
    return queue.summary()


def _train_all(
    queue: RunQueue,
    world: World,
    display: Display,
    stop: StopSignal,
    datasets: Mapping[str, AnyDataset] | None = None,
) -> None:
    for shared in queue.every:
        share_of_batch(shared.spec.settings.train.batch_size, world)
    if datasets is None:
        datasets = prepare_all(queue, display.preparing, stop)
    check_methods(shared.spec for shared in queue.open if not shared.directory(queue.runs).is_begun)
    check_starts(shared.spec for shared in queue.open)
    by_id = {shared.id: shared for shared in queue.every}
    display.queue_started(Workload.of(queue, [str(world.device)], device_name(world.device), world.size))

    def show(event: Event) -> None:
        display.run_event(0, event)
        display.tick()

    tried = 0
    while True:
        run_id = world.broadcast(_next_run(queue, display, stop) if world.is_main else None)
        if run_id is None:
            return
        if isinstance(run_id, RunInterrupted):
            raise run_id
        if run_id == WAIT:  # sent again and again: no process waits for another longer than that
            continue
        assert isinstance(run_id, str)
        shared = _same_run(by_id, run_id)
        dataset = datasets.get(shared.spec.data_fingerprint) or shared.spec.task.prepare(shared.spec.settings)
        display.run_taken(0, shared.spec)
        try:
            outcome = attempt(shared, queue.runs, dataset, world, show, stop)
        except RunInterrupted as error:
            queue.record(RunOutcome.of(shared, queue.runs, Ending.left, error.message))
            raise
        except UserError as error:
            # As in `attempt`: earlier runs were begun.
            if error.exit_status == UserError.exit_status and tried:
                raise TrainingFailed(error.message, error.hint) from error
            raise
        tried += 1
        queue.record(outcome)
        display.run_ended(0, outcome)


def _next_run(queue: RunQueue, display: Display, stop: StopSignal) -> str | RunInterrupted | None:
    """The id of the next run; `WAIT`, after a moment, where it waits for what another process trains, or the error
    of a signal that ends the waiting; None where nothing is left."""
    taken = queue.take()
    if taken is not None:
        return taken.id
    awaited = queue.awaited
    if awaited is None:
        return None
    if stop.number is not None:
        return RunInterrupted(f"stopped while {awaited}", "The same command resumes from there.", stop.number)
    display.waiting(awaited)
    time.sleep(WAIT_SECONDS)
    display.tick()
    return WAIT


def _same_run(by_id: Mapping[str, SharedRun], run_id: str) -> SharedRun:
    """The run that the main process has taken. Raises `UserError` where this process has other data prepared."""
    if run_id not in by_id:
        raise UserError(
            f"the first process trains run {run_id}, which is none on the data that is prepared here",
            "All processes must see the same data: put the cache (COMT_CACHE) on a file system that they share.",
        )
    return by_id[run_id]
