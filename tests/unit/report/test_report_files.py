"""The written tables: golden files, escapes, what is not written, and what a table says about itself."""

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

import pytest

from comt_cli.errors import StorageError
from comt_cli.report.csv_tables import records
from comt_cli.report.latex import escaped, latex
from comt_cli.report.layout import headings
from comt_cli.report.markdown import markdown
from comt_cli.report.table import Table, build_table
from comt_cli.report.terminal import WIDTH, print_table
from comt_cli.report.words import verdict
from comt_cli.report.write import print_report, write_report
from comt_cli.tasks.base import POINTS

if TYPE_CHECKING:
    from conftest import Bench

GOLDEN = Path(__file__).parent / "golden"


def table_of(bench: Bench, scale: str = "smoke", **selection: object) -> Table:
    return build_table(bench.loaded(), bench.specs(scale, **selection), bench.runs)


def printed(table: Table) -> str:
    text = io.StringIO()
    print_table(table, text)
    return text.getvalue()


@pytest.mark.parametrize("name", ["table9.csv", "table9-runs.csv", "table9.md", "table9.tex"])
def test_files_equal_the_golden_ones(mixed: Bench, name: str) -> None:
    report = write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results)
    assert report.files is not None
    text = (mixed.results / "smoke" / "comt" / name).read_text(encoding="utf-8")
    for spec in mixed.specs():  # an id changes with every new setting: the table's shape does not
        text = text.replace(spec.id, f"{spec.row}:{spec.seed}")
    if os.environ.get("COMT_WRITE_GOLDEN"):
        (GOLDEN / name).write_text(text, encoding="utf-8")
    assert text == (GOLDEN / name).read_text(encoding="utf-8")


def test_the_csv_reads_back(mixed: Bench) -> None:
    write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results)
    with (mixed.results / "smoke/comt/table9.csv").open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [row["row"] for row in rows] == ["post-ln", "pre-ln", "pre-ln+comt", "pre-ln+own"]
    assert float(rows[2]["mean"]) == pytest.approx(299 / 3)
    assert rows[3]["stderr"] == ""


def test_nothing_is_written_before_a_run_ended(bench: Bench) -> None:
    bench.started("pre-ln", 1)
    report = write_report(bench.loaded(), bench.specs(), bench.runs, bench.results)
    assert report.files is None
    assert not bench.results.exists()
    assert "No run with these settings has ended yet at scale smoke: nothing is written. --set," in report.unwritten
    text = io.StringIO()
    print_report(report, text)
    (row,) = re.findall(r"^pre-ln  .*(?:\n .*)+", text.getvalue(), re.MULTILINE)
    told = " ".join(line[:28].removeprefix("pre-ln").strip() for line in row.split("\n"))
    assert told == "1 unfinished, 2 missing (step 30 of 200)"
    assert "wrote" not in text.getvalue()


def test_a_diverged_run_is_a_result(bench: Bench) -> None:
    bench.diverged("pre-ln", 1, 2, 3, last_finite_loss=None)
    bench.done("pre-ln+comt", {1: 20.0})
    report = write_report(bench.loaded(), bench.specs(), bench.runs, bench.results)
    entry = report.table.entries["pre-ln+comt", "tiny"]
    assert entry.verdict == "baseline diverged here"
    assert "| pre-ln | diverged [1] |" in markdown(report.table)
    assert "seed 1 at step 120;" in report.table.footnotes[0]


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
    assert write() is None
    whole = path.read_bytes()
    for fewer in ({"seeds": [1]}, {"rows": "pre-ln,pre-ln+comt"}):
        said = write(**fewer)
        assert said is not None
        assert f"{path} has " in said
        assert "--results" in said
        assert "--overwrite" in said
        assert path.read_bytes() == whole
    mixed.done("post-ln", {3: 9.0})  # the diverged one, trained anew: as many runs
    assert write() is None
    others = write(seeds=[1, 2, 4])
    assert others is not None
    assert "has 3 finished runs of post-ln at tiny, and this table 2. comt report, with the --seeds" in others
    mixed.done("post-ln", {4: 9.0})
    others = write(seeds=[1, 2, 4])
    assert others is not None
    assert "of post-ln at tiny, and this table 3 with other seeds. comt report, with the --seeds" in others
    assert write(seeds=[1, 2, 3, 4]) is None
    assert write(overwrite=True) is None
    assert write(seeds=[1], overwrite=True) is None
    assert path.read_bytes() != whole


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
    assert report.table.overrides == ("train.steps=100",)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if "@" not in path.name} == before


