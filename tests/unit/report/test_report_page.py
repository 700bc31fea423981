"""`comt report --html`: one file, from the results alone, that loads nothing and shows everything."""

from __future__ import annotations

import csv
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from page_reading import Page, dead_links, loads
from PIL import Image
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.errors import UserError
from comt_cli.report.frame import csv_text
from comt_cli.report.html.grids import grid, heading, shown
from comt_cli.report.html.page import write_page
from comt_cli.report.html.pictures import Pictures, embedded
from comt_cli.report.html.prose import Prose
from comt_cli.report.overview import write_overview
from comt_cli.report.write import write_report
from comt_cli.report.written import Reader

if TYPE_CHECKING:
    from conftest import Bench

NAME = '<script>alert("x")</script>'


@pytest.fixture
def written(mixed: Bench) -> Bench:
    """Results with a table, its figure, another folder's page, and no runs."""
    write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results)
    shutil.rmtree(mixed.runs)
    folder = mixed.results / "smoke" / "comt"
    Image.new("RGB", (60, 40), "white").save(folder / "table9-sweep.png")
    (folder / "table9-sweep.txt").write_text("Rates & losses. Bars: intervals.")
    other = mixed.results / "bench" / "a-cpu"
    other.mkdir(parents=True)
    Image.new("RGBA", (30, 20), (0, 0, 255, 128)).save(other / "step.png")
    Image.new("RGB", (30, 20), "red").save(other / "alone.png")
    (other / "step.md").write_text(
        "# Steps\n\nSee [it](../../smoke/comt/table9.md).\n\n![Steps](step.png)\n\nAgain:\n\n![Steps](step.png)\n"
    )
    return mixed


def html(bench: Bench) -> str:
    return write_page(bench.results, bench.runs).read_text(encoding="utf-8")


def table_lines(bench: Bench, ending: str = "") -> tuple[Path, list[dict[str, str]]]:
    path = bench.results / "smoke" / "comt" / f"table9{ending}.csv"
    return path, list(csv.DictReader(io.StringIO(path.read_text())))


def test_the_command_of_a_part_of_a_table_names_its_rows(written: Bench) -> None:
    assert "--rows" not in Page(html(written)).text
    path, lines = table_lines(written, "-runs")
    left = [line for line in lines if line["row"] != "pre-ln+own"]
    path.write_text(csv_text(left), encoding="utf-8")
    recipes = written.results.parent / "recipes"
    assert (recipes / lines[0]["recipe"]).is_file(), "the page reads its rows"
    trained = ",".join(dict.fromkeys(line["row"] for line in left))
    assert f"--rows {trained}" in Page(html(written)).text


def test_it_has_every_table_verdict_figure_and_how_it_was_made(written: Bench) -> None:
    text = html(written)
    page = Page(text)
    main = next(table for table in page.tables if table.headings[:2] == ["method", "ours ± s.e. (n)"])
    _, lines = table_lines(written)
    assert [row[0] for row in main.rows] == [line["row"] for line in lines]
    verdicts = [row[main.headings.index("verdict")] for row in main.rows]
    assert [text.removesuffix("*") for text in verdicts] == [line["verdict"] for line in lines]
    assert verdicts.count("agrees*") == 1
    assert "Of 2 published directions at scale smoke: agree 1, diverged 1." in page.text
    assert "comt train-lm --recipe" in page.text
    assert "--scale smoke --seeds 1-3" in page.text
    for said in ("a test CPU", "0123456789ab", lines[0]["recipe"], "Rates & losses. Bars: intervals."):
        assert said in page.text
    pictures = {attributes["data-source"] for tag, attributes in page.elements if tag == "img"}
    assert pictures == {"smoke/comt/table9-sweep.png", "bench/a-cpu/step.png", "bench/a-cpu/alone.png"}
    assert all(attributes["alt"] for tag, attributes in page.elements if tag == "img")
    assert text.count('<figure id="bench/a-cpu/step.png">') == 1
    assert '<a href="#smoke/comt/table9">it</a>' in text
    assert "No learning curves" in page.text
    assert "showCurves" not in text


def test_it_loads_nothing_and_its_links_lead_somewhere(written: Bench) -> None:
    text = html(written)
    assert loads(text) == []
    assert dead_links(text, written.results) == []
    ids = Page(text).ids()
    assert len(ids) == len(set(ids))
    assert "default-src 'none'" in text


@pytest.mark.parametrize(
    "added",
    [
        '<img src="https://example.org/x.png">',
        "<style>@import 'x.css';</style>",
        "<style>p { background: url(x.png) }</style>",
        "<script>fetch('x')</script>",
        '<link rel="stylesheet" href="x.css">',
    ],
)
def test_a_page_that_loads_something_would_be_found(added: str) -> None:
    assert len(loads(f"<html><body>{added}</body></html>")) == 1


