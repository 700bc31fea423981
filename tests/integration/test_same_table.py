"""One recipe trained by one process, by two, and by two that hold half of the model each: the table is the same.

Tolerances, of the cells that may differ. The same fp32 numbers are summed in another order; an epsilon of 1e-4 keeps
Adam's division from making more of it, so after eight steps losses of some 5 agree to 1e-6, relative, and perplexities
of some 100 to 5e-6 of themselves: 1e-3, with room. A difference in per cent of two such is off by twice 1e-3 per cent,
and an interval's end, over two seeds, by 12.7 (Student's t with one degree of freedom) times as much.
Bits per byte are some 7, and proportional to the loss: 7e-6 at most, 2e-5 with room.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
from worlds import run_together

from comt_cli import app

RECIPE = """
title: Two rows of a tiny model
paper: comt
table: micro
command: train-lm
baseline: pre-ln
seeds: [1, 2]
settings:
  model: {{size: tiny, width: 32, ffn_width: 48, layers: 2, heads: 2}}
  data: {{corpus: "{corpus}", tokenizer: bytes, rows: pad, sequence_length: 48, validation_fraction: 0.2}}
  train: {{steps: 8, batch_size: 8, learning_rate: 5e-3, warmup_steps: 2, log_every: 2, save_every: 3, epsilon: 1e-4}}
rows:
  pre-ln: {{method: pre-ln, paper: {{tiny: 20.0}}}}
  pre-ln+transponder: {{method: transponder, paper: {{tiny: 18.0}}}}
columns:
  tiny: {{}}
scales:
  smoke: {{description: A tiny model}}
"""
MAY_DIFFER = {
    "mean": 1e-3, "stderr": 1e-3, "difference_percent": 2e-3, "interval_low": 2.6e-2, "interval_high": 2.6e-2,
    "bits_per_byte": 2e-5, "p_value": 1e-2, "p_value_holm": 1e-2, "detectable_low": 0.15, "detectable_high": 0.15,
}  # fmt: skip
MEASURED = {"tokens_per_second", "git_commits"}


def make_table(recipe: str, results: Path, *more: str) -> None:
    """As the command line does, `results` with a folder of runs of its own."""
    folders = ("--runs", str(results / "runs"), "--results", str(results))
    sys.argv = ["comt", "train-lm", "--recipe", recipe, "--device", "cpu", *folders, *more]
    try:
        app.main()
    except SystemExit as ended:
        assert not ended.code  # noqa: PT017


def in_a_world(rank: int, recipe: str, results: str, *more: str) -> None:
    make_table(recipe, Path(results), *more)


def rows_of(results: Path) -> list[dict[str, str]]:
    with (results / "smoke" / "own" / "micro.csv").open(newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


@pytest.mark.slow
def test_two_processes_make_the_table_that_one_makes(tiny_corpus, tmp_path, nursery, monkeypatch):
    recipe = tmp_path / "micro.yaml"
    recipe.write_text(RECIPE.format(corpus=tiny_corpus), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", sys.argv)
    make_table(str(recipe), tmp_path / "one", "--jobs", "1")
    run_together(nursery, 2, in_a_world, str(recipe), str(tmp_path / "two"))
    run_together(nursery, 2, in_a_world, str(recipe), str(tmp_path / "halves"), "--set", "train.sharding=fsdp")
    one, *others = (rows_of(tmp_path / name) for name in ("one", "two", "halves"))
    assert [row["row"] for row in one] == ["pre-ln", "pre-ln+transponder"]
    assert all(50 < float(row["mean"]) < 200 for row in one)  # what the tolerances are for
    for other in others:  # sharding changes no number, and so neither the table's name
        for mine, theirs in zip(one, other, strict=True):
            assert mine.keys() == theirs.keys() > MAY_DIFFER.keys()
            for name in mine.keys() - MEASURED:
                if name in MAY_DIFFER and mine[name]:
                    assert float(theirs[name]) == pytest.approx(float(mine[name]), abs=MAY_DIFFER[name]), name
                else:
                    assert theirs[name] == mine[name], name
