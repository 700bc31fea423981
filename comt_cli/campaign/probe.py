"""The device probe: a process that runs ahead of the workers while the data is being prepared.

It finds out how many workers there can be, and on which devices, which takes PyTorch: so the command's own process
need not import it, unless it then trains by itself. And it compiles the kernels that the runs will use, once, where
each worker would otherwise want them at the same time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from comt_cli.campaign.jobs import Workers, plan_workers
from comt_cli.campaign.outcomes import TrainingFailed, check_not_stopped
from comt_cli.campaign.server import begin_as_helper, context_for, start_server
from comt_cli.errors import UserError
from comt_cli.models.accounting import check_methods
from comt_cli.runs.shared import SharedRun
from comt_cli.training.processes import StopSignal, end_process

PATIENCE_SECONDS = 1.5
"""How long it may take to end once it is asked to."""


@contextlib.contextmanager
def device_probe(
    device: str | None, jobs: int | None, runs: Sequence[SharedRun], folder: Path
) -> Iterator[DeviceProbe]:
    """Start the probe for runs below a folder; it ends with this context."""
    start_server([shared.spec for shared in runs])
    context = context_for(["cpu"])
    ours, theirs = context.Pipe()
    probe = DeviceProbe(ours, theirs, context.Process(target=_probe, args=(theirs, device, jobs, folder)), list(runs))
    try:
        yield probe
    finally:
        probe.end()


class DeviceProbe:
    """The process, as its parent sees it."""

    def __init__(
        self, ours: Connection, theirs: Connection, process: BaseProcess, runs: Sequence[SharedRun] = ()
    ) -> None:
        self._pipe, self._process = ours, process
        # In a thread, since it waits for the server to have imported PyTorch.
        self._starter = threading.Thread(target=_start, args=(process, ours, theirs, runs), daemon=True)
        self._starter.start()

    def workers(self, stop: StopSignal) -> Workers:
        """The workers that it found room for.

        Raises:
            UserError: there is no such device, or a run cannot start from its source.
            RunInterrupted: a signal came meanwhile.
            TrainingFailed: it ended without an answer.
        """
        while not self._pipe.poll(0.1):
            check_not_stopped(stop)
        try:
            found = self._pipe.recv()
        except EOFError:
            self._starter.join()
            if self._process.pid is not None:
                self._process.join(PATIENCE_SECONDS)
            check_not_stopped(stop)  # a signal to the whole group of processes may have reached it first
            raise TrainingFailed(
                f"the process that looks for devices ended with status {self._process.exitcode}",
                "Its output is above."
                + (" --jobs 1 trains without it." if (self._process.exitcode or 0) < 0 else ""),  # killed, not ended
            ) from None
        if isinstance(found, UserError):
            raise found
        assert isinstance(found, Workers)
        return found

    def end(self) -> None:
        """End the process: at the latest when the command ends."""
        if self._starter.is_alive() or self._process.pid is None:
            return  # the server is still importing, and ends with this process
        self._process.terminate()
        self._process.join(PATIENCE_SECONDS)
        self._process.kill()


def _start(process: BaseProcess, ours: Connection, theirs: Connection, runs: Sequence[SharedRun]) -> None:
    with contextlib.suppress(EOFError, OSError):  # a closed pipe means that the server died
        with contextlib.closing(theirs):
            process.start()
        ours.send(runs)


def _probe(pipe: Connection, device: str | None, jobs: int | None, folder: Path) -> None:
    """The process's work. Its arguments are few: the system takes them at once, and a command that ends meanwhile
    leaves no half of them. The runs may be many, and come through the pipe."""
    begin_as_helper()
    try:
        runs = pipe.recv()
    except (EOFError, OSError):  # the command has ended
        end_process(0)
    try:
        check_methods(shared.spec for shared in runs if not shared.directory(folder).is_begun)
        workers = plan_workers(device, jobs, runs)
        if any(shared.spec.start is not None for shared in runs):
            from comt_cli.training.start import check_starts

            check_starts(shared.spec for shared in runs)
    except UserError as error:
        pipe.send(error)
        return
    pipe.send(workers)
    if all(each == "cpu" for each in workers.devices):
        _build_kernels(runs)
    end_process(0)


def _build_kernels(runs: Sequence[SharedRun]) -> None:
    """Compile what the first of these runs that takes a kernel would compile. Errors are left to the runs."""
    import torch

    from comt_cli.kernels.choice import choose_loss
    from comt_cli.models.base import VocabularyModel
    from comt_cli.models.build import model_of
    from comt_cli.models.kernels import use_kernels
    from comt_cli.training.devices import product_dtype

    cpu = torch.device("cpu")
    seen = set()
    for spec in (shared.spec for shared in runs):
        train = spec.settings.train
        key = (str(spec.method), spec.settings.model, train.kernels, train.precision, train.compile)
        if key in seen:
            continue
        seen.add(key)
        with contextlib.suppress(Exception):
            dtype, model = product_dtype(train.precision), model_of(spec)
            choices = [*use_kernels(model, train.kernels, cpu, dtype, compiled=train.compile).values()]
            if isinstance(model, VocabularyModel):
                choices.append(choose_loss(train.kernels, cpu, dtype))
            if any(choice.fused for choice in choices):
                return
