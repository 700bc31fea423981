"""What a page does: its sorting under Node.js, and the whole in Chromium. Skipped where these are missing."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest

import comt_cli.report.html.page as page_module

NODE = shutil.which("node")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
COMMITTED = Path(__file__).parents[3] / "results" / "index.html"


def in_node(expression: str) -> object:
    script = (Path(page_module.__file__).parent / "page.js").read_text().partition("document.documentElement")[0]
    code = f"{script}\nconsole.log(JSON.stringify({expression}));"
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


PROBE = """<script>addEventListener("load", async () => {
  const buttons = [...document.querySelectorAll("thead button")], head = (button) => button.closest("th");
  const found = { buttons: buttons.length, sorted: 0, height: document.documentElement.scrollHeight };
  for (const button of buttons) {
    button.click();
    found.sorted += head(button).getAttribute("aria-sort") === "ascending";
  }
  search.value = "MIX-ln table3";
  search.dispatchEvent(new Event("input"));
  document.querySelector("#comt-found .hit").click();
  await new Promise((resolve) => setTimeout(resolve, 200));
  found.hit = document.querySelector("tr.hit").cells[0].textContent;
  for (const each of document.querySelectorAll("details")) each.open = true;
  found.wide = document.documentElement.scrollWidth > innerWidth;
  document.title = "FOUND" + JSON.stringify(found) + "END";
});</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_committed_page_in_a_browser_as_narrow_as_it_gets(tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    page.write_text(COMMITTED.read_text(encoding="utf-8").replace("</body>", PROBE), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr", "--dump-dom"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=500,800", "--virtual-time-budget=10000"]
    command = [str(CHROMIUM), *options, page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "CONSOLE" not in done.stderr
    found = json.loads(done.stdout.partition("FOUND")[2].partition("END")[0].replace("&amp;", "&"))
    assert found["sorted"] == found["buttons"] > 300
    assert found["height"] < 12_000
    assert (found["hit"], found["wide"]) == ("mix-ln", False)
