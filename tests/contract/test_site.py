"""The site of documentation: what is generated for it, and that the links of its pages lead to pages of it."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path

import pytest

from comt_cli.app import VERBS
from comt_cli.methods import methods

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # docs/ is no part of the package

from docs.site import build, commands, drawing, gallery  # noqa: E402

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def page() -> str:
    return gallery.page()


def test_every_method_has_a_card_and_two_builds_are_equal(page):
    cards = re.findall(r"^### (\S+) ", page, re.MULTILINE)
    assert sorted(cards) == sorted(methods())
    for function in vars(gallery).values():
        if hasattr(function, "cache_clear") and function.__module__ == gallery.__name__:
            function.cache_clear()
    assert gallery.page() == page


@pytest.mark.parametrize("name", methods())
def test_a_card_has_an_equation_a_drawing_and_what_one_asks_first(page, name):
    (card,) = re.findall(rf"^### {re.escape(name)} .*?(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    assert re.search(r"^\$\$[^$]+\$\$$", card, re.MULTILINE)
    assert "<svg" in card
    rows = re.findall(r"^\| ([a-z ]+) \| (.+) \|$", card, re.MULTILINE)
    asked = [
        "networks",
        "options",
        "deviations",
        "at the start",
        "cost",
        "result",
        "in a recipe",
        "in your model",
        "code",
    ]
    assert [row for row, _ in rows] == asked


def test_cards_show_what_was_measured(page):
    """Of CoMT: its row of the tuned table, what a step costs, how it starts, and that it can be put into a model."""
    (card,) = re.findall(r"^### comt \{.*?(?=^##)", page, re.MULTILINE | re.DOTALL)
    assert re.search(r"result \| -20\.9 % .*5 seeds: better.*modern-sweep", card)
    assert re.search(r"cost \| \+0\.68 % parameters, 1\.0\d times the FLOPs, 1\.\d+ times the time", card)
    assert re.search(r"at the start \| 0\.8 from Pre-LN", card)
    assert '`wrap(model, "comt")`' in card


@pytest.mark.parametrize(
    ("name", "changed"),
    [("comt", "q_proj"), ("sdpa-gate", "sdpa"), ("comt-pixel", "norm1"), ("transponder-path", "attention gate"),
     ("dyt", "norm"), ("sas", "+")],
)  # fmt: skip
def test_a_drawing_marks_what_a_method_changes(name, changed):
    marked = r'class="changed"[^>]*/><text [^>]*>([^<]+)'
    assert changed in re.findall(marked, drawing.block(gallery.wiring_of(name), methods()[name]))
    assert not re.findall(marked, drawing.block(gallery.wiring_of("pre-ln"), methods()["pre-ln"]))


def test_the_reference_has_every_command_with_its_options():
    found = re.findall(r"^## comt (\S+)", commands.page(), re.MULTILINE)
    assert sorted({*found}) == sorted(VERBS)
    (show,) = re.findall(r"^## comt show\n.*?(?=^## )", commands.page(), re.MULTILINE | re.DOTALL)
    assert "comt show table3\n" in show
    assert "| `--plan-for GPU` |" in show


def test_links_lead_to_pages_of_the_site(tmp_path):
    sources = [*build.committed_pages()]
    places = {build.place_of(source) for source in sources} | {*build.GENERATED}
    for source in sources:
        text = build.with_links((ROOT / source).read_text(encoding="utf-8"), source, tmp_path)
        text = build.CODE.sub("", build.FENCE.sub("", text))
        for _, target, _ in build.LINK.findall(text):
            if not re.match(r"[a-z]+:|#", target):
                name = posixpath.join(posixpath.dirname(build.place_of(source)), target.partition("#")[0])
                name = posixpath.normpath(name)
                assert name in places or (tmp_path / name).exists() or (ROOT / name).is_dir(), (source, target)


def test_formulas_become_mathml_and_code_stays(tmp_path):
    pytest.importorskip("latex2mathml")
    text = build.with_links("$$x^2$$ `$$y$$`\n```\n$$z$$\n```\n", None, tmp_path)
    assert "<math" in text
    assert "<msup>" in text
    assert "`$$y$$`" in text
    assert "\n$$z$$\n" in text
