"""Measured speeds on the page: merged by key, goals in words, columns that the rows have."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from comt_cli.lab.bench.decode import run_decode_benchmark
from comt_cli.lab.bench.decode_translation import run_translation_benchmark
from comt_cli.lab.bench.kernels import run_gemm_benchmark
from comt_cli.lab.bench.page import Column, Goal, Page, merge_rows, renew_page, write_benchmark
from comt_cli.lab.bench.record import pages
from comt_cli.lab.bench.step import run_step_benchmark
from comt_cli.lab.bench.subjects import LANGUAGE, SUBJECTS, TRANSLATION

pytestmark = pytest.mark.usefixtures("quick_figures")

VARIANTS = {"plain": "no gates", "gated": "with gates"}
PAGE = Page(
    name="speed",
    title="Speed",
    notes="What it is.",
    key=("device", "shape", "precision", "variant"),
    sort=("size", "precision", "variant"),
    order={"size": ["60m", "1b"], "variant": list(VARIANTS)},
    columns=(
        Column("size", "size"),
        Column("variant", "variant"),
        Column("ms (p10 to p90)", "step_ms", "time"),
        Column("ratio", "ratio", "3"),
    ),
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


def test_rows_are_replaced_by_their_key_and_others_kept(tmp_path):
    write_benchmark(PAGE, [measured("gated", 12.0, "aaa"), measured("plain", 10.0, "aaa")], tmp_path)
    write_benchmark(PAGE, [measured("plain", 9.0, "aaa", precision="bf16")], tmp_path)
    again = [measured("gated", 11.0, "bbb"), measured("plain", 9.5, "bbb")]
    files, narrower = write_benchmark(PAGE, again, tmp_path)
    assert files == [tmp_path / FOLDER / "speed.csv", tmp_path / FOLDER / "speed.md"]
    assert narrower == []
    assert [(row["variant"], row["step_ms"], row["git_commit"]) for row in rows_of(files[0])] == [
        ("plain", "9.0", "aaa"),
        ("plain", "9.5", "bbb"),
        ("gated", "11.0", "bbb"),
    ]


def test_a_run_of_some_variants_replaces_no_part_of_a_whole_one(tmp_path):
    """Its verdicts would be relative to what it has. What took turns apart from that is written."""
    whole = [measured("gated", 12.0, "aaa"), measured("plain", 10.0, "aaa")]
    path = write_benchmark(PAGE, whole, tmp_path)[0][0]
    before = path.read_bytes()
    assert write_benchmark(PAGE, [measured("gated", 11.0, "bbb")], tmp_path)[0] == []
    assert path.read_bytes() == before
    both = [measured("gated", 11.0, "bbb"), measured("gated", 5.0, "bbb", precision="bf16")]
    files, narrower = write_benchmark(PAGE, both, tmp_path)
    assert [(row["precision"], row["step_ms"]) for row in narrower] == [("fp32", "11.0")]
    assert {row["step_ms"] for row in rows_of(files[0])} == {"12.0", "10.0", "5.0"}
    # a variant that nobody can measure any more holds nothing up
    older = [name.replace("gated", "removed") for name in path.read_text().splitlines() if "fp32,gated" in name]
    path.write_text(path.read_text() + "\n".join(older) + "\n")
    assert write_benchmark(PAGE, [measured(name, 8.0, "ccc") for name in VARIANTS], tmp_path)[1] == []


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
        ("1.04", ("1.5", "0.012", "True"), "step met"),
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


def test_committed_pages_are_todays(tmp_path, monkeypatch):
    """From the committed CSVs, which stay as they are to the last byte."""
    monkeypatch.undo()  # the sizes that were measured
    results = Path(__file__).parents[4] / "results" / "bench"
    for path in sorted(results.glob("amd-epyc-2-threads/*.csv")):
        copy = tmp_path / path.name
        copy.write_bytes(path.read_bytes())
        renew_page(replace(pages()[path.stem], draw=None), copy)
        assert copy.read_bytes() == path.read_bytes()
        text = path.with_suffix(".md").read_text(encoding="utf-8")
        picture = f"![{pages()[path.stem].title}]({path.stem}.png)\n\n"
        assert copy.with_suffix(".md").read_text(encoding="utf-8") == text.replace(picture, "")


def test_pages_show_columns_that_their_rows_have():
    """A misspelt column would show as empty everywhere: what the benchmarks give is what the pages ask for."""
    cpu, text = torch.device("cpu"), [LANGUAGE.shapes["bench"]]
    found = {
        "kernels": run_gemm_benchmark(text, ["fp32"], cpu, 3),
        "decode": run_decode_benchmark(text, ["plain"], ["fp32"], [1], cpu, 3),
        "decode-translation": run_translation_benchmark(
            [TRANSLATION.shapes["mt-bench"]], ["plain"], ["fp32"], [1], cpu, 3
        ),
    }
    columns = {name: {*next(rows for rows in news if isinstance(rows, list))[0]} for name, news in found.items()}
    for subject in SUBJECTS:
        *_, rows = run_step_benchmark(subject.shapes[subject.cpu_sizes[0]], "fp32", ["plain"], cpu, 3)
        columns[subject.page] = {*rows[0]}
    assert columns.keys() == pages().keys()
    apart = {"kernels": {"gates", "variant"}, "decode-translation": {"beam", "variant"}}
    for name, page in pages().items():
        asked = {column.name for column in page.columns} | {*page.key, *page.sort, *page.order}
        asked |= {each for goal in page.goals for each in (goal.value, goal.goal)}
        asked |= {f"{goal.timed}_{end}" for goal in page.goals if goal.timed for end in ("spread", "uncertainty")}
        of_cuda = {each for each in asked if "nondeterministic" in each}  # CPU steps are deterministic
        assert asked - of_cuda <= columns[name], name
        assert {*page.turns} == apart.get(name, {"variant"}) <= {*page.key}
