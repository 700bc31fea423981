"""The queue of a command's runs, and their outcomes. Torch-free."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from comt_cli.data.published import content_hash
from comt_cli.data.storage import ProgressCallback
from comt_cli.errors import RunInterrupted, StorageError, UserError
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.known import SharedRun, adopt_contents, link_runs, needed_runs, shared_runs
from comt_cli.runs.plan import NO_WEIGHTS, RunSpec, WeightsStart, point_in_words, with_sources
from comt_cli.tasks import Task
from comt_cli.tasks.base import AnyDataset
from comt_cli.training.processes import StopSignal
from comt_cli.words import plural


class TrainingFailed(UserError):
    """An error after training had begun. Everything saved before is intact."""

    exit_status = 1


def check_not_stopped(stop: StopSignal) -> None:
    """Raise `RunInterrupted` if a signal came before the first run began."""
    if stop.number is not None:
        raise RunInterrupted("stopped before the first run", "The same command starts again.", stop.number)


class Ending(StrEnum):
    """A run's state when a command ends; the value is the displayed text."""

    done = "done"
    diverged = "diverged"
    failed = "failed"
    elsewhere = "trained elsewhere"
    left = "left to do"


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of one run in the directory `path`: its `result.json`, and whether that existed `already`; the
    `reason` in one line why it failed, who else trains it, or where it stopped; a `remedy` if a retry cannot help."""

    spec: RunSpec
    ending: Ending
    path: Path
    result: dict[str, Any] | None = None
    already: bool = False
    reason: str | None = None
    remedy: str | None = None

    @classmethod
    def of(cls, shared: SharedRun, runs: Path, ending: Ending, reason: str | None = None) -> RunOutcome:
        """The outcome of a run without a result."""
        return cls(shared.spec, ending, shared.directory(runs).shown, reason=reason)

    @classmethod
    def refused(cls, shared: SharedRun, runs: Path, error: UserError) -> RunOutcome:
        """The outcome of a run that failed for a reason that the user can fix. Its `error.txt` has the remedy."""
        reason = " ".join(error.message.split())
        remedy = error.hint or "Fix this, then run the same command again."
        directory = shared.directory(runs)
        directory.note_error(reason, f"{remedy}\n")
        return cls(shared.spec, Ending.failed, directory.shown, reason=reason, remedy=remedy)

    @classmethod
    def with_result(cls, shared: SharedRun, runs: Path, result: dict[str, Any], *, already: bool) -> RunOutcome:
        """The outcome of a run that is done or diverged."""
        return cls(shared.spec, Ending(result["state"]), shared.directory(runs).shown, result, already)

    @property
    def ended(self) -> bool:
        """Whether it has its result."""
        return self.ending in (Ending.done, Ending.diverged)

    def __str__(self) -> str:
        if self.result is not None:
            return result_text(self.spec.task, self.result) + (", finished by another process" if self.already else "")
        if self.ending is Ending.left:
            return self.reason or self.ending
        return f"{self.ending}: {self.reason}"


@dataclass(frozen=True)
class Summary:
    """The outcomes of a command's runs, in order. A run that tables share counts once."""

    outcomes: tuple[RunOutcome, ...]

    def having(self, *endings: Ending) -> list[RunOutcome]:
        """The runs with one of these endings."""
        return [outcome for outcome in self.outcomes if outcome.ending in endings]

    def lines(self) -> list[str]:
        """One line with the counts, then one line per run that failed or is trained by another process."""
        counts = []
        for ending in Ending:
            if found := self.having(ending):
                before = sum(outcome.already for outcome in found)
                counts.append(f"{len(found)} {ending}" + (f" ({before} before)" if before else ""))
        lines = [f"{plural(len(self.outcomes), 'run')}: {', '.join(counts)}" if counts else "0 runs"]
        for outcome in self.having(Ending.failed, Ending.elsewhere):  # the others were printed before
            if outcome.reason is not None:
                why = f" ({outcome.path}/error.txt)" if outcome.ending is Ending.failed else ""
                lines.append(f"  {outcome.ending}: {run_name(outcome.spec, with_table=True)}: {outcome.reason}{why}")
            if outcome.remedy is not None:
                lines.append(f"    {outcome.remedy}")
        return lines

    def check(self) -> None:
        """Raise `TrainingFailed` (exit status 1) if a run failed or was not trained."""
        failed = self.having(Ending.failed)
        if failed:
            # Name a run with a remedy first: a retry does not help it.
            first = min(failed, key=lambda outcome: outcome.remedy is None)
            others = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
            total = len(self.outcomes)
            wrong = f"{len(failed)} of {total} runs failed: {run_name(first.spec, with_table=True)}{others}"
            hint = f"The reason is in {first.path}/error.txt. The same command tries again from the last checkpoint."
            raise TrainingFailed(wrong, hint if first.remedy is None else f"{first.reason}\n  {first.remedy}")
        if left := self.having(Ending.left):
            wrong = f"{len(left)} of {len(self.outcomes)} runs are left to do"
            raise TrainingFailed(wrong, "The same command resumes from there.")


