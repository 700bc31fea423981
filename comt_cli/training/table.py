"""All the runs of a table, one after the other: finished ones are skipped, unfinished ones go on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from comt_cli.data import Dataset, prepare
from comt_cli.errors import RunInterrupted, StorageError, UserError
from comt_cli.recipe.plan import RunSpec
from comt_cli.recipe.run_directory import RunDirectory
from comt_cli.training.distribution import World, join_world, launched_by_torchrun, share_of_batch
from comt_cli.training.loop import Training
from comt_cli.training.progress import Listener, make_listener
from comt_cli.training.signals import StopSignal


class TrainingFailed(UserError):
    """Something was found to be wrong after training had begun. What was saved before is intact."""

    exit_status = 1


def train_table(specs: Sequence[RunSpec], runs: Path, device: str | None) -> None:
    """Train every run of `specs` that has no result yet, in this process and those that torchrun started beside it.

    Raises:
        UserError, StorageError, RunInterrupted: see `Training.run`; runs that were finished stay finished.
    """
    with StopSignal() as stop, join_world(device) as world:
        listener = make_listener(world.is_main)
        try:
            _train_all(specs, runs, world, listener, stop)
        finally:
            listener.close()


def _train_all(specs: Sequence[RunSpec], runs: Path, world: World, listener: Listener, stop: StopSignal) -> None:
    # The main process alone looks which runs are done, so that all processes go through the same list.
    open_positions = [i for i, spec in enumerate(specs) if RunDirectory.of(runs, spec).result() is None]
    chosen = world.broadcast(open_positions)
    assert isinstance(chosen, list)
    for spec in specs:
        share_of_batch(spec.settings.train.batch_size, world)

    def preparing(stage: str, done: int, total: int | None) -> None:
        if stop.number is not None:
            raise RunInterrupted(
                "stopped while the data was being prepared; what is ready is kept",
                "The same command goes on from there.",
                stop.number,
            )
        listener.preparing(stage, done, total)

    datasets: dict[str, Dataset] = {}
    for position in chosen:
        data = specs[position].settings.data
        if specs[position].data_fingerprint not in datasets:
            datasets[specs[position].data_fingerprint] = prepare(data, preparing)
    listener.table_started(len(specs), len(specs) - len(chosen))
    for position in chosen:
        spec = specs[position]
        run = Training(spec, RunDirectory.of(runs, spec), datasets[spec.data_fingerprint], world, listener, stop)
        try:
            run.run()
        except UserError as error:
            # Bad input's status says that nothing was started; by now something was.
            if error.exit_status == UserError.exit_status and (run.began or position != chosen[0]):
                raise TrainingFailed(error.message, error.hint) from error
            raise


def set_aside(specs: Sequence[RunSpec], runs: Path) -> list[Path]:
    """Move the run directories of `specs` out of the way, so that they are trained anew; returns where they went.

    Nothing is deleted: what was computed was paid for.

    Raises:
        UserError: another process is training one of the runs; says which. None of them is moved.
        StorageError: the system refuses; those before are moved.
    """
    directories = [directory for spec in specs if (directory := RunDirectory.of(runs, spec)).path.is_dir()]
    moved = []
    with contextlib.ExitStack() as locks:
        for directory in directories:
            locks.enter_context(directory.lock())
        for path in (directory.path for directory in directories):
            number = 1
            while (target := path.with_name(f"{path.name}.replaced-{number}")).exists():
                number += 1
            try:
                path.rename(target)
            except OSError as error:
                raise StorageError(f"cannot move {path} aside: {error.strerror or error}") from error
            moved.append(target)
    return moved


def is_main_process() -> bool:
    """Whether this process prints and writes tables: it was started by hand, or is the first of torchrun's."""
    return not launched_by_torchrun() or os.environ["RANK"] == "0"
