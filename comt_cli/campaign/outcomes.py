"""The outcome of every run of a command. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from comt_cli.errors import RunInterrupted, UserError
from comt_cli.runs.directory import FEW, scored_on
from comt_cli.runs.plan import RunSpec, point_in_words
from comt_cli.runs.shared import SharedRun
from comt_cli.tasks import Task
from comt_cli.training.processes import StopSignal
from comt_cli.words import plural

FIX_FIRST = "Fix that first; the same command then tries again."


class TrainingFailed(UserError):
    """Something was found to be wrong after training had begun. What was saved before is intact."""

    exit_status = 1


def check_not_stopped(stop: StopSignal) -> None:
    """Raise `RunInterrupted` where a signal has come before the first run has begun."""
    if stop.number is not None:
        raise RunInterrupted("stopped before a run had begun", "The same command begins with them.", stop.number)


class Ending(StrEnum):
    """A run's state when a command ends; the value is for people."""

    done = "done"
    diverged = "diverged"
    failed = "failed"
    elsewhere = "trained elsewhere"
    left = "left to do"


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of one training: of a run (where several tables share it, under its first name), whose directory is
    `path`; `result.json`, where there is one, and whether it was there before this command came to it; in one line why
    it failed, who else trains it, or where it was stopped; and what must be fixed before it can be trained, None where
    trying again may do."""

    spec: RunSpec
    ending: Ending
    path: Path
    result: dict[str, Any] | None = None
    already: bool = False
    reason: str | None = None
    remedy: str | None = None

    @classmethod
    def of(cls, shared: SharedRun, runs: Path, ending: Ending, reason: str | None = None) -> RunOutcome:
        """A run without a result."""
        return cls(shared.spec, ending, shared.directory(runs).shown, reason=reason)

    @classmethod
    def refused(cls, shared: SharedRun, runs: Path, error: UserError) -> RunOutcome:
        """A run that failed by something that the user can fix. Its `error.txt` says how."""
        reason, remedy = " ".join(error.message.split()), error.hint or FIX_FIRST
        directory = shared.directory(runs)
        directory.note_error(reason, f"{remedy}\n")
        return cls(shared.spec, Ending.failed, directory.shown, reason=reason, remedy=remedy)

    @classmethod
    def with_result(cls, shared: SharedRun, runs: Path, result: dict[str, Any], *, already: bool) -> RunOutcome:
        """A run that is done or diverged."""
        ending = Ending.diverged if result["state"] == "diverged" else Ending.done
        return cls(shared.spec, ending, shared.directory(runs).shown, result, already)

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
    """The outcomes of all runs of a command, in its order; a training that tables share counts once."""

    outcomes: tuple[RunOutcome, ...]

    def having(self, *endings: Ending) -> list[RunOutcome]:
        """The runs with one of these endings."""
        return [outcome for outcome in self.outcomes if outcome.ending in endings]

    def lines(self) -> list[str]:
        """One line with the counts, then one for every run that failed, or that another process is training."""
        counts = []
        for ending in Ending:
            if found := self.having(ending):
                before = sum(outcome.already for outcome in found)
                counts.append(f"{len(found)} {ending}" + (f" ({before} before)" if before else ""))
        lines = [f"{plural(len(self.outcomes), 'run')}: {', '.join(counts)}" if counts else "0 runs"]
        for outcome in self.having(Ending.failed, Ending.elsewhere):  # of the others it was printed before
            if outcome.reason is not None:
                why = f" ({outcome.path}/error.txt)" if outcome.ending is Ending.failed else ""
                lines.append(f"  {outcome.ending}: {run_name(outcome.spec, with_table=True)}: {outcome.reason}{why}")
            if outcome.remedy is not None:
                lines.append(f"    {outcome.remedy}")
        return lines

    def check(self) -> None:
        """Raise `TrainingFailed`, whose exit status is 1, if a run failed, or nobody has trained it."""
        failed = self.having(Ending.failed)
        if failed:
            # First a run with a remedy: trying again will not help it.
            first = min(failed, key=lambda outcome: outcome.remedy is None)
            others = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
            raise TrainingFailed(
                f"{len(failed)} of {len(self.outcomes)} runs failed: {run_name(first.spec, with_table=True)}{others}",
                f"{first.path}/error.txt says why. The same command tries again, and resumes where they stopped."
                if first.remedy is None
                else f"{first.reason}\n  {first.remedy}",
            )
        if left := self.having(Ending.left):
            raise TrainingFailed(
                f"{len(left)} of {len(self.outcomes)} runs are left to do", "The same command resumes from there."
            )


def run_name(spec: RunSpec, *, with_table: bool = False) -> str:
    """A run in words: `pre-ln, 130m, seed 1`, with its values of a grid, after its table's name where there are several
    tables."""
    table = f"{spec.paper}/{spec.table} " if with_table else ""
    point = f", {point_in_words(spec.point)}" if spec.point else ""
    return f"{table}{spec.row}, {spec.column}{point}, seed {spec.seed}"


def result_text(task: Task[Any], result: dict[str, Any]) -> str:
    """A run's `result.json` in a few words."""
    if result["state"] == "diverged":
        return f"diverged at step {result.get('diverged_at', '?')}"
    metric, unit = task.metrics[task.metric], task.unit
    value, seconds, rate = (_number(result, key) for key in (task.metric, "train_seconds", unit.per_second))
    name = f"validation {metric.brief}"
    words = [f"{name} beyond range" if value is None else f"{name} {value:.{metric.decimals}f}{metric.sign}"]
    if (on := scored_on(result)) is not None and on[0] < FEW:
        words[0] += f" of {on[0]} {on[1]} alone"
    if seconds is not None:
        words.append(f"{seconds:.0f} s")
    if rate is not None:
        words.append(f"{rate:,.0f} {unit.short}/s")
    return ", ".join(words)


def _number(result: dict[str, Any], key: str) -> float | None:
    """A number of `result.json`, None where it has none: the file may come from anywhere."""
    found = result.get(key)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None
