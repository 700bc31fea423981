"""`comt compare`: two cells paired by seed, and what makes it unfair."""

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


def trained(bench: Bench, row: str, values: dict[int, float]) -> None:
    """Ended runs of 40 steps."""
    for seed, value in values.items():
        directory = bench.started(row, seed, 4)
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


def test_what_a_strange_result_says_is_shown_as_it_stands(bench: Bench) -> None:
    for row in (BASELINE, OURS):
        trained(bench, row, {1: 100.0})
        path = bench.directory(row, 1).result_file
        path.write_text(json.dumps(json.loads(path.read_text()) | {"data_content": ["a"], "steps": "many"}))
    assert compared(bench)["unfair"] == []


@pytest.mark.parametrize(("state", "said"), [("unfinished", "is unfinished"), ("missing", "is not a run directory")])
def test_a_run_that_has_not_ended_is_refused(bench: Bench, state: str, said: str) -> None:
    trained(bench, BASELINE, {1: 100.0})
    other = bench.started(OURS, 1).path if state == "unfinished" else bench.runs / "none"
    found = comt(bench, str(bench.directory(BASELINE, 1).path), str(other))
    assert isinstance(found.exception, UserError)
    assert (said in found.exception.message, found.exception.exit_status) == (True, 2)