def test_tables_say_what_their_headings_head(written: Bench) -> None:
    for table in Page(html(written)).tables:
        assert all(scope in ("col", "row") for tag, scope in table.scopes if tag == "th")
        assert sum(scope == "row" for _, scope in table.scopes) == len(table.rows)
        assert {len(row) for row in table.rows} <= {len(table.headings)}


def test_a_new_column_of_a_csv_appears_by_itself(written: Bench) -> None:
    path, lines = table_lines(written)
    for index, line in enumerate(lines):
        line["holm_percent"] = str(index + 0.123456789)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    path.write_text(text.getvalue())
    found = [table for table in Page(html(written)).tables if "holm, %" in table.headings]
    assert [row[found[0].headings.index("holm, %")] for row in found[0].rows][:2] == ["0.12346", "1.1235"]


def test_names_are_shown_and_not_obeyed(written: Bench) -> None:
    plain = Page(html(written))
    for path in (written.results / "smoke" / "comt").glob("table9*"):
        if path.suffix == ".csv":
            quoted = f'"{NAME.replace(chr(34), chr(34) * 2)}"'
            path.write_text(re.sub(r"(?m)^pre-ln\+own(?=,)", quoted, path.read_text()))
        if path.suffix in (".md", ".txt"):
            path.write_text(path.read_text().replace("pre-ln+own", NAME))
    (written.results / "bench" / "a-cpu" / "step.md").write_text(
        f"# {NAME}\n\n{NAME} [a](javascript:alert(1)) ![b](https://example.org/x.png)\n\n![c](https://example.org/y.png)\n"
    )
    text = html(written)
    page = Page(text)
    assert len(page.scripts) == len(plain.scripts)
    assert page.text.count(NAME) >= 4
    assert not any(address.startswith("javascript") for address in page.addresses())
    assert loads(text) == []


def test_it_is_the_same_when_made_again_and_left_alone(written: Bench) -> None:
    path = write_page(written.results, written.runs)
    before, changed = path.read_bytes(), path.stat().st_mtime_ns
    write_page(written.results, written.runs)
    assert path.stat().st_mtime_ns == changed
    path.write_text("old")
    write_page(written.results, written.runs)
    assert path.read_bytes() == before


def test_runs_beside_the_results_are_linked(written: Bench) -> None:
    _, runs = table_lines(written, "-runs")
    (written.results.parent / "by-id" / runs[0]["id"]).mkdir(parents=True)
    text = html(written)
    assert f'<a href="../by-id/{runs[0]["id"]}/">{runs[0]["id"]}</a>' in text
    assert f"../by-id/{runs[1]['id']}" not in text
    assert dead_links(text, written.results) == []


def test_it_needs_no_torch(written: Bench) -> None:
    code = (
        "import sys; from pathlib import Path; from comt_cli.report.html.page import write_page; "
        f"write_page(Path({str(written.results)!r}), Path('none')); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (written.results / "index.html").is_file()


def test_without_tables_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there are no tables below"):
        write_page(tmp_path, tmp_path)


NOT_UTF8, FOLDER, PIPE, HUGE = b"\xff", None, "pipe", b"id,row\n" + b"x" * 140_000 + b",1\n"
RUNS = b"row,column,seed,id,state,command,tokens_per_second\n"


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("bench/a-cpu/alone.png", b"no picture"),
        ("bench/a-cpu/alone.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 48 48\n"),
        ("bench/a-cpu/step.md", NOT_UTF8),
        ("bench/a-cpu/step.txt", NOT_UTF8),
        ("FINDINGS.md", NOT_UTF8),
        ("FINDINGS.md", FOLDER),
        ("FINDINGS.md", PIPE),
        ("smoke/comt/table9.md", NOT_UTF8),
        ("smoke/comt/table9-logs.csv", b"step,loss\n1,2\n"),
        ("smoke/comt/table9-logs.csv", b"id,step,loss\na,b,2\n"),
        ("smoke/comt/table9-rates.csv", b"row,column\na,b,c\n"),
        ("smoke/comt/other.csv", HUGE),
        ("smoke/comt/other.csv", PIPE),
        ("smoke/comt/other-runs.csv", FOLDER),
        ("smoke/comt/other-runs.csv", b"row,column,seed,id\na,b,1,c\n"),
        ("smoke/comt/other-runs.csv", RUNS + b"a,b,first,c,done,train-lm,1\n"),
        ("smoke/comt/table9-runs-trials.csv", b"row\n\0\xff\n"),
        ("superseded.csv", b"id\n" + NOT_UTF8),
    ],
)
def test_a_damaged_file_is_named_and_left_out(written: Bench, name: str, damage: bytes | str | None) -> None:
    path, reader = written.results / name, Reader()
    path.unlink(missing_ok=True)
    if damage is FOLDER:
        path.mkdir()
    elif damage == PIPE:
        os.mkfifo(path)
    else:
        assert isinstance(damage, bytes)
        path.write_bytes(damage)
    for page in (write_page(written.results, written.runs, reader), write_overview(written.results, reader)):
        assert "pre-ln" in page.read_text(encoding="utf-8")
    assert [*reader.damaged] == [path]
    assert str(path) in reader.damaged[path]


