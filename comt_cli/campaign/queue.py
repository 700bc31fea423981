"""The runs of a command that have no result yet, in their order, and the outcome of each. Torch-free."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from comt_cli.campaign.outcomes import Ending, RunOutcome, Summary, run_name
from comt_cli.data.storage import ProgressCallback
from comt_cli.errors import RunInterrupted, StorageError, UserError
from comt_cli.runs.known import adopt_contents
from comt_cli.runs.plan import NO_WEIGHTS, RunSpec, with_sources
from comt_cli.runs.shared import SharedRun, needed_runs, shared_runs
from comt_cli.tasks.base import AnyDataset
from comt_cli.training.processes import StopSignal


class RunQueue:
    """Hands out runs one by one; one that another process is training is put off, and looked at again at the end. A run
    that starts from another's weights begins when that one, its source, is done; where that has diverged or failed, so
    has the run. Any number of processes and machines may work off the same list: a run is whose lock it is, and its
    owner's death gives it back. `every` training is there once, whether done or not, sources first; `open` are those
    that had no result when the queue was made, without the sources that no run needs any more."""

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
        """Read what any process has made of a run: its result, or who trains it (`at_owner`); else it is open."""
        directory = shared.directory(self.runs)
        try:
            owner = directory.owner() if at_owner else None
            result = directory.result()  # after the lock: its owner writes the result first
        except UserError as error:  # nobody can train it
            self.record(RunOutcome.refused(shared, self.runs, error))
            return
        if result is not None:
            shared.link(self.runs)
            self.record(RunOutcome.with_result(shared, self.runs, result, already=True))
        elif owner is not None:
            self.record(RunOutcome.of(shared, self.runs, Ending.elsewhere, f"by {owner}"))
        else:
            self._outcomes.pop(shared.id, None)

    def prepare_data(self, progress: ProgressCallback, stop: StopSignal) -> dict[str, AnyDataset]:
        """Every data set that the open runs read, by its fingerprint. Called before the first run is taken: with the
        content of the data, runs can turn out to be open, or done. Raises `RunInterrupted` where a signal comes
        meanwhile; what is ready is kept. See also `comt_cli.data.prepare`."""

        def preparing(stage: str, done: int, total: int | None) -> None:
            if stop.number is not None:
                raise RunInterrupted(
                    "stopped while the data was being prepared; what is ready is kept",
                    "The same command resumes from there.",
                    stop.number,
                )
            progress(stage, done, total)

        datasets: dict[str, AnyDataset] = {}
        # Again where what was prepared has made other runs open: one whose source has turned out to be another run.
        while unprepared := [shared.spec for shared in self.open if shared.spec.data_fingerprint not in datasets]:
            for spec in unprepared:
                if spec.data_fingerprint not in datasets:
                    datasets[spec.data_fingerprint] = spec.task.prepare(spec.settings, preparing)
            self.data_prepared({fingerprint: dataset.content_hash for fingerprint, dataset in datasets.items()})
        return datasets

    def data_prepared(self, contents: dict[str, str]) -> None:
        """Take the runs to be those on data of these contents, by its fingerprint. Called before a run is taken."""
        known = [spec.with_contents(contents) for spec in self._asked]
        if known != self._asked:
            self._fill(known)

    def look_at_open(self) -> None:
        """Read what other processes have done with the open runs, whose data they may have prepared."""
        contents = {}
        for planned, spec in {shared.spec.data_fingerprint: shared.spec for shared in self.open}.items():
            # Data that cannot be read is left out, and what is not the planned data any more: the error that ended the
            # training must be reported, not that.
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
        """The next run to be tried; None where there is none for now."""
        shared = self._next()
        if shared is None:
            for other in [each for each in self.open if self._ending(each.id) is Ending.elsewhere]:
                self._look(other)
                if other.id not in self._outcomes:  # left without a result: its process was stopped, or it died
                    self._waiting.append(other)
            shared = self._next()
        return shared

    def _ending(self, run_id: str) -> Ending | None:
        return self._outcomes[run_id].ending if run_id in self._outcomes else None

    def _next(self) -> SharedRun | None:
        """The first that waits for no other; those that wait in vain have failed."""
        for shared in tuple(self._waiting):
            if self._source_awaited(shared) is None:
                self._waiting.remove(shared)
                return shared
            if self._fails_by_its_source(shared):
                self._waiting.remove(shared)
        return None

    def _source_awaited(self, shared: SharedRun) -> RunSpec | None:
        """The run whose weights a run has to wait for; None where it can begin, or resume."""
        start = shared.spec.start
        if start is None or shared.directory(self.runs).is_begun:
            return None
        return None if self._ending(start.run.id) is Ending.done else start.run

    def _fails_by_its_source(self, shared: SharedRun) -> bool:
        """Record that a run has failed, and why, where its source will leave no weights."""
        source = self._source_awaited(shared)
        if source is None or self._ending(source.id) not in (Ending.diverged, Ending.failed):
            return False
        ended = self._outcomes[source.id]
        before = f"it starts from {run_name(source, with_table=True)}, which"
        directory = shared.directory(self.runs)
        with contextlib.suppress(StorageError):  # it is printed anyway
            directory.create(shared.spec)
        if ended.result is not None:
            error = UserError(f"{before} diverged at step {ended.result.get('diverged_at')}", NO_WEIGHTS)
            self.record(RunOutcome.refused(shared, self.runs, error))
        else:  # the source's outcome has the remedy
            reason = f"{before} failed: {ended.reason}"
            directory.note_error(reason)
            self.record(RunOutcome.of(shared, self.runs, Ending.failed, reason))
        return True

    @property
    def awaited(self) -> str | None:
        """A sentence on the run of another process that a run waits for; None where none waits for such a one."""
        for shared in self._waiting:
            source = self._source_awaited(shared)
            if source is not None and self._ending(source.id) is Ending.elsewhere:
                reason = self._outcomes[source.id].reason
                return f"waiting for {run_name(source, with_table=True)}, which is being trained {reason}"
        return None

    def give_back(self, shared: SharedRun) -> None:
        """The run was taken but not trained: it is the next one again."""
        self._waiting.appendleft(shared)

    def record(self, outcome: RunOutcome) -> None:
        """Record the outcome of a run."""
        self._outcomes[outcome.spec.id] = outcome

    def left(self) -> int:
        """How many runs nobody has trained to their end, nor is training, and did not fail."""
        return len(self.summary().having(Ending.left))

    def summary(self) -> Summary:
        """The outcomes of all runs, by now."""
        return Summary(
            tuple(
                self._outcomes.get(shared.id) or RunOutcome.of(shared, self.runs, Ending.left)
                for shared in self.every
                if shared.id in self._needed or shared.id in self._outcomes
            )
        )
