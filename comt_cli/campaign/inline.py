"""Training of runs one after another in this process, and in the processes that share their batches."""

from __future__ import annotations

import contextlib
import gc
import traceback
from collections.abc import Mapping
from pathlib import Path

import torch

from comt_cli import __version__
from comt_cli.campaign.display import Display
from comt_cli.campaign.queue import Ending, RunOutcome, RunQueue, TrainingFailed, run_name
from comt_cli.commit import git_commit
from comt_cli.errors import RunInterrupted, StorageError, UserError
from comt_cli.methods.mistakes import with_place
from comt_cli.models.accounting import check_methods
from comt_cli.runs.directory import BeingTrained
from comt_cli.runs.known import SharedRun, link_runs
from comt_cli.tasks.base import AnyDataset
from comt_cli.training.devices import device_name
from comt_cli.training.events import Event, Listener, RunStarted
from comt_cli.training.loop import Training
from comt_cli.training.parallel import World, join_world
from comt_cli.training.processes import StopSignal, share_of_batch
from comt_cli.training.start import check_starts


def check_models(queue: RunQueue) -> None:
    """Count a model of each method, and check that start weights fit. Raises `UserError`."""
    not_begun = [shared.spec for shared in queue.open if not shared.directory(queue.runs).is_begun]
    check_methods(not_begun)
    check_starts(not_begun)


def train_queue(
    queue: RunQueue,
    device: str | None,
    display: Display,
    stop: StopSignal,
    datasets: Mapping[str, AnyDataset] | None = None,
) -> None:
    """Train every open run of the queue and record its outcome there, also after an error. `datasets` are the queue's
    data sets if they are prepared already. Raises `UserError` if nothing can be started, or, with several processes, if
    a run failed; `RunInterrupted` after a signal; `StorageError` if the disk cannot be written."""
    with join_world(device) as world:
        if world.size > 1:
            every = [spec for shared in queue.every for spec in shared.specs]
            asked = {spec.request: f"the run {run_name(spec, with_table=True)} ({spec.request})" for spec in every}
            world.check_equal([f"comt {__version__} (commit {git_commit()})", *(asked[each] for each in sorted(asked))])
            further = {  # no part of the id, but they decide what processes send each other; folders may differ
                f"{asked[spec.request]} with {name}.{key}={getattr(getattr(spec.settings, name), key, None)}"
                for spec in every
                for name, keys in spec.task.runtime_keys.items()
                for key in keys - {"folder", "glue_folder"}
            }
            world.check_equal(sorted(further))
        for shared in queue.every:
            share_of_batch(shared.spec.settings.train.batch_size, world.size)
        if datasets is None:
            datasets = queue.prepare_data(display.preparing, stop)
        check_models(queue)
        by_id = {shared.id: shared for shared in queue.every}
        world.check_equal([f"the data of run {run}" for run in by_id])
        display.queue_started(queue, [str(world.device)], device_name(world.device), world.size)
        began = False

        def show(event: Event) -> None:
            nonlocal began
            began = began or isinstance(event, RunStarted)
            display.run_event(0, event)
            display.tick()

        while True:
            taken = queue.take() if world.is_main else None
            run_id = world.broadcast(taken.id if taken is not None else None)
            if run_id is None:
                return
            shared = by_id[str(run_id)]
            dataset = datasets.get(shared.spec.data_fingerprint) or shared.spec.task.prepare(shared.spec.settings)
            display.run_taken(0, shared.spec)
            try:
                outcome = guarded_run(shared, queue.runs, dataset, world, show, stop)
            except RunInterrupted as error:
                queue.record(RunOutcome.of(shared, queue.runs, Ending.left, error.message))
                raise
            except UserError as error:
                if began and error.exit_status == UserError.exit_status:  # which means that nothing was started
                    raise TrainingFailed(error.message, error.hint) from error
                raise
            queue.record(outcome)
            display.run_ended(0, outcome)


def guarded_run(
    shared: SharedRun, runs: Path, dataset: AnyDataset, world: World, listener: Listener, stop: StopSignal
) -> RunOutcome:
    """Train or resume a run. If it fails, `error.txt` in its directory has the reason. Raises `RunInterrupted` and
    `StorageError`; with several processes any error, since one alone cannot begin the next run."""
    directory = shared.directory(runs)
    training = Training(shared.spec, directory, dataset, world, listener, stop)
    try:
        result = training.run()
    except BeingTrained as error:
        return RunOutcome.of(shared, runs, Ending.elsewhere, f"by {error.owner}")
    except (RunInterrupted, StorageError):
        raise
    except Exception as error:
        if world.size > 1:
            raise
        if isinstance(error, UserError):
            failed = RunOutcome.refused(shared, runs, error)
        else:
            first, *_ = str(error).strip().splitlines() or [""]
            reason = with_place(f"{type(error).__name__}: {first}".removesuffix(": "), error)
            directory.note_error(reason, "".join(traceback.format_exception(error)))
            failed = RunOutcome.of(shared, runs, Ending.failed, reason)
    else:
        if world.is_main:
            link_runs(shared.specs, runs)
        return RunOutcome.with_result(shared, runs, result, already=not training.began)
    # Outside the handler: there the error keeps the frames alive, and these keep the model.
    del training
    gc.collect()
    if world.device.type == "cuda":
        with contextlib.suppress(RuntimeError):  # the device may have failed
            torch.cuda.empty_cache()
    return failed
