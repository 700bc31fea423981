r"""LaTeX: text that is printed as it is, and the `table` float to `\input`, which needs no package but booktabs."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

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


def table_float(
    caption: str, label: Sequence[str], columns: str, head: Sequence[str], body: Iterable[str], notes: Iterable[str],
    written_from: str,
) -> str:  # fmt: skip
    r"""The float: `\label{tab:<label>}`, the lines of its body between booktabs' rules, and the notes below."""
    key = "-".join("".join(each if each.isascii() and each.isalnum() else "-" for each in part) for part in label)
    return "\n".join(
        [
            rf"% Needs \usepackage{{booktabs}}. Written by comt report from {written_from}.",
            r"\begin{table}[htbp]",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{caption}}}",
            rf"\label{{tab:{key}}}",
            rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
            r"\toprule",
            rf"{' & '.join(map(escaped, head))} \\",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par\smallskip\raggedright {note}" for note in notes),
            r"\end{table}",
            "",
        ]
    )


def number(text: str) -> str:
    """A number's sign as a minus; a lone dash stays a dash."""
    return escaped(text.replace("-", "−") if any(letter.isdigit() for letter in text) else text)


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
