"""Costs of steps in a table, of the networks that were measured alone; and differences at equal time."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comt_cli.errors import UserError
from comt_cli.report.cells import read_at
from comt_cli.report.exhibits.costs import Costs, network_key, with_costs, write_costs
from comt_cli.report.statistics import paired_difference
from comt_cli.report.write import place, write_exhibits, write_report
from comt_cli.tasks.base import PERCENT

if TYPE_CHECKING:
    from conftest import Bench, Shown


STEPS = {"pre-ln": 1.0, "post-ln": 0.99, "pre-ln+comt": 1.06, "pre-ln+own": 1.21}
PERPLEXITIES = {"pre-ln": 30.0, "post-ln": 31.0, "pre-ln+comt": 27.0, "pre-ln+own": 28.0}


def measured(bench: Bench, **changes: Any) -> list[dict[str, Any]]:
    """What `comt bench costs` would have measured of every row."""
    network = {spec.row: network_key(spec) for spec in bench.specs()}
    own = {"scale": "smoke", "column": "tiny", "baseline": "pre-ln", "baseline_network": network["pre-ln"]}
    own |= {"device": "a test CPU", "parameters": 1000, "flops": 1e9, "flops_ratio": 1.02, "saved_mib": 10.0}
    own |= {"saved_ratio": 1.1, "step_ms": 30.0, "step_ratio": 3.0, "step_ratio_uncertainty": None}
    return [
        {
            **{"row": row, "network": network[row], **own, "git_commit": "feedc0ffee00"},
            **{"bytes_mib": 100 * step**2, "bytes_ratio": round(step**2, 4)},
            **{"compiled_step_ms": 20 * step, "compiled_step_ratio": step},
            **{"compiled_step_ratio_uncertainty": 0.01 if row != "pre-ln" else 0.0, **changes},
        }
        for row, step in STEPS.items()
    ]


@pytest.fixture
def trained(bench: Bench) -> Bench:
    for spec in bench.specs():
        bench.finish(spec, PERPLEXITIES[spec.row] + spec.seed / 10)
    return bench


def write(bench: Bench, **changes: Any) -> list[str]:
    """Returns the columns that were not written."""
    path = place(bench.results, "smoke", bench.loaded(), "-costs.csv")
    return write_costs(path, measured(bench, **changes), "A title", list(STEPS), ["tiny"])[1]


@pytest.mark.parametrize(
    ("settled", "turns", "before", "lesser"),
    [(False, 15, 30, ["tiny"]), (True, 15, 30, []), (False, 30, 15, []), (False, 15, None, [])],
    ids=["cut short", "settled sooner", "longer", "older file"],
)
def test_what_was_cut_short_replaces_no_more_rounds(trained: Bench, settled, turns, before, lesser) -> None:
    write(trained, **({} if before is None else {"rounds": before}))
    ends = {"step_ratio_settled": settled, "compiled_step_ratio_settled": settled}
    assert write(trained, rounds=turns, **ends) == lesser
    assert write(trained, compiled_step_ratio_uncertainty=None) == ["tiny"], "no interval replaces one"


def test_another_network_is_not_the_one_that_was_measured(trained: Bench) -> None:
    write(trained)
    path = place(trained.results, "smoke", trained.loaded(), "-costs.csv")
    assert path.with_suffix(".md").read_text(encoding="utf-8")[-2:] == ".\n", "one end of the line"

    def measured_rows(bench: Bench, **changes: Any) -> set[str]:
        frame = with_costs(bench.table(**changes).runs, [path])
        return set(frame.loc[frame["_costs"].notna(), "row"]) if "_costs" in frame else set()

    assert measured_rows(trained) == {*STEPS}
    assert measured_rows(trained, overrides=("train.kernels=reference",)) == set()
    assert measured_rows(trained, overrides=("train.learning_rate=1e-4", "train.steps=100")) == {*STEPS}
    wider = replace(trained, text=trained.text.replace("{size: tiny}", "{size: tiny, width: 96, heads: 4}"))
    assert measured_rows(wider) == set()
    path.write_text("row,column\npre-ln,tiny\n", encoding="utf-8")
    with pytest.raises(UserError, match="comt bench costs"):
        measured_rows(trained)


@pytest.mark.usefixtures("quick_figures")
def test_the_table_has_the_costs_and_the_figure_names_what_nothing_beats(trained: Bench) -> None:
    write(trained)
    report = write_report(trained.loaded(), trained.specs(), trained.runs, trained.results)
    assert report.csv is not None
    assert "| 1.02 | 1.12 | 1.10 | 3.00 ? | 1.06 ± 0.01 |" in report.csv.with_suffix(".md").read_text(encoding="utf-8")
    frame = Costs().frame(report.runs)
    # nothing is as quick and better than the baseline; Post-LN is worse, but quicker; the last is worse and slower
    ahead = {"post-ln": True, "pre-ln": True, "pre-ln+comt": True, "pre-ln+own": False}
    assert dict(zip(frame["row"], frame["on_front"], strict=True)) == ahead
    for is_lower in (True, False):  # by column, since a recipe may have both kinds
        frame.attrs["lower"] = {"tiny": is_lower}
        names = [each.get_text() for each in Costs().draw(frame).axes[0].get_yticklabels()]
        ordered = sorted(PERPLEXITIES, key=lambda row: PERPLEXITIES[row], reverse=is_lower)
        assert names == ordered, "the best at the top"
    written = write_exhibits("table", report.runs, report.csv)
    assert {path.suffix for path in written} == {".csv", ".png", ".pdf", ".txt", ".tex"}
    assert write_exhibits("table", report.runs, report.csv) == []


@pytest.mark.parametrize("sign", [1, -1])
def test_a_row_that_does_not_train_does_not_squeeze_the_others(sign: int) -> None:
    apart = [*range(-11, 0), 0, sign * 530]
    same = {"column": "tiny", "step": 1.0, "error": 0.01, "on_front": False}
    frame = pd.DataFrame([same | {"row": f"row {n}", "difference": n, "low": n - 1, "high": n + 1} for n in apart])
    frame.attrs = {"baseline": "row 0", "lower": {"tiny": True}, "unit": "%", "how": "of a step"}
    panel = Costs().draw(frame).axes[0]
    assert [each.get_text() for each in panel.texts] == [f"{sign * 530:+}"]
    assert max(map(abs, panel.get_xlim())) < 30


EVALUATED = (10, 20, 30, 40)
BASELINE, OURS = "pre-ln", "pre-ln+comt"


def logged(bench: Bench, steps: tuple[int, ...] = EVALUATED, train: str = "steps: 40, evaluate_every: 10") -> Bench:
    """Three runs a row of 40 steps whose perplexity falls by 10 an evaluation. Ours is better and takes longer."""
    world = replace(bench, text=bench.text.replace("steps: 200", train))
    for row, factor, step_seconds in ((BASELINE, 1.0, 1.0), (OURS, 0.9, 1.6)):
        for seed in (1, 2, 3):
            values = {n: factor * (100 - n + seed**2) for n in EVALUATED}
            world.done(row, {seed: values[40]})
            evaluated = [{"step": n, "validation_perplexity": values[n]} for n in steps]
            timings = [{"step": n, "seconds": n * step_seconds} for n in EVALUATED]
            directory = world.directory(row, seed)
            for file, lines in ((directory.metrics_file, evaluated), (directory.timings_file, timings)):
                file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return world


def shown(bench: Bench) -> Shown:
    return bench.table(rows=f"{BASELINE},{OURS}")


def test_the_slower_is_read_when_the_quicker_had_done_all_its_steps(bench: Bench) -> None:
    table = shown(logged(bench))
    # At 40 seconds it is at step 25: between steps 20 and 30, at the geometric mean.
    ours = {seed: 0.9 * ((80 + seed**2) * (70 + seed**2)) ** 0.5 for seed in (1, 2, 3)}
    expected = paired_difference(ours, {seed: 60.0 + seed**2 for seed in (1, 2, 3)}, PERCENT)
    found = table.at(OURS)
    assert expected is not None
    assert vars(found["_equal_time"]) == pytest.approx(vars(expected))
    assert found["_apart"].mean == pytest.approx(-10)
    assert expected.mean > 0
    assert "at equal time, % \\[95 %\\]" in table.markdown
    assert [line["equal_time_percent"] for line in table.records] == [None, pytest.approx(expected.mean)]


@pytest.mark.parametrize("case", ["the end alone", "diverged", "not evaluated", "best weights"])
def test_without_points_there_is_no_column(bench: Bench, case: str) -> None:
    every = "" if case == "not evaluated" else ", evaluate_every: 10"
    best = ", select: best" if case == "best weights" else ""  # logs have those of the step
    world = logged(bench, (40,) if case == "the end alone" else EVALUATED, f"steps: 40{every}{best}")
    if case == "diverged":
        world.diverged(OURS, 2)
    table = shown(world)
    assert table.at(OURS)["_equal_time"] is None
    assert not any(key.startswith("equal_time") for key in table.records[0])


@given(st.lists(st.floats(1, 9), min_size=2, max_size=6), st.floats(0, 1), st.booleans())
def test_a_value_between_two_points_lies_between_theirs(values: list[float], share: float, logarithms: bool) -> None:
    points = [(float(time), value) for time, value in enumerate(values, 1)]
    used = 1 + share * (len(values) - 1)
    left = min(int(used), len(values) - 1)
    least, greatest = sorted(values[left - 1 : left + 1])
    assert least - 1e-9 <= read_at(points, used, logarithms=logarithms) <= greatest + 1e-9
    assert read_at(points, len(values), logarithms=logarithms) == pytest.approx(values[-1])
