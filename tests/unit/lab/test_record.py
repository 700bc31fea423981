"""Measured speeds in their files: merged by key, pages anew from the CSV."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from comt_cli.lab.record import Page, markdown, merge_rows, pages, renew_page

VARIANTS = {"plain": "no gates", "gated": "with gates"}
PAGE = Page(
    name="speed",
    title="Speed",
    notes="What it is.",
    key=("device", "shape", "precision", "variant"),
    sort=("size", "precision", "variant"),
    order={"size": ["60m", "1b"], "variant": list(VARIANTS)},
    columns={"size": "size", "variant": "variant", "ms (p10 to p90)": "step_ms time", "ratio": "ratio 3"},
    meanings=VARIANTS,
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
        return [(row["precision"], row["step_ms"]) for row in merge_rows(PAGE, rows, path, whole=True)]

    assert merge(measured("gated", 12.0, "a"), measured("plain", 10.0, "a")) == []
    assert merge(measured("plain", 9.0, "a", "bf16")) == []
    assert merge(measured("gated", 11.0, "b"), measured("plain", 9.5, "b")) == []
    expected = [("plain", "9.0", "a"), ("plain", "9.5", "b"), ("gated", "11.0", "b")]
    assert rows_of(path, "variant", "step_ms", "git_commit") == expected
    assert merge(measured("gated", 8.0, "c")) == [("fp32", "8.0")]
    assert rows_of(path, "variant", "step_ms", "git_commit") == expected
    assert merge(measured("gated", 8.0, "c"), measured("plain", 5.0, "c", "bf16")) == [("fp32", "8.0")]
    assert rows_of(path, "step_ms") == [("5.0",), ("9.5",), ("11.0",)]


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


def test_a_file_of_an_older_version(tmp_path):
    """A column that it lacks is empty; one that is no more stays, a variant that is no more comes last; half a line is
    dropped."""
    path = tmp_path / "speed.csv"
    old = [{**measured(name, 9.0, "old"), "gone": "1"} for name in ("plain", "removed")]
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, [name for name in old[0] if name != "mfu"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(old)
        handle.write("half a line\n")
    merge_rows(PAGE, [measured("gated", 11.0, "new", "bf16")], path)
    assert rows_of(path, "variant", "mfu") == [("gated", ""), ("plain", ""), ("removed", "")]
    assert rows_of(path, "gone") == [("",), ("1",), ("1",)]
    path.write_text("device,shape,variant\nA (fast) CPU,d8,plain\n")
    assert renew_page(PAGE, path) == [], "it lacks a part of the key"


def test_the_error_of_a_ratio_is_shown():
    row = {name: str(value or "") for name, value in measured("gated", 12.0, "a", ratio_settled=True).items()}
    for uncertainty, shown in (("0.0211", "1.200 ± 2.1 %"), ("0.0", "1.200"), ("", "1.200, not settled")):
        assert f"| {shown} |" in markdown(PAGE, [row | {"ratio_uncertainty": uncertainty}])


def test_committed_pages_are_todays(tmp_path):
    committed = Path(__file__).parents[3] / "results" / "bench"
    found = [path for path in sorted(committed.glob("*/*.csv")) if path.stem in pages()]
    assert len(found) > 10
    for path in found:
        copy = tmp_path / path.name
        copy.write_bytes(path.read_bytes())
        renew_page(pages()[path.stem], copy)
        assert copy.with_suffix(".md").read_bytes() == path.with_suffix(".md").read_bytes(), path
