"""Files of rows, `files:GLOB#COLUMN`: formats, reading from any row on, memory, and what is wrong with them."""

from __future__ import annotations

import csv
import gzip
import json
import tracemalloc

import pyarrow
import pyarrow.parquet
import pytest
from kinds import fingerprint, sentences

from comt_cli.data.prepare import prepare
from comt_cli.data.text.columns import format_of, read_column
from comt_cli.data.text.corpora.local_files import LocalFiles
from comt_cli.data.text.settings import DataSettings
from comt_cli.errors import UserError

TEXTS = [f'{text}\nline "two", é and\r\nmore' for text in sentences(150)]


def write(path, texts=TEXTS, column="text", **more):
    """A file of rows with a number and a text, in the format of its name."""
    table = pyarrow.table({"id": range(len(texts)), column: texts, **more})
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=40 if len(texts) < 1000 else None)
    elif path.suffix == ".arrow":
        new = pyarrow.ipc.new_file if path.stem == "file" else pyarrow.ipc.new_stream
        with new(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=70)
    elif path.suffix == ".csv":
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            csv.writer(file).writerows([table.column_names, *zip(*table.to_pydict().values(), strict=True)])
    else:
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist()).encode()
        parts = lines[:1000], lines[1000:]  # compressed in two, as by parallel programs
        if path.suffix == ".gz":
            lines = b"".join(map(gzip.compress, parts))
        elif path.suffix == ".zst":
            lines = b"".join(pyarrow.compress(part, "zstd", asbytes=True) for part in parts)
        path.write_bytes(lines)
    return path


NAMES = [
    "a.parquet",
    "file.arrow",
    "stream.arrow",
    "a.csv",
    "a.jsonl",
    "a.ndjson",
    "A.JSONL.gz",
    "a.json.gz",
    "a.jsonl.zst",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_format_has_the_same_texts_from_any_row_on(name, tmp_path):
    path = write(tmp_path / name)
    for first in (0, 1, 39, 40, 70, 79, 149, 150, 151):
        with path.open("rb") as file:
            assert list(read_column(file, name, "text", first)) == list(enumerate(TEXTS))[first:]


def test_what_has_rows_is_told_by_the_name():
    assert [format_of(name) for name in ("a.txt", "a.json", "a.md", "parquet", "a.parquet.gz", "a.txt.gz")] == [
        None
    ] * 6
    assert {format_of(name) for name in ("a.jsonl", "x/b.c.jsonl.gz", "d.JSONL.zst")} == {".jsonl"}


def test_null_is_no_text(tmp_path):
    assert values(write(tmp_path / "a.parquet", ["one", None, "", " ", "two"])) == [((0, 0), "one"), ((0, 4), "two")]


def corpus(glob):
    return LocalFiles(DataSettings(corpus=f"files:{glob}", tokenizer="bytes"))


def values(glob, start=(0, 0)):
    return [(document.place, document.text) for document in corpus(glob).documents(start)]


def test_several_files_are_read_by_name_and_the_column_is_part_of_the_identity(tmp_path, cache):
    for number, name in enumerate(("b.parquet", "a.parquet")):
        write(tmp_path / name, [f"{number} {text}" for text in TEXTS], other=["x"] * 150)
    found = values(f"{tmp_path}/*.parquet")
    assert [place for place, _ in found] == [(file, row) for file in (0, 1) for row in range(150)]
    assert found[0][1].startswith("1 0 ")
    assert values(f"{tmp_path}/*.parquet", (0, 100)) == found[100:]
    assert values(f"{tmp_path}/*.parquet", (1, 60)) == found[210:]
    identity = corpus(f"{tmp_path}/*.parquet").identity()
    assert corpus(f"{tmp_path}/*.parquet#text").identity() == identity
    assert corpus(f"{tmp_path}/*.parquet#other").identity() != identity
    (tmp_path / "more#text").mkdir()  # a name may have the sign
    write(tmp_path / "more#text" / "c.jsonl")
    assert len(values(f"{tmp_path}/more#text/c.jsonl")) == len(values(f"{tmp_path}/more#text/*#text")) == 150


def test_the_same_text_has_the_same_content_in_every_format(tmp_path, cache):
    contents, names = set(), set()
    for name in ("a.parquet", "file.arrow", "a.csv", "a.jsonl", "a.jsonl.gz"):
        data = DataSettings(corpus=f"files:{write(tmp_path / name)}", tokenizer="bytes", sequence_length=32)
        names.add(fingerprint(data))
        contents.add(prepare(data).content_hash)
    assert (len(contents), len(names)) == (1, 5)


@pytest.mark.parametrize("name", ["a.parquet", "stream.arrow", "a.csv", "a.jsonl.gz"])
def test_a_large_file_is_not_held_in_memory(name, tmp_path):
    """Neither by Python nor by Arrow."""
    texts = [f"{number} " * 250 for number in range(10_000)]  # about 12 MB
    path = write(tmp_path / name, texts)
    arrow = pyarrow.total_allocated_bytes()
    tracemalloc.start()
    with path.open("rb") as file:
        most = max(pyarrow.total_allocated_bytes() for _ in read_column(file, name, "text"))
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(map(len, texts)) > 12e6
    assert python < 4e6
    assert most - arrow < 6e6


def bad(folder, name, content):
    (folder / name).write_bytes(content)
    return folder / name


def twice(path):
    """A file of two columns with one name."""
    table = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, names=["text", "text"])
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        with pyarrow.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    return path


