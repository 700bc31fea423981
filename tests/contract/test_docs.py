"""Links of the Markdown lead somewhere, and its commands and those in help are understood by the programs they name."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.errors import UserError
from comt_cli.methods import catalogue
from comt_cli.recipe.find import find_recipe
from comt_cli.recipe.load import load_recipe

ROOT = Path(__file__).resolve().parents[2]
NOT_OURS = {"runs", "build", "dist", "node_modules", ".git"}
LINK = re.compile(r"!?\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
FENCE = re.compile(r"^(```+|~~~+)[^\n]*\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))
VARIABLES = set(re.findall(r"^([A-Z_]+) \?=", MAKEFILE, re.MULTILINE))
COMMAND_LINE = typer.main.get_command(app)
PAPERS = sorted(path.name for path in (ROOT / "recipes").iterdir() if path.is_dir() and path.name != "setups")


def markdown_files() -> list[Path]:
    """The Markdown that is, or is about to be, committed; without git, all but what lies in folders of other things."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    try:
        names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
        found = [ROOT / name for name in names]
    except (OSError, subprocess.CalledProcessError):
        within = ((path, path.relative_to(ROOT).parts) for path in ROOT.rglob("*.md"))
        found = [path for path, parts in within if not NOT_OURS & set(parts) and not parts[0].startswith(".venv")]
    return sorted(path for path in found if path.exists())


FILES = markdown_files()


def broken_links(path: Path, text: str) -> list[str]:
    """Relative links that lead nowhere: to a file that is absent, or a heading that is not there."""
    prose = re.sub(r"`[^`\n]*`", "", FENCE.sub("", text))
    broken = []
    for target in LINK.findall(prose):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = path.parent / name if name else path
        is_found = not name or (linked.exists() and linked.resolve().is_relative_to(ROOT))
        if is_found and anchor and linked.suffix == ".md":
            is_found = anchor in anchors(text if not name else linked.read_text(encoding="utf-8"))
        if not is_found:
            broken.append(target)
    return broken


