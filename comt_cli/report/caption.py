r"""Captions of figures, and LaTeX: text that is printed as it is, and the `table` and `figure` floats to `\input`.

Tables need booktabs, figures graphicx.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

FIGURE_FILES = ("png", "pdf", "txt", "tex", "csv")
"""The files of a figure, in the order in which they are written: picture, page, caption, and the numbers last."""
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


_ACCENTS = (
    "\u0300\u0301\u0302\u0303\u0308\u030a\u0327\u030c"  # grave, acute, circumflex, tilde, dots, ring, cedilla, caron
)
_LETTERS = "æÆøØœŒßłŁ"
"""Accents on Latin letters, and letters beside them, that plain LaTeX sets without further packages."""


def escaped(text: str) -> str:
    r"""Text that LaTeX prints as it stands. What it has no glyph for without further packages is spelt `U+2603`."""

    def spelt(letter: str) -> str:
        base, *accents = [*unicodedata.normalize("NFD", letter)]
        is_plain = base.isascii() and base.isprintable() and all(accent in _ACCENTS for accent in accents)
        return _LATEX.get(letter) or (letter if letter in _LETTERS or is_plain else f"U+{ord(letter):04X}")

    return "".join(spelt(letter) for letter in re.sub(r"[\x00-\x1f]", " ", unicodedata.normalize("NFC", text)))


@dataclass(frozen=True)
class Caption:
    """`title` is the question that the figure answers, `trained` which networks, on what and for how long, which stands
    in the picture too; `reading` explains the marks, `findings` say what the numbers come to."""

    title: str
    trained: str = ""
    reading: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()

    @property
    def sentences(self) -> list[str]:
        """Title, training, reading and findings, each a sentence or several."""
        texts = (each.strip() for each in (self.title, self.trained, *self.reading, *self.findings))
        return [text if text.endswith((".", "!", "?")) else f"{text}." for text in texts if text]

    def text(self) -> str:
        """One paragraph, for a document of any kind."""
        return " ".join(self.sentences) + "\n"

    def latex(self, stem: str, label: str, share: float = 1.0) -> str:
        r"""A `figure` float to `\input` beside `<stem>.pdf`, with the title in bold: `\label{fig:<label>}`. The picture
        takes this share of a line's width."""
        title, *others = self.sentences
        said = " ".join([rf"\textbf{{{escaped(title)}}}", *map(escaped, others)])
        width = r"\linewidth" if share > 0.99 else rf"{share:.2f}\linewidth"
        return "\n".join(
            [
                r"% Needs \usepackage{graphicx}, and \graphicspath{{...}} where the PDF is in another folder.",
                r"\begin{figure}[htbp]",
                r"\centering",
                rf"\includegraphics[width={width}]{{{stem}.pdf}}",
                rf"\caption{{{said}}}",
                rf"\label{{fig:{re.sub('[^A-Za-z0-9]', '-', label)}}}",
                r"\end{figure}",
                "",
            ]
        )
