"""Tasks as columns of a table: standard errors and intervals over seeds and items, and what is shown of them."""

from __future__ import annotations

import csv
import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy.special import stdtrit
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.errors import UserError
from comt_cli.report.exhibits.evaluations import Evaluations, bootstrap_difference, grids, spread
from comt_cli.report.write import write_exhibits, write_report
from comt_cli.runs.evaluations import FOLDER, read_result
from comt_cli.tasks.base import PERCENT, POINTS

if TYPE_CHECKING:
    from conftest import Bench

ONES = np.ones(40)


def same(mean):
    return mean


def test_errors_of_known_samples_are_exact_or_nearly():
    values = np.random.default_rng(1).normal(size=(1, 40))
    exact = values.std(ddof=1) / math.sqrt(40)
    assert spread(same, ONES, values)[1:] == pytest.approx((exact, stdtrit(39, 0.975) * exact), rel=0.08)
    weights = np.arange(1.0, 41)  # of a constant per weight there is no error, whatever the weights
    assert spread(same, weights, 0.5 * weights[None])[:2] == (0.5, pytest.approx(0, abs=1e-12))
    # Three seeds that differ by a constant for every item: s / sqrt(n) and n - 1, as in the tables.
    seeds = np.array([[1.0], [2.0], [6.0]]) + np.zeros((3, 40))
    exact = math.sqrt(7 / 3)
    assert spread(same, ONES, seeds) == pytest.approx((3.0, exact, stdtrit(2, 0.975) * exact), rel=0.08)
    assert spread(same, np.ones(1), np.ones((3, 1))) == (1.0, None, 0.0)
    apart = bootstrap_difference(same, POINTS, np.ones(1), np.ones((1, 1)), np.zeros((1, 1)))
    assert (apart.mean, apart.low, apart.n) == (1, None, 1)


@pytest.mark.parametrize(
    ("seeds", "of_seeds", "of_items"),
    [(1, 0.0, 1.0), (2, 0.5, 1.0), (2, 1.0, 1.0), (3, 1.0, 0.0), (3, 0.0, 1.0), (3, 0.5, 1.0), (5, 0.3, 1.0)],
)
def test_intervals_cover_a_difference_as_often_as_they_say(seeds, of_seeds, of_items):
    """With degrees of freedom by Satterthwaite those of two seeds would hold it in 88 % of cases."""
    draw, hits, items = np.random.default_rng(7), 0, 150
    for _ in range(400):
        common = draw.normal(size=(seeds, items))  # what both models share is not in the difference
        apart = of_seeds * draw.normal(size=(seeds, 1)) + of_items * draw.normal(size=items)
        ours = common + apart + draw.normal(size=(seeds, items))
        found = bootstrap_difference(same, POINTS, np.ones(items), ours, common)
        hits += found.low <= 0 <= found.high
    assert 0.925 <= hits / 400 <= 1


def test_relative_differences_are_ratios_and_do_not_depend_on_order_or_scale():
    draw = np.random.default_rng(3)
    ours, base = -draw.exponential(size=(2, 3, 40))
    found = bootstrap_difference(np.negative, PERCENT, ONES, ours, base)
    assert found.mean == pytest.approx(100 * math.expm1(base.mean() - ours.mean()))
    scaled = bootstrap_difference(lambda mean: math.log(7) - mean, PERCENT, ONES, ours, base)
    assert (scaled.low, scaled.high) == (pytest.approx(found.low), pytest.approx(found.high))
    back = bootstrap_difference(np.negative, PERCENT, ONES, base, ours)
    assert 1 + back.low / 100 == pytest.approx(1 / (1 + found.high / 100))
    assert bootstrap_difference(np.negative, PERCENT, ONES, ours, ours).high == 0


RIGHT = (1.0, 0.0, 1.0, 1.0, 0.0, 1.0)


def write(bench: Bench, row: str, seed: int, right: tuple[float, ...], name: str = "choice-1", **other: object) -> None:
    """A result as the harness's is kept, of which `other` keys differ."""
    nats = [-1.0 - each for each in right]
    metrics = {
        "acc": (sum(right) / 6, "mean", right),
        "perplexity": (math.exp(-sum(nats) / 6), "perplexity", nats),
        "f1": (0.3, "f1_score", []),
    }
    kept = {"task": "choice", "items": "abcdefgh", "count": 6, "limit": None, "num_fewshot": 0, "lm_eval": "0.4.13"}
    kept["metrics"] = {
        key: {"value": value, "better": "higher", "aggregation": kind, "values": values, "weights": []}
        for key, (value, kind, values) in metrics.items()
    }
    folder = bench.directory(row, seed).path / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(kept | other))


