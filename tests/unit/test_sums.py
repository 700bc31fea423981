"""A sum of floats has the same bits on every Python, and what is recorded or printed is summed so."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from comt_cli.report.collect import window_means
from comt_cli.scoring.captions import caption_scores
from comt_cli.sums import added


def test_a_sum_is_that_of_python_3_11() -> None:
    """Since 3.12 the built-in one is 1.0."""
    assert added([0.1] * 10) == 0.9999999999999999
    assert added([1e100, 1.0, -1e100]) == 0.0
    assert repr(added([])) == "0.0"


HYPOTHESES = ["a man rides a red horse", "two dogs play in the snow", "a cat"]
REFERENCES = [["a man rides a horse", "a man on a red horse"], ["two dogs play"], ["a cat sits", "the black cat"]]


@pytest.mark.parametrize(
    "compute",
    [
        lambda: caption_scores(HYPOTHESES, REFERENCES),
        lambda: window_means([(step, 0.1 * step) for step in range(9)], 4),
    ],
    ids=["caption scores", "curves"],
)
def test_no_floats_are_summed_as_the_interpreter_likes(
    compute: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    built_in = builtins.sum

    def whole(values: Iterable[Any], start: int = 0) -> Any:
        found = built_in(values, start)
        assert not isinstance(found, float)
        return found

    monkeypatch.setattr(builtins, "sum", whole)
    assert compute()
