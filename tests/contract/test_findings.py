"""`results/FINDINGS.md` is what `make findings` makes of the committed tables, and its claims are checked."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # docs/ is no part of the package

from comt_cli.report.statistics import Verdict  # noqa: E402
from docs import findings, findings_figures  # noqa: E402

RESULTS = ROOT / "results"
ARTICLE = (RESULTS / "FINDINGS.md").read_text(encoding="utf-8")
LARGEST = 12 * 1024  # bytes: an article that is read in five minutes


@pytest.fixture(scope="module")
def facts() -> findings.Facts:
    return findings.Facts()


def test_the_article_is_todays_and_short(facts):
    assert findings.article(facts) == ARTICLE, "make findings writes it anew"
    assert len(ARTICLE.encode()) <= LARGEST


def test_every_figure_is_in_the_article_with_its_numbers_beside_it(facts):
    images = dict(re.findall(r"^!\[(.+)\]\((\S+)\)$", ARTICLE, re.MULTILINE))
    drawn = findings_figures.figures(facts)
    assert [*images.values()] == [f"{findings.FIGURES}/{name}.png" for name in drawn]
    assert all(re.search(r"\d", alternative) for alternative in images), "an alternative text states the result"
    for name, lines in drawn.items():
        path = RESULTS / findings.FIGURES / f"{name}.csv"
        assert findings_figures.numbers(name, lines) == path.read_text(encoding="utf-8"), "make findings writes it anew"
        assert path.with_suffix(".png").exists()


@pytest.mark.parametrize(
    ("claim", "row", "beside", "holm"),
    [("worse", "pre-ln+comt", "", False), ("agrees", "post-ln", "", False), ("better", "pre-ln+transponder", "", False),
     ("better", "pre-ln+comt", "post-ln", False), ("not_resolved", "mix-ln", "", False),
     ("better", "mix-ln", "pre-ln+comt", True)],
)  # fmt: skip
def test_a_claim_that_does_not_hold_is_refused(facts, claim, row, beside, holm):
    with pytest.raises(findings.Untrue, match=re.escape(row)):
        facts.claim(claim, "evening/comt/table3", row, beside, holm=holm)


def test_survivors_of_a_diverged_row_support_no_claim(facts, monkeypatch):
    table = facts.tables["evening/comt/table3"]
    cells = [replace(cell, state="4 done, 1 diverged") if cell.row == "post-ln" else cell for cell in table.cells]
    monkeypatch.setitem(facts.tables, "evening/comt/table3", replace(table, cells=tuple(cells)))
    for row, beside in (("post-ln", "pre-ln+comt"), ("pre-ln+comt", "post-ln")):
        assert facts.cell("evening/comt/table3", row, beside).verdict is Verdict.diverged


@pytest.mark.parametrize("name", ["warm-up", "comt"])
def test_a_figure_can_be_drawn(facts, tmp_path, name):
    findings_figures.draw(name, findings_figures.figures(facts)[name], tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").stat().st_size > 10_000
