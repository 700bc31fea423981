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
    """A recipe of mine, as JSON, which is YAML: a row for each method, or what a row says, the first
    of them the baseline; and `more` keys."""
    rows = {
        row: {"in_paper": False} | (each if "method" in each else {"method": each}) for row, each in methods.items()
    }
    said = {"title": table, "paper": "mine", "table": table, "command": "train-lm", "baseline": next(iter(methods))}
    shape = {"seeds": [1], "columns": {"tiny": {}}, "scales": {"smoke": {"description": "Small"}}}
    return json.dumps({**said, **shape, "settings": TEXT, "rows": rows, **more}, indent=1)


def quick_recipe(table: str, corpus: str, methods: dict[str, Any], train: dict[str, Any], **more: Any) -> str:
    """A recipe whose runs take seconds: of a LLaMA of width 32, on padded documents as bytes."""
    data = {"corpus": corpus, "tokenizer": "bytes", "rows": "pad", "sequence_length": 48, "validation_fraction": 0.2}
    model = {"size": "tiny", "width": 32, "ffn_width": 48, "layers": 2, "heads": 2}
    settings = {"model": model, "data": data, "train": {"batch_size": 8, "kernels": "reference", **train}}
    return recipe(table, methods, settings=settings, **more)
