"""`comt show` and `comt recipes`: what is printed of the shipped recipes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.errors import UserError
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


PAPERS = ("show", "transponder/table2", "--rows", "pre-ln", "--columns", "openwebtext/60m", "--scale", "paper")


def planned(*arguments: str) -> dict:
    (row,) = json.loads(comt(*PAPERS, "--json", *arguments))
    return row


def test_a_plan_for_another_machine_says_that_it_assumes():
    one, eight = planned("--plan-for", "l40s"), planned("--plan-for", "L40S", "--gpus", "8")
    assert one["estimated_from"] == "an assumption: 40% of the 362 TFLOP/s that L40S has at most by its data sheet"
    assert one["estimated_seconds"] == pytest.approx(one["flops"] / (0.4 * 362e12), rel=1e-3)
    assert eight["estimated_seconds"] == pytest.approx(one["estimated_seconds"] / 8, rel=1e-3)
    assert eight["estimated_from"].endswith("with no loss between devices")
    assert eight["estimated_memory_bytes"] < one["estimated_memory_bytes"]
    assert "91.6 TFLOP/s" in planned("--plan-for", "l40s", "--set", "train.precision=fp32")["estimated_from"]


def test_a_plan_takes_what_was_measured_on_such_a_device_first(monkeypatch, tmp_path):
    folder = tmp_path / "runs" / "results" / "bench" / "mine"
    folder.mkdir(parents=True)
    step = "device,size,precision,variant,step_ms_settled,mfu\nNVIDIA A100-SXM4-80GB,60m,bf16-pure,{},{},0.25\n"
    failed = step.format("plain-fused", "False").replace(",0.25", ",")  # a row that could not be measured
    (folder / "step.csv").write_text(failed + step.splitlines()[1].format("plain-fused", "False"), encoding="utf-8")
    compiled = ("--set", "train.compile=true")
    assert planned("--plan-for", "a100", *compiled)["estimated_from"].startswith("an assumption: 40%")
    eager = planned("--plan-for", "a100", "--set", "train.compile=false")
    assert eager["estimated_from"].startswith(
        "comt bench step on NVIDIA A100-SXM4-80GB (plain-fused, 60m, bf16-pure, not settled): 25% of its peak"
    )
    assert eager["estimated_seconds"] == pytest.approx(eager["flops"] / (0.25 * 312e12), rel=1e-3)
    (folder / "step.csv").write_text("device\nNVIDIA A100\n", encoding="utf-8")
    assert planned("--plan-for", "a100")["estimated_from"].startswith("an assumption")


def test_a_plan_says_whether_the_memory_is_enough():
    assert "all fit." in comt(*PAPERS, "--plan-for", "h200")
    big = comt("show", "table3", "--rows", "pre-ln", "--scale", "paper", "--plan-for", "rtx4090")
    assert "of 22 GiB a GPU for pre-ln at c4/" in big
    assert "does not fit; lower train.micro_batch_size" in big


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--plan-for", "h10"), "There are H200, H100 PCIe, "),
        (("--plan-for", "h100", "--device", "cpu"), "Leave one of them out."),
        (("--plan-for", "h100", "--gpus", "7"), "Choose --gpus so that it divides train.batch_size"),
    ],
)
def test_a_plan_that_cannot_be(arguments, said):
    error = CliRunner().invoke(app, [*PAPERS, *arguments]).exception
    assert isinstance(error, UserError)
    assert said in str(error)
