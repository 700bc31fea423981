"""Costs of planned runs, counted with a sign of life, and the time that they are estimated to take."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor

from comt_cli.campaign import estimate
from comt_cli.campaign.estimate import Estimator, Finished
from comt_cli.campaign.executor import check_training
from comt_cli.campaign.jobs import runs_at_once, usable_cores
from comt_cli.campaign.server import begin_as_helper, context_for, start_server
from comt_cli.commands.options import Where
from comt_cli.models import accounting
from comt_cli.models.cost import Cost, Network, network_of
from comt_cli.report.exhibits.sweep import read_sweep
from comt_cli.runs.directory import ENDED, RunDirectory
from comt_cli.runs.known import adopt_contents
from comt_cli.runs.plan import RunSpec
from comt_cli.runs.shared import shared_runs
from comt_cli.training.hardware import Hardware, hardware, planned_hardware
from comt_cli.training.processes import check_share
from comt_cli.verbs.plan import Planned
from comt_cli.words import duration, plural

MANY = 16
"""Networks that take longer to count here than other processes take to start."""


@contextlib.contextmanager
def counting(specs: Sequence[RunSpec]) -> Iterator[Callable[[Iterable[RunSpec]], None]]:
    """Count the networks of runs, those that nobody counted yet, by calls of what this gives, and say on the error
    stream how many. Many networks are counted by as many processes as there are cores, which end with this context."""
    networks = [network_of(spec) for spec in accounting.to_count(specs)]
    elsewhere: dict[Network, Future[tuple[Cost, bool]]] = {}

    def count_these(some: Iterable[RunSpec]) -> None:
        for spec in list(accounting.to_count(some)):
            network = network_of(spec)
            if network in elsewhere:
                try:
                    accounting.remember(network, *elsewhere[network].result())
                except BrokenExecutor:  # a process was killed, for want of memory perhaps: one by one, then, and here
                    elsewhere.clear()
            accounting.cost_of(spec)

    if networks:
        print(f"counting {plural(len(networks), 'network')} ...", file=sys.stderr, flush=True)
    processes = min(usable_cores(), len(networks) // (MANY // 2))
    with contextlib.ExitStack() as resources:
        if len(networks) >= MANY and processes > 1:
            start_server(specs)
            with contextlib.suppress(OSError, ImportError):  # a system without semaphores
                pool = ProcessPoolExecutor(processes, context_for(["cpu"]), initializer=begin_as_helper)
                resources.callback(pool.shutdown, cancel_futures=True)
                elsewhere |= {network: pool.submit(accounting.counted, network) for network in networks}
        yield count_these


def count(specs: Sequence[RunSpec]) -> None:
    """Count the networks of runs, all of them at once."""
    with counting(specs) as count_these:
        count_these(specs)


def checked_hardware(where: Where, specs: Sequence[RunSpec]) -> Hardware:
    """The device, once it is sure that these runs can be trained so. Raises `UserError` where they cannot."""
    if where.plan_for is not None:
        for spec in specs:
            check_share(spec.settings.train.batch_size, where.gpus)
        return planned_hardware(where.plan_for, where.gpus)
    check_training(where.gpus, specs, where.device, where.jobs)
    return hardware(where.device)


def estimator_for(
    specs: Sequence[RunSpec],
    device: Hardware,
    where: Where,
    finished: Sequence[Finished] | None = None,
    counted: Sequence[RunSpec] | None = None,
) -> Estimator:
    """Estimates the time of these runs as one command would train them. Those of `counted`, all if not given, decide
    how many the memory holds; their costs should be known. Finished runs are read where they are not given."""
    if finished is None:
        finished = estimate.finished_runs(where.runs, device, where.gpus)
    if where.gpus > 1:
        return estimate.Estimator(finished, device, 1, None, where.gpus)
    runs, sized = shared_runs(specs), shared_runs(counted or specs)
    at_once, threads = runs_at_once(device.kind, device.count, where.jobs, runs, sized)
    return estimate.Estimator(finished, device, at_once, threads)


def time_left(specs: Sequence[RunSpec], states: Sequence[str], estimator: Estimator) -> float:
    """Seconds until all of these runs are done, each training once; 0 where all are."""
    return estimator.makespan(spec for spec, state in zip(specs, states, strict=True) if state not in ENDED)


def time_in_words(specs: Sequence[RunSpec], states: Sequence[str], estimator: Estimator) -> str:
    """`4 min, 2 at a time`."""
    at_once = f", {estimator.at_once} at a time" if estimator.at_once > 1 else ""
    return f"{duration(time_left(specs, states, estimator))}{at_once}"


def sweep_cost(planned: Planned, where: Where) -> str:
    """Runs, FLOPs and estimated time of trials and of what follows them, in two lines. Runs whose values the trials
    have not chosen yet are counted as one for the baseline's best and one for the cell's own. No time is estimated for
    jobs of Slurm, which train on another machine. Raises `UserError` where there is no such device."""
    known = adopt_contents(planned.specs, where.runs, ambiguous=True)
    state = read_sweep(planned.loaded, planned.scale, known, where.runs)
    specs = state.at_most
    trials = {spec.request for spec in state.trials}
    count(specs)
    states = [RunDirectory.of(where.runs, spec).state().value for spec in specs]
    left = sum(state not in ENDED for state in states)
    most = "" if len(specs) == len(state.specs) else "at most "
    time = ""
    if where.slurm is None:
        device = checked_hardware(where, planned.specs)
        said = time_in_words(specs, states, estimator_for(specs, device, where))
        time = f", about {said} on {device.name}"
    return (
        f"Sweep: {plural(len(trials), 'trial')} of {plural(len(state.grid.points), 'point')} and "
        f"{plural(len(state.grid.seeds), 'seed')} for {plural(len(state.tuned), 'cell')}, then {most}"
        f"{len(specs) - len(trials)} runs to show.\n"
        f"In all {most}{len(specs)} runs and {sum(map(accounting.total_flops, specs)):.2g} FLOPs; {left} to do{time}."
    )
