"""`<results>/index.html`: every table, verdict, figure and learning curve of a results folder, in one file."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from comt_cli.errors import UserError
from comt_cli.files import write_changed
from comt_cli.recipe.yaml_lines import read
from comt_cli.report import format
from comt_cli.report.frame import GRID
from comt_cli.report.html import curves
from comt_cli.report.html.pictures import Pictures
from comt_cli.report.html.prose import Prose
from comt_cli.report.overview import ENDED, Overview, command, counts, improves, template, values
from comt_cli.report.written import Line, Reader, Written, WrittenCell
from comt_cli.runs.plan import BY_ID

_HERE = Path(__file__).parent
_CIRCUMSTANCES = {
    *("peak_memory_bytes", "waiting_share", "train_seconds", "mfu", "flops", "products", "data_content", "train_loss"),
    *("extra_parameters", "extra_parameters_percent"),
}
"""Columns of runs that the page leaves to their CSV."""
_UNITS = {"_percent": ", %", "_points": ", points", "_per_second": "/s", "_seconds": ", s", "_bytes": ", bytes"}

Fact = tuple[str, Sequence[tuple[str, str]]]
"""How something was made: a word for it, and texts with the addresses that they link to (empty for none)."""


@dataclass(frozen=True)
class Grid:
    """`same`: heading and text of the columns that have one value in all lines; the other columns make the table, each
    cell a text and whether it is a number. `links` are addresses of texts."""

    caption: str
    same: list[tuple[str, str]]
    headings: list[str]
    rows: list[list[tuple[str, bool]]]
    links: Mapping[str, str]


@dataclass(frozen=True)
class Part:
    """A table, a figure or a page of the results. `name` is short, for the contents; `anchor` its id on the page.

    `reading` explains the body; `badges` count verdicts; `logs` says which runs' learning curves there are.
    """

    anchor: str
    name: str
    title: str
    body: str = ""
    reading: str = ""
    badges: Mapping[str, int] = field(default_factory=dict)
    figures: Sequence[Markup] = ()
    charts: Sequence[Mapping[str, Any]] = ()
    logs: str = ""
    facts: Sequence[Fact] = ()
    grids: Sequence[Grid] = ()


@dataclass(frozen=True)
class Group:
    """The parts of a scale, or of another folder of the results. `more` is what its introduction rests on."""

    anchor: str
    title: str
    parts: Sequence[Part]
    body: str = ""
    more: str = ""


def write_page(results: Path, runs: Path, reader: Reader | None = None) -> Path:
    """Write `<results>/index.html` from the files below `results` alone; returns its path.

    Before that the logs of the tables' runs, where they are below the folder `runs`, are thinned and written beside the
    tables (`<table>-logs.csv`): what the page shows can be made again from the results without the runs.

    Raises:
        UserError: there is no table below `results`.
        StorageError: a file cannot be written.
    """
    reader = reader or Reader()
    overview = Overview.of(results, reader)
    for table in (one for found in overview.written.values() for one in found):
        logs = curves.logs_file(results, table)
        before = reader.lines(logs)
        if logs not in reader.damaged:
            curves.write_logs(results, runs, table, before)
    page = results / "index.html"
    write_changed(page, _Page(overview, reader).text())
    return page


def page_text(results: Path) -> str:
    """The page of the files below `results`. Raises `UserError` where there is no table."""
    reader = Reader()
    return _Page(Overview.of(results, reader), reader).text()


class _Page:
    def __init__(self, overview: Overview, reader: Reader) -> None:
        self.overview, self.results, self.reader = overview, overview.results, reader
        self.findings = self.results / "FINDINGS.md"
        self.others = sorted(
            path for path in self.results.iterdir() if path.is_dir() and path.name not in overview.written
        )
        folders = [*self.others, *(self.results / scale for scale in overview.written)]
        pages = [*(path for folder in folders for path in folder.rglob("*.md")), self.findings]
        self.pictures = Pictures(self.results, reader)
        sections = {self._name(path): self._name(path.with_suffix("")) for path in pages}
        self.prose = Prose(self.results, sections, self.pictures)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.results).as_posix()

    def text(self) -> str:
        """The page, without the end tags of cells and rows, which HTML does not ask for."""
        from matplotlib.colors import to_hex  # which takes a second

        from comt_cli.report.figures.style import OKABE_ITO, QUIET, series_colours

        markdown: Any = template("scale.md.jinja", self.results).module
        groups = [self._scale(scale, markdown) for scale in self.overview.scales]
        groups = [*self._findings(), *groups]  # last, so that tables have their figures, and these links to them
        groups += [group for folder in self.others if (group := self._other(folder)).parts]
        page = template("html/page.html.jinja", self.results).render(
            command=command(self.results, "--html"),
            reading=self._markdown(markdown.how_to_read()),
            overview=self.overview,
            tallies=[self._markdown(markdown.tally(scale)) for scale in self.overview.scales],
            ranking=ranking(self.overview),
            improves=improves,
            groups=groups,
            palette=[*OKABE_ITO, QUIET],
            colours=lambda count: [to_hex(each) for each in series_colours(count)],
            size=(curves.WIDTH, curves.HEIGHT),
            style=_raw("page.css"),
            scripts=[_raw("sort.js"), _raw("page.js")],
        )
        return re.sub(r"\s*</(?:td|th|tr)>\s*", "", page)

    def _markdown(self, text: str) -> Markup:
        return self.prose.parts(text, "", 4)[1]

    def _findings(self) -> Iterator[Group]:
        if text := self.reader.text(self.findings):
            head, *sections = re.split(r"(?m)^## ", text)
            title, body = self.prose.parts(head, "", 3)
            parts = []
            for number, (name, _, section) in enumerate((each.partition("\n") for each in sections), 1):
                parts.append(Part(f"FINDINGS/{number}", name.strip(), "", self.prose.parts(section, "", 3)[1]))
            yield Group("FINDINGS", title or "Findings", parts, body)

    def _scale(self, scale: Mapping[str, Any], markdown: Any) -> Group:
        name, found = scale["name"], scale["written"]
        parts = [self._table(one) for one in found]
        costs = [one.beside["costs"].with_suffix(".md") for one in found if "costs" in one.beside]
        parts += [self._document(path, f"{path.parent.name}, {path.stem}") for path in dict.fromkeys(costs)]
        return Group(
            f"scale/{name}",
            f"Scale {name}",
            [*parts, *self._left(self.results / name)],
            self._markdown(markdown.about(scale)),
            self._markdown(f"{markdown.provenance(scale)}\n\n{markdown.verdicts(scale)}"),
        )

    def _table(self, one: Written) -> Part:
        folder = self.results / one.scale / one.paper
        title, body, reading = self.prose.table_page(self.reader.text(folder / f"{one.name}.md"), self._name(folder), 4)
        shown = curves.shown_runs(one)
        logs, every = self.reader.lines(curves.logs_file(self.results, one)), {run["id"] for run in shown}
        known = every & {line["id"] for line in logs}
        is_drawn = any(path.stem == f"{one.name}-curves" for path in one.pictures)
        beside = self.results.parent / BY_ID  # where the folders of runs and results are those of the command line
        folders = {run: f"../{BY_ID}/{run}/" for run in sorted(every) if (beside / run).is_dir()}
        tables = [grid(path.name, self.reader.lines(path)) for path in one.beside.values()]
        return Part(
            self._name(folder / one.name),
            f"{one.paper}, {one.name}",
            title,
            body,
            reading,
            {word: count for word, count in counts(one).items() if count},
            [self.pictures.figure(path) for path in one.pictures],
            [] if is_drawn else list(curves.charts(logs, shown)),
            f"{len(known)} of {format.plural(len(every), 'run')}" if known else "",
            list(self._facts(one)),
            [*tables, grid(f"{format.plural(len(one.runs), 'run')} behind it", one.runs, folders, _CIRCUMSTANCES)],
        )

    def _facts(self, one: Written) -> Iterator[Fact]:
        ended = [run for run in one.runs if run["state"] in ENDED]
        for recipe in values(one.runs, "recipe"):
            path = self.results.parent / "recipes" / recipe
            where = os.path.relpath(path, self.results) if path.is_file() else ""
            yield "recipe", [(recipe, where)]
            seeds = format.seeds(int(seed) for seed in values(one.runs, "seed"))
            words = ["comt", one.task.command, "--recipe", recipe, "--scale", one.scale, "--seeds", seeds]
            words += _selection(path, one, ended) if one.cells else []
            words += [word for setting in one.changed_settings for word in ("--set", setting)]
            trials = self.reader.lines(one.beside["trials"]) if "trials" in one.beside else []
            for key in (key for key in (trials[0] if trials else ()) if key.startswith(GRID)):
                tried = ",".join(dict.fromkeys(line[key] for line in trials))
                words += ["--sweep", f"{key.removeprefix(GRID)}={tried}"]
            yield "command", [(shlex.join(words), "")]
        for name, key in (("device", "device"), ("commit", "git_commit"), ("data, hash", "data_content")):
            yield name, [(text, "") for text in values(ended, key) or ["not recorded"]]
        yield "files", [(path.name, self._name(path)) for path in one.files]

    def _other(self, folder: Path) -> Group:
        """A folder that is no scale: its Markdown pages, its figures that these do not show, its runs."""
        pages = sorted(folder.rglob("*.md"), key=lambda path: (path.parent, path.name != "README.md", path.name))
        parts = [self._document(path, path.relative_to(folder).with_suffix("").as_posix()) for path in pages]
        return Group(folder.name, folder.name.capitalize(), [*parts, *self._left(folder)])

    def _document(self, path: Path, name: str) -> Part:
        title, body = self.prose.parts(self.reader.text(path), self._name(path.parent), 4)
        return Part(self._name(path.with_suffix("")), name, title, body)

    def _left(self, folder: Path) -> Iterator[Part]:
        """The figures below a folder that the page does not show yet, and runs that belong to no table."""
        pictures = sorted(path for path in folder.rglob("*.png") if path not in self.pictures.shown)
        of_tables = {path for found in self.overview.written.values() for one in found for path in one.files}
        for place in dict.fromkeys(path.parent for path in pictures):
            figures = [self.pictures.figure(path) for path in pictures if path.parent == place]
            name = place.relative_to(folder).as_posix() if place != folder else folder.name
            yield Part(self._name(place), name, "", figures=figures)
        for path in sorted(path for path in folder.rglob("*-runs.csv") if path not in of_tables):
            lines = grid(path.name, self.reader.lines(path))
            yield Part(self._name(path.with_suffix("")), path.relative_to(folder).stem, "", grids=[lines])


def grid(
    caption: str, lines: Sequence[Line], links: Mapping[str, str] | None = None, without: Collection[str] = ()
) -> Grid:
    """The table of a CSV's lines, whatever its columns are, but some: `difference, %` for `difference_percent`,
    `tokens/s` for `tokens_per_second`. Fractions have five significant digits; columns without any value are left
    out."""

    def number(text: str) -> float | None:  # not `12e4` or `nan`: an id of a run may read so
        return float(text) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]\d+)?", text) else None

    def shown(text: str) -> str:
        found = number(text)
        return text if found is None or text.lstrip("+-").isdigit() else f"{found:.5g}"

    def heading(key: str) -> str:
        ending = next((ending for ending in _UNITS if key.endswith(ending)), "")
        return f"{key.removesuffix(ending).replace('_', ' ')}{_UNITS.get(ending, '')}"

    keys = [key for key in (lines[0] if lines else {}) if key not in without and any(line[key] for line in lines)]
    same = [key for key in keys if len({line[key] for line in lines}) < min(2, len(lines)) and key != "id"]
    varying = [key for key in keys if key not in same]
    return Grid(
        caption,
        [(heading(key), shown(lines[0][key])) for key in same],
        [heading(key) for key in varying],
        [[(shown(line[key]), not line[key] or number(line[key]) is not None) for key in varying] for line in lines],
        links or {},
    )


def ranking(overview: Overview) -> dict[str, Any] | None:
    """The figure of the overview: of the first scale's tables the column with the most differences, the best first.
    Of each line the cell, and mean and ends of the interval in per cent of the axis, which holds zero."""
    columns: dict[tuple[str, str], list[WrittenCell]] = {}
    tables = {one.path: one for one in next(iter(overview.written.values())) if not one.changed_settings}
    for one in tables.values():
        for cell in one.cells:
            if cell.difference is not None:
                columns.setdefault((one.path, cell.column), []).append(cell)
    if not columns:
        return None
    (path, _), cells = max(columns.items(), key=lambda column: len(column[1]))
    metric = cells[0].metric
    found = {cell: [end for end in (each.mean, each.low, each.high) if end is not None]
             for cell in cells if (each := cell.difference)}  # fmt: skip
    farthest = 3 * max(abs(mean) for mean, *_ in found.values())
    found = {cell: [max(-farthest, min(farthest, end)) for end in ends] for cell, ends in found.items()}
    every = [0.0, *(end for ends in found.values() for end in ends)]
    low, width = min(every), max(every) - min(every) or 1.0
    lines = [(cell, [round(100 * (end - low) / width, 2) for end in ends]) for cell, ends in found.items()]
    lines.sort(key=lambda line: line[1][0], reverse=metric.better == "higher")
    return {"table": tables[path], "metric": metric, "zero": round(-100 * low / width, 2), "lines": lines}


def _selection(recipe: Path, one: Written, ended: Sequence[Line]) -> Iterator[str]:
    """`--rows` and `--columns`, where runs of some alone have ended of what the recipe has, or, where its file is not
    there or is none, of what the table has."""
    there: Mapping[str, Any] = {}
    with contextlib.suppress(UserError):
        there = read(recipe).data if recipe.is_file() else {}
    scale = (there.get("scales") or {}).get(one.scale) or {}
    for kind, named in (("row", there.get("rows")), ("column", scale.get("columns") or there.get("columns"))):
        of_recipe = list(named or values(one.runs, kind))
        trained = [name for name in values(ended, kind) if name in of_recipe]
        if trained and {*trained} != {*of_recipe}:
            yield from (f"--{kind}s", ",".join(trained))


def _raw(name: str) -> Markup:
    return Markup((_HERE / name).read_text(encoding="utf-8"))
