"""Text for people on a terminal, whose lines are broken between words; files and pipes get them whole."""

from __future__ import annotations

import shutil
import textwrap
from typing import TextIO


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Lines of at most `width` columns, broken between words alone: a word that is longer stands on a line of its own.

    Lines after the first are indented, in addition to the text's own indentation.
    """
    own = text[: len(text) - len(text.lstrip())]
    return textwrap.wrap(
        text, max(width, 1), subsequent_indent=own + indent, break_long_words=False, break_on_hyphens=False
    )


def printed_lines(text: str, stream: TextIO, indent: str = "  ") -> list[str]:
    """The lines of a message for `stream`: as they are, unless it is a terminal that would break its words."""
    lines = text.splitlines()
    if not stream.isatty():
        return lines
    width = shutil.get_terminal_size().columns
    return [part for line in lines for part in (wrap(line, width, indent) if len(line) > width else [line])]
