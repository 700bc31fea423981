"""The pages of `comt bench`, and what becomes of what its benchmarks yield: lines are shown, rows are written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from comt_cli.errors import StorageError, UserError
from comt_cli.files import read_csv
from comt_cli.lab.bench.page import Page, device_folder, markdown, merge_rows, verdicts, write_benchmark
from comt_cli.report.terminal import say_written


def pages() -> dict[str, Page]:
    """Every page by its name."""
    from comt_cli.lab.bench import gemm, goals, kernel_cases, names
    from comt_cli.lab.bench import layouts as made
    from comt_cli.lab.bench.subjects import LANGUAGE, SUBJECTS, TRANSLATION

    sizes, dtypes = list(LANGUAGE.shapes), list(names.DTYPES)
    ops = {**names.OPS, "gemm": "the library's matrix product alone"}
    gates = list(dict.fromkeys([*names.GATES, *gemm.COLUMNS]))
    decoding = made.decode_page(names.DECODE_VARIANTS, sizes, dtypes)
    translating = made.decode_translation_page(names.TRANSLATION_VARIANTS, list(TRANSLATION.shapes), dtypes)
    found = {
        "kernels": made.kernels_page({**kernel_cases.VARIANTS, **gemm.VARIANTS}, ops, gates, dtypes),
        "decode": replace(decoding, renew=goals.decode_goals),
        translating.name: replace(translating, renew=goals.translation_goals),
    }
    for subject in SUBJECTS:
        measured = made.step_page(
            subject.page,
            subject.title,
            subject.said,
            subject.variants,
            list(subject.shapes),
            subject.best_plain,
            subject.unit,
            list(subject.peers),
            subject.goal_columns,
            has_arithmetic=subject.counts_arithmetic,
        )
        found[subject.page] = replace(measured, renew=subject.goals)
    return found


def beside_goals(results: Path) -> str:
    """What was measured below `results`, as a table of Markdown: every row that has a goal, with its verdicts, and the
    values of the recipes' tables, which have none."""
    lines = ["| measured | of | beside its goal |", "| --- | --- | --- |"]
    for name, page in pages().items():
        known = [column for column in dict.fromkeys(("size", *page.key)) if column not in ("device", "shape")]
        for row in _rows(results, f"bench/*/{name}.csv"):
            of = ", ".join(row[column] for column in known if row.get(column))
            lines += [f"| {name} | {of} | {verdict} |" for verdict in verdicts(page, row)]
    for row in _rows(results, "*/*/*.csv"):
        if row.get("mean") and row.get("recipe"):
            of = f"{row['row']}, {row['column']}, seeds {row['seeds']}"
            lines.append(f"| {row['recipe']}, {row['scale']} | {of} | {row['metric']} {row['mean']} |")
    return "\n".join(lines) + "\n"


def _rows(results: Path, pattern: str) -> list[dict[str, str]]:
    files = sorted(results.glob(pattern))
    return [row for path in files for row in read_csv(path)]


class Record:
    """Shows the lines that benchmarks yield, writes their rows below `results` as they come, and counts both."""

    def __init__(self, results: Path) -> None:
        from comt_cli.lab.bench.failures import Outcome

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
                        typer.echo(markdown(replace(self._pages[page], said=(), meanings={}), lesser))
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
        from comt_cli.kernels import measurements

        if page in {Path(name).stem for name in (measurements.FILE, measurements.STEP_FILE)}:
            folder = device_folder(f"{rows[0]['device']} {rows[0]['device_class']}")
            path, kept = measurements.own_folder() / folder / f"{page}.csv", self._pages[page]
            if rows[0].get("kernel_hash"):  # a GPU's: what was measured with other kernels or versions stays
                kept = replace(kept, key=(*kept.key, "kernel_hash", "torch", "triton"))
            try:
                if merge_rows(kept, rows, path):
                    typer.echo("`kernels: auto` keeps to a longer measurement, of which there is an interval", err=True)
            except (OSError, StorageError, UserError, ValueError) as error:  # the results have them all the same
                typer.echo(f"`kernels: auto` will not know of this, {path} cannot be added to: {error}", err=True)
