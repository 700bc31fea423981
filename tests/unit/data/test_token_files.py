"""Files of token ids that other tools wrote: read where they are, their splits, their identity, what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from foreign_tokens import END, byte_level, llm_c, nanogpt, write_litdata, write_tokenizer
from kinds import fingerprint, sentences

from comt_cli.data.prepare import prepare
from comt_cli.data.text.corpora import token_files
from comt_cli.data.text.corpora.token_files import TokenFiles, bytes_of
from comt_cli.data.text.settings import DataSettings, MaskedData
from comt_cli.errors import UserError

TEXTS = sentences(80)
LIBRARY = byte_level(TEXTS)
STOP = LIBRARY.token_to_id(END)
DOCUMENTS = [[*LIBRARY.encode(text).ids, STOP] for text in TEXTS]
TRAIN, VALIDATION = ([i for each in part for i in each] for part in (DOCUMENTS[:60], DOCUMENTS[60:]))
RAW = {"dtype": "uint16"}


@pytest.fixture
def here(tmp_path, cache, monkeypatch) -> Path:
    """The current folder, with a tokenizer and files as nanoGPT's."""
    monkeypatch.chdir(tmp_path)
    write_tokenizer(tmp_path / "bpe", LIBRARY)
    (tmp_path / "owt").mkdir()
    (tmp_path / "owt" / "train.bin").write_bytes(nanogpt(TRAIN))
    (tmp_path / "owt" / "val.bin").write_bytes(nanogpt(VALIDATION))
    return tmp_path


def settings(corpus="tokens:owt/*.bin", **more) -> DataSettings:
    keys = {"corpus": corpus, "tokenizer": "./bpe", "vocabulary": 320, "sequence_length": 16}
    return DataSettings(**keys | more)


def stream(rows) -> list[int]:
    found: list[int] = rows.batch(np.arange(len(rows))).tokens.ravel().tolist()
    return found