def test_names_cannot_lead_out_of_the_results(bench: Bench) -> None:
    text = bench.recipe.read_text().replace("paper: comt\n", "paper: x/../../../out\n").replace("table9", "a/../../t")
    bench.recipe.write_text(text)
    bench.done("pre-ln", {1: 100.0})
    report = write_report(bench.loaded(), bench.specs(), bench.runs, bench.results)
    assert report.files is not None
    for path in vars(report.files).values():
        assert path.resolve().is_relative_to(bench.results.resolve())


def test_the_terminal_gets_plain_text_of_bounded_width(mixed: Bench) -> None:
    text = printed(table_of(mixed)) + printed(table_of(mixed, "paper"))
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    assert "\x1b" not in text
    assert "[1] 1 of 3 seeds diverged (seed 3 at step 120, last finite loss 7.25)" in text
    assert "collapsed" in text


def test_headings_are_whole_where_there_is_room(bench: Bench) -> None:
    lines = printed(table_of(bench)).splitlines()
    (head,) = [line for line in lines if line.startswith("method")]
    assert "  ours ± s.e. (n)  " in head


def test_only_complete_cells_compete_for_bold(mixed: Bench) -> None:
    table = table_of(mixed)
    assert [entry.cell.row for entry in table.entries.values() if entry.best] == ["pre-ln+comt"]


def test_the_verdict_counts_and_names(mixed: Bench) -> None:
    text = verdict(table_of(mixed))
    assert "Of 2 published directions against pre-ln, agreeing: 1 (pre-ln+comt)" in text
    assert "diverged here but not in the paper: 1 (post-ln)" in text
    assert "scale smoke alone" in text


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
    table = table_of(bench)
    named = [name for group in re.findall(r": \d+ \(([^)]*)\)", verdict(table)) for name in re.split(", | and ", group)]
    assert sorted(named) == ["post-ln", "pre-ln+comt", "pre-ln+own"]


def test_a_caption_says_what_is_shown_and_nothing_twice(mixed: Bench) -> None:
    table = table_of(mixed)
    page, caption = markdown(table), re.search(r"\\caption\{.*\}", latex(table))
    assert caption is not None
    for text in (page.partition("**Verdict.**")[0], caption[0]):
        assert "Table 9 of CoMT (recipe comt/table9.yaml)" in text
        assert text.count("1-3") == 1
        assert text.count("Parameters are those beyond the plain Pre-LN model") == 1
    assert "scale smoke" in caption[0]
    assert "A tiny model" not in caption[0], "how long a scale takes is no matter of a document"
    assert "Bits per byte" not in caption[0]
    assert "Scale smoke: A tiny model." in page


def test_what_parameters_are_is_said_wherever_they_are_shown(mixed: Bench) -> None:
    mixed.recipe.write_text(mixed.recipe.read_text().replace(", paper_increase: {c4/130m: <1%}", ""))
    table = table_of(mixed)
    assert list(headings(table).values())[-2:] == ["parameters", "tokens/s"]
    page, text = markdown(table), latex(table)
    assert "Parameters are those beyond the plain Pre-LN model of the same size." in page
    assert "printed increase" not in page
    assert "Parameters are" not in text, "they are not shown there"


def test_one_seed_claims_nothing(mixed: Bench) -> None:
    table = table_of(mixed, seeds=[1])
    assert table.entries["pre-ln+comt", "tiny"].verdict == "one seed (same direction)"
    assert "nothing is claimed" in verdict(table)
    assert "±" not in "".join(line for line in markdown(table).splitlines() if line.startswith("| pre"))


