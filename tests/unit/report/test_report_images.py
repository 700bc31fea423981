"""A table of accuracies: points for per cent, images for tokens, higher for lower; and both kinds of table at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from comt_cli.report.overview import write_overview
from comt_cli.report.write import write_report

if TYPE_CHECKING:
    from conftest import Bench


def write(bench: Bench) -> None:
    assert write_report(bench.loaded(), bench.specs(), bench.runs, bench.results).files is not None


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


def test_the_overview_keeps_both_kinds_apart(images: Bench, mixed: Bench) -> None:
    for bench in (images, mixed):
        write(bench)
    text = write_overview(images.results).read_text(encoding="utf-8")
    for said in (
        "| smoke | language models | 1 | LLaMA tiny, 1.2 M parameters, fp32 | python-docs | 100 k tokens | 10 | 1-3 |",
        "| image classifiers | 1 | ResNet-18, 701 k parameters, fp32 | glyphs10, of 16 pixels | 12.8 k images | 13 |",
        "Differences to baseline at glyphs10; top-1 accuracy on the validation images in per cent, higher is better.",
        "| pre-ln+comt | -5.07 % \\[-5.94, -4.19\\] | 0.0017 | -11.1 % (c4/130m) | agrees |",
        "| sliding-window | +0.67 points \\[+0.31, +1.03\\] | 0.031 | +0.25 points (cifar10) | agrees |",
        "| pixel | -1.00 points \\[-1.62, -0.38\\] | 0.031 | +0.18 points (cifar10) | disagrees |",
        "**Of 5 published directions at scale smoke: agree 2, disagree 1, diverged 2.**",
    ):
        assert said in text
