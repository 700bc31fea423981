"""The verbs that copy runs to a URL and from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated

import typer

from comt_cli.campaign.queue import run_name
from comt_cli.campaign.transfer import Store
from comt_cli.commands import options
from comt_cli.commands.options import OfRuns
from comt_cli.data.storage import file_lock, first_line
from comt_cli.errors import StorageError, UserError
from comt_cli.files import cache_folder, check_writable, sha256
from comt_cli.report import format
from comt_cli.runs.plan import BY_ID
from comt_cli.verbs.select import listed_runs

Url = Annotated[str, typer.Argument(metavar="URL", help="A folder, ssh://HOST/FOLDER, s3://BUCKET/FOLDER ...")]
_ALL = f"{options.SELECTORS} All runs if not given."
Selectors = Annotated[list[str] | None, options.run_argument(_ALL, metavar="RUN")]


def push(url: Url, selectors: Selectors = None, *, of: OfRuns) -> None:
    """Copy runs to a folder, a server or a bucket, from where comt pull reads them.

    Finished runs are copied, and unfinished ones as at their last checkpoint, also while they are trained. Nothing is
    lost there: a run that neither equals nor continues the one there is named, and the exit status is 1.

    Examples:
      comt push /mnt/group/runs table3
      comt push s3://bucket/runs
    """
    if not (of.runs / BY_ID).is_dir():
        raise UserError(f"{of.runs} is no folder of runs: it has no {BY_ID}", "Give another one by --runs.")
    chosen = {run.id: run for run, _ in listed_runs(selectors or (), of) if not run.is_replaced}.values()
    unreadable = {run.id: str(run.problem) for run in chosen if run.spec is None}
    store = Store(url)
    with file_lock(cache_folder() / "push" / f"{sha256(url)[:16]}.lock"):  # two would send the same files
        there = store.versions()
        moves = [
            (run_name(run.spec, with_table=True), partial(store.push, run.directory, there.get(run.id, ())))
            for run in chosen
            if run.spec is not None
        ]
        _move(moves, f"from {of.runs} to {store.url}", unreadable)


def pull(url: Url, *, runs: options.Runs = options.DEFAULT_RUNS) -> None:
    """Copy runs that comt push has written. Commands use them as if they had been trained here.

    Checksums and ids are checked. Nothing is lost here: a run that neither equals nor continues the one here is named,
    and the exit status is 1.

    Examples:
      comt pull ssh://me@host/data/runs
      comt pull s3://bucket/runs --runs /data/runs
    """
    check_writable(runs / BY_ID, "--runs")
    store = Store(url)
    there = store.versions()
    with file_lock(runs / BY_ID / ".pull.lock"):
        moves = [(run, partial(store.pull, runs, run, versions)) for run, versions in there.items()]
        _move(moves, f"from {store.url} to {runs}", store.damaged)


def _move(moves: Sequence[tuple[str, Callable[[], tuple[str, int]]]], where: str, damaged: Mapping[str, str]) -> None:
    """Move runs, each with its name. Print a line for each that was moved or has a problem, also the `damaged`; then
    the counts. Raises `typer.Exit` if there is a problem."""
    counts, total = Counter({"damaged": len(damaged)}), 0
    for name, problem in damaged.items():
        typer.echo(f"{name}: {problem}", err=True)
    for name, move in moves:
        try:
            word, size = move()
            if size:
                typer.echo(f"{name}: {word}, {format.size(size)}", err=True)
        except StorageError:
            raise
        except (UserError, OSError) as error:
            word, size = "not copied", 0
            typer.echo(f"{name}: not copied: {first_line(error)}", err=True)
        counts[word] += 1
        total += size
    listed = ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "none"
    typer.echo(f"{format.plural(counts.total(), 'run')} {where}: {listed}; {format.size(total)}")
    if counts["damaged"] or counts["not copied"]:
        raise typer.Exit(1)
