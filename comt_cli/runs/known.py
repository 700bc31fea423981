"""The runs in a folder, read lazily; the data hash inferred from them; and the links of shared runs."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from comt_cli.errors import StorageError, UserError, of_surroundings
from comt_cli.files import read_json, read_text
from comt_cli.recipe.find import MARK
from comt_cli.runs.directory import READING_ERRORS, RunDirectory, RunState
from comt_cli.runs.plan import BY_ID, CHANGED, RunSpec, with_sources
from comt_cli.words import plural

ID_DIGITS = 12
FOLDER_NAME = re.compile(rf"([0-9a-f]{{{ID_DIGITS}}})(?:\.replaced-(\d+))?")
"""The name of a run's folder: its id, and a number after it was archived."""


class Standing(StrEnum):
    """State of a run, as `comt runs --state` selects it."""

    done = "done"
    diverged = "diverged"
    running = "running"
    unfinished = "unfinished"
    failed = "failed"  # it is unfinished, and the last attempt ended with an error
    replaced = "replaced"  # it was archived, and another run of the same id was begun
    unreadable = "unreadable"  # its files are damaged, or of another version


class Place(NamedTuple):
    """Position of a run in a table. The folder names of links have dashes instead of slashes."""

    paper: str
    table: str
    row: str
    column: str

    @property
    def recipe(self) -> str:
        """The name of the table's recipe, `paper/table`."""
        return f"{self.paper}/{self.table}"

    @property
    def dashed(self) -> Place:
        """The same with the folder names of a link."""
        return Place(*(name.replace("/", "-") for name in self))


@dataclass(frozen=True)
class KnownRun:
    """A run by its folder. `links` lead to it, one for each position in a table."""

    directory: RunDirectory
    links: tuple[Path, ...]

    @property
    def name(self) -> str:
        """The folder's name: the id, and the suffix of an archived run."""
        return self.directory.path.name

    @property
    def id(self) -> str:
        """Its id."""
        return self.name[:ID_DIGITS]

    @property
    def is_replaced(self) -> bool:
        """Whether it was archived."""
        return len(self.name) > ID_DIGITS

    @property
    def given_name(self) -> str | None:
        """The name given by `comt runs --name`; None for an archived run."""
        try:
            return None if self.is_replaced else read_text(self.directory.name_file).strip() or None
        except (OSError, ValueError):
            return None

    @cached_property
    def labels(self) -> Mapping[str, Any]:
        """The contents of `spec.json` of any version; {} if it cannot be read."""
        try:
            return dict(read_json(self.directory.spec_file))
        except READING_ERRORS:
            return {}

    def label(self, key: str) -> str:
        """A name in `spec.json`, such as `row`, `column` or `scale`; `?` if there is none."""
        found = self.labels.get(key)
        return found if isinstance(found, str) else "?"

    @property
    def seed(self) -> int | None:
        """Its seed; None if it cannot be read."""
        found = self.labels.get("seed")
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    @cached_property
    def spec(self) -> RunSpec | None:
        """The run, fully resolved; None if this version cannot read it."""
        try:
            return self.directory.spec()
        except READING_ERRORS:
            return None

    @cached_property
    def home(self) -> Place:
        """Its position in the table that it was trained for."""
        return Place(*(self.label(key) for key in ("paper", "table", "row", "column")))

    @cached_property
    def elsewhere(self) -> tuple[Place, ...]:
        """Its positions in tables of other recipes that link to it, with dashes instead of slashes."""
        linked = ((link.parts[-5], link.parts[-4].partition(MARK)[0], *link.parts[-3:-1]) for link in self.links)
        return tuple(place for place in dict.fromkeys(Place(*each) for each in linked) if place != self.home.dashed)

    @property
    def variants(self) -> tuple[str, ...]:
        """The tables of changed settings that link to it, such as `paper/table@steps-12`, with dashes for slashes."""
        return tuple(dict.fromkeys("/".join(link.parts[-5:-3]) for link in self.links if MARK in link.parts[-4]))

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of all its tables' recipes, each once."""
        return tuple(dict.fromkeys(place.recipe for place in (self.home, *self.elsewhere)))

    @cached_property
    def _read(self) -> tuple[Standing, dict[str, Any] | None, str | None]:
        """State, result, and the reason if the directory cannot be read."""
        try:
            state, result = self.directory.state(), self.directory.result()
        except READING_ERRORS as error:
            told = error if isinstance(error, UserError) else of_surroundings(error)
            return Standing.unreadable, None, told.message if told else f"{self.directory.path}: {error!r}"
        if state is RunState.running:  # it may have just begun, without a spec.json
            return Standing.running, None, None
        if self.spec is None:
            reason = "was made by another version of comt" if self.labels else "has no readable spec.json"
            return Standing.unreadable, result, f"{self.directory.path} {reason}"
        if state in (RunState.done, RunState.diverged):
            return Standing(state.value), result, None
        return Standing.failed if self.directory.error() is not None else Standing.unfinished, None, None

    @property
    def ended_as(self) -> Standing:
        """Its state, for an archived run the state when it was archived."""
        return self._read[0]

    @property
    def standing(self) -> Standing:
        """Its state."""
        return Standing.replaced if self.is_replaced else self.ended_as

    @property
    def result(self) -> Mapping[str, Any]:
        """`result.json`; {} if there is none."""
        return self._read[1] or {}

    @property
    def problem(self) -> str | None:
        """Why it cannot be read; None if it can."""
        return self._read[2]

    @property
    def has_checkpoint(self) -> bool:
        """Whether its weights can be loaded."""
        return os.path.isfile(self.directory.checkpoint_file)  # noqa: PTH113 - Path's raises without permission

    @cached_property
    def written(self) -> float:
        """When it ended, else when it last logged a step, in seconds since 1970."""
        directory = self.directory
        for path in (directory.result_file, directory.metrics_file, directory.spec_file, directory.path):
            try:
                return path.stat().st_mtime
            except OSError:
                continue
        return 0.0

    @cached_property
    def size(self) -> int:
        """Bytes of its readable files; links inside it are not followed."""
        total = 0
        for path, _, names in os.walk(self.directory.path):
            for name in names:
                with contextlib.suppress(OSError):  # it is being removed, or is another user's
                    total += os.lstat(f"{path}/{name}").st_size
        return total


