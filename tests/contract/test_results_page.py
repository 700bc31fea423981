"""`results/index.html` is what `comt report --html --results results` makes of the committed results."""

from __future__ import annotations

import base64
import io
import re
from itertools import pairwise
from pathlib import Path

import pytest
from page_reading import dead_links, loads, read
from PIL import Image, ImageChops, ImageStat

from comt_cli.report.html import prose
from comt_cli.report.html.page import page_text

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"

COMMITTED = (RESULTS / "index.html").read_text(encoding="utf-8")
PAYLOAD = re.compile(r'(?<=src="data:image/webp;base64,)[^"]*')
WITHOUT_PIXELS = PAYLOAD.sub("", COMMITTED)
LARGEST = 5_000_000


def unpacked(png: bytes) -> tuple[str, int, int]:
    """A figure without its bytes, which are libwebp's, and may be others with another version of it."""
    with Image.open(io.BytesIO(png)) as image:
        return "data:image/webp;base64,", *prose.size_on_page(image.size)


def test_the_page_is_todays(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(prose, "embedded", unpacked)
    made = page_text(Path("results")).splitlines()
    committed = WITHOUT_PIXELS.splitlines()
    other = [(ours, theirs) for ours, theirs in zip(made, committed, strict=False) if ours != theirs]
    assert other[:3] == [], "comt report --html --results results writes it anew"
    assert len(made) == len(committed)


@pytest.mark.slow
def test_every_figure_is_on_it_and_looks_as_it_should():
    sources = [attributes["data-source"] for tag, attributes in read(WITHOUT_PIXELS).elements if tag == "img"]
    shown = dict(zip(sources, PAYLOAD.findall(COMMITTED), strict=True))
    files = {path.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("*.png")}
    assert set(shown) == files
    for name in sorted(files):
        with Image.open(RESULTS / name) as file, Image.open(io.BytesIO(base64.b64decode(shown[name]))) as embedded:
            paper = Image.new("RGBA", file.size, "white")
            paper.alpha_composite(file.convert("RGBA"))
            scaled = paper.convert("RGB").resize(embedded.size, Image.Resampling.LANCZOS)
            apart = ImageStat.Stat(ImageChops.difference(scaled, embedded.convert("RGB"))).mean
        assert max(apart) < 8, name  # of 255


def test_it_has_every_table_and_main_result():
    text = read(WITHOUT_PIXELS)
    ids = set(text.ids())
    tables = [path for path in RESULTS.glob("*/*/*.md") if path.with_name(f"{path.stem}-runs.csv").exists()]
    assert tables
    assert {path.relative_to(RESULTS).with_suffix("").as_posix() for path in tables} - ids == set()
    assert len(ids) == len(text.ids())
    tiles = [attributes for tag, attributes in text.elements if (attributes.get("class") or "").startswith("tile ")]
    assert len(tiles) == len((RESULTS / "highlights.csv").read_text(encoding="utf-8").splitlines()) - 1


def test_it_needs_nothing_else_and_its_links_lead_somewhere():
    assert loads(WITHOUT_PIXELS) == []
    assert dead_links(WITHOUT_PIXELS, RESULTS) == []
    assert len(COMMITTED) < LARGEST
    assert str(ROOT) not in COMMITTED
    levels = read(WITHOUT_PIXELS).levels()
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
