r"""A table as LaTeX: a `table` float to `\input`, which needs no package but booktabs."""

from __future__ import annotations

import unicodedata

from comt_cli.report import format, words
from comt_cli.report.layout import Key, Line, headings, increases, lines
from comt_cli.report.table import Table
from comt_cli.report.trained import of_table

_LEFT_OUT: tuple[Key, ...] = (
    "median",
    "detectable",
    "equal_time",
    "parameters",
    "paper_increase",
    "flops",
    "bytes",
    "saved",
    "step",
    "compiled",
    "speed",
    "published",
)
"""Left to the CSV and the Markdown page: a line of text is not wider. So are the columns beside the metric, where
the paper's numbers take its place."""

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "[": "{[}",  # after a line's end a bare one would be read as its optional argument
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "λ": r"$\lambda$",
    "σ": r"$\sigma$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
}


def latex(table: Table) -> str:
    r"""The float: `\label{tab:<folder>-<name>-<scale>}`, one block of lines a column, footnotes below."""
    shown = _shown(table)
    body = []
    for column in table.columns:
        body.append(
            rf"\midrule \multicolumn{{{len(shown)}}}{{@{{}}l}}{{\textit{{{escaped(table.heading(column))}}}}} \\"
        )
        body += [_row(line, shown) for line in lines(table, column)]
        beside = increases(table, column)
        if beside is not None:
            body.append(rf"\multicolumn{{{len(shown)}}}{{@{{}}p{{0.95\textwidth}}@{{}}}}{{{escaped(beside)}}} \\")
    head = " & ".join(escaped(heading) for heading in shown.values())
    columns = "".join({"method": "l", "verdict": r"p{0.17\textwidth}"}.get(key, "r") for key in shown)
    notes = [f"{_mark(mark)}{escaped(text)}" for mark, text in enumerate(table.footnotes, start=1)]
    notes += [escaped(note) for note in table.notes]
    label = "-".join(_label(part) for part in (table.folder, table.name, table.scale))
    return "\n".join(
        [
            rf"% Needs \usepackage{{booktabs}}. Written by comt report from {format.one_line(table.recipe_file)}.",
            r"\begin{table}[htbp]",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{\textbf{{{escaped(table.title.rstrip('.'))}.}} {escaped(_caption(table))}}}",
            rf"\label{{tab:{label}}}",
            rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
            r"\toprule",
            rf"{head} \\",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par\smallskip\raggedright {note}" for note in notes),
            r"\end{table}",
            "",
        ]
    )


def _shown(table: Table) -> dict[Key, str]:
    every = headings(table)
    left_out = (*_LEFT_OUT, "beside") if "paper" in every else _LEFT_OUT
    return {key: heading for key, heading in every.items() if key not in left_out}


def _caption(table: Table) -> str:
    keys: list[Key] = ["parameters"] if table.has_increases else []
    return f"{of_table(table)}. {words.origin(table, [*_shown(table), *keys])}"


def _row(line: Line, shown: dict[Key, str]) -> str:
    cells = []
    for key in shown:
        text = line.cells[key]
        if key == "ours":
            bold = rf"\textbf{{{escaped(text)}}}" if line.best else escaped(text)
            cells.append(bold + "".join(_mark(mark) for mark in line.marks))
        elif key == "verdict":
            cells.append(rf"\raggedright {escaped(text)}")
        else:
            cells.append(escaped(text) if key == "method" else _number(text))
    return " & ".join(cells) + r" \tabularnewline"


def _mark(mark: int) -> str:
    return rf"\textsuperscript{{{mark}}}"


def _number(text: str) -> str:
    """A number's sign as a minus; a lone dash stays a dash."""
    return escaped(text.replace("-", "−") if any(letter.isdigit() for letter in text) else text)


def _label(text: str) -> str:
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in text)


_ACCENTS = (
    "\u0300\u0301\u0302\u0303\u0308\u030a\u0327\u030c"  # grave, acute, circumflex, tilde, dots, ring, cedilla, caron
)
_LETTERS = "æÆøØœŒßłŁ"
"""Accents on Latin letters, and letters beside them, that plain LaTeX sets without further packages."""


def escaped(text: str) -> str:
    r"""Text that LaTeX prints as it stands. What it has no glyph for without further packages is spelt `U+2603`."""
    return "".join(_letter(letter) for letter in unicodedata.normalize("NFC", text))


def _letter(letter: str) -> str:
    if letter in _LATEX:
        return _LATEX[letter]
    if ord(letter) < 0x20:
        return " "
    decomposed = unicodedata.normalize("NFD", letter)
    base, accents = decomposed[0], decomposed[1:]
    if letter in _LETTERS or (base.isascii() and base.isprintable() and all(accent in _ACCENTS for accent in accents)):
        return letter
    return f"U+{ord(letter):04X}"
