"""The runs of a command that have no result yet, in their order, and what became of each. Torch-free."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from comt_cli.campaign.outcomes import Ending, RunOutcome, Summary
from comt_cli.errors import UserError
from comt_cli.runs.contents import adopt_contents
from comt_cli.runs.plan import RunSpec
from comt_cli.runs.shared import SharedRun, shared_runs


class RunQueue:
    """Hands out runs one by one; one that another process is training is put off, and looked at again at the end.

    Any number of processes and machines may work off the same list: a run is whose lock it is, and its owner's death
    gives it back.

    Attributes:
        every: all trainings, each once, whether done or not.
        open: those that had no result when the queue was made.
    """

    def __init__(self, specs: Sequence[RunSpec], runs: Path) -> None:
        self.runs = runs
        self._fill(adopt_contents(specs, runs, ambiguous=True))

    def _fill(self, specs: Sequence[RunSpec]) -> None:
        self.every = shared_runs(specs)
        self._outcomes: dict[str, RunOutcome] = {}
        for shared in self.every:
            self._look(shared)
        self.open = [shared for shared in self.every if shared.id not in self._outcomes]
        self._waiting = deque(self.open)

    def _look(self, shared: SharedRun) -> None:
        directory = shared.directory(self.runs)
        try:
            result = directory.result()
        except UserError as error:
            self.record(RunOutcome.refused(shared, self.runs, error))
            return
        if result is not None:
            shared.link(self.runs)
            self.record(RunOutcome.with_result(shared, self.runs, result, already=True))

    def data_prepared(self, contents: Mapping[str, str]) -> None:
        """Take the runs to be those on the data that was prepared, whose content `contents` has by fingerprint.

        It may be that this content was not known before, or is another one than the runs had that are here: runs can
        turn out to be open, or done. Must be called before the first run is taken.
        """
        specs = [spec for shared in self.every for spec in shared.specs]
        known = [spec.with_content(contents.get(spec.data_fingerprint, spec.data_content)) for spec in specs]
        if known != specs:
            self._fill(known)

    def look_at_open(self) -> None:
        """Look what other processes have made of the open runs."""
        for shared in self.open:
            self._look(shared)
            owner = self._owner(shared) if shared.id not in self._outcomes else None
            if owner is not None:
                self.record(RunOutcome.of(shared, self.runs, Ending.elsewhere, f"by {owner}"))

    def take(self) -> SharedRun | None:
        """The next run to be tried; None where there is none for now."""
        if not self._waiting:
            self._look_again()
        return self._waiting.popleft() if self._waiting else None

    def give_back(self, shared: SharedRun) -> None:
        """It was taken, and nothing was done: it is the next one again."""
        self._waiting.appendleft(shared)

    def record(self, outcome: RunOutcome) -> None:
        """What became of a run that was taken."""
        self._outcomes[outcome.spec.id] = outcome

    def _look_again(self) -> None:
        """Take up what another process has let go of without ending it: it was stopped, or it died."""
        for shared in self.open:
            outcome = self._outcomes.get(shared.id)
            if outcome is None or outcome.ending is not Ending.elsewhere:
                continue
            owner = self._owner(shared)
            self._look(shared)  # after the lock: its owner writes the result first
            if self._outcomes[shared.id].ending is Ending.elsewhere:
                if owner is None:
                    del self._outcomes[shared.id]
                    self._waiting.append(shared)
                else:
                    self.record(RunOutcome.of(shared, self.runs, Ending.elsewhere, f"by {owner}"))

    def _owner(self, shared: SharedRun) -> str | None:
        """The process that trains it; None where there is none, or where one cannot look: then nobody can train it."""
        try:
            return shared.directory(self.runs).owner()
        except UserError as error:
            self.record(RunOutcome.refused(shared, self.runs, error))
            return None

    def left(self) -> int:
        """How many runs nobody has trained to their end, nor is training, and did not fail."""
        return len(self.summary().having(Ending.left))

    def summary(self) -> Summary:
        """What became of all, by now."""
        return Summary(
            tuple(
                self._outcomes.get(shared.id) or RunOutcome.of(shared, self.runs, Ending.left) for shared in self.every
            )
        )
