"""What steps cost beside a table: columns of it, of the networks that were measured alone, and a figure."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.errors import UserError
from comt_cli.report.costs import network_key, with_costs
from comt_cli.report.costs_page import write_costs
from comt_cli.report.exhibits.costs import Costs, front
from comt_cli.report.write import Report, costs_file, write_exhibits, write_report

if TYPE_CHECKING:
    from conftest import Bench

STEPS = {"pre-ln": 1.0, "post-ln": 0.99, "pre-ln+comt": 1.06, "pre-ln+own": 1.21}
PERPLEXITIES = {"pre-ln": 30.0, "post-ln": 31.0, "pre-ln+comt": 27.0, "pre-ln+own": 28.0}


def measured(bench: Bench, **changes: Any) -> list[dict[str, Any]]:
    """What `comt bench costs` would have measured of every row."""
    first = {spec.row: spec for spec in reversed(bench.specs())}
    return [
        {
            "network": network_key(first[row]),
            "scale": "smoke",
            "row": row,
            "column": "tiny",
            "baseline": "pre-ln",
            "baseline_network": network_key(first["pre-ln"]),
            "device": "a test CPU",
            "parameters": 1000,
            "flops": 1e9,
            "flops_ratio": 1.02,
            "bytes_mib": 100 * step**2,
            "bytes_ratio": round(step**2, 4),
            "saved_mib": 10.0,
            "saved_ratio": 1.1,
            "step_ms": 30.0,
            "step_ratio": 3.0,
            "step_ratio_uncertainty": None,
            "compiled_step_ms": 20 * step,
            "compiled_step_ratio": step,
            "compiled_step_ratio_uncertainty": 0.01 if row != "pre-ln" else 0.0,
            "git_commit": "feedc0ffee00",
            **changes,
        }
        for row, step in STEPS.items()
    ]


@pytest.fixture
def trained(bench: Bench) -> Bench:
    for spec in bench.specs():
        bench.finish(spec, PERPLEXITIES[spec.row] + spec.seed / 10)
    return bench


def report_of(bench: Bench) -> Report:
    return write_report(bench.loaded(), bench.specs(), bench.runs, bench.results)


def frame_of(bench: Bench) -> pd.DataFrame:
    return Costs().frame(report_of(bench).runs, bench.loaded())


def write(bench: Bench, rows: list[dict[str, Any]]) -> None:
    write_costs(costs_file(bench.results, "smoke", bench.loaded()), rows, "A title", list(STEPS), ["tiny"])


def test_a_table_has_the_costs_that_lie_beside_it(trained: Bench) -> None:
    files = report_of(trained).files
    assert files is not None
    assert "step, ×" not in files.markdown.read_text(encoding="utf-8")
    write(trained, measured(trained))
    report_of(trained)
    page = files.markdown.read_text(encoding="utf-8")
    head = next(line for line in page.splitlines() if line.startswith("| method"))
    line = next(line for line in page.splitlines() if line.startswith("| pre-ln+comt"))
    cells = dict(zip(head.split(" | "), line.split(" | "), strict=True))
    assert {key: cells[key] for key in ("FLOPs, ×", "bytes, ×", "saved, ×", "step, ×", "compiled step, ×")} == {
        "FLOPs, ×": "1.02",
        "bytes, ×": "1.12",
        "saved, ×": "1.10",
        "step, ×": "3.00 ?",
        "compiled step, ×": "1.06 ± 0.01",
    }
    assert "feedc0ffee00" in page
    assert "?: not settled, since too few rounds were timed for an interval." in page
    write(trained, [row | {"step_ratio_uncertainty": 0.02} for row in measured(trained)])
    report_of(trained)
    page = files.markdown.read_text(encoding="utf-8")
    assert "3.00 ± 0.06" in page
    assert "not settled" not in page


def test_changed_settings_take_the_costs_of_the_same_networks(trained: Bench) -> None:
    write(trained, measured(trained))
    for overrides, has_costs in ((("train.steps=100",), True), (("train.batch_size=4",), False)):
        trained.directory("pre-ln", 1, overrides=overrides).result_file.write_text(
            json.dumps({"state": "done", "perplexity": 9.0}), encoding="utf-8"
        )
        specs = trained.specs(overrides=overrides)
        report = write_report(trained.loaded(*overrides), specs, trained.runs, trained.results)
        assert any(each is not None for each in report.cells["_costs"]) == has_costs


def test_fewer_rounds_replace_no_interval(trained: Bench) -> None:
    write(trained, measured(trained))
    path = costs_file(trained.results, "smoke", trained.loaded())
    before = path.read_text(encoding="utf-8")
    lesser = [row | {"compiled_step_ratio_uncertainty": None} for row in measured(trained)]
    assert write_costs(path, lesser, "A title", list(STEPS), ["tiny"]) == ([], ["tiny"])
    assert path.read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("settled", "turns", "before", "written"),
    [(False, 15, 30, []), (True, 15, 30, ["tiny"]), (False, 30, 15, ["tiny"]), (False, 15, None, ["tiny"])],
    ids=["cut short", "settled sooner", "longer", "older file"],
)
def test_what_was_cut_short_replaces_no_more_rounds(trained: Bench, settled, turns, before, written) -> None:
    write(trained, measured(trained, **({} if before is None else {"rounds": before})))
    path = costs_file(trained.results, "smoke", trained.loaded())
    rows = measured(trained, rounds=turns, step_ratio_settled=settled, compiled_step_ratio_settled=settled)
    assert write_costs(path, rows, "A title", list(STEPS), ["tiny"])[1] == ([] if written else ["tiny"])


def test_another_network_is_not_the_one_that_was_measured(trained: Bench) -> None:
    write(trained, measured(trained))
    path = costs_file(trained.results, "smoke", trained.loaded())

    def measured_rows(bench: Bench, baseline: str = "pre-ln", **changes: Any) -> set[str]:
        frame = with_costs(bench.table(**changes).runs, [path], baseline)
        return (
            {row for row, costs in zip(frame["row"], frame["_costs"], strict=True) if costs}
            if "_costs" in frame
            else set()
        )

    assert measured_rows(trained) == {*STEPS}
    assert measured_rows(trained, "post-ln") == set(), "ratios are to Pre-LN"
    assert measured_rows(trained, overrides=("train.kernels=reference",)) == set()
    assert measured_rows(trained, overrides=("train.learning_rate=1e-4", "train.steps=100")) == {*STEPS}
    wider = replace(trained, text=trained.text.replace("{size: tiny}", "{size: tiny, width: 96, heads: 4}"))
    assert measured_rows(wider) == set()


def test_a_file_of_something_else_is_refused_and_named(trained: Bench) -> None:
    path = costs_file(trained.results, "smoke", trained.loaded())
    path.parent.mkdir(parents=True)
    path.write_text("row,column\npre-ln,tiny\n", encoding="utf-8")
    with pytest.raises(UserError, match="comt bench costs"):
        report_of(trained)


@pytest.mark.usefixtures("quick_figures")
def test_the_figure_names_what_nothing_beats(trained: Bench) -> None:
    write(trained, measured(trained))
    report = report_of(trained)
    assert report.files is not None
    frame = frame_of(trained)
    assert dict(zip(frame["row"], frame["on_front"], strict=True)) == {
        "pre-ln": True,  # nothing is as quick and better
        "post-ln": True,  # worse than the baseline, but quicker
        "pre-ln+comt": True,
        "pre-ln+own": False,  # worse and slower than CoMT
    }
    written = write_exhibits("table", report.runs, report.loaded, report.files)
    assert {path.suffix for path in written} == {".csv", ".png", ".pdf", ".txt", ".tex"}
    assert write_exhibits("table", report.runs, report.loaded, report.files) == []
    caption = next(path for path in written if path.suffix == ".txt").read_text(encoding="utf-8")
    assert "post-ln, pre-ln and pre-ln+comt" in caption


@given(st.lists(st.tuples(st.floats(0.5, 3), st.floats(-30, 30)), min_size=1, max_size=8))
def test_whoever_is_not_on_the_front_is_beaten_by_somebody_who_is(places: list[tuple[float, float]]) -> None:
    is_on = front(places)
    best = [place for place, on in zip(places, is_on, strict=True) if on]
    assert best
    for (time, loss), on in zip(places, is_on, strict=True):
        assert on != any(at[0] <= time and at[1] < loss for at in best)
