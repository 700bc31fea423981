"""Tables of one's own: no paper, verdicts against the baseline, and files that no other recipe writes over."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from comt_cli.errors import UserError
from comt_cli.report.caption import in_markdown
from comt_cli.report.exhibits.table import texts_of
from comt_cli.report.statistics import stands
from comt_cli.report.write import write_report

if TYPE_CHECKING:
    from conftest import Bench


@pytest.fixture
def own(bench: Bench) -> Bench:
    """A recipe without a paper, outside the recipe roots: a gain, a loss, one that is not resolved."""
    bench.recipe = bench.folder / "gates.yaml"
    shutil.copy(Path(__file__).parent / "recipes" / "gates.yaml", bench.recipe)
    bench.done("pre-ln", {1: 100.0, 2: 110.0, 3: 105.0})
    bench.done("narrow", {1: 95.0, 2: 104.0, 3: 100.0})
    bench.done("wide", {1: 120.0, 2: 132.0, 3: 126.0})
    bench.done("wider", {1: 90.0, 2: 120.0, 3: 100.0})
    return bench


def test_bold_is_the_best_mean_where_it_is_resolved_as_better_than_the_baseline(own: Bench) -> None:
    assert own.table().best == ["narrow"]
    assert own.table(seeds=[1]).best == [], "one seed shows no error"
    own.done("wider", {1: 40.0, 2: 120.0, 3: 90.0})  # the best mean by far, of one seed
    assert own.table().best == []


def test_what_is_resolved_after_holms_correction_has_a_mark_and_its_legend(own: Bench) -> None:
    """One row is far from the baseline; one is resolved by its interval alone (p = 0.033, the second of three)."""
    own.done("pre-ln", {1: 100.0, 2: 110.0, 3: 90.0})
    own.done("narrow", {1: 80.0, 2: 88.1, 3: 72.1})
    own.done("wide", {1: 110.0, 2: 119.0, 3: 104.0})
    table = own.table()
    assert [stands(each["p_value_holm"]) for each in table.records] == [False, True, False, False]
    assert [each["verdict"] for each in texts_of(table.cells)] == ["-", "better*", "worse", "not resolved"]
    assert "resolved after Holm's correction" in table.markdown
    assert "after Holm's correction: 1 of 2." in table.verdict


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
    assert f"is of the recipe {first}, not of {own.recipe}" in told
    assert "Nothing is written: --results DIR" in told
    assert write(overwrite=True) is None


def test_runs_on_different_data_do_not_stand_in_one_column(own: Bench) -> None:
    (wide,) = [spec for spec in own.specs() if (spec.row, spec.seed) == ("wide", 2)]
    own.done("wide", {2: 132.0}, data_content="0ddba11")
    with pytest.raises(UserError, match="were trained on different data") as caught:
        own.table()
    assert f"0ddba11: wide seed 2 ({wide.id})" in caught.value.message
    assert "--rows wide" in (caught.value.hint or "")


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=40))
def test_escaped_text_is_read_by_markdown_as_it_stands(text: str) -> None:
    """Nothing of a stranger's title becomes a heading, a list, a link, an image, HTML or emphasis."""
    shown = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    tokens = MarkdownIt("commonmark").enable("table").parse(in_markdown(text))
    if not shown or shown in ("-", "+"):
        return
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    (_, inline, _) = tokens
    assert {child.type for child in inline.children or ()} <= {"text", "text_special"}
    assert "".join(child.content for child in inline.children or ()) == shown


@pytest.mark.parametrize("changed", [("data.corpus=files:*.txt",), ("train.steps=20",), ("model.size=60m",), ()])
def test_other_text_size_or_length_is_not_compared_with_the_paper(bench: Bench, changed: tuple[str, ...]) -> None:
    """Whether it was changed on the command line, or a copied recipe says it itself."""
    assert bench.table().at("pre-ln+comt")["paper"] == 23.77
    if not changed:
        bench = replace(bench, text=bench.text.replace("corpus: python-docs", "corpus: 'files:*.txt'"))
    table = bench.table(overrides=changed)
    cell = table.at("pre-ln+comt")
    told = (table.attrs["table"].paper, cell["paper"], cell["paper_column"], cell["paper_increase"], cell["_direction"])
    assert told == (None, None, None, None, 0)
    assert "130m" not in table.markdown + table.latex
