"""`comt compare`: two cells paired by seed, at equal budgets, and what makes it unfair."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner, Result

from comt_cli.app import app
from comt_cli.errors import UserError
from comt_cli.report.statistics import paired_difference
from comt_cli.tasks.base import PERCENT

if TYPE_CHECKING:
    from conftest import Bench

BASELINE, OURS = "pre-ln", "pre-ln+comt"


def trained(bench: Bench, row: str, values: dict[int, float], step_seconds: float = 0.5) -> None:
    """Ended runs of 40 steps whose loss falls by 0.1 a logged step, ten steps apart."""
    for seed, value in values.items():
        directory = bench.started(row, seed, 4)
        lines = [{"step": n, "seconds": n * step_seconds} for n in (10, 20, 30, 40)]
        directory.timings_file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        directory.environment_file.write_text(json.dumps([{"torch": "2", "kernels": {"loss": "fused (a reason)"}}]))
        content = {**bench.result, bench.metric: value, "steps": 40, "flops": 4000.0, "device": "a CPU"}
        directory.result_file.write_text(json.dumps(content), encoding="utf-8")
        directory.checkpoint_file.touch()


def comt(bench: Bench, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["compare", *arguments, "--runs", str(bench.runs)])


def compared(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(comt(bench, f"table9:{BASELINE}", f"table9:{OURS}", "--json").stdout)
    return found


def test_metrics_are_paired_as_in_tables_and_only_the_method_differs(bench: Bench) -> None:
    base, ours = {1: 100.0, 2: 110.0, 3: 105.0}, {1: 95.0, 2: 104.0, 3: 100.0}
    trained(bench, BASELINE, base)
    trained(bench, OURS, ours)
    found = compared(bench)
    (perplexity,) = [each for each in found["metrics"] if each["key"] == "perplexity"]
    expected = paired_difference(ours, base, PERCENT)
    assert expected is not None
    assert perplexity["difference"] == vars(expected)
    assert perplexity["verdict"] == "better"
    assert perplexity["p_value"] < 0.05
    assert {each["key"].partition(".")[0] for each in found["settings"]} == {"method"}
    assert (found["unfair"], found["circumstances"]) == ([], [])
    said = comt(bench, *(str(bench.directory(row, 1).path) for row in (BASELINE, OURS)))
    assert (said.exit_code, "one seed" in said.output) == (0, True)
    bench.diverged(OURS, 2)  # which has no checkpoint, and is not passed over
    found = compared(bench)
    assert found["run"]["diverged"] == [2]
    assert {each["verdict"] for each in found["metrics"]} == {"diverged"}
    assert any("diverged with seed 2" in reason for reason in found["unfair"])


def test_losses_are_read_at_what_the_side_with_less_has_used(bench: Bench) -> None:
    trained(bench, BASELINE, {1: 100.0})
    trained(bench, OURS, {1: 95.0}, step_seconds=1.0)
    budgets = {each["budget"]: each for each in compared(bench)["budgets"]}
    assert [budgets[key]["used"] for key in ("steps", "FLOPs", "time")] == [40, 4000, 20]
    losses = [9 - n / 100 for n in (10, 20, 30, 40)]
    assert budgets["steps"]["run"]["mean"] == budgets["steps"]["baseline"]["mean"] == pytest.approx(losses[3])
    assert budgets["time"]["baseline"]["mean"] == pytest.approx(losses[3])
    assert budgets["time"]["run"]["mean"] == pytest.approx(losses[1])  # half as fast


@pytest.mark.parametrize(("state", "said"), [("unfinished", "is unfinished"), ("missing", "is not a run directory")])
def test_a_run_that_has_not_ended_is_refused(bench: Bench, state: str, said: str) -> None:
    trained(bench, BASELINE, {1: 100.0})
    other = bench.started(OURS, 1).path if state == "unfinished" else bench.runs / "none"
    found = comt(bench, str(bench.directory(BASELINE, 1).path), str(other))
    assert isinstance(found.exception, UserError)
    assert (said in found.exception.message, found.exception.exit_status) == (True, 2)
