"""The documentation site: its generated pages, the links of every page, and the built pages if Zensical is there."""

from __future__ import annotations

import csv
import importlib.util
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

import comt_cli
from comt_cli import layers
from comt_cli.app import VERBS
from comt_cli.methods import methods

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # docs/ is no part of the package

pytest.importorskip("transformers")

from docs.site import build, drawing, gallery, reference  # noqa: E402

FACTS = ["Networks", "Options", "Deviations from the paper", "Cost", "Result", "In a recipe", "In your model", "Code"]


@pytest.fixture(scope="module")
def page() -> str:
    return gallery.page()


@pytest.fixture(scope="module")
def texts(page) -> dict[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(build.GENERATED, "methods/index.md", lambda: page)
        return build.sources()


@pytest.fixture(scope="module")
def card(page) -> Callable[[str], str]:
    found = {
        match[1]: match[0] for match in re.finditer(r"^### (\S+) \{.*?(?=^###? |\Z)", page, re.MULTILINE | re.DOTALL)
    }
    return found.__getitem__


def test_every_method_has_a_card(page):
    assert sorted(re.findall(r"^### (\S+) \{", page, re.MULTILINE)) == sorted(methods())


def test_every_family_and_every_result_is_in_a_list_at_the_top(page):
    family, result = page.split("\n## ")[1:3]
    assert sorted(re.findall(r"\[(\S+)\]\(#", family)) == sorted(methods())
    measured = {name for name in methods() if gallery.result_of(name)}
    assert {*re.findall(r"\[(\S+)\]\(#", result)} == measured
    for table in result.split("\n### ")[1:]:  # the best first
        gains = [float(number) for number in re.findall(r"\| ([+-][\d.]+) (?:%|points) ", table)]
        assert gains == sorted(gains, reverse="Higher is better" in table)


@pytest.mark.parametrize("name", methods())
def test_a_card_has_an_equation_a_drawing_and_every_fact(card, name):
    text = card(name)
    assert re.search(r"^\$\$[^$]+\$\$$", text, re.MULTILINE)
    assert re.search(r"<svg [^>]*><title>[^<]+</title>.*<figcaption>[^<]+\.</figcaption>", text, re.DOTALL)
    assert re.findall(r"^(\S.*)\n:   \S", text, re.MULTILINE) == FACTS
    assert "asleep" not in text


def test_cards_quote_the_committed_tables(card):
    with (ROOT / f"results/{gallery.SWEEP}.csv").open(encoding="utf-8", newline="") as handle:
        line = next(line for line in csv.DictReader(handle) if line["row"] == "pre-ln+comt")
    number, low, high = (float(line[key]) for key in ("difference_percent", "interval_low", "interval_high"))
    text = card("comt")
    assert f"{number:+.3g} % \\[{low:+.3g}, {high:+.3g}\\] in test perplexity against pre-ln; " in text
    assert f"{line['n']} seeds, scale evening; verdict: {line['verdict']} (" in text
    assert re.search(r"\+0\.68 % parameters, 1\.0\d times the FLOPs, 1\.\d+ times the time", text)
    assert '`wrap(model, "comt")`' in text
    assert "against transponder; " in card("transponder-path")  # its table has that baseline
    assert "evening/sas/table3]" in card("sas")  # the table with the paper's value
    assert "scale smoke" not in card("layernorm-scaling")


@pytest.mark.parametrize("name", methods())
def test_every_card_ends_with_what_an_implementation_needs(card, name):
    """A row of the table for every new parameter, with the numbers of the committed CSV files."""
    _, heading, section = card(name).partition(
        f"\n#### Before you implement it {{ #before-{gallery.anchor(name)} }}\n\n"
    )
    assert heading
    assert "####" not in section
    rows = [each for each in lines("start") if each["method"].split(" (")[0] == name]
    rows.sort(key=lambda each: each["method"] != name)  # the one without options is said first
    line = rows[0]
    assert section.count("- Start") == len(rows)
    distances = re.findall(r"^- Start.*: logits differ from .+'s by (\S+) % of their norm", section, re.MULTILINE)
    assert distances == [per_cent(each["difference"]) for each in rows if float(each["difference"]) >= 1e-6]
    for key, said in (("overwritten", "the logits at the start change by"), ("effect", "their start changes them by")):
        expected = [per_cent(line[key])] if line["own"] != "0" else []
        assert re.findall(rf"{said} (\S+) %\.", section) == expected
    shown = [cells.split(" | ") for cells in re.findall(r"^\| (`.*) \|$", section, re.MULTILINE)]
    assert shown == [
        [f"`{each['parameter']}`", each["start"], each["tensors"], each["without_gradient"],
         f"{per_cent(each['effect'])} %"]
        for each in lines("parameters") if each["method"] == line["method"]
    ]  # fmt: skip


def per_cent(share: str) -> str:
    return f"{100 * float(share):.3g}"


def lines(stem: str) -> list[dict[str, str]]:
    with (ROOT / f"results/diagnose/{stem}.csv").open(encoding="utf-8", newline="") as handle:
        return [*csv.DictReader(handle)]


def test_what_is_said_before_an_implementation(card, tmp_path):
    text = card("mhc")
    assert "- Start: logits equal Pre-LN's to rounding. Stated in the paper: nothing.\n" in text
    assert "- Start of `mhc (start mhc-lite)`: logits differ from Pre-LN's by 27.2 % of their norm.\n" in text
    assert "- Inactive after 20 updates: the differences between the streams, the mixing of the streams.\n" in text
    assert "- Inactive after 20 updates: `A_m` (1 of 8).\n" in card("hyper-connections")
    assert "- Inactive after 20 updates: none.\n" in card("comt")
    assert "- Factors at the start: gate 0.12 ± 0.00024.\n" in card("highway")
    assert "logits differ from plain addition's by" in card("sas-resnet")
    assert "- No parameters of its own.\n" in card("post-ln")
    for stem in ("start", "parameters"):  # of other methods
        kept = [line for line in (ROOT / f"results/diagnose/{stem}.csv").read_text(encoding="utf-8").splitlines(True)
                if not line.startswith("mhc")]  # fmt: skip
        (tmp_path / f"{stem}.csv").write_text("".join(kept), encoding="utf-8")
    (said,) = gallery.before("mhc", tmp_path)
    assert said == "Not measured. `comt diagnose --connections none --results results` measures every method."


@pytest.mark.parametrize(
    ("name", "changed"),
    [("comt", "q_proj"), ("sdpa-gate", "sdpa"), ("comt-pixel", "norm1"), ("transponder-path", "gate"), ("dyt", "norm"),
     ("layernorm-scaling", "norm"), ("sas", "+"), ("lime", "k_proj"), ("wider", "up_proj")],
)  # fmt: skip
def test_a_drawing_marks_the_changed_parts(name, changed):
    assert changed in re.findall(r'<text [^>]*class="changed">([^<]+)', drawn(name))
    assert 'class="changed"' not in drawn("pre-ln")
    assert 'class="changed"' not in drawn("addition")


@pytest.mark.parametrize(
    ("name", "places"),
    [("pre-ln", "norm down_proj +"), ("post-ln", "down_proj + norm"), ("sandwich-ln", "norm down_proj norm +"),
     ("keel", "norm down_proj + norm"), ("rezero", "down_proj +"), ("deepnorm", "down_proj + norm")],
)  # fmt: skip
def test_norms_are_drawn_where_the_connection_calls_them(name, places):
    mlp = drawn(name).rpartition("<svg ")[2]
    placed = sorted((float(x), text) for x, text in re.findall(r'<text x="([\d.]+)"[^>]*class[^>]*>([^<]+)', mlp))
    assert " ".join(text for _, text in placed if text not in ("gate_proj", "up_proj")) == places


def test_both_kinds_of_block_are_drawn_where_they_differ():
    assert drawn("mix-ln").count(">First block<") == drawn("mix-ln").count(">Last block<") == 2
    assert "4 streams" in drawn("mhc")
    assert "with earlier layers" in drawn("denseformer")
    assert "initialisation of o_proj, down_proj" in drawn("scaled-init")


def drawn(name: str) -> str:
    return drawing.block(name, gallery.wiring_of(name), methods()[name])


def test_the_reference_has_every_command_with_its_options():
    text = reference.command_page()
    assert sorted({*re.findall(r"^### comt (\S+)", text, re.MULTILINE)}) == sorted(VERBS)
    (show,) = re.findall(r"^### comt show\n.*?(?=^##)", text, re.MULTILINE | re.DOTALL)
    assert "\ncomt show table3" in show  # test_docs.py checks the examples of every command
    assert "| `--plan-for GPU` |" in show
    assert "```bash\n```" not in text


def test_the_api_page_has_every_public_name():
    text = reference.api_page()
    for package, names in (("comt_cli", {*comt_cli.__all__} - {"__version__"}), ("comt_cli.layers", layers.__all__)):
        assert {*names} <= {*re.findall(rf"heading: {package}\.(\w+)\n", text)}
    assert "comt_cli.__version__" in text


def test_links_lead_to_pages_of_the_site(tmp_path, texts, monkeypatch):
    monkeypatch.setattr(build, "mathml", str)  # which needs a package of the documentation
    places = {*map(build.place_of, texts)}
    for source, given in texts.items():
        text = build.with_links(given, source, tmp_path)
        text = build.CODE.sub("", build.FENCE.sub("", text))
        for _, target, _ in build.LINK.findall(text):
            if not re.match(r"[a-z]+:|#", target):
                name = posixpath.join(posixpath.dirname(build.place_of(source)), target.partition("#")[0])
                name = posixpath.normpath(name)
                assert name in places or (tmp_path / name).exists(), (source, target)


def test_the_navigation_has_every_page(tmp_path, texts):
    """Absent pages are left out, and folders are expanded."""
    places = {*map(build.place_of, texts)}
    for place in places:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch()
    text = (ROOT / "docs/site/mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    listed = re.findall(r"(\S+\.md)$", build.navigation(text, tmp_path), re.MULTILINE)
    assert len(listed) == len({*listed})
    assert {*listed} == places
    assert listed.index("results/evening/sas/index.md") < listed.index("results/evening/sas/table3.md")


def test_formulas_become_mathml_and_code_stays(tmp_path):
    pytest.importorskip("latex2mathml")
    text = build.with_links("$$x^2$$ `$$y$$`\n```\n$$z$$\n```\n", "docs/x.md", tmp_path)
    assert "<math" in text
    assert "<msup>" in text
    assert "`$$y$$`" in text
    assert "\n$$z$$\n" in text


class Read(HTMLParser):
    """Anchors, links, fetched addresses and headings of a page, and the pictures that have no text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = {""}
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.headings: list[int] = []
        self.silent: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = {key: value or "" for key, value in attrs}
        self.anchors |= {given[key] for key in ("id", "name") if key in given}
        self.links += [given["href"]] if tag == "a" and "href" in given else []
        self.fetched += [given["src"]] if "src" in given else []
        self.fetched += (
            [given["href"]] if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload") else []
        )
        self.headings += [int(tag[1])] if re.fullmatch("h[1-6]", tag) else []
        self.silent += [given.get("src", "")] if tag == "img" and not given.get("alt") else []


@pytest.fixture(scope="module")
def html(tmp_path_factory, texts) -> dict[str, Read]:
    """A site built by another process, whose generated pages have the same bytes as those of this one."""
    if importlib.util.find_spec("zensical") is None:
        pytest.skip("zensical is not installed: make docs installs it")
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "PYTHONHASHSEED": "1"}  # where sets have another order
    subprocess.run([sys.executable, ROOT / "docs/site/build.py", folder], env=environment, check=True)
    for name in build.GENERATED:
        text = build.with_links(texts[f"docs/{name}"], f"docs/{name}", tmp_path_factory.mktemp("files"))
        assert (folder / "pages" / name).read_text(encoding="utf-8") == text
    found = {path.relative_to(folder / "html").as_posix(): Read(path) for path in (folder / "html").rglob("*.html")}
    for path in (folder / "html").rglob("*"):
        if path.is_file():
            found.setdefault(path.relative_to(folder / "html").as_posix(), None)
    styles = "".join(path.read_text(encoding="utf-8") for path in (folder / "html").rglob("*.css"))
    shutil.rmtree(folder)
    assert not re.search(r"url\(['\"]?(https?:)?//", styles)
    return found


@pytest.mark.slow
def test_the_built_site_is_whole(html):
    """Links and anchors lead somewhere, nothing is fetched from elsewhere, headings skip no level."""
    pages = {name: read for name, read in html.items() if read is not None and not name.startswith("files/")}
    wrong = []
    for name, read in pages.items():
        for target in read.links:
            if re.match(r"[a-z]+:|//", target) or name == "404.html":
                continue
            path, _, anchor = target.partition("#")
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
            if path not in html or (anchor and html[path] is not None and anchor not in html[path].anchors):
                wrong.append((name, target))
        wrong += [(name, each) for each in read.fetched if re.match(r"https?:|//", each)]
        wrong += [(name, f"picture {each} without a text") for each in read.silent]
        wrong += [(name, pair) for pair in zip(read.headings, read.headings[1:], strict=False) if pair[1] > pair[0] + 1]
    assert wrong == []
    assert {*pages} >= {"index.html", "methods/index.html", "api.html", "commands-reference.html"}
