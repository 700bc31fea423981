"""Markdown: text that is shown as it is, and tables of texts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from comt_cli.report import format


def pipes(texts: Sequence[Sequence[str]], right: Sequence[bool] = (), *, are_escaped: bool = False) -> str:
    """A table of texts, the headings first; `right` says which columns go to the right, by default all but the
    first."""
    rows = [f"| {' | '.join(line if are_escaped else map(escaped, line))} |" for line in texts]
    sides = ["---:" if to_right else ":---" for to_right in right or [False, *[True] * (len(texts[0]) - 1)]]
    return "\n".join([rows[0], "| " + " | ".join(sides) + " |", *rows[1:]])


_SPECIAL = "\\`*_<>|[]#~$"
_IN_PLACES = re.compile(
    r"^[-+](?=[-\s])"  # a list or a rule
    r"|(?<=^\d)[.)](?=\s|$)|(?<=^\d\d)[.)](?=\s|$)|(?<=^\d{3})[.)](?=\s|$)|(?<=^\d{4})[.)](?=\s|$)"
    r"|&(?=#?\w+;)"  # an entity
    r"|(?<=[A-Za-z]):(?=//)|(?<=\bwww)\.|(?<=\w)@(?=\w)",  # addresses, which some make links of
    re.IGNORECASE,
)
"""What is a mark in some places only."""


def escaped(text: str) -> str:
    r"""Text that a page shows as it stands, in a paragraph of its own or within a line.

    What Markdown reads as a mark gets a backslash: emphasis, code, links, images, HTML, headings, formulas, and at the
    beginning lists and rules. Line ends become spaces. Addresses are shown and not linked: the text may be of a
    stranger's recipe.
    """
    line = " ".join(format.one_line(text).split())
    marked = {found.start() for found in _IN_PLACES.finditer(line)}
    return "".join(
        f"\\{letter}" if letter in _SPECIAL or position in marked else letter for position, letter in enumerate(line)
    )
