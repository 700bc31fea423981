"""GLUE's measures: cases by hand, what must not change them, a second way to count them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.scoring.classification import classification_scores

CLASSES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30)


def score(measure: str, predictions: object, targets: object) -> float | str:
    return classification_scores(predictions, targets, [measure])[measure]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("measure", "predictions", "targets", "expected"),
    [
        ("accuracy", [1, 0, 2], [1, 1, 2], 200 / 3),
        ("f1", [1, 1, 0, 0], [1, 0, 1, 0], 50.0),
        ("f1", [1, 1, 1, 0], [1, 1, 0, 0], 80.0),
        ("f1", [0, 0], [1, 0], 0.0),
        ("f1", [2, 0], [0, 0], "undefined: class 1 is neither predicted nor right anywhere"),
        ("mcc", [1, 1, 0, 0], [1, 1, 0, 0], 100.0),
        ("mcc", [0, 0, 1, 1], [1, 1, 0, 0], -100.0),
        # tp 2, tn 1, fp 1, fn 1: (2 - 1) / sqrt(3 * 3 * 2 * 2).
        ("mcc", [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], 100 / 6),
        ("mcc", [1, 1, 1], [1, 0, 1], 0.0),
        ("mcc", [1, 0, 1], [1, 1, 1], 0.0),
        ("mcc", [1], [1], 0.0),
        ("pearson", [1.0, 2.0, 3.0], [2, 4, 6], 100.0),
        ("pearson", [0.0, 1.0, 2.0], [0, 2, 1], 50.0),
        ("spearman", [1.0, 10.0, 100.0], [0, 1, 2], 100.0),
        # Ranks 1.5, 1.5, 3 and 1, 2, 3.
        ("spearman", [5.0, 5.0, 6.0], [0, 1, 2], 100 * math.sqrt(3) / 2),
        ("pearson", [0.1, 0.1, 0.1], [0, 1, 2], "undefined: every prediction is the same"),
        ("spearman", [0.1, 0.1], [0, 1], "undefined: every prediction is the same"),
        ("pearson", [0.1, 0.2], [1, 1], "undefined: every target is the same"),
        ("pearson", [0.1, math.nan], [1, 2], "undefined: a prediction is not finite"),
        ("spearman", [0.1, math.inf], [1, 2], "undefined: a prediction is not finite"),
    ],
)
def test_by_hand(measure: str, predictions: list[float], targets: list[float], expected: float | str) -> None:
    found = score(measure, predictions, targets)
    assert found == expected if isinstance(expected, str) else found == pytest.approx(expected, abs=1e-9)


@given(CLASSES)
def test_classes_are_counted_as_with_loops(pairs: list[tuple[int, int]]) -> None:
    said, true = [one for one, _ in pairs], [other for _, other in pairs]
    assert score("accuracy", said, true) == pytest.approx(100 * sum(a == b for a, b in pairs) / len(pairs))
    right, wrong = sum(a == b == 1 for a, b in pairs), sum((a == 1) != (b == 1) for a, b in pairs)
    f1 = score("f1", said, true)
    assert isinstance(f1, str) if not right + wrong else f1 == pytest.approx(200 * right / (2 * right + wrong))
    # Gorodkin's R_K as a sum over cells of the table of confusion.
    table = [[sum(pair == (a, b) for pair in pairs) for b in range(4)] for a in range(4)]
    rows, columns = [sum(row) for row in table], [sum(row[b] for row in table) for b in range(4)]
    product = len(pairs) * sum(table[k][k] for k in range(4)) - sum(r * c for r, c in zip(rows, columns, strict=True))
    squares = (len(pairs) ** 2 - sum(r * r for r in rows)) * (len(pairs) ** 2 - sum(c * c for c in columns))
    assert score("mcc", said, true) == pytest.approx(100 * product / math.sqrt(squares) if squares else 0.0, abs=1e-9)
