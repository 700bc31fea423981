"""METEOR and SPICE, which are Java programs that pycocoevalcap carries (the extra `caption-metrics`).

They get the words of `captions.words_of`, as COCO's evaluation gives them its own. Nothing is downloaded: SPICE needs
Stanford's CoreNLP 3.6, which pycocoevalcap would fetch into its own folder at first use.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from comt_cli.data.storage import first_line
from comt_cli.scoring.captions import words_of

JAVA_METRICS = ("meteor", "spice")
_CORENLP = "spice/lib/stanford-corenlp-3.6.0.jar"


def java_scores(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[dict[str, float], dict[str, str]]:
    """The scores of one caption an image, times 100, and for each of `JAVA_METRICS` that is missing why it is.

    METEOR takes a quarter of a minute to start. A caption without a word is given to it as a dot, since an empty line
    stops it.
    """
    found, reasons = {}, {}
    for name in JAVA_METRICS:
        if reason := why_missing(name):
            reasons[name] = reason
            continue
        captions = {number: [" ".join(words_of(text)) or "."] for number, text in enumerate(hypotheses)}
        truths = {number: [" ".join(words_of(text)) for text in texts] for number, texts in enumerate(references)}
        try:
            found[name] = 100 * _run(name, truths, captions)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            reasons[name] = f"{name} failed: {first_line(error)}"
    return found, reasons


def why_missing(name: str) -> str | None:
    """Missing requirement of a metric, in a few words for a table's cell; None where nothing is missing."""
    if shutil.which("java") is None:
        return "needs Java"
    package = find_spec("pycocoevalcap")
    if package is None or not package.submodule_search_locations:
        return "needs comt[caption-metrics]"
    if name == "spice" and not (Path(package.submodule_search_locations[0]) / _CORENLP).exists():
        return "needs Stanford CoreNLP 3.6"
    return None


def _run(name: str, truths: Mapping[int, list[str]], captions: Mapping[int, list[str]]) -> float:
    scorer: Any = getattr(import_module(f"pycocoevalcap.{name}.{name}"), name.capitalize())()
    return float(scorer.compute_score(truths, captions)[0])
