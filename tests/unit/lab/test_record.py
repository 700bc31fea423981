"""Measured speeds in their files: merged by key, goals in words, pages anew from the CSV."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from comt_cli.lab.record import Goal, Page, merge_rows, pages, renew_page
from comt_cli.lab.subjects import goals_of, subject_of

VARIANTS = {"plain": "no gates", "gated": "with gates"}
PAGE = Page(
    name="speed",
    title="Speed",
    notes="What it is.",
    key=("device", "shape", "precision", "variant"),
    sort=("size", "precision", "variant"),
    order={"size": ["60m", "1b"], "variant": list(VARIANTS)},
    columns={"size": "size", "variant": "variant", "ms (p10 to p90)": "step_ms time", "ratio": "ratio 3"},
    goals={"goal_ratio": {"value": "ratio", "what": "step"}},
    meanings=VARIANTS,
)


def measured(variant: str, ms: float, commit: str, precision: str = "fp32", **more: Any) -> dict[str, Any]:
    return {
        **{"device": "A (fast) CPU", "shape": "d8", "size": "60m", "precision": precision, "variant": variant},
        **{"step_ms": ms, "ratio": ms / 10, "goal_ratio": None, "mfu": None, "git_commit": commit},
        **more,
    }


def rows_of(path: Path, *columns: str) -> list[tuple[str, ...]]:
    return [tuple(row[name] for name in columns) for row in csv.DictReader(path.read_text().splitlines())]


def test_rows_are_replaced_by_their_key_and_a_part_of_a_run_replaces_none(tmp_path):
    """Verdicts of a whole run are relative to what it has. What took turns apart from that is written."""
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
    """A column that it lacks is empty; one that is no more is dropped, a variant that is no more comes last; half a
    line is dropped."""
    path = tmp_path / "speed.csv"
    old = [{**measured(name, 9.0, "old"), "gone": "1"} for name in ("plain", "removed")]
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, [name for name in old[0] if name != "mfu"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(old)
        handle.write("half a line\n")
    merge_rows(PAGE, [measured("gated", 11.0, "new", "bf16")], path)
    assert rows_of(path, "variant", "mfu") == [("gated", ""), ("plain", ""), ("removed", "")]
    assert "gone" not in path.read_text()
    path.write_text("device,shape,variant\nA (fast) CPU,d8,plain\n")
    assert renew_page(PAGE, path) == [], "it lacks a part of the key"


@pytest.mark.parametrize(
    ("value", "known", "verdict"),
    [
        ("1.08", ("1.5", "0", "True"), "step met"),  # what is equal
        ("1.0801", ("1.5", "0", "True"), "step missed"),
        ("1.04", ("1.51", "0.012", "True"), "step too noisy"),
        ("1.04", ("1.5", "0.04", "True"), "step not settled"),
        ("1.04", ("1.5", "", "False"), "step not settled"),  # too few rounds
        ("1.04", (), "step met"),  # older versions
        ("", (), "None"),
    ],
)
def test_verdicts(value, known, verdict):
    ends = ("ratio_spread", "ratio_uncertainty", "ratio_settled")
    row = {"ratio": value, "goal_ratio": "1.08"} | dict(zip(ends, known, strict=False))
    assert str(Goal("ratio", "step").verdict(row, "goal_ratio")).startswith(verdict)


EPYC, H200 = "An EPYC, 2 threads", "NVIDIA H200"


@pytest.mark.parametrize(
    ("size", "variant", "device", "precision", "goals"),
    [
        ("60m", "transponder-fused", H200, "bf16-pure", {"goal_step_ratio": 1.08, "goal_saved_ratio": 1.15}),
        ("60m", "comt-fused-graphs", H200, "bf16-pure", {"goal_step_ratio": 1.04, "goal_saved_ratio": 1.15}),
        ("60m", "transponder-fused", H200, "fp32", {}),
        ("60m", "transponder-fused", "NVIDIA A100", "bf16-pure", {}),
        ("bench", "comt-fused", EPYC, "bf16-pure", {"goal_step_ratio": 1.08}),
        ("bench", "transformers-compiled", EPYC, "fp32", {"goal_least_step_ratio": 1.0526}),
        ("resnet18", "plain", H200, "bf16-mixed", {"goal_images_per_second": 60_000}),
        ("base", "grc-eager", H200, "bf16-mixed", {}),
        ("residual-bench", "sas-compiled", EPYC, "fp32", {"goal_step_ratio": 1.155}),
        ("residual-bench", "plain-compiled", EPYC, "fp32", {}),
    ],
)
def test_goals(size, variant, device, precision, goals):
    subject = subject_of(size)
    row = {"size": size, "variant": variant, "device": device, "precision": precision, "best_plain": "plain"}
    row |= {"shape": str(subject.shapes[size]), "arithmetic_ratio_to_plain": "1.1"}
    assert {name: goal for name, goal in goals_of(subject.page, row).items() if goal is not None} == goals
    other = goals_of(subject.page, row | {"shape": "another batch"})
    assert other.get("goal_images_per_second") is None


@pytest.mark.usefixtures("quick_figures")
def test_committed_pages_are_todays(tmp_path):
    """From the committed CSVs, which stay as they are to the last byte."""
    committed = Path(__file__).parents[3] / "results" / "bench"
    for path in sorted(committed.glob("amd-epyc-2-threads/*.csv")):
        copy = tmp_path / path.name
        copy.write_bytes(path.read_bytes())
        page = pages()[path.stem]
        renew_page(replace(page, draw=None), copy)
        assert copy.read_bytes() == path.read_bytes(), path
        text = path.with_suffix(".md").read_text(encoding="utf-8")
        text = text.replace(f"![{page.title}]({path.stem}.png)\n\n", "")
        assert copy.with_suffix(".md").read_text(encoding="utf-8") == text, path
