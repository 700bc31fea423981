"""`comt generate`, from a checkpoint to text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from decided import draw_with_a_margin
from tiny_runs import write_language_model
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.data.tokenizer import ByteTokenizer
from comt_cli.errors import UserError
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedModel
from comt_cli.generation.completion import begin, complete

GREEDY = ["--temperature", "0", "--device", "cpu"]


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory) -> Path:
    """A run directory with a network of bytes that is far from its start, so that it says various things."""
    return write_language_model(tmp_path_factory.mktemp("run"), "comt", 6.0)


def run(*arguments: object):
    result = CliRunner().invoke(app, ["generate", *(str(argument) for argument in arguments)])
    if not isinstance(result.exception, UserError | SystemExit | None):
        raise result.exception
    return result


def as_json(*arguments: object) -> dict:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_one_text_comes_after_its_prompt_and_equals_what_is_not_streamed(run_directory):
    for options in (GREEDY, ["--seed", "5", "--temperature", "1.5"]):
        arguments = [run_directory, "--prompt", "a king", "--max-new-tokens", "40", *options]
        found = as_json(*arguments)
        (text,) = found["texts"]
        assert (text["prompt"], text["prompt_tokens"], text["tokens"]) == ("a king", 6, 40)
        result = run(*arguments)
        assert result.stdout == f"a king{text['text']}\n"
        assert (found["model"], found["device"], found["precision"]) == ("a-row-tiny-seed3", "cpu", "float32")
        assert found["kernels"]


def test_the_text_is_the_models(run_directory, monkeypatch):
    draw_with_a_margin(monkeypatch)
    (text,) = as_json(run_directory, "--prompt", "ab", "--max-new-tokens", "8", *GREEDY)["texts"]
    model, ids = load(run_directory, LoadedModel).model, ByteTokenizer().encode("ab")
    for _ in range(8):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    assert text["text"] == ByteTokenizer().decode(ids[2:])


def test_several_texts_stand_under_each_other(run_directory, monkeypatch):
    draw_with_a_margin(monkeypatch)
    drawn = ["--max-new-tokens", "5", "--temperature", "2", "--seed", "1"]
    arguments = [run_directory, "--prompt", "one", "--prompt", "a longer prompt", "--samples", "2", *drawn]
    texts = as_json(*arguments)["texts"]
    assert [text["prompt"] for text in texts] == ["one", "one", "a longer prompt", "a longer prompt"]
    expected = [f"[{n}/4] {text['prompt']}{text['text']}\n\n" for n, text in enumerate(texts, 1)]
    assert run(*arguments).stdout == "".join(expected)
    # each sample is another, and each text what it is alone
    assert len({text["text"] for text in texts}) == 4
    assert as_json(run_directory, "--prompt", "a longer prompt", *drawn)["texts"] == [texts[2]]


def test_a_text_ends_where_the_model_ends_it(run_directory, tmp_path):
    state = torch.load(run_directory / "checkpoint.pt", weights_only=True)
    state["model"]["head.weight"][:] = 0.0  # all tokens are equally likely: the first, padding, is taken
    path = tmp_path / "checkpoint.pt"
    torch.save(state, path)
    (text,) = as_json(path, "--prompt", "a", "--max-new-tokens", "4", *GREEDY)["texts"]
    assert (text["text"], text["tokens"], text["ended"]) == ("", 4, False)
    loaded = load(path, LoadedModel)
    texts = begin(loaded, ["a"] * 40)
    complete(loaded, texts, {"max_new_tokens": 400, "temperature": 1.0, "top_p": 1.0, "seed": 0})
    ended = [text for text in texts if text.ended]
    # One token in 258 ends a text: 400 draws miss it with a probability of 0.21.
    assert 20 <= len(ended) < 40
    assert all(text.ended or text.tokens == 400 for text in texts)