def test_the_papers_columns_stand_for_themselves(bench: Bench) -> None:
    table = table_of(bench, "paper")
    entry = table.entries["post-ln", "c4/250m"]
    assert (entry.paper, entry.paper_difference, entry.direction) == (1409.79, None, 1)
    assert table.entries["pre-ln+comt", "c4/250m"].verdict == "no result"
    assert "post-ln at c4/250m" in verdict(table)
    assert "paper's size" not in verdict(table)


@pytest.mark.parametrize(
    ("numbers", "percent", "said"),
    [
        ("baseline: 20, value: 19", "-5.00", "perplexity 20 to 19"),
        ("metric: loss, baseline: 2.5, value: 2.4", "-9.52", "loss 2.5 to 2.4"),
    ],
)
def test_what_was_published_elsewhere_stands_beside_ours(bench: Bench, numbers: str, percent: str, said: str) -> None:
    """As a ratio of perplexities, with the network it is of in a footnote; no verdict rests on it."""
    own = f'in_paper: false, published: {{{numbers}, of: "a network (a source)"}}'
    bench = replace(bench, text=bench.text.replace("in_paper: false", own))
    bench.done("pre-ln", {1: 100.0, 2: 110.0, 3: 105.0})
    bench.done("pre-ln+own", {1: 120.0, 2: 130.0, 3: 126.0})
    table = table_of(bench)
    (own_line,) = (line for line in markdown(table).splitlines() if line.startswith("| pre-ln+own"))
    assert f"| {percent} | worse" in own_line
    assert f"Published: {said} of a network (a source)." in markdown(table)
    assert "published elsewhere" not in latex(table)
    found = {record["row"]: record["published_percent"] for record in records(table)}
    assert found["pre-ln+own"] == pytest.approx(float(percent), abs=0.005)
    assert found["pre-ln"] is None


def test_a_note_of_a_row_is_a_footnote_where_it_has_numbers(bench: Bench) -> None:
    """At the scale that it is of; what is trained stays the same run."""
    noted = bench.text.replace("in_paper: false", 'in_paper: false, notes: {smoke: "Its maps did not move."}')
    before = [spec.id for spec in bench.specs()]
    bench = replace(bench, text=noted)
    assert [spec.id for spec in bench.specs()] == before
    bench.done("pre-ln", {1: 100.0, 2: 110.0, 3: 105.0})
    table = table_of(bench)
    assert "did not move" not in markdown(table)
    assert all("note" not in record for record in records(table))
    bench.done("pre-ln+own", {1: 120.0, 2: 130.0, 3: 126.0})
    table = table_of(bench)
    (mark,) = table.entries["pre-ln+own", "tiny"].marks
    assert f"- [{mark}] Its maps did not move." in markdown(table)
    assert "Its maps did not move." in latex(table)
    found = {record["row"]: record["note"] for record in records(table)}
    assert found == {"post-ln": None, "pre-ln": None, "pre-ln+comt": None, "pre-ln+own": "Its maps did not move."}
    assert "did not move" not in markdown(table_of(bench, "paper"))
    changed = build_table(bench.loaded("train.weight_decay=0.2"), bench.specs(), bench.runs)
    assert "did not move" not in markdown(changed)


def test_a_selection_says_so(mixed: Bench) -> None:
    specs = mixed.specs(rows="pre-ln+comt,post-ln", columns="c4/130m", scale="paper")
    table = build_table(mixed.loaded("train.steps=20"), specs, mixed.runs)
    assert table.notes == (
        "These are 2 of the recipe's 4 rows.",
        "These are 1 of the recipe's 2 columns.",
        "The baseline pre-ln is not among the selected rows, so there are no differences of ours.",
        "Settings were changed on the command line: train.steps=20.",
    )


def test_a_row_with_settings_of_its_own_is_named(bench: Bench) -> None:
    text = bench.recipe.read_text()
    text = text.replace("{method: post-ln,", "{method: post-ln, settings: {train: {learning_rate: 5e-4}},")
    bench.recipe.write_text(text)
    assert table_of(bench).notes == ("post-ln differs from the baseline in settings too: train.learning_rate.",)


