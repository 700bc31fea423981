"""What a page does: its own scripts under Node.js, and the whole of it in Chromium. Skipped where these are missing."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import comt_cli.report.html.page as page_module
from comt_cli.report.html.page import write_page
from comt_cli.report.write import write_report

if TYPE_CHECKING:
    from conftest import Bench

NODE = shutil.which("node")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SCRIPTS = Path(page_module.__file__).parent
COMMITTED = Path(__file__).parents[3] / "results" / "index.html"

needs_node = pytest.mark.skipif(NODE is None, reason="needs Node.js")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


def in_node(expression: str) -> object:
    code = f"{(SCRIPTS / 'sort.js').read_text()}\nconsole.log(JSON.stringify({expression}));"
    done = subprocess.run([str(NODE), "-e", code], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


@needs_node
def test_numbers_that_cells_begin_with() -> None:
    cells = {
        "376.66 ± 0.14 (3) [1]": 376.66,
        "+229 [+163, +310]": 229,
        "-0.15": -0.15,
        "4,018": 4018,
        "+0.00 %": 0,
        "<1 %": 1,
        "1.7455e+12": 1.7455e12,
        "8.02 to 23.32": 8.02,
        "2.93x": 2.93,
        ".5": 0.5,
        "67604d2e80bf": None,
        "1-3": None,
        "not resolved": None,
        "-": None,
        "": None,
    }
    assert in_node(f"{json.dumps(list(cells))}.map(numberOf)") == list(cells.values())


@needs_node
def test_columns_are_sorted_by_number_or_by_word_and_empty_cells_come_last() -> None:
    numbers = ["10.5 (3)", "-", "-2", "1,000", "", "9.5 [1, 2]"]
    assert in_node(f"orderOf({json.dumps(numbers)}, false)") == [2, 5, 0, 3, 1, 4]
    assert in_node(f"orderOf({json.dumps(numbers)}, true)") == [3, 0, 5, 2, 1, 4]
    words = ["table10", "table9", "-", "Mix-LN", "2 %", "mix-ln"]
    assert in_node(f"orderOf({json.dumps(words)}, false)")[-1] == 2
    order = in_node(f"orderOf({json.dumps(words)}, false)")
    assert order.index(1) < order.index(0)  # table9 before table10
    assert in_node(f"orderOf({json.dumps(['same'] * 30)}, true)") == list(range(30))


@needs_node
def test_sorting_agrees_with_pythons() -> None:
    drawn = random.Random(1)
    columns = [
        [drawn.choice([round(drawn.uniform(-50, 50), 1), drawn.randint(0, 3)]) for _ in range(40)] for _ in range(20)
    ]
    found = in_node(
        f"{json.dumps([[str(value) for value in column] for column in columns])}.map((c) => orderOf(c, false))"
    )
    assert found == [sorted(range(40), key=column.__getitem__) for column in columns]


PROBE = """
<script>
// What a reader does, and what comes of it: written into the page's title.
const settle = () => new Promise((resolve) => setTimeout(resolve, 300));
addEventListener("load", async () => {
  const found = {};
  const table = document.querySelector("section.part table");
  const rows = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
  const heading = table.tHead.rows[0].cells[1];
  const states = [[heading.getAttribute("aria-sort"), rows()]];
  for (let click = 0; click < 3; click++) {
    heading.querySelector("button").click();
    states.push([heading.getAttribute("aria-sort"), rows()]);
  }
  found.states = states;
  const link = document.querySelector('a[href*="/run/"]');
  link.click();
  await settle();
  const target = document.getElementById(decodeURIComponent(link.hash.slice(1)));
  found.opened = target.closest("details").open;
  found.wide = document.documentElement.scrollWidth <= innerWidth;
  const place = document.querySelector(".curves");
  reached.disconnect();  // without a screen a browser may never see that a place is reached
  if (!place.querySelector(".plot")) showCurves(place);
  await settle();
  const texts = (row) => [...row.cells].map((cell) => cell.textContent);
  const legend = () => [...place.querySelectorAll(".legend tr")].map(texts);
  const curves = () => place.querySelectorAll(".plot path[stroke-width]").length;
  found.last = legend();
  const box = place.querySelector(".plot").getBoundingClientRect();
  const at = { clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, bubbles: true };
  place.querySelector(".plot").dispatchEvent(new PointerEvent("pointermove", at));
  found.pointed = legend();
  place.querySelector(".plot").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" }));
  found.moved = legend();
  found.curves = [curves()];
  for (let click = 0; click < 2; click++) {
    place.querySelector(".legend button").click();
    found.curves.push(curves());
  }
  found.ink = getComputedStyle(document.body).backgroundColor;
  document.title = "FOUND" + JSON.stringify(found) + "END";
});
</script>
"""


WHOLE_PAGE = """
<script>
// The committed page: every column of every table sorted, every plot drawn and pointed at.
addEventListener("load", () => {
  const found = { tables: 0, sorted: 0, plots: 0, legends: 0 };
  reached.disconnect();
  for (const table of document.querySelectorAll("table")) {
    const buttons = table.tHead ? [...table.tHead.querySelectorAll("button")] : [];
    found.tables += buttons.length > 0;
    for (const button of buttons) {
      button.click();
      found.sorted += button.closest("th").getAttribute("aria-sort") === "ascending";
    }
  }
  found.buttons = document.querySelectorAll("thead button").length;
  const places = document.querySelectorAll(".curves");
  found.places = places.length;
  for (const place of places) {
    if (!place.querySelector(".plot")) showCurves(place);
    const plot = place.querySelector(".plot");
    const box = plot.getBoundingClientRect();
    plot.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + 9, clientY: box.top + 9, bubbles: true }));
    found.plots += plot.querySelectorAll("path").length > 0;
    found.legends += place.querySelectorAll(".legend tr").length > 1;
  }
  found.wide = document.documentElement.scrollWidth <= innerWidth;
  document.title = "FOUND" + JSON.stringify(found) + "END";
});
</script>
"""


def in_chromium(page: Path, profile: Path, *more: str) -> dict[str, Any]:
    """What the page's probe found, with a phone's width; nothing may be said on the console."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr", "--dump-dom"]
    options += [f"--user-data-dir={profile}", "--window-size=500,800", "--virtual-time-budget=10000", *more]
    done = subprocess.run(
        [str(CHROMIUM), *options, page.resolve().as_uri()], capture_output=True, text=True, check=True, timeout=120
    )
    assert re.findall(r".*CONSOLE.*", done.stderr) == []
    found: dict[str, Any] = json.loads(re.search(r"FOUND(.*?)END", done.stdout)[1].replace("&amp;", "&"))
    return found


