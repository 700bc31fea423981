"""The runs in a folder, of all recipes: what `comt runs` lists and selectors choose from.

Reads only. What is asked of a run is read when it is asked, so that a folder of thousands can be searched by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from comt_cli.errors import UserError, of_surroundings
from comt_cli.files import read_json
from comt_cli.recipe.variant import MARK
from comt_cli.runs.directory import READING_ERRORS, RunDirectory, RunState
from comt_cli.runs.plan import BY_ID, RunSpec

FOLDER_NAME = re.compile(r"([0-9a-f]{12})(?:\.replaced-(\d+))?")
"""What a folder that holds a run is called: its id, and a number once it was set aside."""


class Standing(StrEnum):
    """Where a run stands, as `comt runs --state` selects it."""

    done = "done"
    diverged = "diverged"
    running = "running"
    unfinished = "unfinished"
    failed = "failed"
    """It is unfinished, and its newest attempt ended with an error."""
    replaced = "replaced"
    """It was moved aside, and another run of its id was begun."""
    unreadable = "unreadable"
    """Its files are damaged, or of another version."""


@dataclass(frozen=True)
class Place:
    """Where a run stands in a table. The names of a link's folders have dashes for slashes."""

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
        """The same as the folders of a link are called."""
        return Place(*(name.replace("/", "-") for name in (self.paper, self.table, self.row, self.column)))


@dataclass(frozen=True)
class KnownRun:
    """A run by its folder. `links` lead to it, each from its place in a table."""

    directory: RunDirectory
    links: tuple[Path, ...]

    @property
    def name(self) -> str:
        """The folder's name: the id, and what was added when it was set aside."""
        return self.directory.path.name

    @property
    def id(self) -> str:
        """Its id."""
        return self.name[:12]

    @property
    def is_replaced(self) -> bool:
        """Whether it was set aside."""
        return self.name != self.id

    @cached_property
    def labels(self) -> Mapping[str, Any]:
        """What `spec.json` says, of whichever version; {} where it cannot be read."""
        try:
            data = read_json(self.directory.spec_file)
        except READING_ERRORS:
            return {}
        return data if isinstance(data, dict) else {}

    def label(self, key: str) -> str:
        """A name in `spec.json`: `row`, `column`, `scale` ...; `?` where it says none."""
        found = self.labels.get(key)
        return found if isinstance(found, str) else "?"

    @property
    def seed(self) -> int | None:
        """Its seed; None where that cannot be read."""
        found = self.labels.get("seed")
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    @cached_property
    def spec(self) -> RunSpec | None:
        """The run, fully resolved; None where this version cannot read it."""
        try:
            return self.directory.spec()
        except READING_ERRORS:
            return None

    @cached_property
    def home(self) -> Place:
        """Its place in the table that it was trained for."""
        return Place(*(self.label(key) for key in ("paper", "table", "row", "column")))

    @cached_property
    def elsewhere(self) -> tuple[Place, ...]:
        """Its places in tables of other recipes that link to it, with dashes for slashes."""
        linked = ((link.parts[-5], link.parts[-4].partition(MARK)[0], *link.parts[-3:-1]) for link in self.links)
        return tuple(place for place in dict.fromkeys(Place(*each) for each in linked) if place != self.home.dashed)

    @property
    def variants(self) -> tuple[str, ...]:
        """The tables of changed settings that link to it: `paper/table@steps-12`, with dashes for slashes."""
        return tuple(dict.fromkeys("/".join(link.parts[-5:-3]) for link in self.links if MARK in link.parts[-4]))

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of all its tables' recipes, each once."""
        return tuple(dict.fromkeys(place.recipe for place in (self.home, *self.elsewhere)))

    @cached_property
    def _read(self) -> tuple[Standing, dict[str, Any] | None, str | None]:
        """Standing, result, and why the directory could not be read."""
        try:
            state, result = self.directory.state(), self.directory.result()
        except READING_ERRORS as error:
            told = error if isinstance(error, UserError) else of_surroundings(error)
            reason = told.message if told is not None else f"{self.directory.path}: {error!r}"
            return Standing.unreadable, None, reason
        if state is RunState.running:  # perhaps it has only just begun, and says nothing of itself yet
            return Standing.running, None, None
        if self.spec is None:
            reason = "was made by another version of comt" if self.labels else "has no readable spec.json"
            return Standing.unreadable, result, f"{self.directory.path} {reason}"
        if state in (RunState.done, RunState.diverged):
            return Standing(state.value), result, None
        return Standing.failed if self.directory.error() is not None else Standing.unfinished, None, None

    @property
    def ended_as(self) -> Standing:
        """Where it stands, or stood when it was set aside."""
        return self._read[0]

    @property
    def standing(self) -> Standing:
        """Where it stands."""
        return Standing.replaced if self.is_replaced else self.ended_as

    @property
    def result(self) -> Mapping[str, Any]:
        """`result.json`; {} where there is none."""
        return self._read[1] or {}

    @property
    def problem(self) -> str | None:
        """Why it could not be read; None where it could."""
        return self._read[2]

    @property
    def has_checkpoint(self) -> bool:
        """Whether its weights can be loaded."""
        return os.path.isfile(self.directory.checkpoint_file)  # noqa: PTH113 - Path's raises where it may not look

    @cached_property
    def written(self) -> float:
        """When it ended, else when it last logged something, as seconds since 1970."""
        directory = self.directory
        for path in (directory.result_file, directory.metrics_file, directory.spec_file, directory.path):
            try:
                return path.stat().st_mtime
            except OSError:
                continue
        return 0.0

    @cached_property
    def size(self) -> int:
        """Bytes of its files; links within it are not followed."""
        return folder_size(self.directory.path)


def known_runs(runs: Path) -> list[KnownRun]:
    """Every run below the folder `runs`, those set aside too, in the order of their folders' names."""
    folder = runs / BY_ID
    if not folder.is_dir():
        return []
    links = _links(runs)
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if FOLDER_NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                leading = tuple(links.get(entry.name, ()))
                path = folder / entry.name
                found.append(KnownRun(RunDirectory(path, leading[0] if leading else None), leading))
    return sorted(found, key=lambda run: run.name)


def _links(runs: Path) -> dict[str, list[Path]]:
    """The links `<paper>/<table>/<row>/<column>/seed<k>-<id>` below `runs`, by the folder that they lead to."""
    found: dict[str, list[Path]] = {}
    for link in sorted(runs.glob("*/*/*/*/seed*")):
        try:
            target = link.readlink()
        except OSError:
            continue
        if os.path.normpath(link.parent / target) == os.path.normpath(runs / BY_ID / target.name):
            found.setdefault(target.name, []).append(link)
    return found


def folder_size(folder: Path) -> int:
    """Bytes of the files below `folder`, as far as they can be seen; links are not followed."""
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    total += folder_size(Path(entry.path))
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    except OSError:  # it is being removed, or is another user's
        pass
    return total
