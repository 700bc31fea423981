"""Language models on a tokenizer, and on files of tokens, that other tools made: killed, used without them, refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from dying import Nursery
from foreign_tokens import END, byte_level, nanogpt, write_tokenizer
from tiny_recipe import recipe
from tiny_runs import assert_same_run, tiny_spec, train
from tokenizers import Tokenizer
from worlds import comt

from comt_cli.errors import UserError
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedModel
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec, RunStart

SHORT = {"steps": 6, "save_every": 2, "log_every": 1, "evaluate_every": 3}
MOMENTS = [("half of a checkpoint is written", 1), ("after a checkpoint is renamed", 1)]


@pytest.fixture
def texts(tiny_corpus: str) -> list[str]:
    return [path.read_text() for path in sorted(Path(tiny_corpus.removeprefix("files:")).parent.glob("*.txt"))]


@pytest.fixture
def here(texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a tokenizer, and with the texts as nanoGPT's files."""
    monkeypatch.chdir(tmp_path)
    library = byte_level(texts)
    write_tokenizer(tmp_path / "bpe", library)
    ids = [i for text in texts for i in (*library.encode(text).ids, library.token_to_id(END))]
    Path("train.bin").write_bytes(nanogpt(ids[400:]))
    Path("val.bin").write_bytes(nanogpt(ids[:400]))
    return tmp_path


def data(kind: str, folder: Path, corpus: str) -> dict[str, Any]:
    """The data of a run: text with the tokenizer, where id 0 is a word, in padded rows; or its tokens."""
    keys = {"tokenizer": str(folder / "bpe"), "vocabulary": 320}
    if kind == "text":
        return {**keys, "corpus": corpus}
    return {**keys, "corpus": f"tokens:{folder}/*.bin", "dtype": "uint16", "rows": "pack", "validation_fraction": None}


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_killed_it_ends_with_the_same_bits(
    kind: str, here: Path, tiny_corpus: str, nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tiny_spec(tiny_corpus, data=data(kind, here, tiny_corpus), **SHORT)
    expected = train(spec, here / "undisturbed")
    directory = nursery.kill_at_each(MOMENTS, spec, here / "killed")
    assert nursery.run(spec, here / "killed") == 0
    assert_same_run(directory, expected)
    result = expected.result()
    assert result is not None
    assert 0 < result["bits_per_byte"] < 8
    monkeypatch.setenv("COMT_CACHE", str(here / "second"))
    second = spec.task.prepare(spec.settings)
    assert second.content_hash == spec.data_content
    assert str(here / "second") in os.fspath(second.folder)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_a_run_needs_neither_tokenizer_nor_files(kind: str, here: Path, texts: list[str], tiny_corpus: str) -> None:
    directory = train(tiny_spec(tiny_corpus, data=data(kind, here, tiny_corpus), **SHORT), here / "runs")
    library = byte_level(texts)
    shutil.rmtree("bpe")
    for path in here.glob("*.bin"):
        path.unlink()
    codec = load(directory.path, LoadedModel).text_codec()
    assert codec.prompt(texts[0]) == library.encode(texts[0]).ids
    assert codec.decode([*codec.encode(texts[0]), 300]) == texts[0]
    comt("generate", str(directory.path), "--prompt", texts[0], "--max-new-tokens", "3")
    comt("analyze-gates", str(directory.path), "--text", texts[0], "--out", "gates")
    comt("export", str(directory.path), "exported")
    again = Tokenizer.from_file("exported/tokenizer.json")
    assert again.encode(texts[0]).ids == library.encode(texts[0]).ids
    configuration = json.loads(Path("exported/config.json").read_text())
    assert (configuration["vocab_size"], configuration["eos_token_id"]) == (320, 289)
    comt("generate", "exported", "--prompt", texts[0], "--max-new-tokens", "3")


def test_other_tokens_of_the_same_number_are_no_start(here: Path, tiny_corpus: str) -> None:
    source = tiny_spec(tiny_corpus, data=data("text", here, tiny_corpus), **SHORT)
    train(source, here / "runs")
    write_tokenizer(here / "bpe", byte_level(["other words altogether, other merges"] * 9, 280))
    spec = tiny_spec(tiny_corpus, data=data("text", here, tiny_corpus), **SHORT)
    started = RunSpec(**{**dict(spec), "start": RunStart(run=source)})
    with pytest.raises(UserError, match=r"cannot start from .*: its vocabulary has other tokens"):
        train(started, here / "runs")


def test_a_plan_names_the_line_of_what_is_missing(here: Path, tiny_corpus: str) -> None:
    settings = {"model": {"size": "tiny"}, "train": {"steps": 1}}
    settings["data"] = {"corpus": tiny_corpus, "tokenizer": "./bpe", "vocabulary": 320, "sequence_length": 16}
    text = recipe("mine", {"plain": "pre-ln"}, settings=settings)
    line = 1 + next(number for number, each in enumerate(text.splitlines()) if '"tokenizer"' in each)
    Path("mine.yaml").write_text(text, encoding="utf-8")
    (run,) = json.loads(comt("show", "mine.yaml", "--json"))
    assert run["settings"]["data"]["tokenizer"] == "./bpe"
    said = comt("show", "mine.yaml", "--set", "data.vocabulary=100", status=2)
    assert "mine.yaml: data.vocabulary: 100 is too small: the tokenizer of ./bpe has 290 tokens" in said
    assert "mine.yaml: data.tokenizer: there is no ./other" in comt(
        "show", "mine.yaml", "--set", "data.tokenizer=./other", status=2
    )
    shutil.rmtree("bpe")
    said = comt("show", "mine.yaml", status=2)
    assert f"mine.yaml: line {line}: settings.data.tokenizer: there is no ./bpe\n" in said
    assert "Give a folder, a file, or hf:OWNER/NAME" in said
    assert RunDirectory(here / "runs").path.exists() is False
