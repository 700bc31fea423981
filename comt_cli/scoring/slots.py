"""Whether a translation has the values that it must: dates, amounts, names, each as its language writes it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from comt_cli.scoring.metrics import Score

_TAKEN = "\0"


def slot_accuracy(hypotheses: Sequence[str], slots: Sequence[Sequence[str]]) -> Score:
    """The percentage of the values that are in their hypotheses, letter by letter, anywhere in them.

    A value counts as whole words and whole numbers: `3` is neither in `13` nor in `3.5`, `-3` or `3 000`. One that is
    asked for twice must be there twice, and none counts as part of a longer one.

    Raises:
        ValueError: there are not as many hypotheses as lists of values, or no values at all.
    """
    if len(hypotheses) != len(slots) or not any(slots):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(slots)} lists of values")
    total = sum(map(len, slots))
    found = sum(map(_found, hypotheses, slots))
    return Score(100 * found / total, f"slots:{total}|match:exact")


def _found(text: str, values: Sequence[str]) -> int:
    count = 0
    for value in sorted(values, key=len, reverse=True):
        text, once = _whole(value).subn(_TAKEN, text, count=1)
        count += once
    return count


def _whole(value: str) -> re.Pattern[str]:
    """A value between what is no part of its first and last word."""
    before = r"(?<!\w)" if re.match(r"\w", value) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", value) else ""
    before += r"(?<!\d[.,:])(?<![-−])" if value[:1].isdigit() else ""
    # French groups digits by spaces; two numbers of three digits side by side are taken for one.
    before += r"(?<!\d )" if re.match(r"\d{3}(?!\d)", value) else ""
    after += r"(?![.,:]\d)(?! \d{3}(?!\d))" if value[-1:].isdigit() else ""
    return re.compile(before + re.escape(value) + after)
