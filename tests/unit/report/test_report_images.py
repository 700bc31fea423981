"""A table of accuracies: points for per cent, images for tokens, higher for lower."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Bench


def test_a_higher_accuracy_is_the_better_one(images: Bench) -> None:
    table = images.table()
    assert {each["row"]: each["verdict"] for each in table.records} == {
        "baseline": "-",
        "sliding-window": "agrees",  # higher here and in the paper
        "pixel": "disagrees",  # lower here, higher in the paper
        "pixel-4": "diverged here",
        "own": "one seed",
    }
    assert table.best == ["sliding-window"]
    assert table.at("sliding-window")["difference_points"] == pytest.approx((0.75 + 0.5 + 0.75) / 3)
    images.done("pixel-4", {1: 79.0, 2: 80.25, 3: 79.25})
    assert images.table().at("pixel-4")["verdict"] == "agrees"  # lower here and in the paper
    images.done("baseline", {1: 0.0, 2: 0.0, 3: 0.0})  # which is still a baseline
    assert images.table().at("sliding-window")["verdict"] == "agrees"
