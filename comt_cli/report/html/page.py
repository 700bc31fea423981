"""`<results>/index.html`: every table, verdict, figure and learning curve of a results folder, in one file."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from comt_cli.errors import UserError
from comt_cli.files import write_changed
from comt_cli.recipe.yaml_lines import read
from comt_cli.report import format, overview
from comt_cli.report.frame import GRID
from comt_cli.report.html.curves import charts, logs_file, shown_runs, write_logs
from comt_cli.report.html.grids import Grid, distinct, grid
from comt_cli.report.html.pictures import Pictures
from comt_cli.report.html.prose import Prose
from comt_cli.report.written import Line, Reader, Written
from comt_cli.runs.plan import BY_ID

_HERE = Path(__file__).parent
_ENDED = ("done", "diverged")


@dataclass(frozen=True)
class Fact:
    """How something was made: a word for it, and texts with the addresses that they link to (empty for none)."""

    name: str
    texts: list[tuple[str, str]]
    is_code: bool = False


@dataclass(frozen=True)
class Section:
    """A table, a figure or a page of the results. `name` is short, for the contents; `anchor` its id on the page.

    `logs` says which runs' learning curves there are.
    """

    anchor: str
    name: str
    title: str
    body: Markup
    figures: list[Markup] = field(default_factory=list)
    charts: list[dict[str, Any]] = field(default_factory=list)
    logs: str = ""
    facts: list[Fact] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)


@dataclass(frozen=True)
class Group:
    """The sections of a scale, or of another folder of the results."""

    anchor: str
    title: str
    body: Markup
    sections: list[Section]


def write_page(results: Path, runs: Path, reader: Reader | None = None) -> Path:
    """Write `<results>/index.html` from the files below `results` alone; returns its path.

    Before that the logs of the tables' runs, where they are below the folder `runs`, are thinned and written beside the
    tables (`<table>-logs.csv`): what the page shows can be made again from the results without the runs.

    Raises:
        UserError: there is no table below `results`.
        StorageError: a file cannot be written.
    """
    reader = reader or Reader()
    for table in (one for found in overview.all_written(results, reader).values() for one in found):
        logs = logs_file(results, table)
        before = reader.lines(logs)
        if logs not in reader.damaged:
            write_logs(results, runs, table, before)
    page = results / "index.html"
    write_changed(page, page_text(results, reader))
    return page


def page_text(results: Path, reader: Reader | None = None) -> str:
    """The page of the files below `results`.

    Raises:
        UserError: there is no table there.
    """
    return _Page(results, reader or Reader()).text()


class _Page:
    def __init__(self, results: Path, reader: Reader) -> None:
        self.results, self.written, self.reader = results, overview.all_written(results, reader), reader
        self.others = sorted(path for path in results.iterdir() if path.is_dir() and path.name not in self.written)
        pages = [path for folder in (*self.others, *self._scale_folders()) for path in folder.rglob("*.md")]
        sections = {self._name(path): self._name(path.with_suffix("")) for path in [*pages, results / "FINDINGS.md"]}
        self.pictures = Pictures(results, reader)
        self.prose = Prose(results, sections, self.pictures)

    def _scale_folders(self) -> list[Path]:
        return [self.results / scale for scale in self.written]

    def _name(self, path: Path) -> str:
        return path.relative_to(self.results).as_posix()

    def text(self) -> str:
        """The page."""
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        findings = self.results / "FINDINGS.md"
        groups = [self._document_group(findings, said)] if (said := self.reader.text(findings)) else []
        groups += [self._scale(scale, found) for scale, found in self.written.items()]
        groups += [group for folder in self.others if (group := self._other(folder)).sections]
        has_charts = any(section.charts for group in groups for section in group.sections)
        return environment.get_template("page.html.jinja").render(
            command=overview.command(self.results, "--html"),
            introduction=self.prose.parts("\n".join(overview.INTRODUCTION), "", 2)[1],
            groups=groups,
            style=_raw("page.css"),
            scripts=[_raw(name) for name in ("sort.js", "page.js", *(["curves.js"] if has_charts else []))],
        )

    def _document_group(self, path: Path, said: str) -> Group:
        title, body = self.prose.parts(said, "", 3)
        return Group(self._name(path.with_suffix("")), title, body, [])

    def _scale(self, scale: str, found: Sequence[Written]) -> Group:
        _, body = self.prose.parts("\n".join(overview.summary(self.results, scale, found, self.reader)), "", 2)
        sections = [self._table(one) for one in found]
        costs = [path.with_suffix(".md") for one in found for path in one.of_costs]
        sections += [self._document(path, f"{path.parent.name}, {path.stem}") for path in dict.fromkeys(costs)]
        return Group(f"scale/{scale}", f"Scale {scale}", body, [*sections, *self._left(self.results / scale)])

    def _table(self, one: Written) -> Section:
        """A table or figure of a paper."""
        folder = self.results / one.scale / one.paper
        anchor = self._name(folder / one.name)
        page, csv = folder / f"{one.name}.md", folder / f"{one.name}.csv"
        title, body = self.prose.parts(self.reader.text(page), self._name(folder), 4)
        lines, logs = self.reader.lines(csv) if one.cells else [], self.reader.lines(logs_file(self.results, one))
        every = {run["id"] for run in shown_runs(one)}
        known = every & {line["id"] for line in logs}
        beside = self.results.parent / BY_ID  # where the folders of runs and results are those of the command line
        folders = {run: f"../{BY_ID}/{run}/" for run in sorted(every) if (beside / run).is_dir()}
        grids = [grid(f"Every column of {csv.name}", lines, anchor)] if lines else []
        grids += [
            grid(path.name, self.reader.lines(path), anchor) for path in (*one.of_sweep, *one.of_ladder, *one.of_costs)
        ]
        return Section(
            anchor=anchor,
            name=f"{one.paper}, {one.name}",
            title=title,
            body=body,
            figures=[self.pictures.figure(path) for path in one.pictures],
            charts=list(charts(logs, shown_runs(one))),
            logs=f"{len(known)} of {format.plural(len(every), 'run')}" if known else "",
            facts=list(self._facts(one)),
            grids=[*grids, grid(f"{format.plural(len(one.runs), 'run')} behind it", one.runs, anchor, folders)],
        )

    def _facts(self, one: Written) -> Iterator[Fact]:
        ended = [run for run in one.runs if run["state"] in _ENDED]
        for recipe in distinct(one.runs, "recipe"):
            path = self.results.parent / "recipes" / recipe
            address = os.path.relpath(path, self.results) if path.is_file() else ""
            yield Fact("recipe", [(recipe, address)], is_code=True)
            seeds = format.seeds(int(seed) for seed in distinct(one.runs, "seed"))
            words = ["comt", one.task.command, "--recipe", recipe, "--scale", one.scale, "--seeds", seeds]
            words += _selection(path, one, ended) if one.cells else []
            words += [word for setting in one.changed_settings for word in ("--set", setting)]
            words += [word for path in one.of_sweep[-1:] for word in _swept(self.reader.lines(path))]
            yield Fact("command", [(shlex.join(words), "")], is_code=True)
        for name, key in (("device", "device"), ("commit", "git_commit"), ("data, hash", "data_content")):
            yield Fact(name, [(text, "") for text in distinct(ended, key) or ["not recorded"]])
        yield Fact("files", [(path.name, self._name(path)) for path in one.files])

    def _other(self, folder: Path) -> Group:
        """A folder that is no scale: its Markdown pages, its figures that these do not show, its runs."""
        pages = sorted(folder.rglob("*.md"), key=lambda path: (path.parent, path.name != "README.md", path.name))
        sections = [self._document(path, path.relative_to(folder).with_suffix("").as_posix()) for path in pages]
        return Group(folder.name, folder.name.capitalize(), Markup(), [*sections, *self._left(folder)])

    def _document(self, path: Path, name: str) -> Section:
        anchor, folder = self._name(path.with_suffix("")), self._name(path.parent)
        title, body = self.prose.parts(self.reader.text(path), folder, 4)
        return Section(anchor, name, title, body)

    def _left(self, folder: Path) -> Iterator[Section]:
        """The figures below a folder that the page does not show yet, and runs that belong to no table."""
        pictures = sorted(path for path in folder.rglob("*.png") if path not in self.pictures.shown)
        of_tables = {path for found in self.written.values() for one in found for path in one.files}
        for place in dict.fromkeys(path.parent for path in pictures):
            figures = [self.pictures.figure(path) for path in pictures if path.parent == place]
            name = place.relative_to(folder).as_posix() if place != folder else folder.name
            yield Section(self._name(place), name, "", Markup(), figures)
        for path in sorted(path for path in folder.rglob("*-runs.csv") if path not in of_tables):
            anchor = self._name(path.with_suffix(""))
            lines = self.reader.lines(path)
            yield Section(anchor, path.relative_to(folder).stem, "", Markup(), grids=[grid(path.name, lines, anchor)])


def _selection(recipe: Path, one: Written, ended: Sequence[Line]) -> Iterator[str]:
    """`--rows` and `--columns`, where runs of some alone have ended of what the recipe has, or, where its file is not
    there or is none, of what the table has."""
    there: Mapping[str, Any] = {}
    with contextlib.suppress(UserError):
        there = read(recipe).data if recipe.is_file() else {}
    scale = (there.get("scales") or {}).get(one.scale) or {}
    for kind, named in (("row", there.get("rows")), ("column", scale.get("columns") or there.get("columns"))):
        of_recipe = list(named or distinct(one.runs, kind))
        trained = [name for name in distinct(ended, kind) if name in of_recipe]
        if trained and {*trained} != {*of_recipe}:
            yield from (f"--{kind}s", ",".join(trained))


def _swept(trials: Sequence[Line]) -> Iterator[str]:
    """The `--sweep` options of a sweep with these trials."""
    for key in (key for key in (trials[0] if trials else ()) if key.startswith(GRID)):
        yield from ("--sweep", f"{key.removeprefix(GRID)}={','.join(dict.fromkeys(line[key] for line in trials))}")


def _raw(name: str) -> Markup:
    """A file of ours beside this one, to be put into the page as it stands."""
    return Markup((_HERE / name).read_text(encoding="utf-8"))
