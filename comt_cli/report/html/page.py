"""`<results>/index.html`: every table, verdict and figure of a results folder, in one file."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from comt_cli.files import write_changed
from comt_cli.report import format
from comt_cli.report.frame import GRID
from comt_cli.report.html.prose import Prose
from comt_cli.report.overview import ENDED, Overview, command, counts, improves, template, values
from comt_cli.report.written import Reader, Written, WrittenCell


@dataclass(frozen=True)
class Part:
    """A section of the page, or a group of `parts`: `anchor` is its id, `name` for the contents, `reading` the notes on
    the body, `badges` count verdicts, `facts` are a word and texts with the addresses they link to, or ""."""

    anchor: str
    name: str
    title: str = ""
    body: str = ""
    reading: str = ""
    badges: Mapping[str, int] = field(default_factory=dict)
    figures: Sequence[Markup] = ()
    facts: Sequence[tuple[str, Sequence[tuple[str, str]]]] = ()
    parts: Sequence[Part] = ()


def write_page(results: Path, reader: Reader | None = None) -> Path:
    """Write `<results>/index.html` from the files there; returns its path. Raises as `write_overview`."""
    page = results / "index.html"
    write_changed(page, page_text(results, reader))
    return page


def page_text(results: Path, reader: Reader | None = None) -> str:
    """The page of the files below `results`. Raises `UserError` if there is no table."""
    reader = reader or Reader()
    return _Page(Overview.of(results, reader), reader).text()


class _Page:
    def __init__(self, overview: Overview, reader: Reader) -> None:
        self.overview, self.results, self.reader = overview, overview.results, reader
        folders = sorted(path for path in self.results.iterdir() if path.is_dir())
        self.others = [path for path in folders if path.name not in overview.written]
        pages = [*(path for folder in folders for path in folder.rglob("*.md")), self.results / "FINDINGS.md"]
        self.prose = Prose(reader, self.results, {self._name(path): self._anchor(path) for path in pages})

    def _name(self, path: Path) -> str:
        return path.relative_to(self.results).as_posix()

    def _anchor(self, path: Path) -> str:
        return self._name(path.with_suffix(""))

    def text(self) -> str:
        """The page, without the end tags of cells and rows, which HTML does not need."""
        from comt_cli.report.figures.style import OKABE_ITO, QUIET  # imports matplotlib, which takes a second

        say: Any = template("scale.md.jinja", self.results).module
        groups = [self._scale(scale, say) for scale in self.overview.scales]
        groups = [*self._findings(), *groups]  # last, so that tables have their figures, and these links to them
        groups += [group for folder in self.others if (group := self._other(folder)).parts]
        page = template("page.html.jinja", self.results).render(
            command=command(self.results, "--html"),
            reading=self.prose.html(say.how_to_read()),
            overview=self.overview,
            tallies=[self.prose.html(say.tally(scale)) for scale in self.overview.scales],
            ranking=ranking(self.overview),
            improves=improves,
            groups=groups,
            palette=[*OKABE_ITO, QUIET],
            raw=lambda name: Markup((Path(__file__).parent / name).read_text(encoding="utf-8")),
        )
        return re.sub(r"\s*</(?:td|th|tr)>\s*", "", page)

    def _findings(self) -> Iterator[Part]:
        if text := self.reader.text(self.results / "FINDINGS.md"):
            head, *sections = re.split(r"(?m)^## ", text)
            title, body = self.prose.parts(head)
            named = [section.partition("\n") for section in sections]
            parts = [
                Part(f"FINDINGS/{number}", name.strip(), body=self.prose.html(section.replace("\n### ", "\n## ")))
                for number, (name, _, section) in enumerate(named, 1)
            ]
            yield Part("FINDINGS", title or "Findings", body=body, parts=parts)

    def _scale(self, scale: Mapping[str, Any], say: Any) -> Part:
        name, found = scale["name"], scale["written"]
        costs = [one.beside["costs"].with_suffix(".md") for one in found if "costs" in one.beside]
        return Part(
            f"scale/{name}",
            f"Scale {name}",
            body=self.prose.html(say.about(scale)),
            reading=self.prose.html(f"{say.provenance(scale)}\n\n{say.verdicts(scale)}"),
            parts=[
                *(self._document(path, f"{path.parent.name}, notes") for path in scale["notes"]),
                *(self._table(one) for one in found),
                *(self._document(path, f"{path.parent.name}, {path.stem}") for path in dict.fromkeys(costs)),
                *self._left(self.results / name),
            ],
        )

    def _table(self, one: Written) -> Part:
        page = self.results / one.scale / one.paper / f"{one.name}.md"
        text, _, notes = self.reader.text(page).partition("\n## Notes\n")
        title, body = self.prose.parts(text, page.parent)
        return Part(
            self._anchor(page),
            f"{one.paper}, {one.name}",
            title,
            body,
            self.prose.html(notes, page.parent, title) if notes else "",
            {word: count for word, count in counts(one).items() if count},
            [self.prose.figure(path) for path in one.pictures],
            list(self._facts(one)),
        )

    def _facts(self, one: Written) -> Iterator[tuple[str, Sequence[tuple[str, str]]]]:
        ended = [run for run in one.runs if run["state"] in ENDED]
        for recipe in values(one.runs, "recipe"):
            path = self.results.parent / "recipes" / recipe
            yield "recipe", [(recipe, os.path.relpath(path, self.results) if path.is_file() else "")]
            seeds = format.seeds(int(seed) for seed in values(one.runs, "seed"))
            words = ["comt", one.task.command, "--recipe", recipe, "--scale", one.scale, "--seeds", seeds]
            words += [word for setting in one.changed_settings for word in ("--set", setting)]
            trials = self.reader.lines(one.beside["trials"]) if "trials" in one.beside else []
            for key in (key for key in (trials[0] if trials else ()) if key.startswith(GRID)):
                tried = ",".join(dict.fromkeys(line[key] for line in trials))
                words += ["--sweep", f"{key.removeprefix(GRID)}={tried}"]
            yield "command", [(shlex.join(words), "")]
        for name, key in (("device", "device"), ("commit", "git_commit"), ("data, hash", "data_content")):
            yield name, [(text, "") for text in values(ended, key) or ["not recorded"]]
        yield "files", [(path.name, self._name(path)) for path in one.files]

    def _other(self, folder: Path) -> Part:
        """A folder that is no scale: its Markdown pages, and the figures that these do not show."""
        pages = sorted(folder.rglob("*.md"), key=lambda path: (path.parent, path.name != "README.md", path.name))
        parts = [self._document(path, path.relative_to(folder).with_suffix("").as_posix()) for path in pages]
        return Part(folder.name, folder.name.capitalize(), parts=[*parts, *self._left(folder)])

    def _document(self, path: Path, name: str) -> Part:
        return Part(self._anchor(path), name, *self.prose.parts(self.reader.text(path), path.parent))

    def _left(self, folder: Path) -> Iterator[Part]:
        pictures = sorted(path for path in folder.rglob("*.png") if path not in self.prose.shown)
        for place in dict.fromkeys(path.parent for path in pictures):
            name = place.relative_to(folder).as_posix() if place != folder else folder.name
            figures = [self.prose.figure(path) for path in pictures if path.parent == place]
            yield Part(self._name(place), name, figures=figures)


def ranking(overview: Overview) -> dict[str, Any] | None:
    """The figure of the overview: the column with the most differences among the first scale's tables, best first. Each
    line has the cell, and mean and ends of the interval in per cent of the axis, which includes zero."""
    columns: dict[tuple[str, str], list[WrittenCell]] = {}
    tables = {one.path: one for one in next(iter(overview.written.values())) if not one.changed_settings}
    for path, one in tables.items():
        for cell in one.cells:
            if cell.difference is not None:
                columns.setdefault((path, cell.column), []).append(cell)
    if not columns:
        return None
    (path, _), cells = max(columns.items(), key=lambda column: len(column[1]))
    ends = [[end for end in (each.mean, each.low, each.high) if end is not None]
            for cell in cells if (each := cell.difference)]  # fmt: skip
    farthest = 3 * max(abs(mean) for mean, *_ in ends)  # an interval of two seeds would reduce all others to points
    low = max(-farthest, min(0.0, *map(min, ends)))
    high = min(farthest, max(0.0, *map(max, ends)))
    width = high - low or 1.0
    lines = [(cell, [round(100 * (min(max(end, low), high) - low) / width, 2) for end in each])
             for cell, each in zip(cells, ends, strict=True)]  # fmt: skip
    lines.sort(key=lambda line: line[1][0], reverse=cells[0].metric.better == "higher")
    return {"table": tables[path], "metric": cells[0].metric, "zero": round(-100 * low / width, 2), "lines": lines}
