"""Learning curves of the page: the logs of runs, thinned, and the lines that charts draw."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_reading import Page, loads

from comt_cli.report.html.curves import charts, read_log, thinned
from comt_cli.report.html.page import write_page
from comt_cli.report.write import write_report
from comt_cli.report.written import read_lines

if TYPE_CHECKING:
    from conftest import Bench

LOSSES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300)


@given(LOSSES)
def test_thinning_keeps_the_order_the_end_and_the_level(losses: list[float]) -> None:
    log = [{"step": 10 * (index + 1), "loss": loss, "learning_rate": 1.0} for index, loss in enumerate(losses)]
    found = thinned(log)
    assert len(found) <= 50
    assert all(set(line) == {"step", "loss"} for line in found)
    steps = [line["step"] for line in found]
    assert steps == sorted(set(steps))
    assert steps[-1] == log[-1]["step"]
    begin = 0
    for line in found:
        group = losses[begin : line["step"] // 10]
        begin += len(group)
        assert math.isclose(float(line["loss"]), sum(group) / len(group), rel_tol=1e-4, abs_tol=1e-4)


def test_few_values_stay_as_they_are() -> None:
    log = [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.25}, {"step": 2, "validation_loss": 2.125, "test_loss": 1.0}]
    assert thinned(log) == [{"step": 1, "loss": "2.5"}, {"step": 2, "loss": "2.25", "validation_loss": "2.125"}]
    assert thinned([]) == []


def test_a_log_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_log(path) == []
    path.write_text('{"step": 1, "loss": 3.0}\n{"step": 2, "lo')
    assert read_log(path) == [{"step": 1, "loss": 3.0}]


def line(run: str, step: int, loss: float | None) -> dict[str, str]:
    return {"id": run, "step": str(step), "loss": "" if loss is None else str(loss)}


def test_a_chart_has_mean_and_range_where_all_seeds_have_a_value() -> None:
    runs = [
        {"row": "plain", "column": "tiny", "seed": "1", "id": "a"},
        {"row": "plain", "column": "tiny", "seed": "2", "id": "b"},
        {"row": "gate", "column": "tiny", "seed": "1", "id": "c"},
        {"row": "missing", "column": "tiny", "seed": "1", "id": "d"},
    ]
    logs = [line("a", 1, 3), line("a", 2, 2), line("a", 3, 1), line("b", 1, 5), line("b", 2, 4), line("c", 2, 7)]
    (chart,) = charts(logs, runs)
    assert (chart["column"], chart["quantity"], chart["steps"]) == ("tiny", "loss", [1, 2, 3])
    assert chart["series"] == [
        {"row": "plain", "n": 2, "mean": [4.0, 3.0, None], "low": [3.0, 2.0, None], "high": [5.0, 4.0, None]},
        {"row": "gate", "n": 1, "mean": [None, 7.0, None]},
    ]
    assert list(charts(logs[:2], runs)) == []  # two points are no curve
    assert list(charts([], runs)) == []


@pytest.fixture
def logged(mixed: Bench) -> Bench:
    """A table whose runs of two rows have logs."""
    for spec in mixed.specs():
        file = mixed.runs / "by-id" / spec.id / "metrics.jsonl"
        if spec.row in ("pre-ln", "post-ln"):
            logs = [{"step": step, "loss": spec.seed + 1 / step, "gradient_norm": 1.0} for step in range(10, 210, 10)]
            file.write_text("".join(json.dumps(entry) + "\n" for entry in logs))
        else:
            file.unlink(missing_ok=True)
    write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results)
    return mixed


def drawn(html: str) -> list[dict[str, object]]:
    page = Page(html)
    types = [attributes.get("type") for tag, attributes in page.elements if tag == "script"]
    return [chart for kind, text in zip(types, page.scripts, strict=True) if kind for chart in json.loads(text)]


def test_logs_at_hand_are_written_beside_the_table_and_drawn_without_them(logged: Bench) -> None:
    before = write_page(logged.results, logged.runs).read_bytes()
    path = logged.results / "smoke" / "comt" / "table9-logs.csv"
    lines = read_lines(path)
    assert {entry["step"] for entry in lines} == {str(step) for step in range(10, 210, 10)}
    assert set(lines[0]) == {"id", "step", "loss"}
    shutil.rmtree(logged.runs / "by-id")
    assert write_page(logged.results, logged.runs).read_bytes() == before
    (chart,) = drawn(before.decode())
    assert [curve["row"] for curve in chart["series"]] == ["post-ln", "pre-ln"]
    assert chart["series"][0]["mean"][0] == 2.1
    assert loads(before.decode()) == []
    assert "6 of 12 runs" in Page(before.decode()).text


def test_logs_of_runs_that_are_elsewhere_are_kept(logged: Bench) -> None:
    write_page(logged.results, logged.runs)
    path = logged.results / "smoke" / "comt" / "table9-logs.csv"
    before = path.read_text()
    gone = read_lines(path)[0]["id"]
    shutil.rmtree(logged.runs / "by-id" / gone)
    write_page(logged.results, logged.runs)
    assert path.read_text() == before


def test_logs_of_a_run_that_was_trained_once_more_are_not_the_tables(logged: Bench) -> None:
    """The same ids, on another machine: other digits. One that ended as the table's is the table's."""
    write_page(logged.results, logged.runs)
    path = logged.results / "smoke" / "comt" / "table9-logs.csv"
    before, expected = read_lines(path), set()
    for run in dict.fromkeys(entry["id"] for entry in before):
        folder = logged.runs / "by-id" / run
        file, result = folder / "metrics.jsonl", json.loads((folder / "result.json").read_text())
        file.write_text(file.read_text().replace('"loss": ', '"loss": 1'))
        if "loss" in result:
            is_the_tables = not expected
            result["loss"] *= 1 + (1e-8 if is_the_tables else 2e-5)
            expected |= {run} if is_the_tables else set()
            (folder / "result.json").write_text(json.dumps(result))
        else:  # it diverged
            file.unlink()
    write_page(logged.results, logged.runs)
    changed = {new["id"] for old, new in zip(before, read_lines(path), strict=True) if old != new}
    assert len(expected) == 1
    assert changed == expected


def test_runs_that_a_grid_did_not_choose_are_not_drawn(logged: Bench) -> None:
    path = logged.results / "smoke" / "comt" / "table9-runs.csv"
    head, *lines = path.read_text().splitlines()
    chosen = [f"{head},chosen", *(f"{text},{not text.startswith('post-ln')}" for text in lines)]
    path.write_text("\n".join(chosen) + "\n")
    (chart,) = drawn(write_page(logged.results, logged.runs).read_text())
    assert [curve["row"] for curve in chart["series"]] == ["pre-ln"]


def test_a_name_does_not_end_the_script_that_holds_it(logged: Bench) -> None:
    name = "</script><script>alert(1)</script>"
    path = logged.results / "smoke" / "comt" / "table9-runs.csv"
    path.write_text(path.read_text().replace("\npost-ln,", f"\n{name},"))
    text = write_page(logged.results, logged.runs).read_text()
    assert name in {curve["row"] for chart in drawn(text) for curve in chart["series"]}
    assert "alert(1)" not in "".join(Page(text).scripts[-3:])
