"""Progress of runs that are being trained, and the remaining time of a command.

A run's time is its steps times its pace (seconds a step, evaluations included), and the time from its last step to its
result. The pace is that of the run itself; before its own steps have settled, the mean of runs of the same kind (model,
data and method); else of all runs, by the work of a step. Runs that train or ended here count before runs that were
finished earlier. The waiting runs are assigned, in their order, to the worker that is free first.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from time import monotonic

from comt_cli.runs.plan import RunSpec
from comt_cli.training.events import Evaluating, Event, RunStarted, StepReport

SETTLED_SECONDS = 2.0
"""How long a run's own steps must have been observed before their pace is used."""


@dataclass
class RunProgress:
    """Progress of one run since the time `since`; `steps` are the first and the last report of a step, as (time, step).
    The first step may have compiled something: paces count from its end."""

    spec: RunSpec
    since: float
    began: bool = False
    step: int = 0
    report: StepReport | None = None
    evaluating: Evaluating | None = None
    steps: tuple[tuple[float, int], tuple[float, int]] | None = None

    def receive(self, event: Event, now: float) -> None:
        """Take in an event of the run."""
        match event:
            case RunStarted(step):
                self.began, self.step, self.since = True, step, now
            case StepReport(step):
                self.step, self.report, self.evaluating = step, event, None
                self.steps = (self.steps[0] if self.steps else (now, step), (now, step))
            case Evaluating():
                self.evaluating = event

    @property
    def total(self) -> int:
        """The run's steps."""
        return self.spec.settings.train.steps

    @property
    def pace(self) -> float | None:
        """Seconds a step, once enough of them were observed."""
        if self.steps is None:
            return None
        (began, first), (now, last) = self.steps
        settled = now - began >= SETTLED_SECONDS or last >= self.total
        return (now - began) / (last - first) if last > first and settled else None

    @cached_property
    def kind(self) -> str:
        """The settings that runs of one pace share."""
        settings = self.spec.settings.model_dump(mode="json")
        return json.dumps([self.spec.command, settings, self.spec.method], sort_keys=True)

    @cached_property
    def work(self) -> float:
        """The work of a step, in the task's unit."""
        settings = self.spec.settings
        return settings.train.batch_size * self.spec.task.work(settings)


class TimeLeft:
    """Remaining time of the runs of a command.

    Attributes:
        running: the progress of each worker's run.
    """

    def __init__(
        self,
        waiting: Iterable[RunSpec],
        finished: Iterable[tuple[RunSpec, float]] = (),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`waiting` runs in the order in which they will begin; `finished` ones, with the seconds of their steps."""
        self._clock = clock
        self.running: dict[int, RunProgress] = {}
        self._waiting = {spec.id: RunProgress(spec, 0) for spec in waiting}
        self._earlier = [(RunProgress(spec, 0), seconds / spec.settings.train.steps) for spec, seconds in finished]
        self._here: list[tuple[RunProgress, float]] = []
        self._tails: list[float] = []

    def take(self, worker: int, spec: RunSpec) -> None:
        """A worker has a run, and sets it up."""
        self._waiting.pop(spec.id, None)
        self.running[worker] = RunProgress(spec, self._clock())

    def receive(self, worker: int, event: Event) -> None:
        """Something happened to the worker's run."""
        if worker in self.running:
            self.running[worker].receive(event, self._clock())

    def give_back(self, worker: int) -> None:
        """The worker's run is the next one again."""
        if run := self.running.pop(worker, None):
            self._waiting = {run.spec.id: RunProgress(run.spec, 0), **self._waiting}

    def end(self, worker: int, *, completed: bool) -> None:
        """The worker's run has its result (`completed`), or has ended otherwise, which tells nothing of others."""
        run = self.running.pop(worker, None)
        if run is None or not completed or run.steps is None:
            return
        self._tails.append(self._clock() - run.steps[1][0])
        if run.pace is not None:
            self._here.append((run, run.pace))

    def of_run(self, worker: int) -> float | None:
        """Seconds until the worker's run has its result; None while that is not known."""
        run = self.running.get(worker)
        if run is None:
            return None
        last = run.steps[1][0] if run.steps else None
        found = run.evaluating
        if run.step >= run.total and found is not None and found.done and last is not None:
            return (self._clock() - last) / found.done * (found.total - found.done)
        pace = run.pace or self._pace(run)
        if pace is None:
            return None
        since = self._clock() - last if last is not None else 0.0
        return max(0.0, pace * (run.total - run.step) - since) + self._tail

    def of_all(self, workers: int) -> float | None:
        """Seconds until `workers` workers have trained everything; None while that is not known."""
        busy = [self.of_run(worker) for worker in self.running]
        paces = [(run, self._pace(run)) for run in self._waiting.values()]
        waiting = [None if pace is None else pace * run.total + self._tail for run, pace in paces]
        if None in busy or None in waiting:
            return None
        free = [seconds or 0.0 for seconds in busy]
        return makespan((seconds or 0.0 for seconds in waiting), free + [0.0] * (workers - len(free)))

    @property
    def _tail(self) -> float:
        return fmean(self._tails) if self._tails else 0.0

    def _pace(self, run: RunProgress) -> float | None:
        here = self._here + [(other, other.pace) for other in self.running.values() if other.pace is not None]
        sources: Sequence[list[tuple[RunProgress, float]]] = (here, self._earlier)
        for known in sources:
            if same := [pace for other, pace in known if other.kind == run.kind]:
                return fmean(same)
        for known in sources:
            if known:
                return run.work * fmean(pace / other.work for other, pace in known)
        return None


def makespan(seconds: Iterable[float], free: Sequence[float]) -> float:
    """When the last of these runs ends, if each worker takes the next one as soon as it is free, from `free` on."""
    ends = list(free)
    heapq.heapify(ends)
    for length in seconds:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends, default=0.0)