@pytest.mark.parametrize("page", ["index.html", "README.md"])
def test_an_old_page_that_cannot_be_read_is_replaced(written: Bench, page: str) -> None:
    (written.results / page).write_bytes(NOT_UTF8)
    runner = CliRunner()
    arguments = ["report", "--html", "--overview", "--results", str(written.results), "--runs", str(written.runs)]
    assert runner.invoke(app, arguments).exit_code == 0
    assert "pre-ln" in (written.results / page).read_text(encoding="utf-8")
    (written.results / "FINDINGS.md").write_bytes(NOT_UTF8)
    ended = runner.invoke(app, arguments)
    assert ended.exit_code == 1
    assert "FINDINGS.md cannot be read: it is not UTF-8 text (line 1); it is left out" in ended.stderr


def test_an_embedded_figure_looks_like_its_file(tmp_path: Path) -> None:
    import base64

    file, drawn = io.BytesIO(), Image.new("RGBA", (50, 30), (0, 0, 0, 0))
    drawn.paste((200, 30, 30, 255), (10, 10, 20, 20))
    drawn.save(file, "PNG")
    address, width, height = embedded(file.getvalue())
    with Image.open(io.BytesIO(base64.b64decode(address.removeprefix("data:image/webp;base64,")))) as image:
        assert (width, height) == image.size == (50, 30)
        assert image.convert("RGB").getpixel((15, 15)) == (200, 30, 30)
        assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)  # what is transparent is paper


def test_thin_lines_keep_colours_of_their_own_beside_wide_bands() -> None:
    """By the number of their pixels the colours of these lines are nothing: two blues once came out as one."""
    import base64

    lines = [(0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (213, 94, 0)]
    drawn = Image.new("RGB", (400, 300), "white")
    for x in range(400):  # what bands that lie over each other make: many pale colours
        drawn.paste((200 - x // 8, 215 - x // 16, 230 - x // 5), (x, 0, x + 1, 240))
    for number, colour in enumerate(lines):
        drawn.paste(colour, (0, 20 + 30 * number, 400, 22 + 30 * number))
    file = io.BytesIO()
    drawn.save(file, "PNG")
    address, *_ = embedded(file.getvalue())
    with Image.open(io.BytesIO(base64.b64decode(address.removeprefix("data:image/webp;base64,")))) as image:
        for number, colour in enumerate(lines):
            found = image.convert("RGB").getpixel((200, 20 + 30 * number))
            assert isinstance(found, tuple)
            assert max(abs(a - b) for a, b in zip(found, colour, strict=True)) < 40, colour


def test_a_grid_says_once_what_is_the_same_in_all_lines() -> None:
    lines = [
        {"row": "a", "scale": "smoke", "mean": "114.96588", "seeds": "1", "run_ids": "aa bb", "id": "12e4", "none": ""},
        {"row": "b", "scale": "smoke", "mean": "-0.5", "seeds": "2", "run_ids": "aa bb", "id": "12e4", "none": ""},
    ]
    found = grid("Lines", lines, "smoke/x")
    assert found.same == [("scale", "smoke")]
    assert found.headings == ["row", "mean", "seeds", "run ids", "id"]
    assert [[cell.text for cell in row] for row in found.rows] == [
        ["a", "114.97", "1", "aa bb", "12e4"],
        ["b", "-0.5", "2", "aa bb", "12e4"],
    ]
    assert found.rows[0][3].links == (("#smoke/x/run/aa", "aa"), ("#smoke/x/run/bb", "bb"))
    assert [row[4].anchor for row in found.rows] == ["smoke/x/run/12e4", ""]
    one = grid("Line", lines[:1], "smoke/x")
    assert one.same == []
    assert grid("None", [], "smoke/x").headings == []


@pytest.mark.parametrize(
    ("text", "people"),
    [("480", "480"), ("1.7455016e+12", "1.7455e+12"), ("12e4", "12e4"), ("nan", "nan"), ("", ""), ("1 2 3", "1 2 3")],
)
def test_numbers_for_people(text: str, people: str) -> None:
    assert shown(text) == people


def test_headings_have_units() -> None:
    found = [heading(key) for key in ("difference_percent", "tokens_per_second", "grid.train.learning_rate")]
    assert found == ["difference, %", "tokens/s", "grid.train.learning rate"]


def test_links_between_markdown_pages_stay_on_the_page(tmp_path: Path) -> None:
    prose = Prose(tmp_path, {"bench/README.md": "bench/README"}, Pictures(tmp_path, Reader()))
    title, body = prose.parts(
        "# A\\_b\n\n## C\n\n[x](../bench/README.md#y) [z](w.csv) [u](https://u.org)\n", "smoke", 4
    )
    assert title == "A_b"
    assert "<h4>C</h4>" in body
    assert '<a href="#bench/README">x</a> <a href="smoke/w.csv">z</a> <a href="https://u.org">u</a>' in body
