"""Text for people on a terminal: lines that are broken between words, where files and pipes get them whole; times."""

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


def duration(seconds: float) -> str:
    """A time as precise as an estimate can be trusted: 40 s, 12 min, 3 h 20 min, 2 days 5 h."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, rest = divmod(round(minutes / 10) * 10, 60)
    if hours < 48:
        return f"{hours} h {rest} min" if rest else f"{hours} h"
    days, hours = divmod(round(minutes / 60), 24)
    return f"{days} days {hours} h" if hours else f"{days} days"
