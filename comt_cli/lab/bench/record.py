"""The pages of `comt bench`, and what becomes of what its benchmarks yield: lines are shown, rows are written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from comt_cli import words
from comt_cli.errors import StorageError, UserError
from comt_cli.files import read_csv
from comt_cli.kernels import measurements
from comt_cli.lab.bench import subjects
from comt_cli.lab.bench.ending import Outcome
from comt_cli.lab.bench.figure import draw_kernels, draw_steps
from comt_cli.lab.bench.page import Column, Goal, Page, device_folder, markdown, merge_rows, write_benchmark
from comt_cli.lab.bench.subjects import DECODED, DTYPES, KERNELS, OPS, SUBJECTS, TABLES, Subject
from comt_cli.report.terminal import say_written

_PAGES = TABLES["pages"]


def pages() -> dict[str, Page]:
    """Every page by its name."""
    gates, variants = [*KERNELS["columns"]], KERNELS["variants"] | KERNELS["gemm_variants"]
    ops = {**OPS, "gemm": "the library's matrix product alone"}
    order = {"op": [*ops], "variant": [*variants], "gates": gates, "dtype": DTYPES}
    found = {"kernels": replace(_page("kernels"), order=order, meanings=ops | variants, draw=draw_kernels)}
    for name, renew in (("decode", subjects.decode_goals), ("decode-translation", subjects.translation_goals)):
        each = DECODED[name]
        order = {"size": [*each.subject.shapes], "variant": [*each.variants], "dtype": DTYPES}
        found[name] = replace(_page(name), order=order, meanings=each.variants, renew=renew)
    return found | {subject.page: _step_page(subject) for subject in SUBJECTS}


def _page(name: str, *notes: str, **more: Any) -> Page:
    """A page as `measured.yaml` has it, between what all pages explain."""
    of = {"goals": {}, **_PAGES[name], **more}
    columns = [Column(heading, *how.split()) for heading, how in of.pop("columns").items()]
    goals = [Goal(goal=column, **goal) for column, goal in of.pop("goals").items()]
    text = "".join([_PAGES["common"], *notes, of.pop("notes"), _PAGES["commits"]]).rstrip("\n")
    return Page(name=name, columns=columns, goals=goals, notes=text, **of)


def _step_page(subject: Subject) -> Page:
    """Training steps of a subject: the columns of its peers and of the goals that it has."""
    step, peers = _PAGES["step"], [*subject.peers]
    absent = {
        *(["step / nondeterministic"] if not subject.compiles else []),
        *(["arithmetic / plain"] if not subject.counts_arithmetic else []),
        *(["step / plain-compiled"] if "compiled" not in subject.asked.kinds else []),
    }
    columns = {
        heading.format(unit=subject.unit, peer=peer): how.format(unit=subject.unit, peer=peer)
        for heading, how in step["columns"].items()
        for peer in (peers if "{peer}" in heading else [""])
        if heading not in absent
    }
    goals = {}
    for kind, goal in step["goals"].items():
        if kind in subject.goal_columns:
            names = {"unit": subject.unit, "peer": next(iter(peers), "")}
            filled = {key: text.format(**names) if isinstance(text, str) else text for key, text in goal.items()}
            goals[subject.goal_columns[kind]] = filled
    plain = subject.best_plain
    best = f"The best plain step is the quickest of {words.listing(plain)}.\n" if len(plain) > 1 else ""
    page = _page("step", best, title=subject.title, columns=columns, goals=goals, notes=step["notes"] + subject.notes)
    order = {"size": [*subject.shapes], "variant": [*subject.variants]}
    return replace(
        page, name=subject.page, order=order, meanings=subject.variants, draw=draw_steps, renew=subject.goals
    )


def beside_goals(results: Path) -> str:
    """What was measured below `results`, as a table of Markdown: every row that has a goal, with its verdicts, and the
    values of the recipes' tables, which have none."""
    lines = ["| measured | of | beside its goal |", "| --- | --- | --- |"]
    for name, page in pages().items():
        known = [column for column in dict.fromkeys(("size", *page.key)) if column not in ("device", "shape")]
        for row in _rows(results, f"bench/*/{name}.csv"):
            of = ", ".join(row[column] for column in known if row.get(column))
            lines += [f"| {name} | {of} | {verdict} |" for verdict in page.verdicts(row)]
    for row in _rows(results, "*/*/*.csv"):
        if row.get("mean") and row.get("recipe"):
            of = f"{row['row']}, {row['column']}, seeds {row['seeds']}"
            lines.append(f"| {row['recipe']}, {row['scale']} | {of} | {row['metric']} {row['mean']} |")
    return "\n".join(lines) + "\n"


def _rows(results: Path, pattern: str) -> list[dict[str, str]]:
    return [row for path in sorted(results.glob(pattern)) for row in read_csv(path)]


class Record:
    """Shows the lines that benchmarks yield, writes their rows below `results` as they come, and counts both."""

    def __init__(self, results: Path) -> None:
        self._results, self._pages, self.outcome = results, pages(), Outcome()

    def add(self, page: str, news: Iterable[str | list[Any]], *, quiet: bool = False) -> list[Path]:
        """All of `news`; the files of a page, which is shown at the end unless `quiet`, however that comes. Rows that
        would replace a part of a run of more variants, or one of enough rounds by too few, are shown and not written.
        """
        written: list[Path] = []
        try:
            for each in news:
                self.outcome.add(each)
                if isinstance(each, str):
                    typer.echo(each, err=True)
                elif each:
                    files, lesser = write_benchmark(self._pages[page], each, self._results)
                    written = files or written
                    if lesser:
                        typer.echo(markdown(self._pages[page], lesser, notes=False))
                        has_more = f"{page}.csv below {self._results / 'bench'} has a run of more variants or rounds"
                        typer.echo(f"not written, since {has_more}: delete it, or choose another --results", err=True)
                    self._keep(page, each)
        finally:
            for path in [] if quiet else written:
                if path.suffix == ".md":
                    typer.echo(path.read_text(encoding="utf-8"))
            say_written([] if quiet else written)
        return written

    def _keep(self, page: str, rows: list[Any]) -> None:
        """What `kernels: auto` chooses by goes to the cache folder too: wherever one stands, it finds it there. One
        name may stand for processors of several classes, so the class is part of the folder's."""
        if f"{page}.csv" not in (measurements.FILE, measurements.STEP_FILE):
            return
        folder = device_folder(f"{rows[0]['device']} {rows[0]['device_class']}")
        path, kept = measurements.own_folder() / folder / f"{page}.csv", self._pages[page]
        if rows[0].get("kernel_hash"):  # a GPU's: what was measured with other kernels or versions stays
            kept = replace(kept, key=(*kept.key, "kernel_hash", "torch", "triton"))
        try:
            if merge_rows(kept, rows, path):
                typer.echo("`kernels: auto` keeps to a longer measurement, of which there is an interval", err=True)
        except (OSError, StorageError, UserError, ValueError) as error:  # the results have them all the same
            typer.echo(f"`kernels: auto` will not know of this, {path} cannot be added to: {error}", err=True)
