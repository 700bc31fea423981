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
from comt_cli.files import read_csv
from comt_cli.models import accounting
from comt_cli.training import devices

ROOT = Path(__file__).parents[3]
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
    one, eight = planned("--plan-for", "l40s"), planned("--plan-for", "L40S", "--gpus", "8", "--price", "2.5")
    said = "an assumption: 40% (from 20% to 60%) of the 362 TFLOP/s in the data sheet of L40S"
    assert (one["estimated_from"], eight["estimated_from"]) == (said, f"{said}, with no loss between devices")
    seconds = one["flops"] / (0.4 * 362e12)
    assert one["estimated_seconds"] == pytest.approx(seconds, rel=1e-3)
    assert one["estimated_range"] == pytest.approx([seconds * 2 / 3, seconds * 2], rel=1e-3)
    assert eight["estimated_seconds"] == pytest.approx(seconds / 8, rel=1e-3)
    assert one["gpu_hours"] == eight["gpu_hours"] == pytest.approx(seconds / 3600, abs=1e-3)
    assert eight["cost"] == pytest.approx(2.5 * seconds / 3600, abs=0.01)
    assert "cost" not in one
    assert eight["estimated_memory_bytes"] < one["estimated_memory_bytes"]


def test_a_plan_uses_what_was_measured_on_such_a_gpu():
    """The committed measurements of an H200, read here a second time: the fastest of our compiled plain networks, and
    the slowest and fastest of all that is ours and deterministic. 130m is within four times the FLOPs of 60m."""
    rows = read_csv(ROOT / "results" / "bench" / "nvidia-h200" / "step.csv")
    shares = {row["variant"]: float(row["mfu"]) for row in rows}
    del shares["transformers-compiled"], shares["plain-compiled-nondeterministic"]
    small, fp32 = (planned("--plan-for", "h200", *more) for more in ((), ("--set", "train.precision=fp32")))
    assert "comt bench step on such a GPU (plain-compiled at 60m): 37% (from 23% to 37%)" in small["estimated_from"]
    ends = [max(shares.values()), min(shares.values())]
    expected = [small["flops"] / (989.5e12 * share) for share in (shares["plain-compiled"], *ends)]
    assert [small["estimated_seconds"], *small["estimated_range"]] == pytest.approx(expected, rel=1e-3)
    assert "an assumption" in fp32["estimated_from"]
    (gated,) = json.loads(
        show("table3", "--scale", "paper", "--rows", "pre-ln+transponder", "--columns", "c4/1b", "--json", "--plan-for",
             "h200").stdout
    )  # fmt: skip
    share, flops = shares["transponder-compiled"], gated["flops"]
    assert gated["estimated_seconds"] == pytest.approx(flops / (989.5e12 * share), rel=1e-3)
    far = [flops / (989.5e12 * end) for end in (0.6, 0.2)]  # 24 times the FLOPs: the range has the assumed one in it
    assert gated["estimated_range"] == pytest.approx(far, rel=1e-3)


BIG = ("table3", "--scale", "paper", "--columns", "c4/1b", "--rows", "pre-ln")


def test_the_memory_of_a_plan_is_that_of_the_recipes_sharding():
    """1,339,082,752 parameters in bf16: weights, gradients and two moments, whole or in eighths. 5461 rows of two
    matrices in each of 24 blocks make shards of 683, the others divide evenly. Eight GPUs take 64 rows of the batch
    each, 32 at a time, so FSDP2 keeps gradients in full."""
    parameters = 1_339_082_752
    shard = parameters / 8 + 24 * 2 * 2048 * (683 - 5461 / 8)
    sharded, whole = (
        json.loads(show(*BIG, "--json", "--plan-for", "h100", "--gpus", "8", "--set", f"train.sharding={way}").stdout)[
            0
        ]
        for way in ("fsdp", "none")
    )
    parts, full = sharded["estimated_memory"], whole["estimated_memory"]
    assert (full["weights"], full["gradients"], full["optimizer"]) == (2 * parameters, 2 * parameters, 4 * parameters)
    assert (parts["weights"], parts["gradients"], parts["optimizer"]) == (2 * shard, 2 * parameters, 4 * shard)
    block = 4 * 2048**2 + 3 * 2048 * 5461 + 2 * 2048
    assert parts["gathered"] == 2 * (2 * 32000 * 2048 + 2048 + 3 * block)
    assert (parts["activations"], full["gathered"]) == (full["activations"], 0)
    assert sharded["estimated_memory_bytes"] == sum(parts.values())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("h100",), ["all fit", "(FSDP2: weights 0.3 GiB, gradients 2.5 GiB", "GPU-hours (from"]),
        (("l40s", "--set", "train.sharding=none", "--set", "train.micro_batch_size=64"), [
            "(on each of 8 GPUs: ", "it may be too little",
        ]),
        (("rtx4090", "--set", "train.sharding=none"), [
            "too little for 1 of 1 run", "Each GPU holds a copy of the network. With train.sharding=fsdp it is",
        ]),
        (("h200", "--set", "train.sharding=none"), ["all fit", "With train.sharding=fsdp it is", "which fits."]),
        (("rtx3090", "--set", "train.micro_batch_size=64"), ["too little", "More GPUs with train.sharding=fsdp help"]),
        (("rtx4090", "--set", "train.optimizer=muon", "--set", "train.sharding=none", "--set",
          "train.micro_batch_size=64"), ["These settings exclude train.sharding=fsdp"]),
    ],
)  # fmt: skip
def test_a_plan_tells_whether_it_fits_and_what_would(arguments, says):
    text = " ".join(show(*BIG, "--gpus", "8", "--plan-for", *arguments, "--price", "2").stdout.split())
    assert all(said in text for said in says)


def test_a_cost_has_a_range_only_where_there_is_one(monkeypatch):
    for ends, says in (((2, 6), "4 GPU-hours (from 2 to 6) at 2: 8 (from 4 to 12)."), ((4, 4), "4 GPU-hours at 2: 8.")):
        monkeypatch.setattr(
            estimate.Estimator, "gpu_hours", lambda *_, ends=ends: estimate.Estimate(4, *ends, "one run")
        )
        text = " ".join(show(*PAPERS, "--plan-for", "h100", "--price", "2").stdout.split())
        assert f"Cost of the runs to do: {says}" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*PAPERS, "--plan-for", "h10"), "valid: B200, H200, H100 PCIe, "),
        ((*PAPERS, "--plan-for", "h100", "--device", "cpu"), "--plan-for GPU is for another machine."),
        ((*PAPERS, "--plan-for", "h100", "--gpus", "7"), "Give --gpus a divisor of train.batch_size"),
        ((*PAPERS, "--price", "2"), "--price needs --plan-for"),
        ((*PAPERS, "--plan-for", "h100", "--price", "-2"), "--price -2: it should be a number from 0"),
        ((*PAPERS, "--plan-for", "h100", "--price", "nan"), "--price nan: it should be a number from 0"),
    ],
)
def test_what_cannot_be_shown_is_told(arguments, says):
    error = CliRunner().invoke(app, ["show", *arguments]).exception
    assert isinstance(error, UserError)
    assert says in str(error)


def test_a_plan_for_no_gpus_is_refused():
    result = CliRunner().invoke(app, ["show", *PAPERS, "--plan-for", "h100", "--gpus", "0"])
    assert (result.exit_code, "Invalid value for '--gpus'" in result.output) == (2, True)