def known_runs(runs: Path) -> list[KnownRun]:
    """Every run in the folder `runs`, archived ones included, sorted by folder name."""
    folder = runs / BY_ID
    if not folder.is_dir():
        return []
    links: dict[str, list[Path]] = {}
    for link in sorted(runs.glob("*/*/*/*/seed*")):  # <paper>/<table>/<row>/<column>/seed<k>-<id>
        with contextlib.suppress(OSError):
            target = link.readlink()
            if os.path.normpath(link.parent / target) == os.path.normpath(folder / target.name):
                links.setdefault(target.name, []).append(link)
    with os.scandir(folder) as entries:
        folders = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    found = {name: tuple(links.get(name, ())) for name in folders if FOLDER_NAME.fullmatch(name)}
    return [KnownRun(RunDirectory(folder / name, next(iter(its), None)), its) for name, its in found.items()]


_REMOVED = ".removed-"
"""Part of the name of a folder that is being deleted. The name begins with a dot, so that no reader finds it."""


def remove_runs(chosen: Sequence[KnownRun], runs: Path) -> None:
    """Delete `chosen`, a selection of `known_runs`. Each first loses its links and is renamed, so that no reader sees a
    part of it. Folders left by an interrupted call are deleted too. Raises `BeingTrained` if another process trains one
    of them (none is deleted), or `StorageError` (those before it are deleted)."""
    for run in chosen:
        if _has_lock(run) and (owner := run.directory.owner()) is not None:
            raise run.directory.held_by(owner)
    for run in chosen:
        path = run.directory.path
        aside = path.with_name(f".{path.name}{_REMOVED}{secrets.token_hex(4)}")
        with run.directory.lock() if _has_lock(run) else contextlib.nullcontext():
            try:
                for link in run.links:
                    link.unlink(missing_ok=True)
                    _remove_empty(link.parent, runs)
                path.rename(aside)
                shutil.rmtree(aside)
            except FileNotFoundError:  # another process deleted it
                continue
            except OSError as error:
                raise StorageError(f"cannot delete {path}: {error.strerror or error}") from error
    for left in (runs / BY_ID).glob(f".*{_REMOVED}*"):
        shutil.rmtree(left, ignore_errors=True)


def _has_lock(run: KnownRun) -> bool:
    """Whether the folder has a lock that a training could hold. In a damaged one it may be a link or a pipe."""
    return run.directory.lock_file.is_file() and not run.directory.lock_file.is_symlink()


def _remove_empty(folder: Path, runs: Path) -> None:
    """Delete `folder` and its parents below `runs` that contain at most the file of changed settings."""
    while folder != runs and runs in folder.parents:
        try:
            if [path.name for path in folder.iterdir()] == [CHANGED]:
                (folder / CHANGED).unlink()
            folder.rmdir()  # refuses what is not empty
        except OSError:
            return
        folder = folder.parent


