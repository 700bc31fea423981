"""A table of accuracies: points for per cent, images for tokens, higher for lower; and both kinds of table at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from comt_cli.files import read_csv
from comt_cli.report.collect import collect
from comt_cli.report.overview import write_overview
from comt_cli.report.trained import setup
from comt_cli.report.write import write_report
from comt_cli.runs.directory import RunState
from comt_cli.tasks import task_of

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
    assert [line.record["row"] for line in table.sheet.lines if line.best] == ["sliding-window"]
    assert "agreeing: 1 (sliding-window); disagreeing: 1 (pixel)" in table.verdict
    images.done("pixel-4", {1: 79.0, 2: 80.25, 3: 79.25})
    assert images.table().at("pixel-4")["verdict"] == "agrees"  # lower here and in the paper
    images.done("baseline", {1: 0.0, 2: 0.0, 3: 0.0})  # which is still a baseline
    assert images.table().at("sliding-window")["verdict"] == "agrees"


def test_differences_are_points_and_speeds_images(images: Bench) -> None:
    cell = images.table().at("sliding-window")
    assert cell["difference_points"] == pytest.approx((0.75 + 0.5 + 0.75) / 3)
    assert cell["paper_difference_points"] == pytest.approx(0.25)
    assert list(images.table().sheet.headings().values())[2:6] == [
        "vs baseline, pts [95 %]", "detectable, pts", "paper", "paper's pts"
    ]  # fmt: skip
    write(images)
    rows = {row["row"]: row for row in read_csv(images.results / "smoke/comt/table8.csv")}
    assert rows["pixel"]["images_per_second"] == "1219"
    assert not {"difference_percent", "tokens_per_second"} & rows["pixel"].keys()


def test_nothing_is_said_of_text(images: Bench) -> None:
    write(images)
    for path in (images.results / "smoke" / "comt").iterdir():
        for word in ("token", "perplexity", "Pre-LN", "LLaMA", "corpus", "ollapsed"):
            assert word not in path.read_text(encoding="utf-8")


def test_the_setup_of_a_column(images: Bench) -> None:
    assert setup(images.table().sheet, ["glyphs10"]) == (
        "ResNet-18, shallower and narrower: 1-1-1-1 basic blocks, 16 channels at first, 3x3 stem, 701 k parameters. "
        "Images glyphs10 of 16 pixels, 10 classes, the first 4,096 to train on, augmentation crop; "
        "200 steps of 64 (12.8 k images a run). Paper: CIFAR-10."
    )
    assert "10 classes, augmentation crop-flip; 200 steps of 64. " in setup(images.table("paper").sheet, ["cifar10"])
    assert task_of("train-resnet").networks(["preact-resnet110"]) == "PreAct-ResNet-110"


def test_a_run_in_progress_counts_images(images: Bench) -> None:
    cell = collect(images.specs(), images.runs).cells["own", "glyphs10"]
    (run,) = cell.having(RunState.unfinished)
    assert run.progress is not None
    assert (run.progress.step, run.progress.speed) == (30, 1024.0)


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
