"""The table of a recipe: every row under every column beside the paper's numbers, with its verdict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from comt_cli.recipe.load import LoadedRecipe
from comt_cli.report import format, words
from comt_cli.report.cells import cells_frame
from comt_cli.report.exhibits import ladder
from comt_cli.report.exhibits.base import Exhibit
from comt_cli.report.latex import escaped as tex
from comt_cli.report.latex import number, table_float
from comt_cli.report.layout import LEFT, Line, Sheet
from comt_cli.report.markdown import escaped, pipes
from comt_cli.report.trained import of_table, setup

if TYPE_CHECKING:
    import pandas as pd

_IN_LATEX = ("method", "ours", "beside", "difference", "paper", "paper_difference", "verdict")
"""The others are left to the CSV and the page: a line of text is not wider. So is what is beside the metric, where the
paper's numbers take its place."""


class Table(Exhibit):
    """A table as CSV, Markdown page and LaTeX."""

    name = ""
    digits: ClassVar[int] = 8

    def frame(self, runs: pd.DataFrame, loaded: LoadedRecipe) -> pd.DataFrame:
        """The cells (`cells.cells_frame`)."""
        frame = cells_frame(runs, loaded)
        frame.attrs["trained"] = of_table(frame)
        return frame

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        """What directions hold, then footnotes and notes."""
        return [words.verdict(sheet := Sheet(frame)), *sheet.footnotes, *frame.attrs["notes"]]

    def page(self, frame: pd.DataFrame) -> str:
        """Title, what was trained, how it was made, the verdict, a table for each column, footnotes and notes."""
        sheet, attrs = Sheet(frame), frame.attrs
        verdict, *others = map(escaped, self.sentences(frame))
        footnotes, notes = others[: len(sheet.footnotes)], others[len(sheet.footnotes) :]
        scale = f"Scale {attrs['scale']}: {attrs['scale_description'].rstrip('.')}."
        parts = [
            f"# {escaped(attrs['title'])}",
            f"*{escaped(attrs['trained'])}*",
            escaped(f"{words.origin(sheet, sheet.keys)} {scale}"),
            f"**Verdict.** {verdict}",
        ]
        for columns in sheet.same_runs():
            heading = escaped(", ".join(map(sheet.name, columns)))
            parts += [f"## {heading}", escaped(setup(sheet, columns)), _grid(sheet, columns)]
        if trends := ladder.trends(frame):
            texts = pipes(ladder.texts(trends, sheet.columns))
            parts += [f"## {ladder.HEADING}", escaped(ladder.rule(frame, trends)), texts]
        marked = [f"[{mark}] {text}" for mark, text in enumerate(footnotes, start=1)]
        parts += ["\n".join(f"- {line}" for line in lines) for lines in (marked, notes) if lines]
        return "\n\n".join(parts) + "\n"

    def latex(self, frame: pd.DataFrame) -> str:
        r"""The float: `\label{tab:<folder>-<name>-<scale>}`, one block of lines a column, footnotes below."""
        sheet, attrs = Sheet(frame), frame.attrs
        keys = [key for key in sheet.keys if key in _IN_LATEX and not (key == "beside" and "paper" in sheet.keys)]
        explained = [*keys, *(["parameters"] if "paper_increase" in sheet.keys else [])]
        notes = [f"{_mark(mark)}{tex(text)}" for mark, text in enumerate(sheet.footnotes, start=1)]
        origin = f"{attrs['trained']}. {words.origin(sheet, explained)}"
        names = sheet.headings()
        return table_float(
            caption=rf"\textbf{{{tex(attrs['title'].rstrip('.'))}.}} {tex(origin)}",
            label=(attrs["folder"], attrs["name"], attrs["scale"]),
            columns="".join({"method": "l", "verdict": r"p{0.17\textwidth}"}.get(key, "r") for key in keys),
            head=[names[key] for key in keys],
            body=[line for column in sheet.columns for line in _block(sheet, column, keys)],
            notes=[*notes, *map(tex, attrs["notes"])],
            written_from=format.one_line(attrs["recipe_file"]),
        )


def _grid(sheet: Sheet, columns: list[str]) -> str:
    if len(columns) > 1:
        head, *rows = sheet.by_metric(columns, lambda line: _markdown(sheet, line))
        body = [[escaped(row[0]), escaped(row[1]), *row[2:]] for row in rows]
        right = [False, False, *[True] * len(columns)]
        return pipes([[*map(escaped, head)], *body], right, are_escaped=True)
    names = sheet.headings(columns[0])
    body = [[*_markdown(sheet, line).values()] for line in sheet.under(columns[0])]
    right = [key not in LEFT for key in names]
    return pipes([[*map(escaped, names.values())], *body], right, are_escaped=True)


def _markdown(sheet: Sheet, line: Line) -> dict[str, str]:
    texts = {key: escaped(line.texts[key]) for key in sheet.keys}
    bold = f"**{texts['ours']}**" if line.best else texts["ours"]
    return {**texts, "ours": bold + "".join(f" [{mark}]" for mark in line.marks)}


def _mark(mark: int) -> str:
    return rf"\textsuperscript{{{mark}}}"


def _block(sheet: Sheet, column: str, keys: list[str]) -> Iterator[str]:
    """The lines of a column, under its name."""
    wide = rf"\multicolumn{{{len(keys)}}}"
    yield rf"\midrule {wide}{{@{{}}l}}{{\textit{{{tex(sheet.name(column))}}}}} \\"
    for line in sheet.under(column):
        bold = r"\textbf{%s}" if line.best else "%s"
        shown = {key: number(text) for key, text in line.texts.items()}
        shown["method"] = tex(line.texts["method"])
        shown["ours"] = bold % tex(line.texts["ours"]) + "".join(map(_mark, line.marks))
        shown["verdict"] = rf"\raggedright {tex(line.texts['verdict'])}"
        yield " & ".join(shown[key] for key in keys) + r" \tabularnewline"
    if (beside := sheet.increases(column)) is not None:
        yield rf"{wide}{{@{{}}p{{0.95\textwidth}}@{{}}}}{{{tex(beside)}}} \\"
