"""Text for display: lines wrapped for a terminal; times, counts, lists and names."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import TextIO


def printed_lines(text: str, stream: TextIO) -> list[str]:
    """The lines of a message for `stream`. On a terminal, long lines are wrapped between words and indented."""
    width = max(shutil.get_terminal_size().columns, 1)
    lines: list[str] = []
    for line in text.splitlines():
        if stream.isatty() and len(line) > width:
            indent = line[: len(line) - len(line.lstrip())] + "  "
            lines += textwrap.wrap(
                line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
            )
        else:
            lines.append(line)
    return lines


def duration(seconds: float) -> str:
    """A time, rounded like an estimate: 40 s, 12 min, 3 h 20 min, 2 days 5 h."""
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


def plural(number: int, noun: str) -> str:
    """A number with its noun: `1 run`, `3 runs`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def listing(names: Iterable[str]) -> str:
    """Names as a list: `a`, `a and b`, `a, b and c`."""
    words = list(names)
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def short_count(number: float) -> str:
    """A rounded number: `812`, `3.9 k`, `131 M`, `2.2 B`, `1.3 T`."""
    return in_units(number, ("", "k", "M", "B", "T"))


def in_units(number: float, units: Sequence[str]) -> str:
    """A number in the first of `units` (each 1000 times the one before) in which it is below 1000, or in the last. At
    most three digits; one decimal, except in the first unit."""
    for power in range(len(units)):
        scaled = number / 1000**power
        text = f"{scaled:.{1 if power else 0}f}"
        if float(text) >= 100:
            text = f"{scaled:.0f}"
        if float(text) < 1000:
            break
    return f"{text} {units[power]}".rstrip()


_NAMES = {
    "c4": "C4",
    "openwebtext": "OpenWebText",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "imagenet": "ImageNet",
}
"""Names of data sets in papers, where they differ from the recipes'."""


def in_words(name: str) -> str:
    """The name of a column or data set as in papers: `C4, 60m` for `c4/60m`."""
    if name.startswith(("files:", "hf:")):
        return name
    return ", ".join(_NAMES.get(part, part) for part in name.split("/") if part)
