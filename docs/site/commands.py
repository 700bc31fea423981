"""Generate the command reference from the program: the text of `--help` as a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main

HEAD = """\
# Command reference

The text of `comt VERB --help` for every command. [Commands](commands.md) introduces the most used ones.
"""


def page() -> str:
    """The whole page."""
    from comt_cli import app

    program, text = typer.main.get_command(app.app), [HEAD]
    groups = getattr(app, "_GROUPS", {"All commands": app.VERBS})
    for group, verbs in groups.items():
        text += [f"\n## {group}\n", *(section(*each) for verb in verbs for each in commands(program, verb, ("comt",)))]
    return "".join(text)


def commands(group: Any, name: str, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """A command, or those of a group, with the words that call each, in the order of `--help`."""
    _, command, _ = group.resolve_command(None, [name])
    if hasattr(command, "commands"):
        for inner in command.commands:
            yield from commands(command, inner, (*path, name))
    else:
        yield (*path, name), command


def section(path: tuple[str, ...], command: Any) -> str:
    """The section of one command: its text, examples and options."""
    context = command.make_context(" ".join(path), [], resilient_parsing=True)
    said, examples = re.split(r"Examples?:\n", command.help)
    lines = [f"\n### {' '.join(path)}\n", said.strip(), ""]
    lines += ["```bash", *(line.strip() for line in examples.splitlines() if line.strip()), "```", ""]
    records = (parameter.get_help_record(context) for parameter in command.params)
    rows = [record for record in records if record is not None]
    if rows:
        lines += ["| option | what it does |", "| --- | --- |"]
        lines += [f"| `{cell(name)}` | {words(what)} |" for name, what in rows]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Text for a table cell, without the types of Python that an option's name ends in."""
    return re.sub(r"\s+", " ", re.sub(r" <[a-z]+\[.*\]>$", "", text)).replace("|", r"\|")


def words(text: str) -> str:
    """Help as Markdown, with Markdown's own signs escaped."""
    return re.sub(r"([*_<\[\]])", r"\\\1", cell(text))
