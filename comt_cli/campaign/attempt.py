"""One run of a list, tried: whatever happens to it, the others are trained."""

from __future__ import annotations

import contextlib
import gc
import traceback
from pathlib import Path

import torch

from comt_cli.campaign.outcomes import Ending, RunOutcome, TrainingFailed
from comt_cli.errors import RunInterrupted, StorageError, UserError
from comt_cli.methods.mistakes import with_place
from comt_cli.runs.directory import BeingTrained
from comt_cli.runs.shared import SharedRun
from comt_cli.tasks.base import AnyDataset
from comt_cli.training.events import Listener
from comt_cli.training.loop import Training
from comt_cli.training.parallel import World
from comt_cli.training.processes import StopSignal


def attempt(
    shared: SharedRun, runs: Path, dataset: AnyDataset, world: World, listener: Listener, stop: StopSignal
) -> RunOutcome:
    """Train a run, or resume it. Where it cannot be trained, `error.txt` in its directory says why.

    Raises:
        RunInterrupted: a signal came; the state is saved.
        StorageError: something could not be written, which the next run would meet too.
        Exception: any, where several processes train the run: one of them alone cannot begin the next.
    """
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
            if isinstance(error, UserError) and training.began:  # bad input's status says that nothing was started
                raise TrainingFailed(error.message, error.hint) from error
            raise
        if isinstance(error, UserError):
            failed = RunOutcome.refused(shared, runs, error)
        else:
            reason = with_place(_in_one_line(error), error)
            directory.note_error(reason, "".join(traceback.format_exception(error)))
            failed = RunOutcome.of(shared, runs, Ending.failed, reason)
    else:
        if world.is_main:
            shared.link(runs)
        return RunOutcome.with_result(shared, runs, result, already=not training.began)
    # Out of the handler: the error keeps the frames alive, and these the model.
    del training
    gc.collect()
    if world.device.type == "cuda":
        with contextlib.suppress(RuntimeError):  # what failed may have been the device
            torch.cuda.empty_cache()
    return failed


def _in_one_line(error: Exception) -> str:
    """A defect in a line: shown in the summary, and the first line of `error.txt`."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
