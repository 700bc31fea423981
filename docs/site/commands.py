"""The reference of commands, generated from the program: what `--help` says, as a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main

HEAD = """\
# Command reference

Generated from the program: what `comt VERB --help` prints. [Commands](commands.md) has the ones that people use most.
"""


def page() -> str:
    """The whole page."""
    from comt_cli.app import app

    return HEAD + "".join(section(path, command) for path, command in commands(typer.main.get_command(app)))


def commands(group: Any, path: tuple[str, ...] = ("comt",)) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that call it, in the order of `--help`."""
    for name in group.commands:
        _, command, _ = group.resolve_command(None, [name])
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def section(path: tuple[str, ...], command: Any) -> str:
    """A command's part of the page."""
    context = command.make_context(" ".join(path), [], resilient_parsing=True)
    said, _, examples = (command.help or "").partition("Examples:")
    lines = [f"\n## {' '.join(path)}\n", said.strip(), ""]
    lines += ["```bash", *(line.strip() for line in examples.splitlines() if line.strip()), "```", ""]
    records = (parameter.get_help_record(context) for parameter in command.params)
    rows = [record for record in records if record is not None]
    if rows:
        lines += ["| option | what it does |", "| --- | --- |"]
        lines += [f"| `{cell(name)}` | {words(what)} |" for name, what in rows]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Text that may stand in a table."""
    return re.sub(r"\s+", " ", text).replace("|", r"\|")


def words(text: str) -> str:
    """Help as Markdown: signs that Markdown would take for its own are escaped."""
    return re.sub(r"([*_<\[\]])", r"\\\1", cell(text))