def assert_streams(dataset, train=TRAIN, validation=VALIDATION) -> None:
    for rows, ids in ((dataset.train, train), (dataset.validation, validation)):
        assert stream(rows) == ids[: len(ids) // 16 * 16]
        assert rows.tokens == len(ids)


def test_nanogpts_files_are_read_where_they_are(here):
    data = settings(**RAW)
    dataset = prepare(data)
    assert_streams(dataset)
    assert sorted(path.name for path in dataset.folder.iterdir()) == ["manifest.json", "shards.json", "tokenizer.json"]
    assert all(isinstance(array, np.memmap) for array in dataset.train._shards)
    text_bytes = sum(len(text.encode()) for text in TEXTS[60:])
    assert dataset.validation.tokens_per_byte == len(VALIDATION) / text_bytes
    assert dataset.tokenizer.encode(TEXTS[0]) == DOCUMENTS[0][:-1]


def test_the_content_identifies_them_wherever_they_are(here):
    first, data, name = prepare(settings(**RAW)), settings(**RAW), fingerprint(settings(**RAW))
    shutil.copytree("owt", "copy")
    shutil.copytree("bpe", "tokenizers/other")
    again = settings("tokens:copy/*.bin", tokenizer="tokenizers/other", **RAW)
    assert (fingerprint(again), again.stored()) == (name, data.stored())
    shutil.rmtree("owt")
    dataset = prepare(again)
    assert dataset.content_hash == first.content_hash
    assert_streams(dataset)
    shutil.rmtree(dataset.folder)
    assert prepare(again).content_hash == first.content_hash
    Path("copy/val.bin").write_bytes(nanogpt([*VALIDATION[:-1], 7]))
    assert fingerprint(again) != name
    assert prepare(settings("tokens:copy/*.bin", **RAW)).content_hash != first.content_hash


def test_documents_of_any_length_are_counted_in_parts(here, monkeypatch):
    tokenizer = prepare(settings(**RAW)).tokenizer
    arrays = [np.array(VALIDATION[:50], "<u2"), np.array(VALIDATION[50:], "<u2")]
    whole = bytes_of(arrays, tokenizer)
    assert whole == sum(len(text.encode()) for text in TEXTS[60:])
    monkeypatch.setattr(token_files, "_BLOCK", 7)
    assert bytes_of(arrays, tokenizer) == whole  # the texts are ASCII
    assert bytes_of([], tokenizer) == 0


def test_too_small_a_share_is_named(here):
    with pytest.raises(UserError, match=r"the validation split of tokens:.* has 0 tokens"):
        prepare(settings(validation_fraction=1e-9, **RAW))


@pytest.mark.parametrize(("magic", "version", "dtype"), [(20240520, 1, "<u2"), (20240801, 7, "<u4")])
def test_headers_of_llm_c(magic, version, dtype, here):
    for number, ids in enumerate((TRAIN[:100], TRAIN[100:])):
        Path(f"fineweb_train_{number:06}.bin").write_bytes(llm_c(ids, magic, version, dtype))
    Path("fineweb_val_000000.bin").write_bytes(llm_c(VALIDATION, magic, version, dtype))
    dataset = prepare(settings("tokens:fineweb_*.bin"))
    assert_streams(dataset)


def test_litgpts_chunks(here):
    write_litdata(here / "lit" / "train", [DOCUMENTS[:25], DOCUMENTS[25:60]])
    write_litdata(here / "lit" / "val", [DOCUMENTS[60:]])
    assert_streams(prepare(settings("tokens:lit/*/*.bin")))


def test_an_index_is_read_once_and_a_file_in_both_splits_is_hashed_once(here, monkeypatch):
    write_litdata(here / "lit", [[document] for document in DOCUMENTS[:30]])
    read, hashed = list[Path](), list[Path]()
    of_file, of_files = token_files.read_object, token_files.hash_files
    monkeypatch.setattr(token_files, "read_object", lambda path: read.append(path) or of_file(path))
    monkeypatch.setattr(token_files, "hash_files", lambda paths, *more: hashed.extend(paths) or of_files(paths, *more))
    corpus = TokenFiles(settings("tokens:lit/*.bin", validation_fraction=0.5))
    assert {shard.path.name for shard in corpus.splits["train"]} & {s.path.name for s in corpus.splits["validation"]}
    assert read == [here / "lit" / "index.json"]
    assert len(corpus.identity()["parts"]) == 31
    assert len(hashed) == len(set(hashed)) == 30


@pytest.mark.parametrize("share", [0.1, 0.3])
def test_a_share_at_the_end_is_held_out(share, here):
    dataset = prepare(settings(validation_fraction=share, **RAW))
    every = TRAIN + VALIDATION
    kept = len(every) - round(share * len(every))
    assert_streams(dataset, every[:kept], every[kept:])
    limited = prepare(settings(validation_fraction=share, max_train_tokens=100, **RAW))
    assert_streams(limited, every[:100], every[kept:])
    assert limited.content_hash != dataset.content_hash


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "uint32"])
def test_other_types_of_ids(dtype, here):
    few = byte_level(TEXTS, 257)
    write_tokenizer(here / "bpe", few)
    for name, texts in (("train", TEXTS[:60]), ("val", TEXTS[60:])):
        ids = [i for text in texts for i in few.encode(text).ids]
        Path("owt", f"{name}.bin").write_bytes(nanogpt(ids, np.dtype(dtype).newbyteorder("<").str))
    dataset = prepare(settings(dtype=dtype))
    assert dataset.validation.tokens_per_byte == 1
    assert few.decode(stream(dataset.train)[:40]) == "".join(TEXTS)[:40]


# ---- what is refused


def put(name, content):
    return lambda: Path("owt", name).write_bytes(content)


def changed_index(**change):
    def write():
        write_litdata(Path("owt"), [DOCUMENTS])
        index = json.loads(Path("owt/index.json").read_text())
        index["config"] |= change
        Path("owt/index.json").write_text(json.dumps(index))

    return write


