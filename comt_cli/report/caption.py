r"""Texts in Markdown and LaTeX: escapes, tables, templates, and captions of figures."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comt_cli.report import format

if TYPE_CHECKING:
    from jinja2 import Environment, Template

FIGURE_FILES = ("png", "pdf", "txt", "tex", "csv")
"""The files of a figure, in the order in which they are written: picture, page, caption, and the numbers last."""
_NAMES = ("alpha", "beta", "gamma", "lambda", "sigma", "leq", "geq", "leftarrow")
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
    **dict(zip("‘’“”", ("`", "'", "``", "''"), strict=True)),
    **{sign: rf"$\{name}$" for sign, name in zip("αβγλσ≤≥←", _NAMES, strict=True)},
}
_ACCENTS = "\u0300\u0301\u0302\u0303\u0308\u030a\u0327\u030c"
_LETTERS = "æÆøØœŒßłŁ"
"""Accents on Latin letters, and letters beside them, that plain LaTeX sets without further packages."""
_ITEM = "●"
_MARKDOWN = "\\`*_<>|[]#~$"
_IN_PLACES = re.compile(
    r"^[-+](?=[-\s])"  # a list or a rule
    r"|(?<=^\d)[.)](?=\s|$)|(?<=^\d\d)[.)](?=\s|$)|(?<=^\d{3})[.)](?=\s|$)|(?<=^\d{4})[.)](?=\s|$)"
    r"|&(?=#?\w+;)"  # an entity
    r"|(?<=[A-Za-z]):(?=//)|(?<=\bwww)\.|(?<=\w)@(?=\w)",  # addresses, which some make links of
    re.IGNORECASE,
)
"""Marks of Markdown in some places only."""


def in_latex(text: str) -> str:
    r"""Text that LaTeX prints as it stands. What it has no glyph for without further packages is spelt `U+2603`."""

    def spelt(letter: str) -> str:
        base, *accents = [*unicodedata.normalize("NFD", letter)]
        is_plain = base.isascii() and base.isprintable() and all(accent in _ACCENTS for accent in accents)
        return _LATEX.get(letter) or (letter if letter in _LETTERS or is_plain else f"U+{ord(letter):04X}")

    return "".join(spelt(letter) for letter in re.sub(r"[\x00-\x1f]", " ", unicodedata.normalize("NFC", text)))


def in_markdown(text: str) -> str:
    """Text that a page shows as it stands, in a paragraph of its own or within a line. Line ends become spaces;
    addresses are no links: the text may be of a stranger's recipe."""
    line = " ".join(format.one_line(text).split())
    marked = {found.start() for found in _IN_PLACES.finditer(line)}
    return "".join(f"\\{letter}" if letter in _MARKDOWN or at in marked else letter for at, letter in enumerate(line))


def pipes(texts: Sequence[Sequence[str]], right: Sequence[bool] = (), *, are_escaped: bool = False) -> str:
    """A Markdown table of texts, the headings first; `right` says which columns go to the right, by default all but the
    first."""
    rows = [f"| {' | '.join(line if are_escaped else map(in_markdown, line))} |" for line in texts]
    sides = ["---:" if to_right else ":---" for to_right in right or [False, *[True] * (len(texts[0]) - 1)]]
    return "\n".join([rows[0], "| " + " | ".join(sides) + " |", *rows[1:]])


def templates() -> Environment:
    """The templates of this folder. They escape what they show in HTML; in Markdown and LaTeX the filters `md` and
    `tex` do."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=jinja2.select_autoescape(["html.jinja"]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"md": in_markdown, "tex": in_latex}
    environment.filters |= {"plural": format.plural, "listing": format.listing, "seeds": format.seeds}
    return environment


@functools.cache
def _template(name: str) -> Template:
    return templates().get_template(name)


def prose(name: str, known: Mapping[Any, Any] | None = None, **what: Any) -> str:
    """The sentences of a block of `sentences.txt.jinja` as one line; `known` are a frame's attributes."""
    template = _template("sentences.txt.jinja")
    return " ".join("".join(template.blocks[name](template.new_context({**(known or {}), **what}))).split())


def notes(name: str, known: Mapping[Any, Any] | None = None, **what: Any) -> list[str]:
    """The items of a block, which begin with `●`, each as one line."""
    return [item.strip() for item in prose(name, known, **what).split(_ITEM)[1:]]


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
        width = r"\linewidth" if share > 0.99 else rf"{share:.2f}\linewidth"
        named = {"stem": stem, "label": re.sub("[^A-Za-z0-9]", "-", label), "width": width}
        return _template("figure.tex.jinja").render(named, sentences=[*map(in_latex, self.sentences)]) + "\n"
