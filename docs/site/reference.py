"""Generate the command reference from the text of `--help`, and the page of the Python API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main

COMMANDS = """\
# Command reference

The text of `comt COMMAND --help` for every command. [Commands](commands.md) introduces the most used ones.
"""
API = """\
# Python API

The public names of `comt_cli`, and the gates and residual connections of `comt_cli.layers`, which work in any PyTorch
model. A method of your own is a `Method` that returns a `Wiring`. [comt as a library](library.md) is the guide with
examples. `comt_cli.__version__` is the version as text.
Errors are `comt_cli.errors.UserError`; the message states the cause and the remedy.
"""

MEMBERS = {
    "Gate": ["at", "down_projection", "values", "forward", "scaled", "start_at_one", "bottleneck"],
    "ResidualConnection": ["forward", "step", "initial_stream", "sources", "output_aggregation", "read", "mixing"],
    "State": ["stream"],
    "Method": ["wiring", "fits"],
}
"""Methods that one overrides or calls in code of one's own."""


def command_page() -> str:
    """The command reference."""
    from comt_cli import app

    program, text = typer.main.get_command(app.app), [COMMANDS]
    for group, verbs in app._GROUPS.items():
        text += [f"\n## {group}\n", *(section(*each) for verb in verbs for each in commands(program, verb, ("comt",)))]
    return "".join(text)


def api_page() -> str:
    """The page of the Python API, as instructions for mkdocstrings."""
    import comt_cli
    from comt_cli import layers
    from comt_cli.methods import base

    functions = {*comt_cli.__all__} - {"__version__"}
    gates = {name for name in layers.__all__ if ".residual." not in getattr(layers, name).__module__}
    others, text = {*layers.__all__} - gates, [API]
    for title, home, names in (
        ("Functions", comt_cli, functions),
        ("Gates", layers, gates),
        ("Residual connections", layers, others),
        ("Methods of your own", base, {"Method", "ConnectionMethod", "Wiring"}),
    ):
        text.append(f"\n## {title}\n")
        for thing in (getattr(home, name) for name in sorted(names)):
            name = thing.__name__
            text.append(f"\n::: {thing.__module__}.{name}\n    options:\n      heading: {home.__name__}.{name}\n")
            text.append(f"      toc_label: {name}\n")
            text += [f"      members: {MEMBERS[name]}\n"] if name in MEMBERS else []
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
        lines += ["| argument or option | effect |", "| --- | --- |"]
        lines += [f"| `{cell(name)}` | {words(what)} |" for name, what in rows]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Text for a table cell, without the types of Python that an option's name ends in."""
    return re.sub(r"\s+", " ", re.sub(r" <[a-z]+\[.*\]>$", "", text)).replace("|", r"\|")


def words(text: str) -> str:
    """Help as Markdown, with Markdown's own signs escaped."""
    return re.sub(r"([*_<\[\]])", r"\\\1", cell(text))