CHUNKS = {"corpus": "tokens:owt/chunk-*.bin", "validation_fraction": 0.1}
WRONG = {
    "no file": (lambda: None, {"corpus": "tokens:owt/*.npy"}, "no file matches tokens:owt/\\*.npy"),
    "a folder": (lambda: None, {"corpus": "tokens:owt"}, "no file matches tokens:owt\n.*Match files, not folders"),
    "no type": (lambda: None, {}, "train.bin: it does not state the type of its ids; set data.dtype"),
    "half an id": (
        put("train.bin", nanogpt(TRAIN)[:-1]),
        RAW,
        r"train.bin: its ids have [\d,]+ bytes, which are not a number of uint16",
    ),
    "nothing": (put("val.bin", b""), RAW, "val.bin: its ids have 0 bytes"),
    "a large id": (
        put("val.bin", nanogpt([1, 2, 290])),
        RAW,
        "val.bin: id 2 .from 0. is 290, but the tokenizer ./bpe has ids from 0 to 289",
    ),
    "a negative id": (
        put("val.bin", nanogpt([1, -2], "<i8")),
        {"dtype": "int64", "corpus": "tokens:owt/val.bin", "validation_fraction": 0.5},
        "id .* but the tokenizer ./bpe has ids from 0",
    ),
    "another type": (
        put("train.bin", llm_c(TRAIN)),
        {"dtype": "uint32"},
        "train.bin: its ids are uint16, not data.dtype uint32",
    ),
    "another version": (
        put("train.bin", llm_c(TRAIN, version=2)),
        RAW,
        "its header has version 2; comt reads version 1",
    ),
    "a header that says more": (
        put("train.bin", llm_c(TRAIN)[:-2]),
        RAW,
        r"its ids have [\d,]+ bytes, which are not [\d,]+ uint16",
    ),
    "a numpy file": (
        put("train.bin", b"\x93NUMPY" + bytes(90)),
        RAW,
        "it has a header of NumPy",
    ),
    "a smaller type": (
        put("train.bin", nanogpt(TRAIN, "<u4")),
        RAW,
        "train.bin: every second id is nearly 0: they are no uint16",
    ),
    "no validation": (
        lambda: None,
        {"corpus": "tokens:owt/train.bin", **RAW},
        "no files of .* have val in their names",
    ),
    "no training": (lambda: None, {"corpus": "tokens:owt/val.bin", **RAW}, "all files of .* have val in their names"),
    "a test split": (
        put("test.bin", nanogpt(TRAIN)),
        {"validation_fraction": 0.1, **RAW},
        "tokens:owt/\\*.bin matches .*owt/test.bin, a test split by its name",
    ),
    "a folder of tests": (
        lambda: (shutil.copytree("owt", "every/owt"), shutil.copytree("owt", "every/test")),
        {"corpus": "tokens:every/**/*.bin", **RAW},
        "matches .*every/test/train.bin, a test split by its name",
    ),
    "no index": (put("chunk-0-0.bin", b"x"), CHUNKS, "owt/index.json cannot be read"),
    "another index": (
        lambda: (put("index.json", b"{}")(), put("chunk-0-0.bin", b"x")()),
        CHUNKS,
        "its index.json does not describe it: KeyError",
    ),
    "compressed": (
        changed_index(compression="zstd"),
        CHUNKS,
        r"chunk-0-0.bin: comt reads unpacked chunks .*'compression': 'zstd'",
    ),
    "encrypted": (
        changed_index(encryption={"level": "chunk"}),
        CHUNKS,
        "comt reads unpacked chunks .*'encryption': {'level'",
    ),
    "floats": (
        changed_index(data_format=["no_header_tensor:1"]),
        CHUNKS,
        "TokensLoader, of integers; .*no_header_tensor:1",
    ),
    "a short text": (lambda: None, {"sequence_length": 1000, **RAW}, "less than a row of 1000"),
}


@pytest.mark.parametrize(("change", "keys", "said"), WRONG.values(), ids=list(WRONG))
def test_what_cannot_be_used_is_refused(change, keys, said, here):
    change()
    with pytest.raises(UserError, match=f"(?s){said}"):
        prepare(settings(**keys))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"tokenizer": "sentencepiece"}, "tokenizer: sentencepiece is trained on text; name the tokenizer that made"),
        ({"rows": "pad"}, "rows: pad needs documents, which tokens:GLOB has not; use pack"),
        ({"dtype": "float16"}, "Input should be 'uint8', 'uint16'"),
        ({"corpus": "files:owt/*.bin", **RAW}, "dtype: applies to tokens:GLOB, .* not to corpus files; leave it out"),
    ],
)
def test_settings_that_do_not_fit_are_refused(keys, said):
    with pytest.raises(ValueError, match=said):
        settings(**keys)


def test_masked_language_models_need_text():
    with pytest.raises(ValueError, match="corpus: tokens:GLOB has no text, and is for train-lm alone"):
        MaskedData(corpus="tokens:owt/*.bin", tokenizer="bytes", **RAW)
