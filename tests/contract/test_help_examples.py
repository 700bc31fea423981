"""Every example in help can be pasted: a command that parses, on a line of its own."""

from __future__ import annotations

import re
import shlex

import pytest
import typer.main
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.commands.options import INDENT


def pages(group, path=()):
    """Every page of help, by its words: (), ("show",), ("bench",), ("bench", "step")."""
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from pages(command, (*path, name))


PROGRAM = typer.main.get_command(app)
PAGES = [" ".join(path) for path in pages(PROGRAM)]


def commands_in(page: str) -> list[list[str]]:
    """The words of every example in a page of help, on a narrow terminal, as a shell would hand them to the program."""
    result = CliRunner().invoke(app, [*page.split(), "--help"], env={"COLUMNS": "60"}, terminal_width=60)
    assert result.exit_code == 0
    return [shlex.split(line) for line in result.output.splitlines() if re.match(rf" {{{INDENT}}}comt( |$)", line)]


def parse(words: list[str]) -> None:
    """Raise what the program would: for a verb or an option that is not there, or a value of another type."""
    command, words = PROGRAM, words[1:]
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    command.make_context("comt", list(words))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page or "comt")
def test_examples_can_be_pasted(page):
    examples = commands_in(page)
    assert examples, "no example"
    for words in examples:
        assert words[: len(page.split()) + 1] == ["comt", *page.split()], "an example of another verb"
        parse(words)


def test_the_parser_notices_mistakes():
    for words, error in (("--recipe table3 --stes 3", "NoSuchOption"), ("--recipe table3 --gpus x", "BadParameter")):
        with pytest.raises(Exception) as raised:  # noqa: PT011 - typer's own copy of click raises it
            parse(["comt", "train-lm", *words.split()])
        assert type(raised.value).__name__ == error
    with pytest.raises(KeyError):
        parse(["comt", "trainlm"])
