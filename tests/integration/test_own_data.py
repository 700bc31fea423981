"""A user's own data, from files to the table: rows of Parquet, and a single text, killed on the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from fake_hub import Client
from tiny_recipe import quick_recipe
from tiny_runs import WORDS, assert_same_run, tiny_spec, train, untimed

from comt_cli.data.text.settings import SHARED
from comt_cli.runs.directory import RunDirectory, RunState

ROOT = Path(__file__).parents[2]


def texts(count: int) -> list[str]:
    return [f"{n} {' '.join(WORDS[(n * 7 + i * i) % len(WORDS)] for i in range(9 + n % 20))}" for n in range(count)]


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("parquet")
    for file in range(3):
        table = pyarrow.table({"id": range(60), "body": texts(180)[60 * file : 60 * (file + 1)]})
        pyarrow.parquet.write_table(table, folder / f"{file}.parquet", row_group_size=25)
    return f"files:{folder}/*.parquet#body"


def test_a_preparation_that_was_killed_has_the_same_content(parquet, tmp_path):
    """In the middle of a file, several times; and the plan knows the content afterwards."""
    data = {"corpus": parquet, "tokenizer": "sentencepiece", "vocabulary": 300, "sequence_length": 32}
    (whole,) = Client(tmp_path / "whole").prepare(data, part_bytes=1000)
    assert whole["parts"] > 6
    assert whole["known"] is None
    for parts in (2, 5):
        assert Client(tmp_path / "killed").prepare(data, part_bytes=1000, dies_after=parts) == []
    (resumed,) = Client(tmp_path / "killed").prepare(data, part_bytes=1000)
    (again,) = Client(tmp_path / "killed").prepare(data, part_bytes=1000)
    assert whole["content"] == resumed["content"] == again["known"]
    assert whole["fingerprint"] == resumed["fingerprint"]


def test_a_run_on_rows_that_was_killed_ends_with_the_same_bits(parquet, nursery, tmp_path):
    spec = tiny_spec(parquet, steps=8, log_every=1, save_every=2)
    expected = train(spec, tmp_path / "undisturbed")
    moments = [("after a checkpoint is renamed", 2), ("half a line of metrics.jsonl", 3)]
    directory = nursery.kill_at_each(moments, spec, tmp_path / "runs")
    assert directory.state() is RunState.unfinished
    assert nursery.run(spec, tmp_path / "runs") == 0
    assert_same_run(RunDirectory.of(tmp_path / "runs", spec), expected)
    assert "data_note" not in untimed(expected)


def comt(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COMT_CACHE": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "comt_cli", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_one_text_trains_and_the_table_says_that_its_splits_share_it(tmp_path):
    (tmp_path / "book.txt").write_text("\n".join(texts(400)))
    # A row of padded data has the beginning of a document, so these are packed.
    recipe = json.loads(
        quick_recipe("own", "files:book.txt", {"pre-ln": "pre-ln"}, {"steps": 2, "learning_rate": 0.01})
    )
    recipe["settings"]["data"] |= {"rows": "pack", "validation_fraction": None}
    (tmp_path / "own.yaml").write_text(json.dumps(recipe))
    done = comt(tmp_path, "train-lm", "own.yaml")
    assert done.returncode == 0, done.stderr
    assert SHARED in " ".join((done.stdout + done.stderr).split())
    (result,) = (tmp_path / "runs" / "by-id").glob("*/result.json")
    assert json.loads(result.read_text())["data_note"] == SHARED
    assert SHARED in " ".join(comt(tmp_path, "show", "own.yaml").stdout.split())
    (page,) = (tmp_path / "runs" / "results").rglob("own.md")
    assert page.read_text().count(SHARED) == 1


def test_a_mistake_is_a_line_and_status_2(parquet, tmp_path):
    (tmp_path / "own.yaml").write_text(
        quick_recipe("own", parquet.replace("#body", "#boby"), {"pre-ln": "pre-ln"}, {"steps": 1})
    )
    done = comt(tmp_path, "train-lm", "own.yaml")
    assert done.returncode == 2
    assert "has no column 'boby'; its columns: id, body" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
