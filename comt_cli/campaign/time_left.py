"""How long runs will still take, from the steps that were taken here and, before these, from runs that are finished.

A run's pace is seconds a step. It is known best from the run itself, then from runs of the same model, data and method,
then from runs that differ in the method alone; where neither is known, another run's pace is scaled by the work of a
step. The waiting runs are assigned, in their order, to the worker that is free first.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from comt_cli.runs.plan import RunSpec

SETTLED_SECONDS = 2.0
"""How long a run's own steps must have been observed before their pace is used."""


@dataclass(frozen=True)
class _Job:
    """A run, as far as its time goes: `same` and `alike` are what it shares with runs of its pace, with the method and
    without it; `work` is that of a step, in a unit of its own."""

    steps: int
    evaluates_every: int | None
    same: str
    alike: str
    work: float


def _job(spec: RunSpec) -> _Job:
    settings = spec.settings
    alike = json.dumps([settings.model_dump(mode="json"), spec.command], sort_keys=True)
    same = json.dumps(spec.method, sort_keys=True) + alike
    return _Job(
        settings.train.steps,
        settings.train.evaluate_every,
        same,
        alike,
        settings.train.batch_size * spec.task.work(settings),
    )


@dataclass
class _Mean:
    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.total, self.count = self.total + value, self.count + 1

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass
class _Running:
    """A run in a worker. `first` and `last` are (time, step) of reports of steps; the first of all, which may have
    compiled something, is where counting begins. `evaluation` is the present one: when it began and was last heard of,
    batches done and in all; `evaluations` are the seconds of those since the first report. A pace has an even part of
    them in every step: else it would jump at each."""

    job: _Job
    step: int = 0
    first: tuple[float, int] | None = None
    last: tuple[float, int] | None = None
    evaluation: tuple[float, float, int, int] | None = None
    evaluations: _Mean = field(default_factory=_Mean)

    @property
    def pace(self) -> float | None:
        """Seconds a step, once enough of them were observed."""
        if self.first is None or self.last is None or self.last[1] == self.first[1]:
            return None
        seconds, steps = self.last[0] - self.first[0] - self.evaluations.total, self.last[1] - self.first[1]
        even = (self.evaluations.value or 0.0) / (self.job.evaluates_every or steps)
        return seconds / steps + even if seconds >= SETTLED_SECONDS or self.last[1] >= self.job.steps else None


@dataclass
class _Paces:
    """Seconds a step of some runs, by how alike they are."""

    same: dict[str, _Mean] = field(default_factory=dict)
    alike: dict[str, _Mean] = field(default_factory=dict)
    by_work: _Mean = field(default_factory=_Mean)

    def add(self, job: _Job, pace: float) -> None:
        self.same.setdefault(job.same, _Mean()).add(pace)
        self.alike.setdefault(job.alike, _Mean()).add(pace)
        self.by_work.add(pace / job.work)

    def of_its_kind(self, job: _Job) -> float | None:
        for known, key in ((self.same, job.same), (self.alike, job.alike)):
            if key in known:
                return known[key].value
        return None

    def by_its_work(self, job: _Job) -> float | None:
        scale = self.by_work.value
        return None if scale is None else scale * job.work


class TimeLeft:
    """Receives what workers do, and estimates how long they, and the waiting runs, will still take; None: unknown yet.

    `waiting` are the runs that no worker has begun, in the order in which they will be.
    """

    def __init__(self, waiting: Iterable[RunSpec], clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._waiting = {spec.id: _job(spec) for spec in waiting}
        self._running: dict[int, _Running] = {}
        self._here, self._before = _Paces(), _Paces()
        self._tail = _Mean()

    def finished_before(self, spec: RunSpec, seconds: float) -> None:
        """A run's steps took so long on this device, before this command."""
        self._before.add(_job(spec), seconds / spec.settings.train.steps)

    def taken(self, worker: int, spec: RunSpec) -> None:
        """A worker has a run, and sets it up."""
        self._waiting.pop(spec.id, None)
        self._running[worker] = _Running(_job(spec))

    def given_back(self, worker: int, spec: RunSpec) -> None:
        """The worker's run is the next one again."""
        if self._running.pop(worker, None) is not None:
            self._waiting = {spec.id: _job(spec), **self._waiting}

    def started(self, worker: int, spec: RunSpec, step: int) -> None:
        """The worker's run resumes after `step`."""
        if worker not in self._running:
            self.taken(worker, spec)
        self._running[worker].step = step

    def stepped(self, worker: int, step: int) -> None:
        """A step was logged."""
        if (run := self._running.get(worker)) is not None:
            if run.evaluation is not None and run.first is not None:
                run.evaluations.add(run.evaluation[1] - run.evaluation[0])
            run.step, run.last, run.evaluation = step, (self._clock(), step), None
            run.first = run.first or run.last

    def evaluated(self, worker: int, done: int, total: int) -> None:
        """The worker's evaluation has come so far."""
        if (run := self._running.get(worker)) is not None:
            now = self._clock()
            run.evaluation = (run.evaluation[0] if run.evaluation is not None else now, now, done, total)

    def ended(self, worker: int, *, completed: bool) -> None:
        """The worker's run has its result (`completed`), or has ended otherwise, which is no evidence for others."""
        run = self._running.pop(worker, None)
        if run is None or not completed:
            return
        if run.pace is not None:
            self._here.add(run.job, run.pace)
        if run.last is not None:
            self._tail.add(self._clock() - run.last[0])

    def of_run(self, worker: int) -> float | None:
        """Seconds until the worker's run has its result."""
        run = self._running.get(worker)
        return None if run is None else self._of_running(run, self._sources())

    def of_all(self, workers: int) -> float | None:
        """Seconds until `workers` workers have trained everything."""
        sources = self._sources()
        # Copies: a display asks from a thread of its own.
        running, waiting = list(self._running.values()), list(self._waiting.values())
        busy = [self._of_running(run, sources) for run in running]
        known = {job: self._of_waiting(job, sources) for job in set(waiting)}
        if None in busy or None in known.values():
            return None
        free = [seconds for seconds in busy if seconds is not None]
        free += [0.0] * (workers - len(free))
        heapq.heapify(free)
        for job in waiting:
            heapq.heapreplace(free, free[0] + (known[job] or 0.0))
        return max(free, default=0.0)

    def _sources(self) -> Sequence[_Paces]:
        """What is known, the best first: runs that ended here, runs that are running, runs of before."""
        running = _Paces()
        for run in list(self._running.values()):
            if run.pace is not None:
                running.add(run.job, run.pace)
        return self._here, running, self._before

    def _of_running(self, run: _Running, sources: Sequence[_Paces]) -> float | None:
        now, tail = self._clock(), self._tail.value or 0.0
        if run.step >= run.job.steps and run.evaluation is not None:
            began, _, done, total = run.evaluation
            return (now - began) / done * (total - done) if done else tail
        pace = run.pace or _typical(run.job, sources)
        if pace is None:
            return None
        since = now - run.last[0] if run.last is not None and run.evaluation is None else 0.0
        return max(0.0, pace * (run.job.steps - run.step) - since) + tail

    def _of_waiting(self, job: _Job, sources: Sequence[_Paces]) -> float | None:
        pace = _typical(job, sources)
        return None if pace is None else pace * job.steps + (self._tail.value or 0.0)


def _typical(job: _Job, sources: Sequence[_Paces]) -> float | None:
    for paces in sources:
        if (pace := paces.of_its_kind(job)) is not None:
            return pace
    return next((pace for paces in sources if (pace := paces.by_its_work(job)) is not None), None)
