"""Tables of one's own: no paper, verdicts against the baseline, and files that no other recipe writes over."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from comt_cli.errors import UserError
from comt_cli.files import read_csv
from comt_cli.report import latex as tex
from comt_cli.report.markdown import escaped
from comt_cli.report.overview import write_overview
from comt_cli.report.verdict import stands
from comt_cli.report.write import write_report
from comt_cli.report.written import scales_below

if TYPE_CHECKING:
    from conftest import Bench

OWN = """
title: How wide must a modulator be?
command: train-lm
baseline: pre-ln
seeds: [1, 2, 3]
settings:
  model: {size: tiny}
  data: {corpus: python-docs, vocabulary: 512, sequence_length: 64}
  train: {steps: 200, batch_size: 8}
rows:
  pre-ln: {method: pre-ln}
  narrow: {method: comt}
  wide: {method: {name: comt, hidden: 8}}
  wider: {method: {name: comt, hidden: 16}}
columns:
  tiny: {}
scales:
  smoke: {description: Minutes}
"""


@pytest.fixture
def own(bench: Bench) -> Bench:
    """A recipe without a paper, outside the recipe roots: a gain, a loss, one that is not resolved."""
    bench.recipe = bench.folder / "gates.yaml"
    bench.recipe.write_text(OWN, encoding="utf-8")
    bench.done("pre-ln", {1: 100.0, 2: 110.0, 3: 105.0})
    bench.done("narrow", {1: 95.0, 2: 104.0, 3: 100.0})
    bench.done("wide", {1: 120.0, 2: 132.0, 3: 126.0})
    bench.done("wider", {1: 90.0, 2: 120.0, 3: 100.0})
    return bench


def test_a_table_without_printed_values_has_no_columns_for_them_and_speaks_of_no_paper(own: Bench) -> None:
    table = own.table()
    assert table.sheet.keys == [
        "method", "ours", "beside", "difference", "detectable", "verdict", "parameters", "speed"
    ]  # fmt: skip
    for page in (table.markdown, table.latex):
        assert "paper" not in page.replace("printed", "").casefold()
    verdicts = {row: table.at(row)["verdict"] for row in table.sheet.rows}
    assert verdicts == {"pre-ln": "-", "narrow": "better", "wide": "worse", "wider": "not resolved"}
    assert table.verdict.startswith("Against pre-ln, better: 1 (narrow); worse: 1 (wide); not resolved, since")


def test_bold_is_the_best_mean_where_it_is_resolved_as_better_than_the_baseline(own: Bench) -> None:
    def bold(**selection: object) -> list[str]:
        return [line.record["row"] for line in own.table(**selection).sheet.lines if line.best]

    assert bold() == ["narrow"]
    assert bold(rows="narrow,wide,wider") == [], "nothing to be better than"
    assert bold(seeds=[1]) == [], "one seed shows no error"
    own.done("wider", {1: 40.0, 2: 120.0, 3: 90.0})  # the best mean by far, of one seed
    assert own.table().at("wider")["verdict"] == "not resolved"
    assert bold() == []


def test_what_is_resolved_after_holms_correction_has_a_mark_and_its_legend(own: Bench) -> None:
    """One row is far from the baseline; one is resolved by its interval alone (p = 0.033, the second of three)."""
    own.done("pre-ln", {1: 100.0, 2: 110.0, 3: 90.0})
    own.done("narrow", {1: 80.0, 2: 88.1, 3: 72.1})
    own.done("wide", {1: 110.0, 2: 119.0, 3: 104.0})
    table = own.table()
    assert [stands(each["p_value_holm"]) for each in table.records] == [False, True, False, False]
    assert [line.texts["verdict"] for line in table.sheet.lines] == ["-", "better*", "worse", "not resolved"]
    assert "resolved after Holm's correction" in table.markdown
    assert "Holm's correction over the table leaves 1 of 2 resolved." in table.verdict
    assert re.search(r"With probability 0.8, 3 seeds would show: wider \d", table.verdict)


def test_what_was_trained_is_in_title_and_caption(own: Bench) -> None:
    told = "LLaMA tiny (4 layers, 128 wide, 1.2 M parameters) on python-docs, 200 steps of 8 x 64 tokens; seeds 1-3"
    assert own.table().attrs["trained"] == f"{told}; scale smoke"
    assert told in own.table().latex.partition("\\label")[0]
    changed = own.table(overrides=("train.batch_size=4",))
    assert changed.attrs["trained"].endswith("; scale smoke; with train.batch_size=4")
    data = write_report(own.loaded(), own.specs(), own.runs, own.results).as_json()
    assert (data["trained"], data["paper"]) == (f"{told}; scale smoke", None)


def test_files_go_by_the_recipes_file_and_a_copy_does_not_write_over_the_original(mixed: Bench) -> None:
    original = write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results).files
    assert original is not None
    assert original.csv == mixed.results / "smoke" / "comt" / "table9.csv"
    whole = original.csv.read_bytes()
    mixed.recipe = Path(shutil.copy(mixed.recipe, mixed.folder / "my-table.yaml"))
    copied = write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results).files
    assert copied is not None
    assert copied.csv == mixed.results / "smoke" / "own" / "my-table.csv"
    assert original.csv.read_bytes() == whole


def test_two_recipes_of_one_name_do_not_write_over_each_other(own: Bench) -> None:
    def write(overwrite: bool = False) -> str | None:
        return write_report(own.loaded(), own.specs(), own.runs, own.results, overwrite=overwrite).unwritten

    assert write() is None
    assert write() is None
    first = own.recipe
    own.recipe = own.folder / "elsewhere" / "gates.yaml"
    own.recipe.parent.mkdir()
    shutil.copy(first, own.recipe)
    told = write() or ""
    assert f"is of the recipe {first}, and this is {own.recipe}" in told
    assert "Nothing is written: --results DIR" in told
    assert write(overwrite=True) is None


def test_every_line_of_a_run_says_where_it_comes_from(own: Bench) -> None:
    files = write_report(own.loaded(), own.specs(), own.runs, own.results).files
    assert files is not None
    for run in read_csv(files.runs_csv):
        assert (run["recipe"], run["scale"], run["data_content"]) == (str(own.recipe), "smoke", "c0ffee")
        assert (run["device"], run["git_commit"]) == ("a test CPU", "0123456789ab")
        assert float(run["bits_per_byte"]) == 2.125
    assert "Content of the data: c0ffee." in files.markdown.read_text(encoding="utf-8")


def test_runs_on_different_data_do_not_stand_in_one_column(own: Bench) -> None:
    (wide,) = [spec for spec in own.specs() if (spec.row, spec.seed) == ("wide", 2)]
    own.done("wide", {2: 132.0}, data_content="0ddba11")
    with pytest.raises(UserError, match="were trained on different data") as caught:
        own.table()
    assert f"0ddba11: wide seed 2 ({wide.id})" in caught.value.message
    assert "--rows wide" in (caught.value.hint or "")


def test_seeds_without_a_value_are_said_and_why(bench: Bench) -> None:
    bench.done("pre-ln", {1: 100.0, 2: 110.0})
    bench.done("pre-ln", {3: None}, missing={"perplexity": "undefined: it is"})  # type: ignore[dict-item]
    bench.done("pre-ln+comt", {1: 90.0, 2: 91.0}, remark="predicts one class")
    bench.done("pre-ln+comt", {3: 92.0}, test_evaluation={"remark": "not of this metric"})
    assert bench.table().footnotes == [
        "2 of 3 seeds have a value, and the numbers are of those alone: seed 3 has none (undefined: it is).",
        "Seed 1 predicts one class and seed 2 predicts one class.",
        "The difference is over the 2 seeds that the baseline has too.",
    ]


def test_the_median_is_shown_where_the_task_asks_for_it(bench: Bench, monkeypatch) -> None:
    bench.done("pre-ln", {1: 100.0, 2: 180.0, 3: 101.0})
    bench.done("pre-ln+comt", {1: 90.0})
    table = bench.table()
    assert "median" not in table.markdown
    assert "median" not in table.records[0]
    monkeypatch.setattr(type(table.sheet.task), "shows_median", True)
    table = bench.table()
    assert [record["median"] for record in table.records] == [None, 101.0, 90.0, None]
    assert "(3) | 101.00 |" in table.markdown
    assert "(1) [1] | - |" in table.markdown


def test_a_recipes_file_name_cannot_end_a_latex_comment(own: Bench) -> None:
    own.recipe = own.recipe.rename(own.folder / "x\n\\input{evil}.yaml")
    first, *others = own.table().latex.splitlines()
    assert first.startswith("%")
    assert not any(line.startswith("\\input") for line in others)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=40))
def test_escaped_text_is_read_by_markdown_as_it_stands(text: str) -> None:
    """Nothing of a stranger's title becomes a heading, a list, a link, an image, HTML or emphasis."""
    shown = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    tokens = MarkdownIt("commonmark").enable("table").parse(escaped(text))
    if not shown or shown in ("-", "+"):
        return
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    (_, inline, _) = tokens
    assert {child.type for child in inline.children or ()} <= {"text", "text_special"}
    assert "".join(child.content for child in inline.children or ()) == shown


