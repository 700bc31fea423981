"""Help whose examples can be pasted: a command is never wrapped inside a word, and each line but its last ends in a
backslash."""

from __future__ import annotations

import inspect
import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

PROGRAM = "comt"
INDENT = 4
"""Columns before an example; running text has two."""


class _Help:
    """What click prints of a docstring, but for the lines of examples."""

    help: str | None

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the docstring, paragraph by paragraph."""
        formatter.write_paragraph()
        with formatter.indentation():
            for number, paragraph in enumerate(inspect.cleandoc(self.help or "").split("\n\n")):
                if number:
                    formatter.write_paragraph()
                if re.match(rf" +{PROGRAM} ", f"{paragraph} "):
                    for line in broken(paragraph.strip(), formatter.width - INDENT):
                        formatter.write(f"{' ' * INDENT}{line}\n")
                else:
                    formatter.write_text(" ".join(paragraph.split()))


class Verb(_Help, TyperCommand):
    """A command whose help shows its examples so."""


class VerbGroup(_Help, TyperGroup):
    """The same for a group of commands."""


def broken(command: str, width: int) -> list[str]:
    """The command in lines of at most `width` columns, as far as its words allow, that a shell reads as one. An option
    and its value stay on one line."""
    words = re.findall(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""", " ".join(command.split("\\\n")))
    lines = [""]
    while words:
        part = words.pop(0)
        if part.startswith("--") and words and not words[0].startswith("-"):
            part += f" {words.pop(0)}"
        if lines[-1] and len(lines[-1]) + 1 + len(part) > width - 2:  # 2 for the backslash
            lines[-1] += " \\"
            lines.append(f"    {part}")
        else:
            lines[-1] += f" {part}" if lines[-1] else part
    return lines