def run_name(spec: RunSpec, *, with_table: bool = False) -> str:
    """The name of a run: `pre-ln, 130m, seed 1`, with its values of a grid and optionally its table."""
    table = f"{spec.paper}/{spec.table} " if with_table else ""
    point = f", {point_in_words(spec.point)}" if spec.point else ""
    return f"{table}{spec.row}, {spec.column}{point}, seed {spec.seed}"


def result_text(task: Task[Any], result: dict[str, Any]) -> str:
    """A short text for a run's `result.json`, which may come from anywhere."""
    if result["state"] == "diverged":
        return f"diverged at step {result.get('diverged_at', '?')}"
    metric = task.metrics[task.metric]
    value, seconds = result.get(task.metric), result.get("train_seconds")
    words = f"{value:.{metric.decimals}f}{metric.sign}" if isinstance(value, int | float) else "beyond range"
    took = f", {seconds:.0f} s" if isinstance(seconds, int | float) else ""
    return f"validation {metric.brief} {words}{took}"


class RunQueue:
    """Gives out runs one by one. A run that another process trains is checked again at the end. A run that starts from
    the weights of another run, its source, waits until the source is done, and fails if the source diverged or failed.
    Any number of processes and machines may share the same queue: each run has a lock. `every` holds each run once,
    sources first; `open` the needed runs that had no result at the start."""

    def __init__(self, specs: Sequence[RunSpec], runs: Path) -> None:
        self.runs = runs
        self._fill(adopt_contents(specs, runs, ambiguous=True))

    def _fill(self, specs: Sequence[RunSpec]) -> None:
        self._asked = list(specs)
        self.every = shared_runs(with_sources(specs))
        self._outcomes: dict[str, RunOutcome] = {}
        for shared in self.every:
            self._look(shared, at_owner=False)
        self._needed = {shared.id for shared in needed_runs(specs, self.runs)}
        self.open = [shared for shared in self.every if shared.id in self._needed and shared.id not in self._outcomes]
        self._waiting = deque(self.open)

    def _look(self, shared: SharedRun, *, at_owner: bool = True) -> None:
        """Read the state of a run: its result, or its owner (if `at_owner`); else it is open."""
        directory = shared.directory(self.runs)
        try:
            owner = directory.owner() if at_owner else None
            result = directory.result()  # after the lock: its owner writes the result first
        except UserError as error:  # it cannot be trained
            self.record(RunOutcome.refused(shared, self.runs, error))
            return
        if result is not None:
            link_runs(shared.specs, self.runs)
            self.record(RunOutcome.with_result(shared, self.runs, result, already=True))
        elif owner is not None:
            self.record(RunOutcome.of(shared, self.runs, Ending.elsewhere, f"by {owner}"))
        else:
            self._outcomes.pop(shared.id, None)

    def prepare_data(self, progress: ProgressCallback, stop: StopSignal) -> dict[str, AnyDataset]:
        """Prepare the data sets of the open runs; returns them by fingerprint. Call it before the first run is taken:
        the hash of the data decides whether a run is open or done. Raises `RunInterrupted` after a signal."""

        def preparing(stage: str, done: int, total: int | None) -> None:
            if stop.number is not None:
                status = "stopped while preparing the data; finished data sets are kept"
                raise RunInterrupted(status, "The same command resumes from there.", stop.number)
            progress(stage, done, total)

        datasets: dict[str, AnyDataset] = {}
        weights: dict[str, str] = {}
        # Repeated because a data hash can open other runs: a run whose source turned out to be another run.
        while unprepared := [shared.spec for shared in self.open if shared.spec.data_fingerprint not in datasets]:
            for spec in unprepared:
                is_begun = RunDirectory.of(self.runs, spec).is_begun  # then it needs no start weights
                if isinstance(spec.start, WeightsStart) and not is_begun and spec.start.key not in weights:
                    preparing("reading the weights to start from", 0, None)
                    weights[spec.start.key] = str(content_hash(spec.start.weights, fetch=True))
                if spec.data_fingerprint not in datasets:
                    datasets[spec.data_fingerprint] = spec.task.prepare(spec.settings, preparing)
            prepared = {fingerprint: dataset.content_hash for fingerprint, dataset in datasets.items()}
            self.data_prepared(prepared | weights)
        return datasets

    def data_prepared(self, contents: dict[str, str]) -> None:
        """Replace the runs by those on data with these hashes (by fingerprint). Call it before a run is taken."""
        known = [spec.with_contents(contents) for spec in self._asked]
        if known != self._asked:
            self._fill(known)

    def look_at_open(self) -> None:
        """Read the results of other processes for the open runs, whose data they may have prepared."""
        contents = {}
        for planned, spec in {shared.spec.data_fingerprint: shared.spec for shared in self.open}.items():
            # Unreadable or changed data is left out: the error that ended the training must be reported instead.
            with contextlib.suppress(UserError):
                fingerprint, content = spec.task.identify(spec.settings)
                if fingerprint == planned and content is not None:
                    contents[fingerprint] = content
        self.data_prepared(contents)
        for shared in self.open:
            self._look(shared)
        for shared in self.open:
            if shared.id not in self._outcomes:
                self._fails_by_its_source(shared)

    def take(self) -> SharedRun | None:
        """The next run to train; None if there is none for now."""
        shared = self._next()
        if shared is None:
            for other in [each for each in self.open if self._ending(each.id) is Ending.elsewhere]:
                self._look(other)
                if other.id not in self._outcomes:  # its process stopped or died without a result
                    self._waiting.append(other)
            shared = self._next()
        return shared

    def _ending(self, run_id: str) -> Ending | None:
        return self._outcomes[run_id].ending if run_id in self._outcomes else None

    def _next(self) -> SharedRun | None:
        """Remove and return the first run that need not wait; record runs whose source failed as failed."""
        for shared in tuple(self._waiting):
            is_ready = self._source_awaited(shared) is None
            if is_ready or self._fails_by_its_source(shared):
                self._waiting.remove(shared)
            if is_ready:
                return shared
        return None

    def _source_awaited(self, shared: SharedRun) -> RunSpec | None:
        """The run whose weights `shared` waits for; None if it can begin or resume."""
        source = shared.spec.source
        if source is None or shared.directory(self.runs).is_begun:
            return None
        return None if self._ending(source.id) is Ending.done else source

    def _fails_by_its_source(self, shared: SharedRun) -> bool:
        """Record a run as failed if its source will leave no weights; returns whether it did."""
        source = self._source_awaited(shared)
        if source is None or self._ending(source.id) not in (Ending.diverged, Ending.failed):
            return False
        ended = self._outcomes[source.id]
        why, remedy = f"failed: {ended.reason}", None
        if ended.result is not None:
            why, remedy = f"diverged at step {ended.result.get('diverged_at')}", NO_WEIGHTS
        error = UserError(f"it starts from {run_name(source, with_table=True)}, which {why}", remedy)
        with contextlib.suppress(StorageError):  # it is printed anyway
            shared.directory(self.runs).create(shared.spec)
        self.record(RunOutcome.refused(shared, self.runs, error))
        return True

    def give_back(self, shared: SharedRun) -> None:
        """Put a run that was taken but not trained at the front."""
        self._waiting.appendleft(shared)

    def record(self, outcome: RunOutcome) -> None:
        """Record the outcome of a run."""
        self._outcomes[outcome.spec.id] = outcome

    def summary(self) -> Summary:
        """The present outcomes of all runs."""
        shown = [each for each in self.every if each.id in self._needed | self._outcomes.keys()]
        outcomes = {each.id: RunOutcome.of(each, self.runs, Ending.left) for each in shown} | self._outcomes
        return Summary(tuple(outcomes[each.id] for each in shown))
