"""CSV as everything here writes it."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from comt_cli.report import format

GRID = "grid."
"""How the columns begin that have the values of a grid's keys."""


def csv_text(lines: Sequence[Mapping[str, Any]], digits: int = 8) -> str:
    """At least one line as CSV under its keys; see `format.machine` for the numbers."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(lines[0])
    writer.writerows([format.machine(value, digits) for value in line.values()] for line in lines)
    return text.getvalue()