@pytest.mark.parametrize(
    "text",
    ["# A", "1. a", "- a", "![x](http://a)", "[x](javascript:y)", "<b>", "&amp;", "a\n# b", "--- a", "~~x~~", "`x`"],
)
def test_marks_of_markdown_are_shown(text: str) -> None:
    (_, inline, _) = MarkdownIt("commonmark").parse(escaped(text))
    assert "".join(child.content for child in inline.children or ()) == " ".join(text.split())


UNDONE = sorted(tex._LATEX.items(), key=lambda pair: -len(pair[1]))


@given(st.text(alphabet="ab\\~^<>|&%$#_{}[±×é", max_size=30))
def test_escaped_latex_can_be_read_back(text: str) -> None:
    rest, read = tex.escaped(text), ""
    while rest:
        letter, spelt = next(((a, b) for a, b in UNDONE if rest.startswith(b)), (rest[0], rest[0]))
        assert spelt != rest[0] or letter not in "\\~^<>|&%$#_{}["
        read, rest = read + letter, rest[len(spelt) :]
    assert read == text


def test_a_scale_of_ones_own_has_its_table_and_its_place_in_the_overview(own: Bench) -> None:
    own.recipe.write_text(OWN + "  nano: {description: Seconds}\n", encoding="utf-8")
    before = {spec.id for spec in own.specs()}
    assert {spec.scale for spec in own.specs("nano")} == {"nano"}
    for spec in own.specs("nano"):
        own.finish(spec, 100.0 + spec.seed)
    for scale in ("smoke", "nano"):
        write_report(own.loaded(), own.specs(scale), own.runs, own.results)
    (own.results / "bench" / "x").mkdir(parents=True)
    (own.results / "bench" / "x" / "y-runs.csv").write_text("", encoding="utf-8")
    assert scales_below(own.results) == ["smoke", "nano"]
    page = write_overview(own.results).read_text(encoding="utf-8")
    assert re.findall("^## Scale (.*)$", page, re.M) == ["smoke", "nano"]
    assert before == {spec.id for spec in own.specs()}