@pytest.fixture
def evaluated(bench: Bench) -> Bench:
    """A baseline and two rows with two seeds, of which one diverged in the last row."""
    for row in ("pre-ln", "pre-ln+comt"):
        bench.done(row, {1: 20.0, 2: 21.0})
    bench.done("post-ln", {1: 20.0})
    bench.diverged("post-ln", 2)
    rows = {"post-ln": RIGHT, "pre-ln": RIGHT, "pre-ln+comt": (1.0,) * 6}
    for row, right in rows.items():
        for seed in (1, 2):
            write(bench, row, seed, right)
    return bench


def test_each_task_is_a_column_of_the_table(evaluated: Bench):
    write(evaluated, "pre-ln", 1, RIGHT, "choice-3", items="other", limit=3, num_fewshot=2)
    shown = evaluated.table()
    frame = Evaluations().frame(shown.runs)
    lines = {(each["row"], each["task"], each["metric"]): each for each in frame.to_dict("records")}
    ours = lines["pre-ln+comt", "choice", "acc"]
    assert (ours["mean"], ours["n"], ours["unit"]) == (100.0, 2, "points")
    assert ours["difference"] == pytest.approx(100 / 3)
    assert ours["low"] < 100 / 3 < ours["high"]
    ratio = lines["pre-ln+comt", "choice", "perplexity"]
    assert (ratio["unit"], ratio["difference"]) == ("percent", pytest.approx(100 * math.expm1(1 / 3)))
    plain = lines["pre-ln", "choice", "perplexity"]
    spread_of_items = np.std([*RIGHT], ddof=1) / math.sqrt(6)  # of logarithms
    assert plain["stderr"] == pytest.approx(plain["mean"] * spread_of_items, rel=0.1)
    assert lines["pre-ln+comt", "choice", "f1"]["stderr"] is None
    assert lines["post-ln", "choice", "acc"]["difference"] is None  # a seed diverged
    assert lines["pre-ln", "choice, 2-shot, first 3", "acc"]["n"] == 1
    (said,) = Evaluations().sentences(frame)
    assert "over items only" in said
    head, *rows = next(grids(frame))
    assert head[:3] == ["method", "choice acc", "vs pre-ln, pts [95 %]"]
    assert rows[-1][1] == "100.00 ± 0.00 (2)"
    assert "## Tasks" in shown.markdown
    assert "choice perplexity" in shown.markdown
    write(evaluated, "pre-ln", 2, RIGHT, "choice-4", items="others")  # as if of another version of the task
    assert "choice (0.4.13, others)" in {*Evaluations().frame(evaluated.table().runs)["task"]}


def test_report_writes_and_prints_them(evaluated: Bench):
    given = ["report", str(evaluated.recipe), "--runs", str(evaluated.runs), "--results", str(evaluated.results)]
    report = write_report(evaluated.loaded(), evaluated.specs(), evaluated.runs, evaluated.results)
    written = write_exhibits("table", report.runs, report.csv)
    assert [path.name for path in written] == ["table9-tasks.csv", "table9-tasks.md"]
    lines = list(csv.DictReader(written[0].read_text(encoding="utf-8").splitlines()))
    assert {line["metric"] for line in lines} == {"acc", "perplexity", "f1"}
    done = CliRunner().invoke(app, given)
    assert "choice acc" in done.output, done.output
    page = CliRunner().invoke(app, [*given[:1], "--overview", "--html", "--results", str(evaluated.results)])
    assert page.exit_code == 0, page.output


def test_a_damaged_result_is_named(evaluated: Bench):
    path = evaluated.directory("post-ln", 1).path / FOLDER / "choice-1.json"
    path.write_text("{}")
    with pytest.raises(UserError, match=r"choice-1\.json cannot be read: it has no count"):
        read_result(path)
    with pytest.raises(UserError, match="cannot be read"):
        evaluated.table()
