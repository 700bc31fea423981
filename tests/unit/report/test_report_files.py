"""The written tables: golden files, escapes, what is not written over, and what a table says about itself."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from comt_cli.errors import StorageError
from comt_cli.files import read_csv, write_text
from comt_cli.report.cells import only
from comt_cli.report.latex import escaped
from comt_cli.report.terminal import WIDTH, print_table
from comt_cli.report.write import print_report, write_report
from comt_cli.tasks.base import POINTS

if TYPE_CHECKING:
    from conftest import Bench

GOLDEN = Path(__file__).parent / "golden"


def printed(cells: pd.DataFrame) -> str:
    text = io.StringIO()
    print_table(cells, text)
    return text.getvalue()


@pytest.mark.parametrize("kind", ["csv", "runs", "md", "tex"])
@pytest.mark.parametrize("name", ["mixed", "images"])
def test_files_equal_the_golden_ones(request: pytest.FixtureRequest, name: str, kind: str) -> None:
    bench: Bench = request.getfixturevalue(name)
    assert write_report(bench.loaded(), bench.specs(), bench.runs, bench.results).files is not None
    file = f"{bench.name}-runs.csv" if kind == "runs" else f"{bench.name}.{kind}"
    text = (bench.results / "smoke" / "comt" / file).read_text(encoding="utf-8")
    for spec in bench.specs():  # an id changes with every new setting: the table's shape does not
        text = text.replace(spec.id, f"{spec.row}:{spec.seed}")
    if os.environ.get("COMT_WRITE_GOLDEN"):
        (GOLDEN / file).write_text(text, encoding="utf-8")
    assert text == (GOLDEN / file).read_text(encoding="utf-8")


def test_a_file_of_a_table_says_the_same_when_it_is_read_back(mixed: Bench) -> None:
    write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results)
    rows = read_csv(mixed.results / "smoke" / "comt" / "table9.csv")
    assert [row["row"] for row in rows] == ["post-ln", "pre-ln", "pre-ln+comt", "pre-ln+own"]
    assert float(rows[2]["mean"]) == pytest.approx(299 / 3)
    assert rows[3]["stderr"] == ""


def test_nothing_is_written_before_a_run_ended(bench: Bench) -> None:
    bench.started("pre-ln", 1)
    report = write_report(bench.loaded(), bench.specs(), bench.runs, bench.results)
    assert report.files is None
    assert report.unwritten is not None
    assert not bench.results.exists()
    text = io.StringIO()
    print_report(report, text)
    assert "1 unfinished, 2 missing (step 30 of 200)" in bench.table().sheet.lines[1].texts["ours"]
    assert "wrote" not in text.getvalue()


def test_a_diverged_run_is_a_result(bench: Bench) -> None:
    bench.diverged("pre-ln", 1, 2, 3, last_finite_loss=None)
    bench.done("pre-ln+comt", {1: 20.0})
    table = bench.table()
    assert table.at("pre-ln+comt")["verdict"] == "baseline diverged here"
    assert "| pre-ln | diverged [1] |" in table.markdown
    assert "seed 1 at step 120;" in table.footnotes[0]


def test_a_full_disk_is_said(mixed: Bench) -> None:
    mixed.results.write_text("a file where the folder should be")
    with pytest.raises(StorageError, match="cannot make"):
        write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results)


def test_a_table_that_cost_more_is_not_replaced(mixed: Bench) -> None:
    def write(*, overwrite: bool = False, **selection: object) -> str | None:
        specs = mixed.specs(**selection)
        return write_report(mixed.loaded(), specs, mixed.runs, mixed.results, overwrite=overwrite).unwritten

    path = mixed.results / "smoke" / "comt" / "table9.csv"
    assert write(seeds=[1]) is None
    assert write() is None  # more seeds take the place of fewer
    whole = path.read_bytes()
    for fewer in ({"seeds": [1]}, {"rows": "pre-ln,pre-ln+comt"}):
        assert f"{path} has " in (write(**fewer) or "")
        assert path.read_bytes() == whole
    mixed.done("post-ln", {3: 9.0})  # the diverged one, trained anew: as many runs
    assert write() is None
    assert "3 finished runs of post-ln at tiny, and this table 2. " in (write(seeds=[1, 2, 4]) or "")
    mixed.done("post-ln", {4: 9.0})
    assert "of post-ln at tiny, and this table 3 with other seeds. " in (write(seeds=[1, 2, 4]) or "")
    assert write(seeds=[1, 2, 3, 4]) is None
    assert write(seeds=[1], overwrite=True) is None
    assert path.read_bytes() != whole


def test_a_table_whose_writing_was_stopped_is_written_the_next_time(mixed: Bench, monkeypatch) -> None:
    """Wherever that was, nothing is refused: more seeds were to take the place of fewer."""

    def write(**selection: object) -> str | None:
        return write_report(mixed.loaded(), mixed.specs(**selection), mixed.runs, mixed.results).unwritten

    def failing(path: Path, text: str) -> None:
        if not left:
            raise StorageError(f"cannot write {path}")
        left.pop()
        write_text(path, text)

    for written in range(4):
        shutil.rmtree(mixed.results, ignore_errors=True)
        assert write(seeds=[1]) is None
        left = [None] * written
        with monkeypatch.context() as patch:
            patch.setattr("comt_cli.report.write.write_text", failing)
            with pytest.raises(StorageError):
                write()
        assert write() is None


@pytest.mark.parametrize("seeds", [[1], [1, 2, 3]])
def test_changed_settings_have_a_table_of_their_own(mixed: Bench, seeds: list[int]) -> None:
    """Whether it has fewer runs than the recipe's table, or as many; whatever changes no number makes none."""
    write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results)
    folder = mixed.results / "smoke" / "comt"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    other = ("train.steps=100", "train.kernels=reference", "train.batch_size=8")
    for seed in seeds:
        result = mixed.directory("pre-ln", seed, overrides=other).result_file
        result.write_text(json.dumps({"state": "done", "perplexity": 9.0}), encoding="utf-8")
    specs = mixed.specs(overrides=other, seeds=seeds)
    report = write_report(mixed.loaded(*other), specs, mixed.runs, mixed.results)
    assert report.files is not None
    assert report.files.csv.name == "table9@steps-100.csv"
    assert report.cells.attrs["overrides"] == ("train.steps=100",)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if "@" not in path.name} == before


