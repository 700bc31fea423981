"""The table of a recipe: every row under every column beside the paper's numbers, with its verdict."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, ClassVar

from comt_cli.recipe.load import LoadedRecipe
from comt_cli.report import format, words
from comt_cli.report.caption import escaped as tex
from comt_cli.report.caption import number, table_float
from comt_cli.report.cells import cells_frame
from comt_cli.report.exhibits import Exhibit, ladder
from comt_cli.report.layout import (
    LEFT,
    Texts,
    column_name,
    footnotes,
    grid_of,
    groups_of,
    headings,
    increases,
    texts_of,
)
from comt_cli.report.markdown import escaped, pipes

if TYPE_CHECKING:
    import pandas as pd

_IN_LATEX = ("method", "ours", "beside", "difference", "paper", "paper_difference", "verdict")
"""The others are left to the CSV and the page: a line of text is not wider. So is what is beside the metric, where the
paper's numbers take its place."""
_FIRST = ("method", "ours", "verdict", "difference", "paper_difference", "paper", "published", "median", "beside")
"""Columns that a narrow terminal has before all others."""


class Table(Exhibit):
    """A table as CSV, Markdown page and LaTeX."""

    name = ""
    digits: ClassVar[int] = 8

    def frame(self, runs: pd.DataFrame, loaded: LoadedRecipe) -> pd.DataFrame:
        """The cells (`cells.cells_frame`)."""
        return cells_frame(runs, loaded)

    def sentences(self, frame: pd.DataFrame) -> list[str]:
        """What directions hold, then footnotes and notes."""
        return [words.verdict(frame), *footnotes(frame), *frame.attrs["notes"]]

    def page(self, frame: pd.DataFrame) -> str:
        """Title, what was trained, how it was made, the verdict, a table for each column, footnotes and notes."""
        attrs, texts = frame.attrs, texts_of(frame)
        scale = f"Scale {attrs['scale']}: {attrs['scale_description'].rstrip('.')}."
        parts = [
            f"# {escaped(attrs['title'])}",
            f"*{escaped(attrs['trained'])}*",
            escaped(f"{words.origin(frame, list(texts[0]))} {scale}"),
            f"**Verdict.** {escaped(words.verdict(frame))}",
        ]
        in_markdown = [_markdown(each, is_best) for each, is_best in zip(texts, frame["_best"], strict=True)]
        for columns in groups_of(frame):
            (head, *rows), several = grid_of(frame, in_markdown, columns), len(columns) > 1
            right = [at > 1 if several else key not in LEFT for at, key in enumerate(head)]
            heading = escaped(", ".join(column_name(frame, column) for column in columns))
            rows = [[line[0], escaped(line[1]), *line[2:]] for line in rows] if several else rows
            table = pipes([[*map(escaped, head)], *rows], right, are_escaped=True)
            parts += [f"## {heading}", escaped(words.setup(frame, columns)), table]
        if trends := ladder.trends(frame):
            columns = list(dict.fromkeys(frame["column"]))
            parts += [f"## {ladder.HEADING}", escaped(ladder.rule(frame, trends)), pipes(ladder.texts(trends, columns))]
        marked = [f"[{mark}] {escaped(text)}" for mark, text in enumerate(footnotes(frame), start=1)]
        parts += ["\n".join(f"- {line}" for line in lines) for lines in (marked, map(escaped, attrs["notes"])) if lines]
        return "\n\n".join(filter(None, parts)) + "\n"

    def latex(self, frame: pd.DataFrame) -> str:
        r"""The float: `\label{tab:<folder>-<name>-<scale>}`, one block of lines a column, footnotes below."""
        attrs, texts = frame.attrs, texts_of(frame)
        keys = [key for key in texts[0] if key in _IN_LATEX and not (key == "beside" and "paper" in texts[0])]
        explained = [*keys, *(["parameters"] if "paper_increase" in texts[0] else [])]
        columns = list(dict.fromkeys(frame["column"]))
        notes = [f"{_superscript(f' [{mark}]')}{tex(text)}" for mark, text in enumerate(footnotes(frame), start=1)]
        return table_float(
            caption=rf"\textbf{{{tex(attrs['title'].rstrip('.'))}.}} "
            + tex(f"{attrs['trained']}. {words.origin(frame, explained)}"),
            label=(attrs["folder"], attrs["name"], attrs["scale"]),
            columns="".join({"method": "l", "verdict": r"p{0.17\textwidth}"}.get(key, "r") for key in keys),
            head=headings(frame, keys, columns),
            body=[line for column in columns for line in _block(frame, texts, column, keys)],
            notes=[*notes, *map(tex, attrs["notes"])],
            written_from=format.one_line(attrs["recipe_file"]),
        )


