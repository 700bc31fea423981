"""`comt generate`, from a checkpoint to text."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import tokenizers
import torch
from decided import draw_with_a_margin
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.commands import generate as verb
from comt_cli.data.text.settings import DataSettings
from comt_cli.data.tokenizer import ByteTokenizer
from comt_cli.errors import UserError
from comt_cli.exchange.huggingface import write_huggingface
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedModel
from comt_cli.generation import completion
from comt_cli.generation.completion import Pace, Sampling, begin, complete
from comt_cli.layers.initialise import initialise
from comt_cli.methods import method_from
from comt_cli.models import kernels
from comt_cli.models.llama import Llama
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.language import Settings, TrainSettings
from comt_cli.tasks.settings.llama import ModelSettings

PACE = re.compile(r"\d+ tokens?, prefill [\d.]+ ms(, decode [\d.]+ ms a token, [\d.]+ tokens/s)?\n")
GREEDY = ["--temperature", "0", "--device", "cpu"]


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory) -> Path:
    """A run directory with a network of bytes that is far from its start, so that it says various things."""
    settings = Settings(
        model=ModelSettings(size="tiny", width=32, ffn_width=48, layers=2, heads=4),
        data=DataSettings(tokenizer="bytes", sequence_length=64),
        train=TrainSettings(steps=1),
    )
    names = {"paper": "comt", "table": "t", "command": "train-lm", "scale": "smoke", "row": "a", "column": "c"}
    spec = RunSpec(**names, seed=3, method={"name": "comt"}, settings=settings, data_fingerprint="none")
    model = Llama(settings.model, 258, method_from({"name": "comt"}).wiring())
    initialise(model, 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6.0)
    state = {"format": 1, "spec": spec.model_dump(mode="json"), "vocabulary": 258, "model": model.state_dict()}
    folder = tmp_path_factory.mktemp("run")
    torch.save({**state, "tokenizer": ByteTokenizer().to_json()}, folder / "checkpoint.pt")
    return folder


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
        assert PACE.fullmatch(result.stderr)
        assert (found["model"], found["device"], found["precision"]) == ("a-c-seed3", "cpu", "float32")
        assert found["tokens"] == 40
        assert all(found[name] > 0 for name in ("prefill_ms", "decode_ms_per_token", "tokens_per_second"))
        assert found["kernels"]


def test_the_text_is_the_models(run_directory, monkeypatch):
    draw_with_a_margin(monkeypatch)
    (text,) = as_json(run_directory, "--prompt", "ab", "--max-new-tokens", "8", *GREEDY)["texts"]
    model, ids = load(run_directory, LoadedModel).model, ByteTokenizer().encode("ab")
    for _ in range(8):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    assert text["text"] == ByteTokenizer().decode(ids[2:])


def test_several_texts_stand_under_each_other(run_directory, tmp_path, monkeypatch):
    draw_with_a_margin(monkeypatch)
    file = tmp_path / "prompts.txt"
    file.write_text("a longer prompt\n\nb\n", encoding="utf-8")
    arguments = [run_directory, "--prompt", "one", "--prompt", "two", "--prompt-file", file, "--samples", "2"]
    drawn = ["--max-new-tokens", "5", "--temperature", "2", "--seed", "1"]
    arguments += drawn
    texts = as_json(*arguments)["texts"]
    assert [text["prompt"] for text in texts] == [p for p in ("one", "two", "a longer prompt", "b") for _ in "12"]
    result = run(*arguments)
    expected = [f"[{n}/8] {text['prompt']}{text['text']}\n\n" for n, text in enumerate(texts, 1)]
    assert result.stdout == "".join(expected)
    assert PACE.fullmatch(result.stderr)
    assert result.stderr.startswith(f"{sum(text['tokens'] for text in texts)} tokens")
    # each sample is another, and each text what it is alone
    assert len({text["text"] for text in texts}) == 8
    alone = as_json(run_directory, "--prompt", "two", *drawn)["texts"]
    assert alone == [texts[2]]


def test_batches_change_nothing(run_directory, monkeypatch):
    draw_with_a_margin(monkeypatch)
    loaded = load(run_directory, LoadedModel)
    texts = [begin(loaded, ["b", "b", "a king", "b", ""]) for _ in range(2)]
    complete(loaded, texts[0], Sampling(6, 1.5, 0.9, 2))
    monkeypatch.setattr(completion, "MOST_ROWS", 2)
    pace = complete(loaded, texts[1], Sampling(6, 1.5, 0.9, 2))
    assert texts[0] == texts[1]
    assert len({text.text for text in texts[0]}) == 5
    assert pace.tokens == sum(text.tokens for text in texts[1])


def test_without_a_prompt_it_begins_by_itself(run_directory):
    (text,) = as_json(run_directory, "--max-new-tokens", "3", *GREEDY)["texts"]
    assert (text["prompt"], text["prompt_tokens"], text["tokens"]) == ("", 1, 3)
    # one line: a single text that begins with nothing
    assert run(run_directory, "--max-new-tokens", "3", *GREEDY).stdout == f"{text['text']}\n"


def test_a_text_ends_where_the_model_ends_it(run_directory, tmp_path):
    state = torch.load(run_directory / "checkpoint.pt", weights_only=True)
    state["model"]["head.weight"][:] = 0.0  # all tokens are equally likely: the first, padding, is taken
    path = tmp_path / "checkpoint.pt"
    torch.save(state, path)
    (text,) = as_json(path, "--prompt", "a", "--max-new-tokens", "4", *GREEDY)["texts"]
    assert (text["text"], text["tokens"], text["ended"]) == ("", 4, False)
    loaded = load(path, LoadedModel)
    texts = begin(loaded, ["a"] * 40)
    complete(loaded, texts, Sampling(400, 1.0, 1.0, 0))
    ended = [text for text in texts if text.ended]
    # One token in 258 ends a text: 400 draws miss it with a probability of 0.21.
    assert 20 <= len(ended) < 40
    assert all(text.ended or text.tokens == 400 for text in texts)


def test_a_text_beyond_the_context_is_warned_of_once(run_directory):
    fits = run(run_directory, "--prompt", "abcd", "--max-new-tokens", "60", *GREEDY)
    beyond = run(run_directory, "--prompt", "abcd", "--samples", "2", "--max-new-tokens", "61", *GREEDY)
    assert PACE.fullmatch(fits.stderr)
    assert beyond.exit_code == 0
    warning, pace = beyond.stderr.splitlines(keepends=True)
    assert "trained on texts of up to 64 tokens; with a text of 65" in warning
    assert PACE.fullmatch(pace)


def test_precision(run_directory):
    found = as_json(run_directory, "--prompt", "a", "--precision", "bf16", "--max-new-tokens", "3", *GREEDY)
    assert found["precision"] == "bfloat16"
    assert found["texts"][0]["tokens"] == 3


def test_kernels_are_chosen_for_as_many_rows_as_a_step_has(run_directory, monkeypatch):
    asked, use = [], kernels.use_kernels
    monkeypatch.setattr(kernels, "use_kernels", lambda *given, **how: asked.append(how) or use(*given, **how))
    run(run_directory, "--prompt", "a", "--samples", "3", "--max-new-tokens", "1", "--device", "cpu")
    assert asked == [{"compiled": False, "training": False, "tokens": 3}]


def test_kernels(run_directory, monkeypatch):
    draw_with_a_margin(monkeypatch)
    arguments = [run_directory, "--prompt", "a", "--max-new-tokens", "6", *GREEDY]
    reference = as_json(*arguments, "--kernels", "reference")
    assert all(reason.startswith("reference") for reason in reference["kernels"].values())
    assert as_json(*arguments, "--kernels", "auto")["texts"] == reference["texts"]


def test_an_exported_folder_speaks_the_same(tmp_path):
    """A plain network as our checkpoint and as a Hugging Face folder, whose config.json says what ends a text."""
    settings = ModelSettings(size="tiny", width=32, ffn_width=48, layers=2, heads=4)
    model = Llama(settings, 258, method_from({"name": "pre-ln"}).wiring())
    initialise(model, 0)
    from comt_cli.exchange.codecs import OwnCodec
    from comt_cli.exchange.loaded import LoadedModel

    ours = LoadedModel(model, "ours", "a test", OwnCodec(ByteTokenizer()), 64)
    write_huggingface(ours, tmp_path / "folder")
    theirs = load(tmp_path / "folder", LoadedModel)
    assert theirs.text_codec().end_ids == frozenset([1])
    found = []
    for loaded in (ours, theirs):
        texts = begin(loaded, ["a king", ""])
        complete(loaded, texts, Sampling(20, 1.0, 1.0, 0))
        found.append([(text.ids, text.text, text.tokens) for text in texts])
    assert found[0] == found[1]
    (tmp_path / "folder" / "tokenizer.json").unlink()
    nothing = run(tmp_path / "folder", "--prompt", "a")
    assert isinstance(nothing.exception, UserError)
    assert "has no tokenizer" in nothing.exception.message


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path):
    (tmp_path / "prompts.txt").write_text("one\ntwo\n", encoding="utf-8-sig")
    assert verb._prompts(None, tmp_path / "prompts.txt") == ["one", "two"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--temperature", "-0.1"], "--temperature -0.1: it must be 0 or more"),
        (["--temperature", "nan"], "it must be 0 or more"),
        (["--temperature", "inf"], "it must be 0 or more"),
        (["--top-p", "0"], "--top-p 0: it must be more than 0"),
        (["--top-p", "1.01"], "at most 1"),
        (["--top-p", "nan"], "at most 1"),
        (["--prompt-file", "empty.txt"], "empty.txt holds no prompt"),
        (["--prompt-file", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["--prompt-file", "latin.txt"], "latin.txt cannot be read"),
        (["--prompt", "a\udcff"], "is not UTF-8"),
        (["--device", "tpu"], "--device tpu"),
        (["--prompt-file", "pipe"], "pipe cannot be read: it is a pipe, not a file"),
        (["--prompt-file", "large"], "large cannot be read: it has 1,099,511,627,776 bytes"),
        (["--samples", "2000", "--max-new-tokens", "1000000"], "2,000 texts of up to 1,000,000 tokens are too many"),
        (["--samples", "9000", "--prompt", "a", "--prompt", "b"], "18,000 texts of up to 64 tokens are too many"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_before_anything_is_loaded(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n  \n")
    (tmp_path / "latin.txt").write_bytes(b"\xe9\n")
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as handle:
        handle.truncate(1 << 40)
    result = run("checkpoint.pt", *arguments)  # which is not there
    assert isinstance(result.exception, UserError)
    assert words in result.exception.message
    assert result.exception.exit_status == 2


@pytest.mark.parametrize(
    "arguments",
    [["--max-new-tokens", "0"], ["--samples", "0"], ["--precision", "fp8"], ["--kernels", "best"], ["--seed", "-1"]],
    ids=str,
)
def test_options_out_of_their_range_are_status_2(arguments):
    result = run("checkpoint.pt", *arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.stderr


def test_models_that_cannot_be_fed_say_so(run_directory):
    loaded = load(run_directory, LoadedModel)
    vocabulary = {chr(97 + n): n for n in range(26)}
    foreign = tokenizers.Tokenizer(tokenizers.models.BPE({**vocabulary, "é": 300}, []))
    from dataclasses import replace

    from comt_cli.exchange.codecs import LibraryCodec

    other = replace(loaded, codec=LibraryCodec(foreign))
    assert begin(other, ["ab"])[0].ids == [0, 1]
    with pytest.raises(UserError, match="no token that a text begins with"):
        begin(other, ["ab", ""])
    with pytest.raises(UserError, match="makes the id 300, but the model has 258 tokens"):
        begin(other, ["aé"])


def test_a_terminal_is_not_given_control_characters(monkeypatch, capsys):
    from comt_cli.commands import generate

    for is_terminal, expected in ((True, "a\ufffd[31m\tb\n"), (False, "a\x1b[31m\tb\n")):
        monkeypatch.setattr("sys.stdout.isatty", lambda is_terminal=is_terminal: is_terminal)
        generate._show("a\x1b[31m\tb\n")
        assert capsys.readouterr().out == expected


def test_the_pace_by_hand():
    pace = Pace()
    pace.add(3, 0.25, is_prefill=True)
    assert pace.numbers() == {
        "tokens": 3,
        "prefill_ms": 250.0,
        "decode_ms_per_token": None,
        "tokens_per_second": None,
    }
    assert pace.words() == "3 tokens, prefill 250.0 ms"
    pace.add(3, 0.125, is_prefill=False)
    pace.add(1, 0.125, is_prefill=False)
    assert pace.words() == "7 tokens, prefill 250.0 ms, decode 125.00 ms a token, 16.0 tokens/s"


@pytest.mark.parametrize(
    "arguments", [["--max-new-tokens", "1000000000000000"], ["--samples", "1000000000000"]], ids=str
)
def test_numbers_beyond_every_machine_are_refused_as_they_are_read(arguments):
    result = run("checkpoint.pt", *arguments)
    assert result.exit_code == 2
    assert f"Invalid value for '{arguments[0]}'" in result.stderr
