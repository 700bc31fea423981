"""Recipes of a few rows, as text."""

from __future__ import annotations

import json
from typing import Any

TEXT = {
    "model": {"size": "tiny"},
    "data": {"corpus": "files:*.txt", "tokenizer": "bytes", "sequence_length": 64},
    "train": {"steps": 1},
}
"""Settings of a short training on the texts of the current folder."""


def recipe(table: str, methods: dict[str, Any], **more: Any) -> str:
    """A recipe of mine, as JSON, which is YAML: a row for each method, the first is the baseline; and `more` keys."""
    rows = {row: {"method": method, "in_paper": False} for row, method in methods.items()}
    said = {"title": table, "paper": "mine", "table": table, "command": "train-lm", "baseline": next(iter(methods))}
    shape = {"seeds": [1], "columns": {"tiny": {}}, "scales": {"smoke": {"description": "Small"}}}
    return json.dumps({**said, **shape, "settings": TEXT, "rows": rows, **more}, indent=1)
