"""`comt show` and `comt recipes`: what is printed of the shipped recipes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.tasks import Task


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch) -> None:
    """Away from the runs of the tree."""
    monkeypatch.chdir(tmp_path)


def comt(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


TABLE2 = ("show", "transponder/table2", "--rows", "pre-ln,sdpa-gate,transponder,rezero")
PRINTED = {"pre-ln": None, "sdpa-gate": "15%", "transponder": "1%", "rezero": None}


def test_the_printed_increase_stands_beside_the_counted_one():
    for scale, column in (("paper", "openwebtext/60m"), ("smoke", "python-docs/tiny")):
        rows = json.loads(comt(*TABLE2, "--scale", scale, "--columns", column, "--json"))
        assert {row["row"]: row["paper_increase"] for row in rows} == PRINTED
    lines = comt(*TABLE2, "--scale", "paper", "--columns", "openwebtext/60m").splitlines()
    (head,) = [line.split() for line in lines if "seed" in line and "parameters" in line]
    shown = {line.split()[0]: line.split() for line in lines if line.split() and line.split()[0] in PRINTED}
    at = head.index("paper's")
    assert head[at - 1] == "+%"
    assert {row: words[at - 1 : at + 1] for row, words in shown.items()} == {
        "pre-ln": ["0.00", "-"],
        "sdpa-gate": ["14.44", "15%"],
        "transponder": ["1.08", "1%"],
        "rezero": ["-0.01", "-"],
    }


def test_a_run_that_fills_two_columns_counts_once():
    columns = "follows/accuracy,follows/f1"
    command = ("show", "eau-grc/glue", "--rows", "no-pre-training", "--columns", columns, "--no-cost")
    assert "2 runs, 2 to do" in comt(*command)  # the two points of its grid


def test_a_plan_says_which_runs_will_not_repeat_to_the_bit():
    command = ("show", "table3", "--rows", "pre-ln,post-ln", "--seeds", "1", "--no-cost")
    assert "deterministic" not in comt(*command)
    said = comt(*command, "--set", "train.deterministic=false")
    assert "2 runs with train.deterministic: false: on a GPU quicker, but not the same to the bit" in said


def test_an_added_row_is_shown():
    rows = json.loads(comt("show", "table3", "--also", "wide={name: comt, hidden: 64}", "--rows", "wide", "--json"))
    assert [row["method"]["hidden"] for row in rows] == [64]


def test_recipes_tells_figures_and_ablations():
    listed = {recipe["name"]: recipe for recipe in json.loads(comt("recipes", "--json"))}
    assert {name: recipe["kind"] for name, recipe in listed.items()} == {
        name: "figure" if "/figure" in name else "table" for name in listed
    }
    assert listed["transponder/table4"]["ablations"] == ["context", "sigmoid"]
    assert listed["comt/figure1"]["ablations"] == []
    assert not any(name.startswith("setups/") for name in listed)
    (line,) = (line.split() for line in comt("recipes").splitlines() if "comt/figure4.yaml" in line)
    assert " ".join(line).startswith("comt/figure4.yaml train-lm figure: CoMT's gates across layers")
    assert "  ablations: context, sigmoid" in comt("recipes", "transponder/table4")


IMAGES = """
title: Narrow networks on images
paper: mine
table: table5
command: train-resnet
metric: accuracy
baseline: plain
seeds: [1]
settings:
  model: {size: resnet18, width: 8, blocks: [1, 1]}
  data: {images: cifar10}
  train: {steps: 100, batch_size: 32, micro_batch_size: 16}
rows:
  plain: {method: addition, paper: {cifar10: 91.12}}
  window: {method: {name: comt-sliding-window, ratio: 4}, paper: {cifar10: 91.44}, paper_increase: {cifar10: 2.86%}}
columns:
  cifar10: {}
scales:
  smoke: {description: Small, settings: {data: {images: glyphs10, size: 16}}}
"""


def test_a_plan_of_image_classifiers_counts_images(tmp_path, monkeypatch):
    monkeypatch.setattr(Task, "identify", lambda self, settings: ("feedfeedfeedfeed", "c0ffee"))
    (tmp_path / "table5.yaml").write_text(IMAGES)
    plain, window = json.loads(comt("show", "table5.yaml", "--json"))
    assert (plain["images"], window["images"]) == (3200, 3200)
    assert "tokens" not in plain
    assert (plain["extra_parameters"], plain["paper_increase"]) == (0, None)
    # Four 3x3 convolutions within two blocks, of 8, 8, 8 and 16 channels, with a quarter as many window filters each,
    # and a number that weighs each of those.
    added = sum(hidden * (9 * channels + 1) for channels, hidden in ((8, 2), (8, 2), (8, 2), (16, 4)))
    assert (window["extra_parameters"], window["paper_increase"]) == (added, "2.86%")
    assert window["flops"] > plain["flops"] > 0
    assert window["estimated_memory_bytes"] > plain["estimated_memory_bytes"] > 0
    lines = comt("show", "table5.yaml").splitlines()
    (head,) = [line.split() for line in lines if "seed" in line and "parameters" in line]
    assert head[:7] == ["cifar10", "seed", "parameters", "+%", "paper's", "images", "FLOPs"]
    (shown,) = [line.split() for line in lines if line.startswith("window")]
    assert shown[4:7] == ["2.86%", "3.2", "k"]
    assert "okens" not in " ".join(lines)
