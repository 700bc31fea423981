"""`comt compare`: two cells paired by seed, at equal budgets, and what makes it unfair."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

from comt_cli.app import app
from comt_cli.errors import UserError
from comt_cli.report.compare import as_json, comparison, sides_frame
from comt_cli.report.statistics import paired_difference
from comt_cli.tasks.base import PERCENT

if TYPE_CHECKING:
    from conftest import Bench

BASELINE, OURS = "pre-ln", "pre-ln+comt"


def trained(bench: Bench, row: str, values: dict[int, float], step_seconds: float = 0.5, **result: Any) -> None:
    """Ended runs of 40 steps whose loss falls by 0.1 a logged step, ten steps apart."""
    for seed, value in values.items():
        directory = bench.started(row, seed, 4)
        lines = [{"step": n, "seconds": n * step_seconds} for n in (10, 20, 30, 40)]
        directory.timings_file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        directory.environment_file.write_text(
            json.dumps([{"torch": "2", "compiled": False, "sharding": "none", "kernels": {"loss": "fused (a reason)"}}])
        )
        content = {**bench.result, bench.metric: value, "steps": 40, "flops": 4000.0, "device": "a CPU", **result}
        directory.result_file.write_text(json.dumps(content), encoding="utf-8")
        directory.checkpoint_file.touch()


def sides(bench: Bench) -> dict[str, Any]:
    found = {}
    for side, row in (("baseline", BASELINE), ("run", OURS)):
        directories = [bench.directory(row, seed) for seed in (1, 2, 3)]
        found[side] = row, [each for each in directories if each.result_file.exists()]
    return as_json(comparison(sides_frame(found)))


def comt(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["compare", *arguments])


def test_metrics_are_paired_as_in_tables_and_only_the_method_differs(bench: Bench) -> None:
    base, ours = {1: 100.0, 2: 110.0, 3: 105.0}, {1: 95.0, 2: 104.0, 3: 100.0}
    trained(bench, BASELINE, base)
    trained(bench, OURS, ours)
    found = sides(bench)
    (perplexity,) = [each for each in found["metrics"] if each["key"] == "perplexity"]
    expected = paired_difference(ours, base, PERCENT)
    assert expected is not None
    assert perplexity["difference"] == vars(expected)
    assert perplexity["verdict"] == "better"
    assert perplexity["p_value"] < 0.05
    assert {each["key"].partition(".")[0] for each in found["settings"]} == {"method"}
    assert (found["unfair"], found["circumstances"]) == ([], [])


def test_losses_are_read_at_what_the_side_with_less_has_used(bench: Bench) -> None:
    trained(bench, BASELINE, {1: 100.0})
    trained(bench, OURS, {1: 95.0}, step_seconds=1.0)
    budgets = {each["budget"]: each for each in sides(bench)["budgets"]}
    assert [budgets[key]["used"] for key in ("steps", "FLOPs", "time")] == [40, 4000, 20]
    losses = [9 - n / 100 for n in (10, 20, 30, 40)]
    assert budgets["steps"]["run"]["mean"] == budgets["steps"]["baseline"]["mean"] == pytest.approx(losses[3])
    assert budgets["time"]["baseline"]["mean"] == pytest.approx(losses[3])
    assert budgets["time"]["run"]["mean"] == pytest.approx(losses[1])  # half as fast


def test_the_command_prints_and_gives_json(bench: Bench) -> None:
    trained(bench, BASELINE, {1: 100.0, 2: 110.0, 3: 105.0})
    trained(bench, OURS, {1: 95.0, 2: 104.0, 3: 100.0})
    folders = [str(bench.directory(row, 1).path) for row in (BASELINE, OURS)]
    said = comt(*folders, "--runs", str(bench.runs))
    assert said.exit_code == 0, said.output
    assert "Settings that differ" in said.output
    assert "one seed" in said.output
    every = comt(f"table9:{BASELINE}", f"table9:{OURS}", "--runs", str(bench.runs), "--json")
    assert json.loads(every.stdout)["metrics"][0]["verdict"] == "better"
    bench.diverged(OURS, 2)  # which has no checkpoint, and is not passed over
    said = comt(f"table9:{BASELINE}", f"table9:{OURS}", "--runs", str(bench.runs), "--json")
    found = json.loads(said.stdout)
    assert found["run"]["diverged"] == [2]
    assert {each["verdict"] for each in found["metrics"]} == {"diverged"}
    assert any("diverged with seed 2" in reason for reason in found["unfair"])


@pytest.mark.parametrize("state", ["unfinished", "missing"])
def test_a_run_that_has_not_ended_is_refused(bench: Bench, state: str) -> None:
    trained(bench, BASELINE, {1: 100.0})
    other = bench.started(OURS, 1).path if state == "unfinished" else bench.runs / "none"
    found = comt(str(bench.directory(BASELINE, 1).path), str(other), "--runs", str(bench.runs))
    assert isinstance(found.exception, UserError)
    assert found.exception.exit_status == 2