@needs_chromium
def test_the_committed_page_in_a_browser(tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    page.write_text(COMMITTED.read_text(encoding="utf-8").replace("</body>", f"{WHOLE_PAGE}</body>"), encoding="utf-8")
    found = in_chromium(page, tmp_path / "profile")
    assert found["tables"] > 30
    assert found["sorted"] == found["buttons"] > 300
    assert found["plots"] == found["legends"] == found["places"] > 10
    assert found["wide"], "the page itself scrolls sideways"


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_sorts_opens_and_shows_curves_without_a_complaint(mixed: Bench, scheme: str, tmp_path: Path) -> None:
    for spec in mixed.specs():
        folder = mixed.runs / "by-id" / spec.id
        folder.mkdir(parents=True, exist_ok=True)
        logs = [{"step": step, "loss": spec.seed + 100 / step} for step in (50, 100, 150)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in logs))
    write_report(mixed.loaded(), mixed.specs(), mixed.runs, mixed.results)
    page = write_page(mixed.results, mixed.runs)
    page.write_text(page.read_text().replace("</body>", f"{PROBE}</body>"))
    found = in_chromium(
        page, tmp_path / "profile", f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"
    )
    (_, written), (up, ascending), (down, descending), (none, again) = found["states"]
    assert (up, down, none) == ("ascending", "descending", None)
    assert written == again == ["post-ln", "pre-ln", "pre-ln+comt", "pre-ln+own"]
    assert ascending != descending
    assert sorted(ascending) == sorted(written)
    assert found["opened"]
    assert found["wide"], "the page itself scrolls sideways"
    steps = [found[moment][0][1] for moment in ("last", "pointed", "moved")]
    assert steps == ["step 150", "step 100", "step 50"]
    assert ["pre-ln (3)", "3 (2 to 4)"] in found["pointed"]
    assert found["curves"] == [4, 3, 4], "a click on a name hides its curve, another shows it"
    assert found["ink"] == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 28)"}[scheme]
