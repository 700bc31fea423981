"""Measured speeds in their files: merged by key, goals in words, pages anew from the CSV."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comt_cli.lab.bench.record import Goal, Page, merge_rows, pages, renew_page, write_benchmark

VARIANTS = {"plain": "no gates", "gated": "with gates"}
PAGE = Page(
    name="speed",
    title="Speed",
    notes="What it is.",
    key=("device", "shape", "precision", "variant"),
    sort=("size", "precision", "variant"),
    order={"size": ["60m", "1b"], "variant": list(VARIANTS)},
    columns={"size": "size", "variant": "variant", "ms (p10 to p90)": "step_ms time", "ratio": "ratio 3"},
    goals=(Goal("ratio", "goal_ratio", "step"), Goal("mfu", "goal_mfu", "MFU", at_least=True)),
    meanings=VARIANTS,
)
FOLDER = Path("bench") / "a-fast-cpu"


def measured(variant: str, ms: float, commit: str, precision: str = "fp32", **more: Any) -> dict[str, Any]:
    return {
        **{"device": "A (fast) CPU", "shape": "d8", "size": "60m", "precision": precision, "variant": variant},
        **{"step_ms": ms, "step_ms_p10": ms - 1, "step_ms_p90": ms + 1, "ratio": ms / 10},
        **{"goal_ratio": None, "mfu": None, "goal_mfu": None, "git_commit": commit},
        **more,
    }


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_rows_are_replaced_by_their_key_and_a_part_of_a_run_replaces_none(tmp_path):
    """Verdicts of a whole run are relative to what it has. What took turns apart from that is written."""
    write_benchmark(PAGE, [measured("gated", 12.0, "aaa"), measured("plain", 10.0, "aaa")], tmp_path)
    write_benchmark(PAGE, [measured("plain", 9.0, "aaa", precision="bf16")], tmp_path)
    files, lesser = write_benchmark(PAGE, [measured("gated", 11.0, "b"), measured("plain", 9.5, "b")], tmp_path)
    assert (files, lesser) == ([tmp_path / FOLDER / "speed.csv", tmp_path / FOLDER / "speed.md"], [])
    assert [(row["variant"], row["step_ms"], row["git_commit"]) for row in rows_of(files[0])] == [
        ("plain", "9.0", "aaa"),
        ("plain", "9.5", "b"),
        ("gated", "11.0", "b"),
    ]
    before = files[0].read_bytes()
    assert write_benchmark(PAGE, [measured("gated", 8.0, "ccc")], tmp_path)[0] == []
    assert files[0].read_bytes() == before
    more = [measured("gated", 8.0, "ccc"), measured("plain", 5.0, "ccc", precision="bf16")]
    _, lesser = write_benchmark(PAGE, more, tmp_path)
    assert [(row["precision"], row["step_ms"]) for row in lesser] == [("fp32", "8.0")]
    assert {row["step_ms"] for row in rows_of(files[0])} == {"5.0", "9.5", "11.0"}


def test_too_few_rounds_replace_none_that_have_an_interval(tmp_path):
    """Whatever cut them short, and in the cache of `kernels: auto` (`merge_rows`) too. Of the best one's own ratio
    there is always an interval; what took turns with it stays or goes as one."""

    def run(commit: str, gated: float | None, precision: str = "fp32") -> list[dict[str, Any]]:
        return [
            measured("plain", 10.0, commit, precision, ratio_uncertainty=0.0),
            measured("gated", 11.0, commit, precision, ratio_uncertainty=gated),
        ]

    path = write_benchmark(PAGE, run("aaa", 0.02), tmp_path)[0][0]
    before = path.read_bytes()
    files, lesser = write_benchmark(PAGE, run("bbb", None), tmp_path)
    assert (files, [row["variant"] for row in lesser]) == ([], ["plain", "gated"])
    assert path.read_bytes() == before
    files, lesser = write_benchmark(PAGE, [*run("bbb", None), *run("bbb", None, "bf16")], tmp_path)
    assert [row["precision"] for row in lesser] == ["fp32", "fp32"]
    assert {(row["precision"], row["git_commit"]) for row in rows_of(files[0])} == {("fp32", "aaa"), ("bf16", "bbb")}
    assert merge_rows(PAGE, [*run("ccc", 0.9), *run("ccc", None, "bf16")], path) == []
    assert {row["git_commit"] for row in rows_of(path)} == {"ccc"}


def test_a_file_of_an_older_version(tmp_path):
    """A column that it lacks is empty; one that is no more is dropped, a variant that is no more comes last; half a
    line is dropped."""
    path = tmp_path / FOLDER / "speed.csv"
    path.parent.mkdir(parents=True)
    old = [{**measured(name, 9.0, "old"), "gone": "1"} for name in ("plain", "removed")]
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, [name for name in old[0] if name != "mfu"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(old)
        handle.write("half a line\n")
    write_benchmark(PAGE, [measured("gated", 11.0, "new", "bf16")], tmp_path)
    rows = rows_of(path)
    assert [(row["variant"], row["mfu"]) for row in rows] == [("gated", ""), ("plain", ""), ("removed", "")]
    assert "gone" not in rows[0]
    path.write_text("device,shape,variant\nA (fast) CPU,d8,plain\n")
    assert renew_page(PAGE, path) == [], "it lacks a part of the key"


@pytest.mark.parametrize(
    ("value", "known", "verdict"),
    [
        ("1.08", ("1.5", "0", "True"), "step met"),  # what is equal
        ("1.0801", ("1.5", "0", "True"), "step missed"),
        ("1.04", ("1.51", "0.012", "True"), "step too noisy"),
        ("1.04", ("1.5", "0.04", "True"), "step not settled"),
        ("1.04", ("1.5", "0.012", "False"), "step met"),
        ("1.04", ("1.5", "", "False"), "step not settled"),  # too few rounds
        ("1.04", ("1.2",), "step met"),  # older versions
        ("1.04", (), "step met"),
        ("", (), "None"),
    ],
)
def test_verdicts(value, known, verdict):
    ends = ("ratio_spread", "ratio_uncertainty", "ratio_settled")
    row = {"ratio": value, "goal_ratio": "1.08"} | dict(zip(ends, known, strict=False))
    assert str(Goal("ratio", "goal_ratio", "step", timed="ratio").verdict(row)).startswith(verdict)


def test_a_page_is_made_anew_without_measuring(tmp_path):
    """Goals as they are today, in the CSV and on the page; what was measured stays."""
    (csv_file, page_file), _ = write_benchmark(PAGE, [measured("gated", 11.2, "aaa", goal_ratio=1.08)], tmp_path)
    before = rows_of(csv_file)
    page = replace(PAGE, renew=lambda row: {"goal_ratio": 1.2 if row["variant"] == "gated" else None, "other": 1})
    assert renew_page(page, csv_file) == [csv_file, page_file]
    assert rows_of(csv_file) == [before[0] | {"goal_ratio": "1.2"}]
    assert "step met (1.120, at most 1.2)" in page_file.read_text()


@pytest.mark.usefixtures("quick_figures")
def test_committed_pages_are_todays(tmp_path, monkeypatch):
    """From the committed CSVs, which stay as they are to the last byte."""
    monkeypatch.undo()  # the sizes that were measured
    committed = Path(__file__).parents[4] / "results" / "bench"
    for path in sorted(committed.glob("amd-epyc-2-threads/*.csv")):
        copy = tmp_path / path.name
        copy.write_bytes(path.read_bytes())
        renew_page(replace(pages()[path.stem], draw=None), copy)
        assert copy.read_bytes() == path.read_bytes(), path
        text = path.with_suffix(".md").read_text(encoding="utf-8")
        picture = f"![{pages()[path.stem].title}]({path.stem}.png)\n\n"
        assert copy.with_suffix(".md").read_text(encoding="utf-8") == text.replace(picture, ""), path
