"""Help whose examples can be pasted: a command is never wrapped inside a word, and each line but its last ends in a
backslash."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from typer.core import TyperCommand, TyperGroup

PROGRAM = "comt"
INDENT = 4
"""Columns before an example; running text has two."""


class Verb(TyperCommand):
    """A command whose help shows its examples so."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Click's own, but for the lines of examples."""
        _write(self.help or "", formatter)


class VerbGroup(TyperGroup):
    """The same for a group of commands."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Click's own, but for the lines of examples."""
        _write(self.help or "", formatter)


def _write(text: str, formatter: Any) -> None:
    paragraphs = inspect.cleandoc(text).split("\n\n")
    formatter.write_paragraph()
    with formatter.indentation():
        for number, paragraph in enumerate(paragraphs):
            if number:
                formatter.write_paragraph()
            if is_example(paragraph):
                for line in broken(paragraph.strip(), formatter.width - INDENT):
                    formatter.write(f"{' ' * INDENT}{line}\n")
            else:
                formatter.write_text(" ".join(paragraph.split()))


def is_example(paragraph: str) -> bool:
    """Whether a paragraph of a docstring is a command: it is indented, and begins with the program's name."""
    return re.match(rf" +{PROGRAM} ", f"{paragraph} ") is not None


def broken(command: str, width: int) -> list[str]:
    """The command in lines of at most `width` columns, as far as its words allow, that a shell reads as one."""
    lines = [""]
    for part in _parts(command):
        if lines[-1] and len(lines[-1]) + 1 + len(part) > width - 2:  # 2 for the backslash
            lines[-1] += " \\"
            lines.append(f"    {part}")
        else:
            lines[-1] += f" {part}" if lines[-1] else part
    return lines


def _parts(command: str) -> Iterator[str]:
    """The command's words as they are typed, an option together with its value: they read best on one line."""
    words = re.findall(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""", " ".join(command.split("\\\n")))
    while words:
        word = words.pop(0)
        if word.startswith("--") and words and not words[0].startswith("-"):
            word = f"{word} {words.pop(0)}"
        yield word
