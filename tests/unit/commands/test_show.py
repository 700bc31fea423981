"""`comt show`: what is counted and printed of a plan, for this machine and another, and the settings of a cell."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tiny_recipe import TEXT, recipe
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.campaign import estimate, processes
from comt_cli.errors import UserError
from comt_cli.models import accounting
from comt_cli.training import devices

WIDTHS = recipe(
    "widths",
    {"pre-ln": "pre-ln", "comt": "comt"},
    seeds=[1, 2],
    settings={**TEXT, "model": {"size": "tiny", "layers": 1}, "train": {"steps": 20, "batch_size": 2}},
    columns={name: {"settings": {"model": {"width": width}}} for name, width in (("narrow", 32), ("wide", 64))},
)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> None:
    """Nothing counted, and nothing measured: every step takes as many seconds as it has 1e9 FLOPs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(devices, "measured_matmul_flops", lambda *_: 1e9 / 0.4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for module in (estimate, processes):
        monkeypatch.setattr(module, "usable_cores", lambda: 2)
    accounting._COUNTED.clear()
    for name, text in {"text.txt": "a text", "widths.yaml": WIDTHS}.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")


def show(*arguments: str):
    result = CliRunner().invoke(app, ["show", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result


def widths(*arguments: str):
    return show("widths.yaml", "--device", "cpu", *arguments)


def test_times_are_of_each_run_and_of_as_many_at_once_as_asked():
    rows = json.loads(widths("--json", "--jobs", "2").stdout)
    assert [row["estimated_seconds"] for row in rows] == [round(row["flops"] / 1e9, 1) for row in rows]
    assert {row["estimated_from"] for row in rows} == {"the speed of matrix products here (a rough estimate)"}
    assert re.search(r"8 runs, 8 to do, about 1\d s, 2 at a time on", widths("--jobs", "2").stdout)
    assert "at a time" not in widths("--jobs", "1").stdout


PAPERS = ("transponder/table2", "--rows", "pre-ln", "--columns", "openwebtext/60m", "--scale", "paper")


def planned(*arguments: str) -> dict:
    (row,) = json.loads(show(*PAPERS, "--json", *arguments).stdout)
    return row


def test_a_plan_for_another_machine_assumes_a_share_of_its_peak():
    one, eight = planned("--plan-for", "l40s"), planned("--plan-for", "L40S", "--gpus", "8")
    assert one["estimated_from"] == "an assumption: 40% of the 362 TFLOP/s in the data sheet of L40S"
    assert one["estimated_seconds"] == pytest.approx(one["flops"] / (0.4 * 362e12), rel=1e-3)
    assert eight["estimated_seconds"] == pytest.approx(one["estimated_seconds"] / 8, rel=1e-3)
    assert eight["estimated_memory_bytes"] < one["estimated_memory_bytes"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*PAPERS, "--plan-for", "h10"), "valid: H200, H100 PCIe, "),
        ((*PAPERS, "--plan-for", "h100", "--device", "cpu"), "--plan-for GPU is for another machine."),
        ((*PAPERS, "--plan-for", "h100", "--gpus", "7"), "Give --gpus a divisor of train.batch_size"),
    ],
)
def test_what_cannot_be_shown_is_told(arguments, says):
    error = CliRunner().invoke(app, ["show", *arguments]).exception
    assert isinstance(error, UserError)
    assert says in str(error)
