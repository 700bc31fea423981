"""Measured speeds: a new measurement of a variant replaces the old one, and leaves the others where they are."""

from __future__ import annotations

import csv

from comt_cli.report.benchmark import write_step_benchmark

VARIANTS = {"plain": "no gates", "gated": "with gates"}


def measured(variant: str, ms: float, commit: str, precision: str = "fp32") -> dict:
    return {
        "device": "A (fast) CPU",
        "shape": "d8",
        "precision": precision,
        "variant": variant,
        "step_ms": ms,
        "step_ms_p10": ms - 1,
        "step_ms_p90": ms + 1,
        "tokens_per_second": 1000 / ms,
        "step_ratio_to_plain_compiled": ms / 10,
        "step_ratio_to_transformers": None,
        "forward_ratio_to_plain_compiled": 1.0,
        "git_commit": commit,
    }


def test_rows_are_replaced_by_their_key_and_others_kept(tmp_path):
    write_step_benchmark([measured("gated", 12.0, "aaa"), measured("plain", 10.0, "aaa")], VARIANTS, tmp_path)
    files = write_step_benchmark([measured("gated", 11.0, "bbb")], VARIANTS, tmp_path)
    folder = tmp_path / "bench" / "a-fast-cpu"
    assert [path for path, _ in files] == [folder / "step.csv", folder / "step.md"]
    rows = list(csv.DictReader((folder / "step.csv").read_text().splitlines()))
    assert [(row["variant"], row["step_ms"], row["git_commit"]) for row in rows] == [
        ("plain", "10.0", "aaa"),
        ("gated", "11.0", "bbb"),
    ]
    text = (folder / "step.md").read_text()
    assert "| d8 | fp32 | gated | 11.0 (10.0 to 12.0) | 91 | 1.100 | - | 1.000 |" in text
    assert "Measured at commit aaa, bbb." in text


def test_another_precision_is_another_row(tmp_path):
    write_step_benchmark([measured("plain", 10.0, "aaa")], VARIANTS, tmp_path)
    write_step_benchmark([measured("plain", 5.0, "aaa", "bf16-pure")], VARIANTS, tmp_path)
    rows = list(csv.DictReader((tmp_path / "bench" / "a-fast-cpu" / "step.csv").read_text().splitlines()))
    assert {(row["precision"], row["step_ms"]) for row in rows} == {("fp32", "10.0"), ("bf16-pure", "5.0")}