def anchors(text: str) -> set[str]:
    """The anchors that the common hosts make of headings."""
    headings = re.findall(r"^#+ (.+?)\s*#*$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(text: str) -> Iterator[list[str]]:
    """The words of every `comt` and `make` command in the fenced blocks of a text."""
    for _, block in FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            try:
                lexer = shlex.shlex(line.strip().removeprefix("$ "), posix=True, punctuation_chars=True)
                lexer.whitespace_split = True
                words = list(lexer)
            except ValueError:  # not a shell's line: an apostrophe in some output, for instance
                continue
            yield from (command for command in _split(words) if command and command[0] in ("comt", "make"))


def _split(words: list[str]) -> Iterator[list[str]]:
    """The simple commands of a line, without variables set before them and what is redirected after them."""
    command: list[str] = []
    for word in [*words, ";"]:
        if word and set(word) <= set("();<>|&"):
            yield command
            command = ["(redirected)"] if set(word) & set("<>") else []
        elif command or not re.fullmatch(r"[A-Z_]+=.*", word):
            command.append(word)


def complaint(words: list[str]) -> str | None:
    """Why a command would not be understood; None if it would. Nothing is run."""
    program, *arguments = words
    return make_complaint(arguments) if program == "make" else comt_complaint(arguments)


def make_complaint(arguments: list[str]) -> str | None:
    unknown = [
        word
        for word in arguments
        if (word.partition("=")[0] not in VARIABLES if "=" in word else word not in TARGETS | {"-j"})
    ]
    return f"make knows no {', '.join(unknown)}" if unknown else None


def comt_complaint(arguments: list[str]) -> str | None:
    command, name = COMMAND_LINE, "comt"
    while arguments and arguments[0] in getattr(command, "commands", {}):  # comt bench step
        name, command, arguments = command.resolve_command(None, arguments)
    if {"-h", "--help"} & set(arguments):
        return None
    if hasattr(command, "commands") and arguments[:1] != ["--version"]:
        return f"{name} has no verb {' '.join(arguments[:1])}"
    # Only options and the number of arguments are checked: making the context in earnest would check values too,
    # such as files that need not be here.
    context = command.make_context(name, [], resilient_parsing=True)
    context.resilient_parsing = False
    try:
        values, left, _ = command.make_parser(context).parse_args(arguments)
    except Exception as error:
        return str(error)
    missing = [option.name for option in command.params if option.required and values.get(option.name) in (None, ())]
    if missing:
        return f"needs {', '.join(missing)}"
    if left:
        return f"does not take {', '.join(left)}"
    return next((why for why in map(misnamed, _recipes_and_runs(values)) if why is not None), None)


def _recipes_and_runs(values: dict[str, object]) -> Iterator[str]:
    """Names of recipes and runs in a command: `table3`, `sas/table4`, `table3:pre-ln+comt`."""
    for key in ("recipe", "recipes", "selectors", "checkpoint", "model", "chosen"):
        found = values.get(key)
        words = [found] if isinstance(found, str) else list(found or ())  # type: ignore[call-overload]
        yield from (word for word in words if re.match(rf"({'|'.join(PAPERS)})/|[^/.]+(\.yaml)?(:|$)", word))


def misnamed(selector: str) -> str | None:
    """Why no shipped recipe has what `recipe:row[:column[:seed]]` names. None for what is there, for the beginning of
    an id, and for files that a reader makes, which are called mine, or my something."""
    recipe, *parts = selector.split(":")
    recipe = recipe.partition("@")[0]  # of its settings
    if recipe.startswith(("mine", "my-")) or re.fullmatch(r"[0-9a-f]{3,12}", recipe):
        return None
    try:
        loaded = load_recipe(find_recipe(recipe), catalogue())
    except UserError as error:
        return error.message
    known = (
        loaded.recipe.rows,
        {column for scale in loaded.recipe.scales for column in loaded.recipe.columns_at(scale)},
    )
    wrong = [
        part
        for part, names in zip(parts, known, strict=False)
        if part and part not in {*names, *(name.replace("/", "-") for name in names)}
    ]
    return f"{recipe} has no {', '.join(wrong)}" if wrong else None


def test_links_lead_somewhere():
    found = {str(path): broken_links(path, path.read_text(encoding="utf-8")) for path in FILES}
    assert {path: links for path, links in found.items() if links} == {}


def test_commands_are_understood():
    found = {
        (str(path), shlex.join(words)): complaint(words)
        for path in FILES
        for words in commands(path.read_text("utf-8"))
    }
    assert {where: why for where, why in found.items() if why} == {}


def pages(group: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every page of help, by its words: "", "show", "bench", "bench step"."""
    yield " ".join(path)
    for name in getattr(group, "commands", {}):
        yield from pages(group.resolve_command(None, [name])[1], (*path, name))  # the command, not its stand-in


def help_lines(page: str, width: int) -> list[str]:
    """The help of a page, as text that is that wide."""
    result = CliRunner().invoke(app, [*page.split(), "--help"], env={"COLUMNS": str(width)}, terminal_width=width)
    assert result.exit_code == 0
    return result.output.splitlines()


PAGES = pytest.mark.parametrize("page", [*pages(COMMAND_LINE)], ids=lambda page: page or "comt")


@PAGES
def test_examples_of_help_can_be_pasted(page):
    """There are two, each on a line of its own, also on a narrow terminal."""
    lines = [line for line in help_lines(page, 60) if re.match(r" {4}comt( |$)", line)]
    assert len(lines) == 2
    for words in map(shlex.split, lines):
        assert words[: len(page.split()) + 1] == ["comt", *page.split()], "an example of another verb"
        assert complaint(words) is None, words


@PAGES
def test_help_fits_on_one_screen(page):
    lines = help_lines(page, 100)
    assert len(lines) <= 45
    text = " ".join(lines).partition("Examples:")[0]
    pages_named = re.findall(r"[\w/-]+\.md", text)
    assert ("More:" in text) == bool(pages_named)
    assert [name for name in pages_named if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("comt shwo table3.yaml", "no verb shwo"),
        ("comt show", "needs recipe"),
        ("comt show table3.yaml table4.yaml", "table4.yaml"),
        ("COMT_CACHE=/tmp/x comt train-lm --recipe table3.yaml --row pre-ln | tee log", "--row"),
        ("comt show table33.yaml", "table33"),
        ("comt evaluate table33@steps-9", "table33"),
        ("comt plot-cosine table3:pre-ln+coma", "has no pre-ln+coma"),
        ("make dmo", "dmo"),
        ("$ make demo SCALES=smoke  # a comment", "SCALES"),
    ],
)
def test_a_wrong_command_is_found(line, why):
    (words,) = commands(f"Text\n\n```bash\n{line}\n```\n")
    assert why in complaint(words)


def test_a_broken_link_is_found():
    text = "# One Head\n[a](absent.md) [b](README.md) [c](#one-head) [d](#two) `[e](x)` [f](https://example.org)"
    assert broken_links(ROOT / "x.md", text) == ["absent.md", "#two"]
