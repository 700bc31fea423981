"""The verbs that copy runs to a URL and from it. Torch-free."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from comt_cli.campaign.queue import run_name
from comt_cli.commands import options
from comt_cli.commands.options import OfRuns
from comt_cli.data.storage import file_lock
from comt_cli.errors import UserError
from comt_cli.files import cache_folder, check_writable, sha256
from comt_cli.report import format
from comt_cli.runs.known import KnownRun
from comt_cli.runs.plan import BY_ID
from comt_cli.runs.transfer import SPEC, Outcome, Store, latest
from comt_cli.verbs.select import listed_runs

Url = Annotated[str, typer.Argument(metavar="URL", help="A folder, ssh://HOST/FOLDER, s3://BUCKET/FOLDER ...")]
Selectors = Annotated[
    list[str] | None, options.run_argument(f"{options.SELECTORS} All runs if not given.", metavar="RUN")
]
_WITHOUT = "Only finished runs, without their weights."
WithoutCheckpoints = Annotated[bool, typer.Option("--without-checkpoints", help=_WITHOUT)]


def push(url: Url, selectors: Selectors = None, *, of: OfRuns, without_checkpoints: WithoutCheckpoints = False) -> None:
    """Copy runs to a folder, a server or a bucket, from where comt pull reads them.

    Finished runs are copied, and unfinished ones as at their last checkpoint, also while they are trained. A later
    state of a run replaces an earlier one; a run that differs from the one there is named, and both stay. Interrupted,
    the same command goes on. The exit status is 1 if a run was not copied because of a problem.

    Examples:
      comt push /mnt/group/runs table3
      comt push s3://bucket/runs --without-checkpoints
    """
    if not (of.runs / BY_ID).is_dir():
        raise UserError(f"{of.runs} is no folder of runs: it has no {BY_ID}", "Give another one by --runs.")
    chosen = {run.name: run for run, _ in listed_runs(selectors or (), of) if not run.is_replaced}
    moved = _Moved()
    store = Store(url, moved.add)
    with file_lock(cache_folder() / "push" / f"{sha256(url)[:16]}.lock"):  # two would write the same files
        there, damaged = store.versions()

        def send(run: KnownRun) -> Outcome:
            if run.spec is None:
                return Outcome("unreadable", run.problem)
            return store.push(run, there.get(run.id, ()), weights=not without_checkpoints)

        moved.each(chosen.values(), send)
    moved.end(f"from {of.runs} to {store.url}", {name: why for name, why in damaged.items() if name[:12] not in chosen})


def pull(url: Url, selectors: Selectors = None, *, of: OfRuns, without_checkpoints: WithoutCheckpoints = False) -> None:
    """Copy runs that comt push has written. Commands use them as if they had been trained here.

    Checksums and ids are checked. A later state of a run replaces an earlier one, and a finished run an unfinished one,
    if it is the same training; otherwise the run is named, and both stay. Interrupted, the same command goes on. The
    exit status is 1 if a run was not copied because of a problem.

    Examples:
      comt pull ssh://me@host/data/runs table3
      comt pull s3://bucket/runs --without-checkpoints
    """
    check_writable(of.runs / BY_ID, "--runs")
    moved = _Moved()
    store = Store(url, moved.add)
    there, damaged = store.versions()

    def receive(run: KnownRun) -> Outcome:
        if run.spec is None or run.spec.id != run.id:
            return Outcome("refused", run.problem or f"its {SPEC} is another run's")
        if (newest := latest(there[run.id])) is None:
            return Outcome("differ", f"{store.url} has two trainings of it. Neither was copied.")
        return store.pull(run.spec, of.runs, newest, weights=not without_checkpoints)

    with tempfile.TemporaryDirectory() as outline:  # specs alone: a folder of runs for selectors
        for name, versions in there.items():
            if not store.fetch(versions[0], SPEC, Path(outline, BY_ID, name, SPEC)):
                damaged[name] = f"the checksum of {SPEC} is wrong"
        try:
            moved.each([run for run, _ in listed_runs(selectors or (), replace(of, runs=Path(outline)))], receive)
        except UserError as error:
            error.message = error.message.replace(outline, store.url)
            raise
    moved.end(f"from {store.url} to {of.runs}", damaged)


class _Moved:
    """Counts outcomes and bytes, and shows them on the error stream."""

    def __init__(self) -> None:
        self.counts, self.size, self.has_problem = Counter[str](), 0, False
        self._shown = 0

    def add(self, count: int) -> None:
        """Count bytes; on a terminal, show them."""
        self._shown += count
        if sys.stderr.isatty():
            print(f"\r{format.size(self._shown)} ", end="", file=sys.stderr, flush=True)

    def each(self, runs: Iterable[KnownRun], move: Callable[[KnownRun], Outcome]) -> None:
        """Move the runs, and print a line for each with transferred bytes or a problem."""
        for number, run in enumerate(every := [*dict.fromkeys(runs)], start=1):
            word, problem, size = move(run)
            self.counts[word] += 1
            self.size += size
            name = run_name(run.spec, with_table=True) if run.spec is not None else run.name
            if size or problem:
                self._print(
                    f"[{number}/{len(every)}] {name}: {word}{f', {format.size(size)}' if size else ''}", problem
                )

    def end(self, where: str, damaged: dict[str, str]) -> None:
        """Print the counts. Raises `typer.Exit` if there was a problem."""
        for name, why in damaged.items():
            self.counts["damaged"] += 1
            self._print(f"{name}: damaged", why)
        listed = ", ".join(f"{count} {word}" for word, count in self.counts.items()) or "none"
        typer.echo(f"{format.plural(self.counts.total(), 'run')} {where}: {listed}; {format.size(self.size)}")
        if self.has_problem:
            raise typer.Exit(1)

    def _print(self, line: str, problem: str | None) -> None:
        self.has_problem = self.has_problem or problem is not None
        typer.echo(f"{line}\n  {problem}" if problem is not None else line, err=True)
