"""What a page does: its sorting under Node.js, and the whole of it in Chromium. Skipped where these are missing."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import comt_cli.report.html.page as page_module

NODE = shutil.which("node")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
COMMITTED = Path(__file__).parents[3] / "results" / "index.html"


def in_node(expression: str) -> object:
    code = (Path(page_module.__file__).parent / "sort.js").read_text() + f"\nconsole.log(JSON.stringify({expression}));"
    done = subprocess.run([str(NODE), "-e", code], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


@pytest.mark.skipif(NODE is None, reason="needs Node.js")
def test_columns_are_sorted_by_number_or_by_word_and_empty_cells_come_last() -> None:
    cells = {"376.66 ± 0.14 (3) [1]": 376.66, "+229 [+163, +310]": 229, "-0.15": -0.15, "4,018": 4018, "+0.00 %": 0,
             "<1 %": 1, "1.7455e+12": 1.7455e12, "8.02 to 23.32": 8.02, "2.93x": 2.93, ".5": 0.5, "67604d2e80bf": None,
             "1-3": None, "not resolved": None, "-": None}  # fmt: skip
    assert in_node(f"{json.dumps(list(cells))}.map(numberOf)") == list(cells.values())
    numbers = ["10.5 (3)", "-", "-2", "1,000", "", "9.5 [1, 2]"]
    assert in_node(f"orderOf({json.dumps(numbers)}, false)") == [2, 5, 0, 3, 1, 4]
    assert in_node(f"orderOf({json.dumps(numbers)}, true)") == [3, 0, 5, 2, 1, 4]
    order = in_node(f"orderOf({json.dumps(['table10', 'table9', '-', 'Mix-LN', '2 %', 'mix-ln'])}, false)")
    assert isinstance(order, list)
    assert order.index(1) < order.index(0)
    assert order[-1] == 2
    column = [random.Random(1).randint(-9, 9) for _ in range(40)]
    assert in_node(f"orderOf({json.dumps([*map(str, column)])}, false)") == sorted(range(40), key=column.__getitem__)


PROBE = """<script>
const settle = () => new Promise((resolve) => setTimeout(resolve, 200));
addEventListener("load", async () => {
  const found = { sorted: 0, open: document.querySelectorAll("main details[open] > details[open]").length };
  for (const button of document.querySelectorAll("thead button")) {
    button.click();
    found.sorted += button.closest("th").getAttribute("aria-sort") === "ascending";
  }
  found.buttons = document.querySelectorAll("thead button").length;
  found.height = document.documentElement.scrollHeight;
  document.getElementById("comt-menu").click();
  found.menu = getComputedStyle(document.getElementById("comt-contents")).display;
  search.value = "MIX-ln table3";
  search.dispatchEvent(new Event("input"));
  const hit = document.querySelector("#comt-found .hit");
  found.hit = hit.textContent;
  hit.click();
  await settle();
  const row = document.querySelector("tr.hit"), box = row.getBoundingClientRect();
  found.seen = [row.cells[0].textContent, box.top > 0 && box.bottom < innerHeight];
  location.hash = "#scale/smoke";
  await settle();
  found.parts = document.getElementById("scale/smoke").querySelector(".parts").open;
  for (const each of document.querySelectorAll("details")) each.open = true;
  found.wide = document.documentElement.scrollWidth <= innerWidth;
  found.lines = [...document.querySelectorAll("polyline")].map((line) => getComputedStyle(line).stroke);
  found.ground = getComputedStyle(document.body).backgroundColor;
  document.title = "FOUND" + JSON.stringify(found) + "END";
});
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize(("scheme", "ground"), [(0, "rgb(21, 24, 28)"), (1, "rgb(255, 255, 255)")])
def test_the_committed_page_in_a_browser_as_narrow_as_it_gets(tmp_path: Path, scheme: int, ground: str) -> None:
    page = tmp_path / "index.html"
    page.write_text(COMMITTED.read_text(encoding="utf-8").replace("</body>", PROBE), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr", "--dump-dom"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=500,800", "--virtual-time-budget=10000"]
    options += [f"--blink-settings=preferredColorScheme={scheme}", page.resolve().as_uri()]
    done = subprocess.run([str(CHROMIUM), *options], capture_output=True, text=True, check=True, timeout=120)
    assert re.findall(r".*CONSOLE.*", done.stderr) == []
    found = json.loads(re.search(r"FOUND(.*?)END", done.stdout)[1].replace("&amp;", "&"))  # type: ignore[index]
    assert found["sorted"] == found["buttons"] > 300
    assert found["height"] < 12_000
    assert found["menu"] == "block"
    assert found["hit"].startswith("mix-ln")
    assert found["seen"] == ["mix-ln", True]
    assert found["parts"]
    assert found["wide"], "the page itself scrolls sideways"
    assert found["lines"]
    assert "none" not in found["lines"], "the style hides a learning curve"
    assert found["ground"] == ground
