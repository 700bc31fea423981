"""comt_cli/methods/README.md lists all methods, with the first line of each file; results/diagnose measures them.

python tests/contract/test_methods_page.py --write
"""

from __future__ import annotations

import csv
import inspect
import sys
from pathlib import Path

from comt_cli.methods import methods
from comt_cli.tasks import task_of

PAGE = Path(__file__).parents[2] / "comt_cli" / "methods" / "README.md"
HEAD = """\
# The methods

One file per method, with paper, equation, options and deviations at the top. `comt recipes NAME` lists the recipes that
use it. Any gate works with any residual connection. [How to add a method](../../CONTRIBUTING.md#add-a-method).
[Before you implement one](../../results/diagnose/start.md): its initial values, and what 20 updates change.

| method | in | what it is |
| --- | --- | --- |
"""
NETWORKS = {
    "train-lm": "language models",
    "train-resnet": "ResNets",
    "train-mt": "translators",
    "train-caption": "captioners",
    "train-bert": "BERTs",
}


def page() -> str:
    """The whole page."""
    lines = []
    for name, method in sorted(methods().items()):
        file = Path(inspect.getfile(method)).name
        (what, *_) = (inspect.getmodule(method).__doc__ or "").splitlines()
        networks = ", ".join(words for command, words in NETWORKS.items() if method.fits(task_of(command).sites))
        text = what.rstrip(".").replace("|", r"\|").replace("*", r"\*")
        lines.append(f"| [`{name}`]({file}) | {networks} | {text} |\n")
    return HEAD + "".join(lines)


def test_the_page_lists_the_methods_that_there_are():
    assert PAGE.read_text(encoding="utf-8") == page(), "python tests/contract/test_methods_page.py --write"


def test_every_method_is_diagnosed():
    with (PAGE.parents[2] / "results/diagnose/start.csv").open(encoding="utf-8", newline="") as handle:
        diagnosed = {line["method"].split(" (")[0] for line in csv.DictReader(handle)}
    assert {*methods()} <= diagnosed, "comt diagnose --connections none --results results"


if __name__ == "__main__" and "--write" in sys.argv:
    PAGE.write_text(page(), encoding="utf-8")
