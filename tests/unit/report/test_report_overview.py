"""The page over all results: made from the written files alone, and what it says is what they say."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from comt_cli.errors import UserError
from comt_cli.report.frame import csv_text
from comt_cli.report.overview import GROUPS, write_overview
from comt_cli.report.statistics import Verdict
from comt_cli.report.write import write_report
from comt_cli.report.written import Reader, read_lines, written_below

if TYPE_CHECKING:
    from conftest import Bench


@pytest.fixture
def written(mixed: Bench) -> Bench:
    write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results)
    shutil.rmtree(mixed.runs)  # the files below results are all there is, as in a clone
    return mixed


def page(bench: Bench) -> str:
    return write_overview(bench.results).read_text(encoding="utf-8")


def test_it_says_what_was_trained_on_what_and_what_agrees(written: Bench) -> None:
    (written.results / "smoke" / "runs.tar.xz").touch()
    (written.results / "smoke" / "not-archived.csv").write_text("id,row\n0123456789ab,a\n1123456789ab,b\n")
    first, second, *_ = (line["id"] for line in read_lines(written.results / "smoke/comt/table9-runs.csv"))
    superseded = ["id,before,after,tables", f"{first},50,40,evening/comt/table9 smoke/comt/table9",
                  f"{second},100,101,smoke/comt/table9", f"{second},100,900,evening/comt/table9"]  # fmt: skip
    (written.results / "superseded.csv").write_text("\n".join([*superseded, ""]))
    text = page(written)
    for said in (
        "| smoke | language models | 1 | LLaMA tiny, 1.2 M parameters, fp32 | python-docs | 100 k tokens | 10 | 1-3 | ",
        "| a test CPU and another CPU |",
        "2 of them were trained twice",
        "- Commits: 0123456789ab.",
        "[runs.tar.xz](smoke/runs.tar.xz); 2 runs of tables or trials are in no archive",
        "**Of 2 published directions at scale smoke: agree 1, diverged 1.** Resolved after Holm's correction",
        " correction over each table: 1 of 1.",
        "| [comt, table9](smoke/comt/table9.md) | 3 | 1 | 0 | 0 | 0 | 0 | 1 | 1 | 0 | 0 | 1 |",
        "| pre-ln+comt | tiny | -5.07 % \\[-5.94, -4.19\\] | -11.1 % (c4/130m) | agrees | [comt, table9]",
        "| pre-ln+comt | -5.07 % \\[-5.94, -4.19\\] | 0.0017 | -11.1 % (c4/130m) | agrees |",
        "| post-ln | +19.1 % \\[+8.08, +31.2\\] | - | +0.82 % (c4/130m) | diverged here |",
        "| pre-ln+own | -10.0 % | - | - | one seed |",
        "Made by `comt report --overview --results results` from the files",
        "Gates & norms\\_50% \\| a test. [table9.md](smoke/comt/table9.md)",
    ):
        assert said in text


def test_every_compared_cell_is_counted_once(bench: Bench) -> None:
    grouped = [verdict for verdicts in GROUPS.values() for verdict in verdicts]
    assert sorted(grouped) == sorted(set(Verdict) - {Verdict.baseline})


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({1: 95.0, 2: 120.0}, "+1.80 % \\[-57.7, +145\\] | - | -11.1 % (c4/130m) | not resolved |"),
        ({1: 103.0, 2: 113.3}, "+3.00 % \\[+3.00, +3.00\\] | \\<0.0001 | -11.1 % (c4/130m) | disagrees |"),
        ({1: 95.0}, "-5.00 % | - | -11.1 % (c4/130m) | one seed (same direction) |"),
        ({}, "missing | - | -11.1 % (c4/130m) | no result |"),
        ({1: 100.1, 2: 109.9, 3: 105.0}, "| not resolved, the interval excludes the paper's |"),
    ],
)
def test_every_verdict_has_its_line(bench: Bench, values: dict[int, float], told: str) -> None:
    bench.done("pre-ln", {1: 100.0, 2: 110.0, 3: 105.0} if len(values) == 3 else {1: 100.0, 2: 110.0})
    bench.done("pre-ln+comt", values)
    table = write_report(bench.loaded(), bench.specs(), bench.runs, bench.results).csv
    text = page(bench)
    (line,) = [line for line in text.splitlines() if line.startswith("| pre-ln+comt | ") and "[comt" not in line]
    assert told in line
    assert ("1 of 1 unresolved intervals excludes" in text) == ("excludes" in told)
    assert table is not None
    excludes = "Not resolved, but the interval excludes the published difference: pre-ln+comt."
    assert (excludes in table.with_suffix(".md").read_text(encoding="utf-8")) == ("excludes" in told)


def test_older_tables_are_told_with_what_they_have(mixed: Bench) -> None:
    """Adjusted p-values are computed from intervals; columns may be missing."""
    write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results)
    path = mixed.results / "smoke" / "comt" / "table9.csv"
    lines, before = read_lines(path), page(mixed)
    (table,) = written_below(mixed.results, Reader())["smoke"]
    for cell, line in zip(table.cells, lines, strict=True):
        assert cell.adjusted == (pytest.approx(float(line["p_value_holm"]), rel=1e-5) if line["p_value_holm"] else None)
    new = ("p_value", "p_value_holm", "detectable_low", "detectable_high")
    path.write_text(csv_text([{key: value for key, value in line.items() if key not in new} for line in lines]))
    assert page(mixed) == before
    runs = path.with_name("table9-runs.csv")
    gone = ("corpus", "model", "precision")
    runs.write_text(csv_text([{k: v for k, v in line.items() if k not in gone} for line in read_lines(runs)]))
    assert "| 1.2 M parameters | not recorded |" in page(mixed)


def test_damage_is_named(written: Bench, tmp_path: Path) -> None:
    path = written.results / "smoke" / "comt" / "table9.csv"
    whole = path.read_text()
    for there, instead, said in (
        (",1 2 3,done,", ",3,done,", "post-ln at tiny has an interval, and 0 of its seeds"),
        ("agrees", "agree", r"table9\.csv cannot be read: 'agree' is not a valid Verdict"),
    ):
        path.write_text(whole.replace(there, instead))
        with pytest.raises(UserError, match=said):
            page(written)  # there is no other
    with pytest.raises(UserError, match="there are no tables below"):
        write_overview(tmp_path / "nowhere")
