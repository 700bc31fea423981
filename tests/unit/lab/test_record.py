"""Turns, times and their intervals; memory by hand; measured speeds in their files, merged by key."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from comt_cli.errors import UserError
from comt_cli.lab.record import Page, merge_rows, pages, renew_page
from comt_cli.lab.timing import Times, compared, in_turns, quickest, saved_bytes, unsettled

VARIANTS = {"plain": "no gates", "gated": "with gates"}
PAGE = Page(
    title="Speed",
    notes="What it is.",
    key=("device", "shape", "precision", "variant"),
    measured=list(VARIANTS),
    columns={"size": "size", "variant": "variant", "ms (p10 to p90)": "step_ms time", "ratio": "ratio 3"},
    meanings=[VARIANTS],
)


def measured(variant: str, ms: float, commit: str, precision: str = "fp32", **more: Any) -> dict[str, Any]:
    return {
        **{"device": "A (fast) CPU", "shape": "d8", "size": "60m", "precision": precision, "variant": variant},
        **{"step_ms": ms, "ratio": ms / 10, "mfu": None, "git_commit": commit},
        **more,
    }


def rows_of(path: Path, *columns: str) -> list[tuple[str, ...]]:
    return [tuple(row[name] for name in columns) for row in csv.DictReader(path.read_text().splitlines())]


def test_rows_are_replaced_by_their_key_and_a_part_of_a_run_replaces_none(tmp_path):
    """Ratios of a whole run are relative to what it has. What took turns apart from that is written."""
    path = tmp_path / "speed.csv"

    def merge(*rows: dict[str, Any]) -> list[tuple[str, str]]:
        return [(row["precision"], row["step_ms"]) for row in merge_rows(PAGE, rows, path)]

    assert merge(measured("gated", 12.0, "a"), measured("plain", 10.0, "a")) == []
    assert merge(measured("plain", 9.0, "a", "bf16")) == []
    assert merge(measured("gated", 11.0, "b"), measured("plain", 9.5, "b")) == []
    expected = [("gated", "11.0", "b"), ("plain", "9.5", "b"), ("plain", "9.0", "a")]
    assert rows_of(path, "variant", "step_ms", "git_commit") == expected
    assert merge(measured("gated", 8.0, "c")) == [("fp32", "8.0")]
    assert rows_of(path, "variant", "step_ms", "git_commit") == expected


def test_too_few_rounds_replace_none_that_have_an_interval(tmp_path):
    """Of the best one's own ratio there is always an interval; what took turns with it stays or goes as one."""
    path = tmp_path / "speed.csv"

    def merge(commit: str, gated: float | None, *precisions: str) -> list[str]:
        rows = [
            measured(variant, 10.0, commit, precision, ratio_uncertainty=width)
            for precision in precisions
            for variant, width in (("plain", 0.0), ("gated", gated))
        ]
        return [row["precision"] for row in merge_rows(PAGE, rows, path)]

    assert merge("a", 0.02, "fp32") == []
    assert merge("b", None, "fp32", "bf16") == ["fp32", "fp32"]
    assert {*rows_of(path, "precision", "git_commit")} == {("fp32", "a"), ("bf16", "b")}
    assert merge("c", 0.9, "fp32", "bf16") == []
    assert {*rows_of(path, "git_commit")} == {("c",)}


def test_committed_pages_are_todays(tmp_path):
    committed = Path(__file__).parents[3] / "results" / "bench"
    found = [path for path in sorted(committed.glob("*/*.csv")) if path.stem in pages()]
    assert len(found) > 10
    for path in found:
        copy = tmp_path / path.name
        copy.write_bytes(path.read_bytes())
        renew_page(pages()[path.stem], copy)
        assert copy.with_suffix(".md").read_bytes() == path.with_suffix(".md").read_bytes(), path


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no rows"),
        ("device,shape,precision\na,b,fp32\n", "lacks the columns variant"),
        ("device,shape,size,precision,variant\na,b,60m,fp32\n", "row 2 has more or fewer cells"),
        ("device,shape,size,precision,variant,step_ms\na,b,60m,fp32,plain,fast\n", "'fast'"),
    ],
)
def test_it_is_said_what_is_wrong_with_a_damaged_file(text, problem, tmp_path):
    path = tmp_path / "speed.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=problem):
        renew_page(PAGE, path)
    assert not path.with_suffix(".md").exists()


def test_a_ratio_is_that_of_undisturbed_times():
    times = {"a": Times((1.0, 8.0, 1.0)), "b": Times((9.0, 2.0, 3.0))}
    assert [compared("x", times, *pair)["x"] for pair in ("ab", "ba", "aa")] == [0.5, 2.0, 1.0]
    assert [compared("x", times, *pair)["x_spread"] for pair in ("ab", "ba", "aa")] == [8.0, 8.0, 8.0]
    nothing = {"x": None, "x_spread": None, "x_uncertainty": None, "x_settled": None}
    assert compared("x", times, "a", None) == compared("x", times, "a", "absent") == nothing
    assert (quickest(times, ["a", "b", "absent"]), quickest(times, ["absent"])) == ("a", None)


@pytest.mark.parametrize(
    ("count", "time", "low", "high"), [(1, 1, 1, 1), (2, 1, 1, 2), (10, 3, 2, 9), (15, 4, 2, 14), (30, 7, 4, 27)]
)
def test_percentiles(count, time, low, high):
    times = Times(tuple(float((7 * number) % count + 1) for number in range(count)))
    assert times.columns("x_ms") == {"x_ms": 1000 * time, "x_ms_p10": 1000 * low, "x_ms_p90": 1000 * high}


def test_there_is_no_interval_of_few_turns():
    """Of 14 the least is below the true 20th percentile in 96 % of all cases, of 13 in 94.5 %."""
    for n, has_one in ((2, False), (13, False), (14, True), (30, True)):
        low, high = Times(tuple(map(float, range(1, n + 1)))).reaches
        assert (low >= 0, high >= 0) == (has_one, True)


@pytest.mark.parametrize(("turns", "count"), [(0, 1), (2, 2), (27, 14), (99, 15)])
def test_no_turn_begins_when_time_is_up(turns, count):
    """Of the first round all do; a later one that is not whole is dropped. Cut short nothing is settled."""
    left = iter([True] * turns)
    parts = {"a": lambda: 1.0, "b": lambda: 1.0}
    times = in_turns(parts, 15, lambda part: part(), lambda: next(left, False))
    assert len(times["a"].seconds) == count
    assert (unsettled(times) is None) == (count == 15)


# ---- memory


def test_saved_bytes_by_hand():
    """fp32: x, which dW1 needs, and sigmoid's output, which sigmoid's derivative and dW2 share. No weight. A view keeps
    its whole storage, which counts once; what is freed within the pass gives its address to nothing."""
    model = nn.Sequential(nn.Linear(3, 7, bias=False), nn.Sigmoid(), nn.Linear(7, 2, bias=False))
    x = torch.randn(5, 3)
    assert saved_bytes(lambda: model(x), model.parameters()) == 4 * (5 * 3 + 5 * 7)
    whole = torch.randn(100, requires_grad=True).exp()
    assert saved_bytes(lambda: (whole[:2].square(), whole[50:].square()), []) == 4 * 100
