"""Files of translations, a sentence a line, and what of them looks as if it would be scored wrongly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from comt_cli.errors import UserError
from comt_cli.files import read_text

_SUSPICIOUS = 0.1
"""The share of lines from which on a sign of tokenised text is no accident."""
_ESCAPES = ("&quot;", "&apos;", "&amp;", "@-@", "&#91;")


def read_aligned(paths: Sequence[Path]) -> tuple[list[list[str]], list[str]]:
    r"""The lines of each file, and all that is wrong: one cannot be read or is empty, or their lengths differ.

    Lines are those that sacreBLEU reads: they end with `\n` alone, and what is blank at their end is cut off. Other
    signs that Python takes for the end of a line are within one.
    """
    texts, problems = [], []
    for path in paths:
        try:
            text = read_text(path)
            texts.append([line.rstrip() for line in text.removesuffix("\n").split("\n")] if text else [])
        except FileNotFoundError:
            problems.append(f"there is no file {path}")
        except (OSError, ValueError) as error:
            problems.append(f"{path} cannot be read: {error}")
        else:
            if not any(texts[-1]):
                problems.append(f"{path} is empty")
    if not problems and len(set(map(len, texts))) > 1:
        told = ", ".join(f"{path} has {len(text):,}" for path, text in zip(paths, texts, strict=True))
        problems.append(f"the files must have one sentence a line, as many of them: {told}")
    return texts, problems


def refuse(problems: Sequence[str], hint: str | None = None) -> None:
    """Raise `UserError` with all problems, a line each, if there are any."""
    if problems:
        raise UserError("\n".join(problems), hint)


def suspicions(name: str, lines: Sequence[str]) -> list[str]:
    """Why these lines do not look like the plain text that most metrics are of."""
    notes = []
    ends = sum(line.endswith((" .", " ?", " !")) for line in lines)
    if ends > _SUSPICIOUS * len(lines):
        notes.append(f"{ends:,} of {len(lines):,} lines of {name} end in a full stop that is a token of its own")
    for escape in _ESCAPES:
        if held := sum(escape in line for line in lines):
            notes.append(f"{held:,} of {len(lines):,} lines of {name} hold {escape}")
    return notes
