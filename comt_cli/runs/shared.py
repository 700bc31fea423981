"""Runs that several tables share: one training by its id, its links, and its being moved out of the way."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from comt_cli.errors import StorageError
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec, with_sources


@dataclass(frozen=True)
class SharedRun:
    """One training and every planned run that it is: the same id under the names of one table or several."""

    specs: tuple[RunSpec, ...]

    @property
    def spec(self) -> RunSpec:
        """The first of the planned runs; the others differ from it in names alone."""
        return self.specs[0]

    @property
    def id(self) -> str:
        """The id of them all."""
        return self.spec.id

    def directory(self, runs: Path) -> RunDirectory:
        """Its run directory."""
        return RunDirectory.of(runs, self.spec)

    def link(self, runs: Path) -> None:
        """Make its links. Raises `StorageError` where the system refuses."""
        for spec in self.specs:
            RunDirectory.of(runs, spec).link(spec.changed)


def shared_runs(specs: Iterable[RunSpec]) -> list[SharedRun]:
    """The trainings that `specs` need, each once, in the order in which they come first."""
    grouped: dict[str, list[RunSpec]] = {}
    for spec in specs:
        grouped.setdefault(spec.id, []).append(spec)
    return [SharedRun(tuple(same)) for same in grouped.values()]


def needed_runs(specs: Sequence[RunSpec], runs: Path) -> list[SharedRun]:
    """The trainings behind `specs`, each once: first the sources that are still needed, then they themselves. A source
    is needed for runs that have neither a checkpoint nor a result, whether it is done by now or not."""
    needed: set[str] = set()
    left = list(specs)
    while left:
        spec = left.pop()
        if spec.id not in needed:
            needed.add(spec.id)
            if spec.start is not None and not RunDirectory.of(runs, spec).is_begun:
                left.append(spec.start.run)
    return [shared for shared in shared_runs(with_sources(specs)) if shared.id in needed]


def link_runs(specs: Iterable[RunSpec], runs: Path) -> None:
    """Make the links of all runs of `specs` that are there, whichever table they were trained for. Raises
    `StorageError` where the system refuses."""
    for spec in specs:
        directory = RunDirectory.of(runs, spec)
        if directory.path.is_dir():
            directory.link(spec.changed)


def set_aside(specs: Sequence[RunSpec], runs: Path) -> list[Path]:
    """Move the run directories of `specs` out of the way, with every link to them, so that they are trained anew;
    returns where they went. Nothing is deleted: what was computed was paid for. Raises `BeingTrained` where another
    process is training one of them: none is moved; `StorageError` where the system refuses: those before are moved."""
    directories = [directory for shared in shared_runs(specs) if (directory := shared.directory(runs)).path.is_dir()]
    with contextlib.ExitStack() as locks:
        for directory in directories:
            locks.enter_context(directory.lock())
        return [_set_aside(directory, runs) for directory in directories]


def _set_aside(directory: RunDirectory, runs: Path) -> Path:
    path, shown = directory.path, directory.shown
    links = [link for link in runs.glob(f"*/*/*/*/seed*-{path.name}") if RunDirectory(path, link).shown == link]
    number = 1
    while (target := path.with_name(f"{path.name}.replaced-{number}")).exists():
        number += 1
    try:
        path.rename(target)
        for link in links:
            renamed = link.with_name(f"{link.name}.replaced-{number}")
            renamed.unlink(missing_ok=True)
            renamed.symlink_to(os.path.relpath(target, link.parent), target_is_directory=True)
            link.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot move {path} aside: {error.strerror or error}") from error
    return target if shown == path else shown.with_name(f"{shown.name}.replaced-{number}")