def adopt_contents(specs: Sequence[RunSpec], runs: Path, *, ambiguous: bool = False) -> list[RunSpec]:
    """`specs` with the data hash of those whose data is not prepared here inferred from the runs in `runs`. Raises
    `UserError` if runs of the same request were trained on different data, because one table cannot contain both; with
    `ambiguous` their hash stays unknown."""
    every = with_sources(specs)
    unknown = {asked for spec in every for asked, content in spec.contents.items() if content is None}
    if not unknown:
        return list(specs)
    requests = {spec.request for spec in every}
    contents: dict[str, Counter[str]] = {asked: Counter() for spec in every for asked in spec.contents}
    for run in known_runs(runs):
        if run.is_replaced or run.label("data_fingerprint") not in contents or run.label("data_content") == "?":
            continue
        of_run = run.spec  # None for a damaged run, which is reported when it is read
        # A run without a checkpoint may have been refused its data.
        if of_run is not None and of_run.request in requests and run.directory.is_begun:
            for each in (of_run, *of_run.sources):  # also covers a source whose directory is not here
                for asked, content in each.contents.items():
                    if content is not None and asked in contents:
                        contents[asked][content] += 1
    several = {asked: counts for asked, counts in contents.items() if len(counts) > 1}
    if several and not ambiguous:
        asked, counts = next(iter(several.items()))
        listed = ", ".join(f"{content} ({plural(count, 'run')})" for content, count in counts.most_common())
        names = (spec.task.data_name(spec.settings) for spec in every if spec.data_fingerprint == asked)
        said = f"the runs on {next(names, asked)} in {runs} were trained on different data, by data_content: {listed}"
        raise UserError(said, "Train here, which prepares the data, or keep runs with one data_content (in spec.json).")
    only = {asked: next(iter(counts)) for asked, counts in contents.items() if asked in unknown and len(counts) == 1}
    return [spec.with_contents(only) for spec in specs]


# ---- trainings that several tables share


@dataclass(frozen=True)
class SharedRun:
    """One training with all planned runs that share its id, of one table or several."""

    specs: tuple[RunSpec, ...]

    @property
    def spec(self) -> RunSpec:
        """The first of the planned runs; the others differ only in names."""
        return self.specs[0]

    @property
    def id(self) -> str:
        """The id of them all."""
        return self.spec.id

    def directory(self, runs: Path) -> RunDirectory:
        """Its run directory."""
        return RunDirectory.of(runs, self.spec)


def shared_runs(specs: Iterable[RunSpec]) -> list[SharedRun]:
    """The distinct trainings of `specs`, in the order of their first occurrence."""
    grouped: dict[str, list[RunSpec]] = {}
    for spec in specs:
        grouped.setdefault(spec.id, []).append(spec)
    return [SharedRun(tuple(same)) for same in grouped.values()]


def needed_runs(specs: Sequence[RunSpec], runs: Path) -> list[SharedRun]:
    """The distinct trainings of `specs`, after the sources that they still need. A source is needed by runs that have
    neither a checkpoint nor a result."""
    needed: set[str] = set()
    left = list(specs)
    while left:
        spec = left.pop()
        if spec.id not in needed:
            needed.add(spec.id)
            if spec.source is not None and not RunDirectory.of(runs, spec).is_begun:
                left.append(spec.source)
    return [shared for shared in shared_runs(with_sources(specs)) if shared.id in needed]


def link_runs(specs: Iterable[RunSpec], runs: Path) -> None:
    """Make the links of all runs of `specs` that exist, whichever table trained them. Raises `StorageError`."""
    for spec in specs:
        directory = RunDirectory.of(runs, spec)
        if directory.path.is_dir():
            directory.link(spec.changed)


def set_aside(specs: Sequence[RunSpec], runs: Path) -> list[Path]:
    """Archive the run directories of `specs` and all links to them, so that the runs are trained again; returns the new
    paths. Nothing is deleted. Raises `BeingTrained` if another process trains one of them (none is moved), or
    `StorageError` (those before it are moved)."""
    directories = [directory for shared in shared_runs(specs) if (directory := shared.directory(runs)).path.is_dir()]
    with contextlib.ExitStack() as locks:
        for directory in directories:
            locks.enter_context(directory.lock())
        return [_archive(directory, runs) for directory in directories]


def _archive(directory: RunDirectory, runs: Path) -> Path:
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