def _markdown(texts: Texts, is_best: bool) -> Texts:
    ours, mark, marks = texts["ours"].partition(" [")
    bold = f"**{escaped(ours)}**" if is_best else escaped(ours)
    return {**{key: escaped(text) for key, text in texts.items()}, "ours": f"{bold}{mark}{marks}"}


def _superscript(marks: str) -> str:
    return re.sub(r" \[(\d+)\]", r"\\textsuperscript{\1}", marks)


def _block(cells: pd.DataFrame, texts: Sequence[Texts], column: str, keys: Sequence[str]) -> Iterator[str]:
    """The lines of a column, under its name."""
    wide = rf"\multicolumn{{{len(keys)}}}"
    yield rf"\midrule {wide}{{@{{}}l}}{{\textit{{{tex(column_name(cells, column))}}}}} \\"
    for line, at, is_best in zip(texts, cells["column"], cells["_best"], strict=True):
        if at != column:
            continue
        ours, mark, marks = line["ours"].partition(" [")
        shown = {key: number(text) for key, text in line.items()}
        shown["method"] = tex(line["method"])
        shown["ours"] = (r"\textbf{%s}" if is_best else "%s") % tex(ours) + _superscript(mark + marks)
        if "verdict" in line:  # a baseline alone has none
            shown["verdict"] = rf"\raggedright {tex(line['verdict'])}"
        yield " & ".join(shown[key] for key in keys) + r" \tabularnewline"
    if (beside := increases(cells, column)) is not None:
        yield rf"{wide}{{@{{}}p{{0.95\textwidth}}@{{}}}}{{{tex(beside)}}} \\"


def print_table(cells: pd.DataFrame, file: IO[str] | None = None) -> None:
    """Print the title, what was trained, a grid for each column, footnotes, notes and the verdict. A narrow terminal
    gets the columns that fit."""
    from comt_cli.report.terminal import console_for, print_texts, say

    width, texts, attrs = console_for(file).width, texts_of(cells), cells.attrs
    left_out: dict[str, None] = {}
    say(attrs["title"], file, "bold")
    say(f"{attrs['trained']}; {words.source(attrs)}", file, "dim")
    for columns in groups_of(cells):
        several, names = len(columns) > 1, (column_name(cells, column) for column in columns)
        shown = ", ".join(f"{name}: {attrs['task'].metrics[attrs['metrics'][column]].label}"
                          for name, column in zip(names, columns, strict=True))  # fmt: skip
        print(file=file)
        say(f"{shown}. {words.papers_columns(cells, columns)}".rstrip(". ") + ".", file, "dim")
        heads = dict(zip(texts[0], headings(cells, list(texts[0]), columns), strict=True))
        keys = list(texts[0]) if several else _fitting(texts, heads, width)
        left_out |= {heads[key]: None for key in texts[0] if key not in keys}
        part = [{key: each[key] for key in keys} for each in texts]
        head, *lines = grid_of(cells, part, columns)
        best = cells.loc[cells["column"] == columns[0], "_best"]
        left = [at < 1 + several or head[at] == "verdict" for at in range(len(head))]
        print_texts(head, lines, file, width, left=left, bold=() if several else list(best))
        if "parameters" not in keys and (phrase := increases(cells, columns[0])) is not None:
            say(phrase, file, "dim")
    print(file=file)
    for mark, text in enumerate(footnotes(cells), start=1):
        say(f"[{mark}] {text}", file)
    for text in words.rules(cells):
        say(text, file, "dim")
    if left_out:
        say(f"Too narrow for {', '.join(left_out)}: the files have them.", file, "dim")
    for sentence in ladder.sentences(ladder.trends(cells)):
        say(f"{ladder.HEADING}, {sentence}.", file)
    for text in (*attrs["notes"], words.verdict(cells)):
        say(text, file)


def _fitting(texts: Sequence[Texts], heads: dict[str, str], width: int) -> list[str]:
    """The keys of the columns that fit, headings broken between words: the first of `_FIRST` always."""
    chosen: dict[str, int] = {}
    for key in (*(key for key in _FIRST if key in heads), *(key for key in heads if key not in _FIRST)):
        needed = 2 + max(map(len, [*(each[key] for each in texts), *heads[key].split()]))
        if key in _FIRST[:3] or sum(chosen.values()) + needed - 2 <= width:
            chosen[key] = needed
    return [key for key in heads if key in chosen]
