"""Networks of a few hundred numbers in the places of those that are measured, and the verb run on them."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from comt_cli.app import app
from comt_cli.lab import step, timing
from comt_cli.lab.subjects import subject_of

_LLAMA = {"size": "tiny", "width": 16, "ffn_width": 20, "layers": 2, "heads": 2}
_TRANSFORMER = {"size": "nano", "width": 16, "ffn_width": 20, "heads": 2, "encoder_layers": 1}
_RESNET = {"size": "resnet18", "stem": "3x3", "width": 4, "blocks": (1, 1)}
TINY: dict[str, tuple[dict, dict]] = {
    **dict.fromkeys(("bench", "smoke", "residual-bench"), (_LLAMA, {"vocabulary": 32, "sequence_length": 8})),
    "resnet18-b32": (_RESNET, {"images": "glyphs10", "size": 8}),
    "mt-bench": (_TRANSFORMER, {"vocabulary_size": 32, "batch_tokens": 24, "max_length": 24}),
    "caption-bench": (_TRANSFORMER, {"corpus": "mscoco", "vocabulary_size": 32}),
    "bert-bench": ({k: v for k, v in _LLAMA.items() if k != "layers"}, {"vocabulary": 32, "sequence_length": 20}),
}
"""By size: model and data."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small, uncompiled and timed in as many rounds as asked for."""
    for size, (model, data) in TINY.items():
        shapes = subject_of(size).shapes
        monkeypatch.setitem(shapes, size, replace(shapes[size], model=model, data=data, batch=2))
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    monkeypatch.setattr(timing, "PATIENCE", 0.0)
    monkeypatch.setattr(step, "PROMPT", 8)


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Result]:
    """`comt bench` with these arguments, in three rounds on the CPU, its results in `tmp_path`."""

    def run(verb: str, *arguments: str) -> Result:
        more = ["--results", str(tmp_path)]
        if verb != "page":
            more += ["--device", "cpu", *([] if "--rounds" in arguments else ["--rounds", "3"])]
        return CliRunner().invoke(app, ["bench", verb, *arguments, *more])

    return run


@pytest.fixture
def rows_of(tmp_path: Path) -> Callable[[str], list[dict[str, str]]]:
    """The rows of a page."""

    def read(name: str) -> list[dict[str, str]]:
        (path,) = (tmp_path / "bench").glob(f"*/{name}.csv")
        return list(csv.DictReader(path.read_text().splitlines()))

    return read
