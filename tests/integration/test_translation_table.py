"""A table of translators from the command line: trained, listed, reported; and one of them translates a file, which is
scored."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_translation_runs import far_from_the_start
from tiny_runs import DECODE, PAIRS, TRAIN_PAIRS, TRANSFORMER, dataset_of, pair_spec

from comt_cli import app
from comt_cli.files import write_text
from comt_cli.scoring.metrics import score
from comt_cli.verbs import score as translated

__all__ = ["far_from_the_start"]

RECIPE = f"""
title: Two rows of a tiny translator
command: train-mt
metric: test_bleu
baseline: post-ln
seeds: [1]
settings:
  model: {json.dumps(TRANSFORMER)}
  data: {json.dumps(PAIRS)}
  train: {json.dumps(TRAIN_PAIRS | {"steps": 6, "average_last": 2, "average_every": 2})}
  decode: {json.dumps(DECODE)}
rows:
  post-ln: {{method: post-ln}}
  sas: {{method: sas}}
columns:
  tiny: {{}}
  tokenised: {{metric: test_bleu_tokenised}}
scales:
  smoke: {{description: A tiny model}}
"""


@pytest.fixture
def comt(tmp_path, monkeypatch, capsys):
    """`comt(verb, *options)` in this process: its standard output, if its exit status is 0."""
    monkeypatch.chdir(tmp_path)
    Path("micro.yaml").write_text(RECIPE, encoding="utf-8")

    def run(*arguments: str, status: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["comt", *arguments])
        try:
            app.main()
            ended = 0
        except SystemExit as exit:
            ended = int(exit.code or 0)
        said = capsys.readouterr()
        assert ended == status, said.err
        return said.out if status == 0 else said.err

    return run


@pytest.mark.slow
def test_from_training_to_a_score(comt, tmp_path, monkeypatch):
    assert "2 runs" in comt("train-mt", "--recipe", "micro.yaml", "--dry-run", "--device", "cpu")
    table = comt("train-mt", "--recipe", "micro.yaml", "--device", "cpu")
    results = {}
    for path in (tmp_path / "runs/by-id").glob("*/result.json"):
        spec = json.loads((path.parent / "spec.json").read_text())
        results[spec["row"]] = json.loads(path.read_text())
    assert len(results) == 2, "columns that differ in their metric alone share their runs"
    signature = results["sas"]["test_evaluation"]["signature"]
    tokenised = results["sas"]["test_evaluation"]["signatures"]["bleu_tokenised"]
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert "tok:none" in tokenised
    assert tokenised != signature
    page = next((tmp_path / "runs/results").rglob("micro.md")).read_text()
    for text in (table, page.replace("\\", "")):
        without_breaks = "".join(text.split())
        assert f"Signatureoftest_bleu:{signature}." in without_breaks
        assert f"Signatureoftest_bleu_tokenised:{tokenised}." in without_breaks
    assert f"{results['sas']['test_bleu']:.2f}" in page
    assert "BLEU of the test sentences (sacreBLEU, tokenizer 13a, cased)" in page
    assert comt("report", "micro.yaml") == table
    status = comt("status", "micro.yaml")
    assert "done" in status
    run = "own/micro:sas:tiny"
    ended = comt("average", run, "--last", "2", status=2)
    assert "has ended, and keeps the weights of its last step, or their average, alone" in ended
    texts = dataset_of(pair_spec()).texts["test"]
    write_text(Path("sources"), "".join(f"{text}\n" for text in texts.sources))
    write_text(Path("references"), "".join(f"{text}\n" for text in texts.references))
    comt("translate", run, "-i", "sources", "-o", "found", "--device", "cpu")
    (folder,) = (path.parent for path in tmp_path.glob("runs/own/micro/sas/tiny/*/result.json"))
    # As the run translated them; of two translations that score the same to rounding, either: in one of 20 perhaps.
    found, written = (path.read_text().split("\n") for path in (Path("found"), folder / "outputs/final/test.txt"))
    assert len(found) == len(written) == 20 + 1
    assert sum(mine != its for mine, its in zip(found, written, strict=True)) <= 1
    shutil.copy(folder / "outputs/final/test.txt", "final")
    scored = json.loads(comt("score", "final", "references", "--metric", "bleu,bleu_tokenised", "--json"))
    assert scored["bleu"] == {"score": results["sas"]["test_bleu"], "signature": signature}
    assert scored["bleu_tokenised"] == {"score": results["sas"]["test_bleu_tokenised"], "signature": tokenised}
    # A run is scored without files, beside another one or what needs no network.
    names = [f"micro.yaml:{row}:tiny:1" for row in ("sas", "post-ln")]
    assert json.loads(comt("score", names[0], "--metric", "bleu", "--json"))["bleu"] == scored["bleu"]
    both = json.loads(comt("score", names[0], "--against", names[1], "--metric", "bleu", "--json"))["bleu"]
    assert both["against"] == results["post-ln"]["test_bleu"]
    copied = json.loads(comt("score", str(folder), "--against", "copy", "--metric", "bleu", "--json"))["bleu"]
    assert copied["against"] == score("bleu", texts.sources, texts.references).value
    by_memory = comt("score", names[0], "--against", "nearest", "--split", "validation", "--metric", "bleu")
    assert "against" in by_memory
    assert "has no split 'tset': did you mean test?" in comt("score", names[0], "--split", "tset", status=2)
    with monkeypatch.context() as patch:
        patch.setattr(translated, "prepare", lambda *_: SimpleNamespace(content_hash="another"))
        assert "is not the data any more" in comt("score", names[0], status=2)
    assert "final is a file" in comt("score", "final", status=2)
    assert "--split is of a run" in comt("score", "final", "references", "--split", "test", status=2)