WRONG = {
    "no such column": (
        lambda folder: f"{write(folder / 'a.parquet', column='body')}",
        "a.parquet has no column 'text'; its columns: id, body",
        "#COLUMN",
    ),
    "of a line": (
        lambda folder: bad(folder, "a.jsonl", b'{"text": "a"}\n{"body": "b"}\n'),
        "a.jsonl has no column 'text' in line 2; its columns: body",
        "#COLUMN",
    ),
    "numbers": (
        lambda folder: f"{write(folder / 'a.arrow')}#id",
        "the column 'id' of {folder}/a.arrow has no text, but int64",
        "a column of strings",
    ),
    "a number in a line": (
        lambda folder: bad(folder, "a.jsonl", b'{"text": "a"}\n{"text": 3}\n'),
        "the column 'text' of {folder}/a.jsonl has no text, but int in row 2",
        "a column of strings",
    ),
    "half a character": (
        lambda folder: bad(folder, "a.jsonl", b'{"text": "a\\ud83d\\ude00"}\n{"text": "a\\ud83d b"}\n'),
        "row 2 of {folder}/a.jsonl is not Unicode text (a lone surrogate)",
        "None",
    ),
    "two columns of a name": (
        lambda folder: twice(folder / "a.parquet"),
        "a.parquet has several columns 'text'",
        "#COLUMN",
    ),
    "in an Arrow file": (
        lambda folder: twice(folder / "a.arrow"),
        "a.arrow has several columns 'text'",
        "#COLUMN",
    ),
    "in a CSV file": (
        lambda folder: bad(folder, "a.csv", b"text,text\na,b\n"),
        "a.csv has several columns 'text'",
        "#COLUMN",
    ),
    "an array": (
        lambda folder: bad(folder, "a.jsonl", b'[{"text": "a"},\n{"text": "b"}]\n'),
        "line 1 of {folder}/a.jsonl is not a JSON object",
        "jq -c '.[]'",
    ),
    "deep": (
        lambda folder: bad(folder, "a.jsonl", b'{"text": "a"}\n' + b"[" * 200_000),
        "line 2 of {folder}/a.jsonl is not a JSON object",
        "jq -c '.[]'",
    ),
    "a short row": (
        lambda folder: bad(folder, "a.csv", b"id,text\n1,a\n2\n"),
        "a.csv has 1 fields at line 3, but 2 columns",
        "in quotes",
    ),
    "an open quote": (
        lambda folder: bad(folder, "a.csv", b'id,text\n1,"a\n'),
        "cannot read {folder}/a.csv: line 2: unexpected end of data",
        "UTF-8",
    ),
    "not UTF-8": (
        lambda folder: bad(folder, "a.csv", b"id,text\n1,\xe9\n"),
        "cannot read {folder}/a.csv: 'utf-8' codec can't decode byte 0xe9",
        "UTF-8",
    ),
    "no Parquet": (
        lambda folder: bad(folder, "a.parquet", b"id,text\n1,a and more\n"),
        "cannot read {folder}/a.parquet: Parquet magic bytes not found",
        "UTF-8",
    ),
    "cut off": (
        lambda folder: bad(folder, "a.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 90)[:-20]),
        "cannot read {folder}/a.jsonl.gz: ",
        "UTF-8",
    ),
    "empty": (
        lambda folder: bad(folder, "a.csv", b""),
        "a.csv has no column 'text'; its columns: none",
        "#COLUMN",
    ),
    "several kinds": (
        lambda folder: f"{write(folder / 'a.parquet').parent}/{bad(folder, 'b.txt', b'a').name[1:0]}*",
        "matches files of several kinds: a.parquet (parquet), b.txt (text)",
        "by their ending",
    ),
    "a column of a text": (
        lambda folder: f"{bad(folder, 'a.txt', b'a')}#body",
        "names the column 'body', but a.txt is a text",
        ".parquet, .arrow, .jsonl and .csv",
    ),
    "no file": (
        lambda folder: f"{folder}/*.parquet#body",
        "no file matches files:{folder}/*.parquet#body",
        "Match files, not folders",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case, tmp_path, cache):
    make, said, hint = WRONG[case]
    data = DataSettings(corpus=f"files:{make(tmp_path)}", tokenizer="bytes", sequence_length=16)
    with pytest.raises(UserError) as caught:
        prepare(data)
    assert said.replace("{folder}", str(tmp_path)) in caught.value.message
    assert caught.value.message.startswith("corpus: ")
    assert hint in str(caught.value.hint)
