"""Tokenizers in files that other tools wrote: what identifies them, where texts end, and what is refused."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import sentencepiece
from foreign_tokens import END, byte_level, words, write_tokenizer
from kinds import fingerprint, sentences
from tokenizers import processors

from comt_cli.data.prepare import kind_of, prepare
from comt_cli.data.split import IGNORE
from comt_cli.data.text.settings import DataSettings, MaskedData
from comt_cli.data.tokenizer import LibraryTokenizer, SentencePieceTokenizer, library_of, tokenizer_from_json
from comt_cli.data.tokenizer_files import file_tokenizer
from comt_cli.errors import UserError

TEXTS = sentences(60)
LARGE = 10_000


def sentencepiece_model(**options) -> bytes:
    model = io.BytesIO()
    sizes = {"vocab_size": 60, "model_type": "bpe", "minloglevel": 2, "num_threads": 1}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS), model_writer=model, **sizes | options)
    return model.getvalue()


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_tokenizer(tmp_path / "bpe", byte_level(TEXTS))


def settings(tokenizer, tmp_path, **more):
    texts = tmp_path / "texts"
    texts.mkdir(exist_ok=True)
    for number, text in enumerate(TEXTS):
        (texts / f"{number}.txt").write_text(text)
    keys = {"vocabulary": 300, "sequence_length": 16, "validation_fraction": 0.3}
    return DataSettings(**keys | {"corpus": f"files:{texts}/*.txt", "tokenizer": str(tokenizer), **more})


# ---- the content


def test_a_folder_and_its_file_are_one_tokenizer_whatever_they_are_called(folder, cache, tmp_path):
    data = settings(folder, tmp_path)
    first = prepare(data)
    copy = shutil.copytree(folder, tmp_path / "elsewhere")
    for named in (copy, copy / "tokenizer.json"):
        again = settings(named, tmp_path)
        assert (fingerprint(again), again.stored()) == (fingerprint(data), data.stored())
        assert prepare(again).content_hash == first.content_hash
    assert data.stored()["tokenizer"] == "file"
    library = byte_level(TEXTS)
    assert first.tokenizer.encode(TEXTS[3]) == library.encode(TEXTS[3]).ids
    ids = first.train.batch(np.arange(1)).tokens[0].tolist()
    assert first.tokenizer.decode(ids) == library.decode(ids)
    assert library.token_to_id(END) in first.train.batch(np.arange(len(first.train))).tokens

    text = (copy / "tokenizer.json").read_text(encoding="utf-8")
    (copy / "tokenizer.json").write_text(text.replace('"a":', '"?":').replace('"b":', '"a":').replace('"?":', '"b":'))
    other = settings(copy, tmp_path)
    assert fingerprint(other) != fingerprint(data)
    assert prepare(other).content_hash != first.content_hash


def test_without_the_folder_what_was_prepared_and_saved_is_complete(folder, cache, tmp_path):
    dataset = prepare(settings(folder, tmp_path))
    shutil.rmtree(folder)
    loaded = tokenizer_from_json(json.loads(json.dumps(dataset.tokenizer.to_json())))
    assert loaded.encode(TEXTS[0]) == dataset.tokenizer.encode(TEXTS[0])
    with pytest.raises(UserError, match=f"data.tokenizer: there is no {folder}"):
        kind_of(settings(folder, tmp_path)).fingerprint()


def test_ids_may_have_gaps_and_models_more_ids(folder, cache, tmp_path):
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"]["<|extra|>"] = 297
    content["added_tokens"].append({**content["added_tokens"][0], "id": 297, "content": "<|extra|>"})
    path.write_text(json.dumps(content))
    library = file_tokenizer(str(folder), LARGE).library
    assert library.token_to_id("<|extra|>") == 297
    size = file_tokenizer(str(folder), 298).vocabulary_size
    assert size == 298
    assert file_tokenizer(str(folder), 300).decode([295, 296, *library.encode("gate").ids]) == "gate"
    with pytest.raises(
        UserError, match=r"data.vocabulary: 297 is too small: the tokenizer of .* has 298 tokens"
    ) as caught:
        prepare(settings(folder, tmp_path, vocabulary=297))
    assert "Set data.vocabulary: 298, or" in str(caught.value)
    with pytest.raises(
        ValueError, match=r"vocabulary: is missing; give the size of the tokenizer .*, or that of the m"
    ):
        settings(folder, tmp_path, vocabulary=None)


# ---- where texts begin and end


@pytest.mark.parametrize(
    ("beside", "end"),
    [
        ({"tokenizer_config.json": {"eos_token": "b"}, "config.json": {"eos_token_id": 3}}, "b"),
        (
            {"tokenizer_config.json": {"eos_token": None}, "special_tokens_map.json": {"eos_token": {"content": "c"}}},
            "c",
        ),
        ({"generation_config.json": {"eos_token_id": [65, 66]}, "config.json": {"eos_token_id": 67}}, 65),
        ({"config.json": {"eos_token_id": 66}}, 66),
        ({"config.json": {"eos_token_id": None}}, END),
        ({}, END),
    ],
)
def test_the_end_token_is_found_in_the_files_beside_it_or_by_its_usual_name(beside, end, folder):
    for name, content in beside.items():
        (folder / name).write_text(json.dumps(content))
    tokenizer = file_tokenizer(str(folder), LARGE)
    assert tokenizer.special.end == (end if isinstance(end, int) else tokenizer.library.token_to_id(end))
    assert tokenizer.special.pad is None


def test_what_a_post_processor_adds_is_kept_at_the_beginning_alone(tmp_path, cache):
    library = words(TEXTS)
    folder = write_tokenizer(tmp_path / "words", library, bos_token="<s>")
    begin, end = (library.token_to_id(each) for each in ("<s>", "</s>"))
    assert file_tokenizer(str(folder), LARGE).special.begin == begin
    dataset = prepare(settings(folder, tmp_path, rows="pad", sequence_length=64))
    for row, count in zip(*(dataset.train.batch(range(9)).tokens, dataset.train.target_counts(range(9))), strict=True):
        assert row[0] == begin
        assert np.flatnonzero(row == end).tolist() == [count]


@pytest.mark.parametrize("template", [True, False])
def test_no_text_becomes_a_special_token(template, tmp_path):
    library = words(["<s> </s> [SEP] the gate"])
    library.add_special_tokens(["[SEP]"])
    if not template:
        library.post_processor = processors.TemplateProcessing(single="$A")
    tokenizer = file_tokenizer(str(write_tokenizer(tmp_path / "words", library)), LARGE)
    the, gate, unknown, begin = (library.token_to_id(each) for each in ("the", "gate", "<unk>", "<s>"))
    ids = tokenizer.encode("the </s> gate [SEP] <s>")
    assert ids == [*([begin] if template else []), the, unknown, gate, unknown, unknown]
    loaded = tokenizer_from_json(tokenizer.to_json())
    assert loaded.encode("the </s> gate [SEP] <s>") == ids
    assert loaded.to_json() == tokenizer.to_json()
    assert tokenizer.decode([*ids, library.token_to_id("</s>")]) == "the gate"

    merged = library_of(byte_level(["</s>"] * 9, end="</s>").to_str())
    tokenizer = LibraryTokenizer(merged, None, [merged.token_to_id("</s>")])
    assert merged.token_to_id("</s>") not in tokenizer.encode("a </s>")


def test_rows_are_filled_where_no_target_is(folder, cache, tmp_path):
    """The id that fills them is a word of this tokenizer."""
    dataset = prepare(settings(folder, tmp_path, rows="pad", sequence_length=64))
    batch, counts = dataset.train.batch(range(20)), dataset.train.target_counts(range(20))
    assert len({*counts}) > 1
    for tokens, targets, count in zip(batch.tokens, batch.targets, counts, strict=True):
        assert (targets[:count] == tokens[1 : count + 1]).all()
        assert (targets[count:] == IGNORE).all()
        assert (tokens[count + 1 :] == 0).all()
    bang = file_tokenizer(str(folder), LARGE).encode("!")
    assert bang == [0]


def test_a_sentencepiece_model_without_padding(tmp_path, cache):
    model = sentencepiece_model()
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "tokenizer.model").write_bytes(model)
    tokenizer = file_tokenizer(str(tmp_path / "llama"), 60)
    assert tokenizer.to_json() == SentencePieceTokenizer(model).to_json()
    assert (tokenizer.special.pad, tokenizer.special.end, tokenizer.special.begin) == (None, 2, 1)
    assert prepare(settings(tmp_path / "llama", tmp_path, vocabulary=64)).tokenizer.encode("the gate") == (
        tokenizer.encode("the gate")
    )
    with pytest.raises(ValueError, match="the tokenizer has no pad token"):
        tokenizer.special.need("pad")


# ---- the hub


def test_a_repository_is_fetched_once_and_its_commit_is_recorded(folder, cache, tmp_path, monkeypatch):
    commit = folder.rename(tmp_path / "3f2a")
    state = {"cached": False}

    def snapshot(name, *, revision, allow_patterns, local_files_only):
        assert (name, revision, "tokenizer.json" in allow_patterns) == ("some/body", None, True)
        if local_files_only and not state["cached"]:
            raise OSError("not cached")
        if not local_files_only:
            fetched()
        state["cached"] = True
        return str(commit)

    fetched = Mock()
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    data = settings("hf:some/body", tmp_path)
    dataset = prepare(data)
    assert fetched.call_count == 1
    assert dataset.content_hash == prepare(settings(commit, tmp_path)).content_hash
    assert data.stored()["tokenizer"] == "file"
    manifest = json.loads((dataset.folder / "manifest.json").read_text())["manifest"]
    assert manifest["versions"]["tokenizer"] == "hf:some/body@3f2a"


def test_without_network_the_repository_and_its_revision_are_named(cache, tmp_path, monkeypatch):
    download = Mock(side_effect=OSError("no network"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(UserError, match=r"data.tokenizer: hf:some/body@v2: .*hub failed: no network") as caught:
        fingerprint(settings("hf:some/body@v2", tmp_path))
    assert "give the path of a downloaded folder" in str(caught.value)
    assert download.call_args.kwargs["revision"] == "v2"


# ---- what is refused


def damaged(folder):
    (folder / "tokenizer.json").write_text('{"model": ')


def without_end(folder):
    write_tokenizer(folder, words(TEXTS, ("<s>", "</s>", "<unk>")))
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("</s>", "<stop>"))


def stating(key, value):
    return lambda folder: (folder / "tokenizer_config.json").write_text(json.dumps({key: value}))


def with_dropout(folder):
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"dropout": null', '"dropout": 0.1'))


def as_model(content):
    def change(folder):
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer.model").write_bytes(content)

    return change


WRONG = {
    "no tokenizer": (
        lambda folder: (folder / "tokenizer.json").unlink(),
        "has no tokenizer.json and no tokenizer.model",
    ),
    "no folder": (shutil.rmtree, "there is no "),
    "damaged": (damaged, "tokenizer.json is not a tokenizer: EOF while parsing"),
    "another json": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "is not a tokenizer: Model missing"),
    "not UTF-8": (
        lambda folder: (folder / "tokenizer.json").write_bytes(b"\xff"),
        "cannot read .*it is not UTF-8 text",
    ),
    "no end": (
        without_end,
        r"has no token that ends a text\n .*State \{\"eos_token\": \"...\"\} in tokenizer_config.json",
    ),
    "an end that is no token": (stating("eos_token", "<no>"), "eos_token is '<no>', which is not a token of"),
    "a wrong type": (stating("eos_token", {"content": 7.5}), "eos_token is 7.5, which is not a token of"),
    "a damaged configuration": (
        lambda folder: (folder / "tokenizer_config.json").write_text("["),
        "config.json cannot be",
    ),
    "random": (with_dropout, "has a dropout of 0.1"),
    "a damaged model": (as_model(b"garbage" * 9), "tokenizer.model is not a tokenizer"),
    "an empty model": (as_model(b""), "tokenizer.model is not a tokenizer"),
    "a model without end": (as_model(sentencepiece_model(eos_id=-1)), "Train it with an eos_id"),
}


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=list(WRONG))
def test_what_cannot_be_used_is_refused(change, said, folder):
    change(folder)
    with pytest.raises(UserError, match=f"(?s){said}") as caught:
        file_tokenizer(str(folder), LARGE)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("name", ["sentencepice", "gpt2", "hf:", "tokenizer"])
def test_a_name_that_is_no_path_is_refused(name):
    with pytest.raises(ValueError, match=r"is none of sentencepiece, .* nor a path, which has a / or ends in .json"):
        DataSettings(tokenizer=name, vocabulary=300)


def test_other_tasks_have_their_own_tokenizers(folder):
    with pytest.raises(ValueError, match="Input should be 'sentencepiece' or 'bytes'"):
        MaskedData(tokenizer=str(folder))
