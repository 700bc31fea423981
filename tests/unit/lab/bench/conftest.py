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
from comt_cli.lab.bench import decode, decode_translation, rounds
from comt_cli.lab.bench.shapes import (
    BERTS,
    CAPTIONERS,
    CONNECTED,
    LLAMAS,
    RESNETS,
    TRANSLATORS,
    bert,
    captioner,
    llama,
    resnet,
    translator,
)

TINY_LLAMA = llama("bench", 16, 20, 2, 2, vocabulary=32, batch=2, length=8)
TINY_RESNET = resnet("resnet18-b32", "resnet18", pixels=8, batch=2, width=4, blocks=(1, 1))
TINY_TRANSLATOR = translator(
    "mt-bench",
    {"size": "nano", "width": 16, "ffn_width": 20, "heads": 2, "encoder_layers": 1},
    vocabulary=32,
    batch=2,
    tokens=24,
)
TINY_CAPTIONER = captioner(
    "caption-bench",
    {"size": "nano", "width": 16, "ffn_width": 20, "heads": 2, "encoder_layers": 1},
    vocabulary=32,
    batch=2,
)
TINY_BERT = bert(
    "bert-bench", {"size": "tiny", "width": 16, "ffn_width": 20, "heads": 2}, vocabulary=32, batch=2, length=20
)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small, uncompiled and timed in as many rounds as asked for: what the compiler makes of a model is tested where
    models are, and waiting for times to settle in test_rounds.py."""
    for name in ("bench", "smoke"):
        monkeypatch.setitem(LLAMAS, name, TINY_LLAMA)
    monkeypatch.setitem(RESNETS, "resnet18-b32", TINY_RESNET)
    monkeypatch.setitem(TRANSLATORS, "mt-bench", TINY_TRANSLATOR)
    monkeypatch.setitem(CAPTIONERS, "caption-bench", TINY_CAPTIONER)
    monkeypatch.setitem(BERTS, "bert-bench", TINY_BERT)
    monkeypatch.setitem(CONNECTED, "residual-bench", replace(TINY_LLAMA, size="residual-bench"))
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    monkeypatch.setattr(rounds, "PATIENCE", 0.0)
    monkeypatch.setattr(decode, "PROMPT", 8)
    monkeypatch.setattr(decode_translation, "TOKENS", 5)


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


@pytest.fixture
def written(tmp_path: Path) -> Callable[[], set[str]]:
    """The names of all files that were written."""
    return lambda: {path.name for path in (tmp_path / "bench").glob("*/*")}
