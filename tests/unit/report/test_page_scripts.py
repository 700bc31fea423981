"""The page in Chromium. Skipped where that is missing."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
COMMITTED = Path(__file__).parents[3] / "results" / "index.html"


PROBE = """<script>addEventListener("load", async () => {
  const found = { height: document.documentElement.scrollHeight };
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
    assert found["height"] < 12_000
    assert (found["hit"], found["wide"]) == ("mix-ln", False)