def test_unpaired_seeds_are_said(bench: Bench) -> None:
    bench.done("pre-ln", {1: 100.0, 2: 101.0})
    bench.done("pre-ln+comt", {1: 90.0, 2: 92.0, 3: 93.0})
    bench.done("post-ln", {3: 93.0})
    table = table_of(bench)
    assert "The difference is over the 2 seeds that the baseline has too." in table.footnotes
    assert table.entries["post-ln", "tiny"].verdict == "no common seed"


def test_latex_escapes() -> None:
    assert escaped("a_b & 5% #1 $x$ {y} ~^\\") == (
        r"a\_b \& 5\% \#1 \$x\$ \{y\} \textasciitilde{}\textasciicircum{}\textbackslash{}"
    )
    assert escaped("[1] ± − é ☃") == r"{[}1] $\pm$ $-$ é U+2603"
    assert escaped('<a|b> "q"\n') == r"\textless{}a\textbar{}b\textgreater{} ''q'' "


def test_latex_lines_end_and_braces_match(mixed: Bench) -> None:
    text = latex(table_of(mixed))
    plain = re.sub(r"\\[{}]", "", text)
    assert plain.count("{") == plain.count("}")
    assert [line.count(" & ") for line in text.splitlines() if line.startswith(("pre-ln", "post-ln"))] == [5] * 4


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_compiles(mixed: Bench) -> None:
    body = latex(table_of(mixed)) + escaped("".join(chr(number) for number in range(0x20, 0x17F)) + "☃αβ…“”‘’≤≥×")
    document = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}%s\\end{document}"
    (mixed.folder / "t.tex").write_text(document % body, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=mixed.folder, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout


def test_markdown_escapes(bench: Bench) -> None:
    assert markdown(table_of(bench)).startswith("# Gates & norms\\_50% \\| a test\n")


def test_metrics_of_the_same_runs_are_columns_of_one_table(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = "      tiny: {compare_to: c4/130m}\n      bits: {metric: bits_per_byte}\n"
    bench.recipe.write_text(bench.recipe.read_text().replace("      tiny: {compare_to: c4/130m}\n", two))
    bench.done("pre-ln", {1: 100.0, 2: 110.0, 3: 105.0})
    bench.done("pre-ln+comt", {1: 90.0, 2: 99.0, 3: 94.0})
    table = table_of(bench)
    page = markdown(table)
    assert "## tiny, bits\n" in page
    assert page.count("Paper: C4, 130m.") == 1
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert lines[0] == "| method |  | tiny | bits |"
    assert "| pre-ln | ours ± s.e. (n) | 105.00 ± 2.89 (3) | 2.125 ± 0.000 (3) |" in lines
    assert "|  | vs pre-ln, % \\[95 %\\] | -10.2 \\[-10.8, -9.47\\] | 0.00 \\[0.00, 0.00\\] |" in lines
    assert "| pre-ln+comt | ours ± s.e. (n) | **94.33 ± 2.60 (3)** | 2.125 ± 0.000 (3) |" in lines
    assert "bits/byte |" not in page, "it is a column, and does not stand beside the other"
    assert len(records(table)) == 8, "the CSV has a line a metric"
    monkeypatch.setenv("COLUMNS", "300")
    print_table(table)
    said = capsys.readouterr().out
    assert "The files have parameters, paper's parameters, tokens/s, too." in said
    assert "Too narrow" not in said
    assert "tiny: validation perplexity, bits: bits/byte. Paper: C4, 130m." in said
    assert [line.split() for line in said.splitlines() if "ours" in line and "pre-ln " in line] == [
        ["pre-ln", "ours", "±", "s.e.", "(n)", "105.00", "2.125"]
    ]
    metrics = table.task.metrics
    points = {"bits_per_byte": replace(metrics["bits_per_byte"], difference=POINTS)}
    monkeypatch.setattr(type(table.task), "metrics", {**metrics, **points})
    assert markdown(table_of(bench)).count("| vs pre-ln, ") == 2, "differences in other units are tables of their own"