@pytest.mark.parametrize(
    ("overrides", "heading"),
    [
        (("data.corpus=files:*.txt",), "files:*.txt/tiny"),
        (("data.corpus=wikitext-103",), "wikitext-103/tiny"),
        (("train.steps=20",), "python-docs/tiny"),
        (("model.size=60m",), "python-docs/tiny"),
    ],
)
def test_other_text_size_or_length_is_not_compared_with_the_paper(
    bench: Bench, overrides: tuple[str, ...], heading: str
) -> None:
    bench.recipe.write_text(bench.recipe.read_text().replace("      tiny: {comp", "      python-docs/tiny: {comp"))
    assert bench.table().at("pre-ln+comt")["paper"] == 23.77
    table = bench.table(overrides=overrides)
    assert table.sheet.name("python-docs/tiny") == heading
    cell = table.at("pre-ln+comt")
    told = (table.attrs["paper"], cell["paper"], cell["paper_column"], cell["paper_increase"], cell["_direction"])
    assert told == (None, None, None, None, 0)
    assert "130m" not in table.markdown + table.latex


def test_a_copied_recipe_with_a_text_of_ones_own_is_not_compared_with_the_paper(bench: Bench) -> None:
    """What a copy says itself is no change of settings."""
    bench = replace(bench, text=bench.text.replace("corpus: python-docs", "corpus: 'files:*.txt'"))
    table = bench.table()
    assert table.attrs["overrides"] == ()
    assert (table.attrs["paper"], table.at("pre-ln+comt")["paper"]) == (None, None)