def test_names_cannot_lead_out_of_the_results(bench: Bench) -> None:
    text = bench.recipe.read_text().replace("paper: comt\n", "paper: x/../../../out\n").replace("table9", "a/../../t")
    bench.recipe.write_text(text)
    bench.done("pre-ln", {1: 100.0})
    report = write_report(bench.loaded(), bench.specs(), bench.runs, bench.results)
    assert report.files is not None
    for path in vars(report.files).values():
        assert path.resolve().is_relative_to(bench.results.resolve())


@pytest.mark.parametrize("columns", [60, 100, 200])
def test_the_terminal_gets_plain_text_of_bounded_width(mixed: Bench, monkeypatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for scale in ("smoke", "paper"):
        lines = printed(mixed.table(scale).cells).splitlines()
        assert max(map(len, lines)) <= columns
        assert all(line == line.rstrip() and "\x1b" not in line for line in lines)
    text = printed(mixed.table().cells)
    assert all(re.search(rf"^{re.escape(row)} ", text, re.MULTILINE) for row in ("post-ln", "pre-ln+comt"))
    assert WIDTH == 100


def test_the_verdict_counts_and_names(mixed: Bench) -> None:
    text = mixed.table().verdict
    assert "Of 2 published directions against pre-ln, agreeing: 1 (pre-ln+comt)" in text
    assert "diverged here but not in the paper: 1 (post-ln)" in text
    assert "scale smoke alone" in text
    assert "nothing is claimed" in mixed.table(seeds=[1]).verdict


@pytest.mark.parametrize("baseline", ["26.95", "null", "1300"])
@pytest.mark.parametrize("states", ["done", "diverged", "missing"])
def test_the_verdict_names_rows_of_which_the_paper_shows_no_direction(bench: Bench, baseline: str, states: str) -> None:
    text = bench.recipe.read_text().replace("c4/130m: 26.73", f"c4/130m: {baseline}").replace("23.77", "1400")
    bench.recipe.write_text(text)
    bench.done("pre-ln", {1: 100.0, 2: 110.0, 3: 105.0})
    for row in ("post-ln", "pre-ln+comt"):
        if states == "done":
            bench.done(row, {1: 95.0, 2: 104.0, 3: 100.0})
        elif states == "diverged":
            bench.diverged(row, 1, 2, 3)
    said = re.findall(r": \d+ \(([^)]*)\)", bench.table().verdict)
    named = [name for group in said for name in re.split(", | and ", group)]
    assert sorted(named) == ["post-ln", "pre-ln+comt", "pre-ln+own"]


@pytest.mark.parametrize(
    ("numbers", "percent"), [("baseline: 20, value: 19", -5.0), ("metric: loss, baseline: 2.5, value: 2.4", -9.52)]
)
def test_what_was_published_elsewhere_is_beside_ours(bench: Bench, numbers: str, percent: float) -> None:
    """As a ratio of perplexities, with the network it is of in a footnote; no verdict rests on it."""
    own = f'in_paper: false, published: {{{numbers}, of: "a network (a source)"}}'
    bench = replace(bench, text=bench.text.replace("in_paper: false", own))
    bench.done("pre-ln", {1: 100.0, 2: 110.0, 3: 105.0})
    bench.done("pre-ln+own", {1: 120.0, 2: 130.0, 3: 126.0})
    table = bench.table()
    found = {record["row"]: record["published_percent"] for record in table.records}
    assert found["pre-ln+own"] == pytest.approx(percent, abs=0.005)
    assert found["pre-ln"] is None
    assert table.at("pre-ln+own")["verdict"] == "worse"
    assert "of a network (a source)." in table.markdown
    assert "published elsewhere" not in table.latex


def test_a_note_of_a_row_is_a_footnote_where_it_has_numbers(bench: Bench) -> None:
    """At the scale that it is of; what is trained stays the same run."""
    noted = bench.text.replace("in_paper: false", 'in_paper: false, notes: {smoke: "Its maps did not move."}')
    before = [spec.id for spec in bench.specs()]
    bench = replace(bench, text=noted)
    assert [spec.id for spec in bench.specs()] == before
    bench.done("pre-ln", {1: 100.0, 2: 110.0, 3: 105.0})
    assert all("note" not in record for record in bench.table().records)
    bench.done("pre-ln+own", {1: 120.0, 2: 130.0, 3: 126.0})
    table = bench.table()
    assert table.at("pre-ln+own")["_remarks"] == ("Its maps did not move.",)
    assert table.markdown.count("Its maps did not move.") == table.latex.count("Its maps did not move.") == 1
    assert [record["note"] for record in table.records] == [None, None, None, "Its maps did not move."]
    assert "did not move" not in bench.table("paper").markdown


def test_a_selection_says_so(mixed: Bench) -> None:
    table = mixed.table("paper", ("train.steps=20",), rows="pre-ln+comt,post-ln", columns="c4/130m")
    assert table.notes == (
        "These are 2 of the recipe's 4 rows.",
        "These are 1 of the recipe's 2 columns.",
        "The baseline pre-ln is not among the selected rows, so there are no differences of ours.",
        "Settings were changed on the command line: train.steps=20.",
    )


def test_a_part_of_a_table_keeps_the_numbers_and_footnotes_of_the_whole(mixed: Bench) -> None:
    whole = mixed.table()
    part = only(whole.cells, ["pre-ln+own"], ["tiny"])
    assert part["_apart"].tolist() == [whole.at("pre-ln+own")["_apart"]]
    assert "[1] 1 of 3 seeds ended: seed 2 is unfinished and seed 3 is missing." in printed(part)


def test_a_row_with_settings_of_its_own_is_named(bench: Bench) -> None:
    text = bench.recipe.read_text()
    text = text.replace("{method: post-ln,", "{method: post-ln, settings: {train: {learning_rate: 5e-4}},")
    bench.recipe.write_text(text)
    assert bench.table().notes == ("post-ln differs from the baseline in settings too: train.learning_rate.",)


def test_unpaired_seeds_are_said(bench: Bench) -> None:
    bench.done("pre-ln", {1: 100.0, 2: 101.0})
    bench.done("pre-ln+comt", {1: 90.0, 2: 92.0, 3: 93.0})
    bench.done("post-ln", {3: 93.0})
    table = bench.table()
    assert "The difference is over the 2 seeds that the baseline has too." in table.footnotes
    assert table.at("post-ln")["verdict"] == "no common seed"


def test_latex_escapes() -> None:
    assert escaped("a_b & 5% #1 $x$ {y} ~^\\") == (
        r"a\_b \& 5\% \#1 \$x\$ \{y\} \textasciitilde{}\textasciicircum{}\textbackslash{}"
    )
    assert escaped("[1] ± − é ☃") == r"{[}1] $\pm$ $-$ é U+2603"
    assert escaped('<a|b> "q"\n') == r"\textless{}a\textbar{}b\textgreater{} ''q'' "


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_compiles(mixed: Bench) -> None:
    body = mixed.table().latex + escaped("".join(chr(number) for number in range(0x20, 0x17F)) + "☃αβ…“”‘’≤≥×")
    document = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}%s\\end{document}"
    (mixed.folder / "t.tex").write_text(document % body, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=mixed.folder, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout


def test_metrics_of_the_same_runs_are_columns_of_one_table(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = "      tiny: {compare_to: c4/130m}\n      bits: {metric: bits_per_byte}\n"
    bench.recipe.write_text(bench.recipe.read_text().replace("      tiny: {compare_to: c4/130m}\n", two))
    bench.done("pre-ln", {1: 100.0, 2: 110.0, 3: 105.0})
    bench.done("pre-ln+comt", {1: 90.0, 2: 99.0, 3: 94.0})
    table = bench.table()
    assert "## tiny, bits\n" in table.markdown
    lines = [line for line in table.markdown.splitlines() if line.startswith("|")]
    assert lines[0] == "| method |  | tiny | bits |"
    assert "| pre-ln | ours ± s.e. (n) | 105.00 ± 2.89 (3) | 2.125 ± 0.000 (3) |" in lines
    assert "|  | vs pre-ln, % \\[95 %\\] | -10.2 \\[-10.8, -9.47\\] | 0.00 \\[0.00, 0.00\\] |" in lines
    assert "| pre-ln+comt | ours ± s.e. (n) | **94.33 ± 2.60 (3)** | 2.125 ± 0.000 (3) |" in lines
    assert "bits/byte |" not in table.markdown, "it is a column, and is not beside the other"
    assert len(table.records) == 8, "the CSV has a line a metric"
    monkeypatch.setenv("COLUMNS", "300")
    print_table(table.cells)
    said = capsys.readouterr().out
    assert re.search(r"^pre-ln +ours ± s.e. \(n\) +105.00 ± 2.89 \(3\) +2.125 ± 0.000 \(3\)$", said, re.MULTILINE)
    monkeypatch.setenv("COLUMNS", "60")
    print_table(table.cells)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60, "a metric below the other"
    metrics = table.sheet.task.metrics
    points = {"bits_per_byte": replace(metrics["bits_per_byte"], difference=POINTS)}
    monkeypatch.setattr(type(table.sheet.task), "metrics", {**metrics, **points})
    assert bench.table().markdown.count("| vs pre-ln, ") == 2, "differences in other units are tables of their own"


def test_json_holds_the_cells_of_the_csv(mixed: Bench) -> None:
    report = write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results)
    assert report.files is not None
    data = json.loads(json.dumps(report.as_json(), allow_nan=False))
    with report.files.csv.open(encoding="utf-8", newline="") as handle:
        lines = list(csv.DictReader(handle))
    assert [list(cell) for cell in data["cells"]] == [list(line) for line in lines]
    assert [cell["n"] for cell in data["cells"]] == [int(line["n"]) for line in lines]
