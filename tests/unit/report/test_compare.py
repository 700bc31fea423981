"""`comt compare`: two cells paired by seed, and what makes it unfair."""

from __future__ import annotations

import csv
import json
import math
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from comt_cli.app import app
from comt_cli.errors import UserError
from comt_cli.report.exhibits.curves import Curves, resolved_since
from comt_cli.report.frame import runs_frame
from comt_cli.report.statistics import paired_difference
from comt_cli.tasks.base import PERCENT, POINTS

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
    start = {"torch": "3", "kernels": {"loss": "reference (another)"}}
    bench.directory(OURS, 3).environment_file.write_text(json.dumps([start]))
    changed = {each["key"]: each["run"] for each in compared(bench)["circumstances"]}
    assert changed == {"torch": "2, 3", "kernel of loss": "fused, reference"}
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


def write_log(bench: Bench, row: str, seed: int, losses: list[float]) -> None:
    directory = bench.started(row, seed, 1)
    lines = [{"step": n, "tokens": 512 * n, "loss": loss} for n, loss in enumerate(losses, 1)]
    directory.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def add_to_log(bench: Bench, row: str, seed: int, key: str, values: list[float]) -> None:
    path = bench.directory(row, seed).metrics_file
    lines = [{"step": n, "tokens": 512 * n, key: value} for n, value in enumerate(values, 1)]
    path.write_text(path.read_text() + "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def curves(bench: Bench, quantity: str = "loss") -> pd.DataFrame:
    specs = bench.specs(seeds=[1, 2, 3], rows=f"{BASELINE},{OURS}")
    return Curves(quantity).frame(runs_frame(bench.loaded(), specs, bench.runs))


def at(found: pd.DataFrame, row: str, step: int) -> Any:
    return found[(found["row"] == row) & (found["step"] == step)].iloc[0]


def test_differences_are_those_of_tables_over_the_seeds_that_both_have(bench: Bench) -> None:
    base = {1: [8.0, 5.0], 2: [8.25, 5.5], 3: [8.5, 5.25]}
    ours = {1: [8.0, 4.5], 2: [8.0, 5.25]}
    for seed, losses in base.items():
        write_log(bench, BASELINE, seed, losses)
    for seed, losses in ours.items():
        write_log(bench, OURS, seed, losses)
    found = curves(bench)
    line = at(found, OURS, 2)
    expected = paired_difference({s: v[1] for s, v in ours.items()}, {s: v[1] for s, v in base.items()}, POINTS)
    assert expected is not None
    assert (line["difference"], line["low"], line["high"], line["pairs"]) == (
        expected.mean,
        expected.low,
        expected.high,
        2,
    )
    assert (line["mean"], line["least"], line["greatest"], line["n"], line["tokens"]) == (4.875, 4.5, 5.25, 2, 1024)
    assert math.isnan(at(found, BASELINE, 2)["difference"])
    assert found.attrs["findings"][-1] == f"Not drawn, without a log: {OURS}, seeds 3"


def test_a_row_that_ends_before_the_drawn_part_is_named(bench: Bench) -> None:
    write_log(bench, BASELINE, 1, [8 - n / 10 for n in range(40)])
    write_log(bench, OURS, 1, [8.0, 7.5, 7.25])
    found = curves(bench)
    assert f"{OURS}: one seed, so no interval; not drawn, since it ended at step 3" in found.attrs["findings"]
    (levels, apart) = Curves().draw(found).axes
    assert (len(levels.lines), len(apart.lines)) == (1, 1), "the baseline's"


def interval(low: float, high: float) -> dict[str, float]:
    return {"low": low, "high": high}


def test_resolved_is_from_where_on_all_intervals_lie_on_one_side() -> None:
    points = [interval(-2, -1), interval(-1, 1), interval(1, 2), interval(-3, -2), interval(-2, -1)]
    assert resolved_since(points) == (points[3], True)
    assert resolved_since(points[:3]) == (points[2], False)
    assert resolved_since(points[:2]) is None
    assert resolved_since([{"low": None, "high": None}]) is None


def test_the_command_draws_what_is_there_and_says_from_when_on_rows_differ(bench: Bench, quick_figures: None) -> None:
    for seed in (1, 2, 3):
        write_log(bench, BASELINE, seed, [8 + seed / 10, 6 + seed / 10, 5 + seed / 10, 4 + seed / 10])
        write_log(bench, OURS, seed, [8 + seed / 10, 6.1, 4.5 + seed / 10, 3.5 + seed / 10])
    options = ["--runs", str(bench.runs), "--results", str(bench.results), "--rows", f"{BASELINE},{OURS}"]
    done = CliRunner().invoke(app, ["curves", str(bench.recipe), "--seeds", "1-3", *options])
    assert done.exit_code == 0, done.output
    assert f"{OURS}: resolved as lower from step 3, 1.5 k tokens to step 4, so far." in done.output
    (table,) = bench.results.glob("smoke/*/*-curves-*.csv")
    with table.open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 8
    assert table.with_suffix(".png").exists()


GATE = "gate_mean.q_proj.scalar"


def test_what_the_baseline_has_not_is_drawn_without_differences(bench: Bench, quick_figures: None) -> None:
    write_log(bench, BASELINE, 1, [8.0, 7.0, 6.0])
    write_log(bench, OURS, 1, [8.0, 6.5, 5.5])
    add_to_log(bench, OURS, 1, GATE, [0.5, 0.5625, 0.75])
    found = curves(bench, GATE)
    assert [*found["mean"]] == [0.5, 0.5625, 0.75]
    assert found.attrs["findings"] == (f"Not drawn, without such values: {BASELINE}, seeds 1-3; {OURS}, seeds 2-3",)
    exhibit = Curves(GATE)
    (levels,) = exhibit.draw(found).axes
    assert [len(line.get_xdata()) for line in levels.lines] == [3], "the first tenth too"
    assert exhibit.sentences(found)[0] == "Means over seeds, at most fifty points"


def test_the_command_draws_gates_and_lists_what_there_is(bench: Bench, quick_figures: None) -> None:
    for row in (BASELINE, OURS):
        write_log(bench, row, 1, [8.0, 7.0, 6.0])
    add_to_log(bench, OURS, 1, GATE, [0.5, 0.5625, 0.75])
    options = ["--runs", str(bench.runs), "--results", str(bench.results), "--rows", f"{BASELINE},{OURS}"]
    command = ["curves", str(bench.recipe), "--seeds", "1", *options, "--quantity"]
    assert CliRunner().invoke(app, [*command, GATE]).exit_code == 0
    (picture,) = bench.results.glob(f"smoke/*/*-curves-{GATE}-*.png")
    assert picture.with_suffix(".txt").exists()
    hints = {
        GATE[:-1]: f"Quantities: loss, {GATE}",
        "loss_spikes": "A run needs more than 32 logged steps: train.log_every.",
    }
    for wrong, hint in hints.items():
        refused = CliRunner().invoke(app, [*command, wrong]).exception
        assert isinstance(refused, UserError)
        assert (refused.exit_status, refused.message, refused.hint) == (2, f"the logs have no {wrong}", hint)


def test_rows_with_spikes_are_named(bench: Bench) -> None:
    calm = [5.0 + 0.1 * math.sin(n) for n in range(82)]
    write_log(bench, BASELINE, 1, calm)
    write_log(bench, OURS, 1, [*calm[:60], 9.0, *calm[61:]])
    rule = "more than 6 standard deviations above the mean of up to 128 logged values before"
    assert curves(bench).attrs["findings"][-1] == f"Logged steps with a spike ({rule}): {OURS} 2 %"
    found = curves(bench, "loss_spikes")
    assert at(found, OURS, 61)["mean"] == 1.0
    assert found["mean"].sum() == 1.0


def test_a_damaged_log_is_named_and_not_read_in_part(bench: Bench) -> None:
    write_log(bench, BASELINE, 1, [3.0, 2.0, 1.0])
    path = bench.directory(BASELINE, 1).metrics_file
    first, _, last = path.read_text(encoding="utf-8").splitlines()
    path.write_text(f"{first}\n{{\n{last}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2"):
        curves(bench)
