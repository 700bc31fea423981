"""A table of accuracies: points for per cent, images for tokens, higher for lower; and both kinds of table at once."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from comt_cli.report.collect import collect
from comt_cli.report.layout import headings
from comt_cli.report.markdown import markdown
from comt_cli.report.overview import write_overview
from comt_cli.report.setup_words import setup
from comt_cli.report.table import Table, build_table
from comt_cli.report.terminal import WIDTH, print_table
from comt_cli.report.words import verdict
from comt_cli.report.write import write_report
from comt_cli.runs.directory import RunState
from comt_cli.tasks import task_of

if TYPE_CHECKING:
    from conftest import Bench

GOLDEN = Path(__file__).parent / "golden"


def table_of(bench: Bench, scale: str = "smoke", **selection: object) -> Table:
    return build_table(bench.loaded(), bench.specs(scale, **selection), bench.runs)


def write(bench: Bench) -> None:
    assert write_report(bench.loaded(), bench.specs(), bench.runs, bench.results).files is not None


@pytest.mark.parametrize("name", ["table8.csv", "table8-runs.csv", "table8.md", "table8.tex"])
def test_files_equal_the_golden_ones(images: Bench, name: str) -> None:
    write(images)
    text = (images.results / "smoke" / "comt" / name).read_text(encoding="utf-8")
    for spec in images.specs():
        text = text.replace(spec.id, f"{spec.row}:{spec.seed}")
    if os.environ.get("COMT_WRITE_GOLDEN"):
        (GOLDEN / name).write_text(text, encoding="utf-8")
    assert text == (GOLDEN / name).read_text(encoding="utf-8")


def test_a_higher_accuracy_is_the_better_one(images: Bench) -> None:
    table = table_of(images)
    assert {row: table.entries[row, "glyphs10"].verdict for row in table.rows} == {
        "baseline": "-",
        "sliding-window": "agrees",  # higher here and in the paper
        "pixel": "disagrees",  # lower here, higher in the paper
        "pixel-4": "diverged here",
        "own": "one seed",
    }
    assert [entry.cell.row for entry in table.entries.values() if entry.best] == ["sliding-window"]
    assert "agreeing: 1 (sliding-window); disagreeing: 1 (pixel)" in verdict(table)


def test_a_lower_accuracy_agrees_with_a_lower_one(images: Bench) -> None:
    images.done("pixel-4", {1: 79.0, 2: 80.25, 3: 79.25})
    assert table_of(images).entries["pixel-4", "glyphs10"].verdict == "agrees"


def test_differences_are_points(images: Bench) -> None:
    entry = table_of(images).entries["sliding-window", "glyphs10"]
    assert entry.difference is not None
    assert entry.difference.mean == pytest.approx((0.75 + 0.5 + 0.75) / 3)
    assert entry.paper_difference == pytest.approx(0.25)
    assert tuple(headings(table_of(images)).values())[2:6] == (
        "vs baseline, pts [95 %]", "detectable, pts", "paper", "paper's pts"
    )  # fmt: skip


def test_a_baseline_that_got_nothing_right_is_still_a_baseline(images: Bench) -> None:
    images.done("baseline", {1: 0.0, 2: 0.0, 3: 0.0})
    assert table_of(images).entries["sliding-window", "glyphs10"].verdict == "agrees"


def test_nothing_is_said_of_text(images: Bench) -> None:
    table = table_of(images)
    printed = io.StringIO()
    print_table(table, printed)
    write(images)
    files = [path.read_text() for path in (images.results / "smoke" / "comt").iterdir()]
    for text in (markdown(table), printed.getvalue(), *files):
        for word in ("token", "perplexity", "Pre-LN", "LLaMA", "corpus", "ollapsed"):
            assert word not in text
    assert max(len(line) for line in printed.getvalue().splitlines()) <= WIDTH


def test_the_setup_of_a_column(images: Bench) -> None:
    assert setup(table_of(images), ["glyphs10"]) == (
        "ResNet-18, shallower and narrower: 1-1-1-1 basic blocks, 16 channels at first, 3x3 stem, 701 k parameters. "
        "Images glyphs10 of 16 pixels, 10 classes, the first 4,096 to train on, augmentation crop; "
        "200 steps of 64 (12.8 k images a run). Paper: CIFAR-10."
    )
    table = table_of(images, "paper")
    assert setup(table, ["cifar10"]) == (
        "ResNet-18: 2-2-2-2 basic blocks, 64 channels at first, 3x3 stem. "
        "Images cifar10 of 32 pixels, 10 classes, augmentation crop-flip; 200 steps of 64. "
        "Paper: CIFAR-10."
    )
    assert "Images cifar100 of 32 pixels, 100 classes, no augmentation;" in setup(table, ["cifar100"])
    assert task_of("train-resnet").networks(["preact-resnet110"]) == "PreAct-ResNet-110"


def test_a_run_in_progress_counts_images(images: Bench) -> None:
    cell = collect(images.specs(), images.runs).cells["own", "glyphs10"]
    (run,) = cell.having(RunState.unfinished)
    assert run.progress is not None
    assert (run.progress.step, run.progress.speed) == (30, 1024.0)


def test_the_csv_names_its_units(images: Bench) -> None:
    write(images)
    with (images.results / "smoke/comt/table8.csv").open(encoding="utf-8", newline="") as handle:
        rows = {row["row"]: row for row in csv.DictReader(handle)}
    assert float(rows["pixel"]["difference_points"]) == -1
    assert float(rows["pixel"]["paper_difference_points"]) == pytest.approx(0.18)
    assert rows["pixel"]["images_per_second"] == "1219"
    assert not {"difference_percent", "tokens_per_second"} & rows["pixel"].keys()


def test_the_overview_of_images_alone(images: Bench) -> None:
    write(images)
    text = write_overview(images.results).read_text(encoding="utf-8")
    for line in (
        "- 13 runs; tables that ask for the same training share it.",
        "- Networks for images: ResNet-18, 701 k parameters, fp32.",
        "- Images: glyphs10, of 16 pixels.",
        "- Images a run: 12.8 k.",
        "Differences to baseline at glyphs10 with their 95 % intervals; top-1 accuracy on the validation images in per "
        "cent, higher is better.",
        r"- sliding-window: 0.67 points higher \[+0.31, +1.03\], Holm's p 0.031; in the paper 0.25 points higher "
        "(cifar10).",
        r"- pixel: 1.00 points lower \[-1.62, -0.38\], Holm's p 0.031; in the paper 0.18 points higher (cifar10).",
        "- own: 5.00 points higher.",
    ):
        assert f"\n{line}\n" in text
    assert "Text:" not in text
    assert "Tokens a run" not in text


def test_the_overview_of_both_kinds_keeps_them_apart(images: Bench, mixed: Bench) -> None:
    for bench in (images, mixed):
        write(bench)
    text = write_overview(images.results).read_text(encoding="utf-8")
    for line in (
        "- 23 runs; tables that ask for the same training share it.",
        "- Networks: LLaMA tiny, 1.2 M parameters, fp32.",
        "- Text: python-docs.",
        "- Tokens a run, padding apart: 100 k.",
        "- Networks for images: ResNet-18, 701 k parameters, fp32.",
        "- Images a run: 12.8 k.",
        r"- pre-ln+comt: 5.07 % lower \[-5.94, -4.19\], Holm's p 0.0017; in the paper 11.1 % lower (c4/130m).",
        r"- sliding-window: 0.67 points higher \[+0.31, +1.03\], Holm's p 0.031; in the paper 0.25 points higher "
        "(cifar10).",
    ):
        assert f"\n{line}\n" in text
    assert "**Of 5 published directions at scale smoke: agree 2, disagree 1, diverged 2.**" in text


def test_a_figure_of_several_runs_tells_its_rows_once(images: Bench) -> None:
    write(images)
    folder = images.results / "smoke" / "comt"
    lines = (folder / "table8-runs.csv").read_text().splitlines()
    of_seed_1 = [line for line in lines if line.split(",")[2] in ("seed", "1")]
    (folder / "figure3-runs.csv").write_text("\n".join(of_seed_1[:3]) + "\n")
    (folder / "figure3.png").touch()
    text = write_overview(images.results).read_text(encoding="utf-8")
    assert "Drawn from baseline and sliding-window, glyphs10, seed 1.\n" in text
