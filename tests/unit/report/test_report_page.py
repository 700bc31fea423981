"""`comt report --html`: one file, from the results alone, that loads nothing and shows everything."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from page_reading import Page, dead_links, loads
from PIL import Image

from comt_cli.report.html.page import write_page
from comt_cli.report.overview import write_overview
from comt_cli.report.write import write_report
from comt_cli.report.written import Reader, read_lines

if TYPE_CHECKING:
    from conftest import Bench


NAME = '<script>alert("x")</script>'


@pytest.fixture
def written(mixed: Bench) -> Bench:
    """Results with a table, its figure, and another folder's page."""
    write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results)
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
    return write_page(bench.results).read_text(encoding="utf-8")


def test_it_has_every_table_verdict_figure_and_how_it_was_made(written: Bench) -> None:
    text = html(written)
    page = Page(text)
    main = next(table for table in page.tables if table.headings[:2] == ["method", "ours ± s.e. (n)"])
    lines = read_lines(written.results / "smoke/comt/table9.csv")
    assert [row[0] for row in main.rows] == [line["row"] for line in lines]
    verdicts = [row[main.headings.index("verdict")] for row in main.rows]
    assert [text.removesuffix("*") for text in verdicts] == [line["verdict"] for line in lines]
    assert "--rows" not in page.text
    for said in ("--scale smoke --seeds 1-3", "a test CPU", "0123456789ab", lines[0]["recipe"], "Rates & losses."):
        assert said in page.text
    pictures = {attributes["data-source"] for tag, attributes in page.elements if tag == "img"}
    assert pictures == {"smoke/comt/table9-sweep.png", "bench/a-cpu/step.png", "bench/a-cpu/alone.png"}
    assert all(attributes["alt"] for tag, attributes in page.elements if tag == "img")
    assert text.count('<figure id="bench/a-cpu/step.png">') == 1
    assert '<a href="#smoke/comt/table9">it</a>' in text
    assert loads(text) == []
    assert dead_links(text, written.results) == []
    assert len(page.ids()) == len(set(page.ids()))
    for table in page.tables:
        assert sum(scope == "row" for _, scope in table.scopes) == len(table.rows)
        assert {len(row) for row in table.rows} <= {len(table.headings)}


def test_it_has_the_curves_of_gates_with_their_captions(written: Bench) -> None:
    """Their names have full stops, as the quantities have."""
    curves = written.results / "smoke" / "comt" / "table9-curves-gate_mean.q_proj.scalar.png"
    Image.new("RGB", (60, 40), "white").save(curves)
    curves.with_suffix(".txt").write_text("Mean of the gate. Means over seeds.")
    page = Page(html(written))
    figure = next(each for tag, each in page.elements if tag == "img" and curves.name in each["data-source"])
    assert figure["alt"]
    assert "Means over seeds." in page.text


def test_names_are_shown_and_not_obeyed(written: Bench) -> None:
    plain = Page(html(written))
    for path in (written.results / "smoke" / "comt").glob("table9*"):
        if path.suffix == ".csv":
            quoted = f'"{NAME.replace(chr(34), chr(34) * 2)}"'
            path.write_text(re.sub(r"(?m)^p(re|ost)-ln(?=,)", quoted, path.read_text()))
        if path.suffix in (".md", ".txt"):
            path.write_text(path.read_text().replace("pre-ln+own", NAME))
    (written.results / "bench" / "a-cpu" / "step.md").write_text(
        f"# {NAME}\n\n{NAME} [a](javascript:alert(1)) ![b](https://example.org/x.png)\n\n![c](https://example.org/y.png)\n"
    )
    text = html(written)
    page = Page(text)
    assert len(page.scripts) == len(plain.scripts)
    assert page.text.count(NAME) >= 4
    assert not any((attributes.get("href") or "").startswith("javascript") for _, attributes in page.elements)
    assert loads(text) == []


NOT_UTF8, FOLDER = b"\xff", None
RUNS = b"row,column,seed,id,state,command,tokens_per_second\n"


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("bench/a-cpu/alone.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 48 48\n"),
        ("FINDINGS.md", FOLDER),
        ("smoke/comt/table9.md", NOT_UTF8),
        ("smoke/comt/other-runs.csv", RUNS + b"a,b,first,c,done,train-lm,1\n"),
        ("highlights.csv", b"table,row,column,method,on\nsmoke/comt/table9,no-such-row,tiny,a,b\n"),
        ("superseded.csv", b"id\n" + NOT_UTF8),
    ],
)
def test_a_damaged_file_is_named_and_left_out(written: Bench, name: str, damage: bytes | None) -> None:
    path, reader = written.results / name, Reader()
    path.unlink(missing_ok=True)
    if damage is FOLDER:
        path.mkdir()
    else:
        path.write_bytes(damage)
    for page in (write_page(written.results, reader), write_overview(written.results, reader)):
        assert "pre-ln" in page.read_text(encoding="utf-8")
    assert [*reader.damaged] == [path]
    assert str(path) in reader.damaged[path]
