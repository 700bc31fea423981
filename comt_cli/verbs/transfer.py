"""The verbs that copy runs to a URL and from it. Torch-free."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
from comt_cli.runs.transfer import SPEC, Outcome, Report, Store, latest
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
    chosen = [run for run in _chosen(selectors, of) if not run.is_replaced]
    store = Store(url, _counter())
    with file_lock(cache_folder() / "push" / f"{sha256(url)[:16]}.lock"):  # two would write the same files
        there, _ = store.versions()

        def send(run: KnownRun) -> Outcome:
            if run.spec is None:
                return Outcome("unreadable", run.problem)
            return store.push(run, there.get(run.id, ()), weights=not without_checkpoints)

        _move(chosen, send, f"from {of.runs} to {store.url}", {})


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
    store = Store(url, _counter())
    there, damaged = store.versions()

    def receive(run: KnownRun) -> Outcome:
        if run.spec is None or run.spec.id != run.id:
            return Outcome("refused", (run.problem or f"its {SPEC} is another run's").replace(outline, store.url))
        if (version := newest[run.id]) is None:
            return Outcome("differ", f"{store.url} has two trainings of it. Neither was copied.")
        return store.pull(run.spec, of.runs, version, weights=not without_checkpoints)

    lock = file_lock(of.runs / BY_ID / ".pull.lock")
    with lock, tempfile.TemporaryDirectory() as outline:  # specs alone: a folder of runs for selectors
        newest = {name: latest(versions) for name, versions in there.items()}
        for name, versions in there.items():
            if not store.fetch(newest[name] or versions[0], SPEC, Path(outline, BY_ID, name, SPEC)):
                damaged[name] = f"the checksum of {SPEC} is wrong"
        try:
            chosen = _chosen(selectors, replace(of, runs=Path(outline)))
        except UserError as error:
            raise UserError(error.message.replace(outline, store.url), error.hint) from None
        _move(chosen, receive, f"from {store.url} to {of.runs}", damaged)


def _chosen(selectors: list[str] | None, of: OfRuns) -> list[KnownRun]:
    return list({run.name: run for run, _ in listed_runs(selectors or (), of)}.values())


def _move(
    runs: Sequence[KnownRun], move: Callable[[KnownRun], Outcome], where: str, damaged: Mapping[str, str]
) -> None:
    """Move runs. Print a line for each that was transferred or has a problem, and for those that are `damaged`; then
    the counts. Raises `typer.Exit` if there is a problem."""
    counts, total, problems = Counter[str](), 0, len(damaged)
    for number, run in enumerate(runs, start=1):
        word, problem, size = move(run)
        counts[word] += 1
        total += size
        problems += problem is not None
        if size or problem:
            name = run_name(run.spec, with_table=True) if run.spec is not None else run.name
            said = f": {problem}" if problem else f", {format.size(size)}"
            typer.echo(f"[{number}/{len(runs)}] {name}: {word}{said}", err=True)
    for name, problem in damaged.items():
        counts["damaged"] += 1
        typer.echo(f"{name}: damaged: {problem}", err=True)
    listed = ", ".join(f"{count} {word}" for word, count in counts.items()) or "none"
    typer.echo(f"{format.plural(counts.total(), 'run')} {where}: {listed}; {format.size(total)}")
    if problems:
        raise typer.Exit(1)


def _counter() -> Report:
    """A function that adds up bytes, and shows them on a terminal."""
    total = 0

    def add(count: int) -> None:
        nonlocal total
        total += count
        if sys.stderr.isatty():
            print(f"\r{format.size(total)} ", end="", file=sys.stderr, flush=True)

    return add
