"""Costs of planned runs, counted with a sign of life, and the time that they are estimated to take."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from concurrent.futures import Future

    from comt_cli.campaign.estimate import Estimator, Finished
    from comt_cli.models.cost import Cost, Network
    from comt_cli.runs.plan import RunSpec
    from comt_cli.training.hardware import Hardware


@dataclass(frozen=True)
class Trained:
    """On what runs would be trained: the options of that name."""

    device: str | None = None
    jobs: int | None = None
    gpus: int = 1
    plan_for: str | None = None


class Counting:
    """Counts the networks of runs, those that nobody counted yet, and says on the error stream how far it is.

    Many networks are counted by as many processes as there are cores. Used as a context manager: what a terminal shows
    is wiped when it is left.
    """

    MANY = 16
    """Networks that take longer to count here than other processes take to start."""

    def __init__(self, specs: Sequence[RunSpec]) -> None:
        from comt_cli.models.accounting import to_count

        self._specs = specs
        self._total = sum(1 for _ in to_count(specs))
        self._done = 0
        self._elsewhere: dict[Network, Future[tuple[Cost, bool]]] = {}
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        if self._total and not sys.stderr.isatty():
            print(f"counting {self._total} network{'s' if self._total != 1 else ''} ...", file=sys.stderr, flush=True)
        self._show()
        self._resources.callback(self._show, "")
        if self._total >= self.MANY:
            self._start_processes()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def count(self, specs: Iterable[RunSpec]) -> None:
        """Count what is not known of these runs."""
        from concurrent.futures import BrokenExecutor

        from comt_cli.models.accounting import cost_of, remember, to_count
        from comt_cli.models.cost import network_of

        for spec in list(to_count(specs)):
            self._show()
            network = network_of(spec)
            if network in self._elsewhere:
                try:
                    remember(network, *self._elsewhere[network].result())
                except BrokenExecutor:  # a process was killed, for want of memory perhaps: one by one, then, and here
                    self._elsewhere.clear()
            cost_of(spec)
            self._done += 1
        self._show("")

    def _show(self, text: str | None = None) -> None:
        """Replace a terminal's line, which others print to afterwards."""
        if self._total and sys.stderr.isatty():
            said = f"counting network {min(self._done + 1, self._total)} of {self._total} ..." if text is None else text
            print(f"\r\x1b[K{said}", end="", file=sys.stderr, flush=True)

    def _start_processes(self) -> None:
        from concurrent.futures import ProcessPoolExecutor

        from comt_cli.campaign.jobs import usable_cores
        from comt_cli.campaign.server import begin_as_helper, context_for, start_server
        from comt_cli.models.accounting import counted, to_count
        from comt_cli.models.cost import network_of

        processes = min(usable_cores(), self._total // (self.MANY // 2))
        if processes < 2:
            return
        start_server(self._specs)
        try:
            pool = ProcessPoolExecutor(processes, context_for(["cpu"]), initializer=begin_as_helper)
        except (OSError, ImportError):  # a system without semaphores
            return
        self._resources.callback(pool.shutdown, cancel_futures=True)
        networks = [network_of(spec) for spec in to_count(self._specs)]
        self._elsewhere = {network: pool.submit(counted, network) for network in networks}


def checked_hardware(trained: Trained, specs: Sequence[RunSpec]) -> Hardware:
    """The device, once it is sure that these runs can be trained so. Raises `UserError` where they cannot."""
    from comt_cli.campaign.executor import check_training
    from comt_cli.training.hardware import hardware, planned_hardware
    from comt_cli.training.processes import check_share

    if trained.plan_for is not None:
        for spec in specs:
            check_share(spec.settings.train.batch_size, trained.gpus)
        return planned_hardware(trained.plan_for, trained.gpus)
    check_training(trained.gpus, specs, trained.device, trained.jobs)
    return hardware(trained.device)


def estimator_for(
    specs: Sequence[RunSpec],
    where: Hardware,
    finished: Sequence[Finished],
    trained: Trained,
    counted: Sequence[RunSpec] | None = None,
) -> Estimator:
    """Estimates the time of these runs as one command would train them. Those of `counted`, all if not given, decide
    how many the memory holds; their costs should be known."""
    from comt_cli.campaign.estimate import Estimator
    from comt_cli.campaign.jobs import runs_at_once
    from comt_cli.runs.shared import shared_runs

    if trained.gpus > 1:
        return Estimator(finished, where, 1, None, trained.gpus)
    runs, sized = shared_runs(specs), shared_runs(counted or specs)
    at_once, threads = runs_at_once(where.kind, where.count, trained.jobs, runs, sized)
    return Estimator(finished, where, at_once, threads)


def time_left(specs: Sequence[RunSpec], states: Sequence[str], estimator: Estimator) -> float:
    """Seconds until all of these runs are done, each training once; 0 where all are."""
    from comt_cli.runs.directory import ENDED

    return estimator.makespan(spec for spec, state in zip(specs, states, strict=True) if state not in ENDED)
