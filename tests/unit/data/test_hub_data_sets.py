"""`hf:` read by the real clients from a stand-in for the hub: splits, commits, resumption, conversions, and errors."""

from __future__ import annotations

import gzip
import json
import shutil

import pyarrow
import pyarrow.parquet
import pytest
from fake_hub import Client, commit_of, serving
from kinds import sentences

from comt_cli.data.text.corpora.hub_data_sets import HubDataSet
from comt_cli.data.text.settings import Corpus, DataSettings

CONFIGS = """---
configs:
- config_name: {0}
  data_files:
  - split: train
    path: {0}/train-*
  - split: validation
    path: {0}/held-*
- config_name: {1}
  data_files: {1}/*.jsonl.gz
---
"""


def write_parquet(path, name, count=80, column="text"):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table({"id": range(count), column: [f"{name}.{text} " * 4 for text in sentences(count)]})
    pyarrow.parquet.write_table(table, path, row_group_size=16)


def write_lines(path, name, count=80):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps({"text": f"{name}.{text}", "url": "u"}) + "\n" for text in sentences(count))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """`lab/prose` has two configurations, of which `a` has a validation split; `lab/bare` has files alone; `lab/tests`
    a test split alone; `lab/script` needs a script; `lab/odd` has one array, converted in part."""
    root = tmp_path_factory.mktemp("hub")
    main = root / "lab/prose/main"
    for number in range(3):
        write_parquet(main / f"a/train-{number}.parquet", f"t{number}")
    write_parquet(main / "a/held-0.parquet", "v")
    write_lines(main / "b/x.jsonl.gz", "b")
    (main / "README.md").write_text(CONFIGS.format("a", "b"))
    write_parquet(root / "lab/bare/main/data/train-00000-of-00001.parquet", "t")
    write_parquet(root / "lab/bare/main/data/test-00000-of-00001.parquet", "secret")
    write_parquet(root / "lab/bare/old/data/train-00000-of-00001.parquet", "old", column="body")
    write_parquet(root / "lab/tests/main/test.parquet", "t")
    (root / "lab/script/main").mkdir(parents=True)
    (root / "lab/script/main/script.py").write_text("raise SystemExit")
    converted = root / "lab/script" / "refs%2Fconvert%2Fparquet"
    write_parquet(converted / "en/train/0000.parquet", "en")
    write_parquet(converted / "de/train/0000.parquet", "de")
    (root / "lab/odd/main").mkdir(parents=True)
    (root / "lab/odd/main/all.json").write_text(json.dumps([{"text": "one"}, {"text": "two"}]))
    write_parquet(root / "lab/odd/refs%2Fconvert%2Fparquet/default/partial-train/0000.parquet", "odd")
    return root


@pytest.fixture
def hub(root):
    with serving(root) as hub:
        yield hub


@pytest.fixture
def client(tmp_path, hub):
    return Client(tmp_path / "client", hub)


def data(corpus, **more):
    return {"corpus": f"hf:{corpus}", "tokenizer": "bytes", "sequence_length": 64, **more}


def test_splits_commits_and_conversions(client, hub):
    hub.moved["prose"] = "lab/prose"
    own, moved, shared, bare, old, config, script = client.prepare(
        data("lab/prose:a"),
        data("prose:a"),
        data("lab/prose:a", validation_fraction=0.3),
        data("lab/bare"),
        data("lab/bare@old#body"),
        data("lab/prose:b#text"),
        data("lab/script:de"),
    )
    assert own["first"][1].startswith("v.0 ")
    assert (own["train"][0], own["validation"][0]) == (240, 80)
    assert own["data_revision"] == moved["data_revision"] == commit_of("lab/prose", "main")
    assert own["content"] == moved["content"]
    assert shared["train"][0] + shared["validation"][0] == 240  # the documents of train, divided by their hash
    assert bare["train"][0] + bare["validation"][0] == 80  # test is not read
    assert "secret" not in "".join(bare["first"])
    assert not any("/data/test-" in path for path in hub.asked)
    assert old["first"][0].startswith("old.")
    assert old["data_revision"] == commit_of("lab/bare", "old")
    assert "data_note" not in old
    assert config["train"][0] + config["validation"][0] == 80
    assert script["first"][0].startswith("de.")
    assert script["data_revision"] == commit_of("lab/script", "refs/convert/parquet")


def test_killed_and_resumed_it_is_the_same_and_of_the_first_commit(client, hub, root, tmp_path):
    given = data("lab/prose:a", max_train_tokens=40_000)
    (whole,) = Client(tmp_path / "other", hub).prepare(given, part_bytes=8000)
    assert whole["train"][1] == 40_000
    assert whole["parts"] > 8
    assert client.prepare(given, part_bytes=8000, dies_after=7) == []
    read = [path.rpartition("/")[2] for path in hub.asked if path.endswith(".parquet")]
    hub.asked.clear()
    later = root / "lab/prose/later"  # the branch moves on
    shutil.copytree(root / "lab/prose/main", later, dirs_exist_ok=True)
    write_parquet(later / "a/train-0.parquet", "changed")
    hub.heads["lab/prose", "main"] = "later"
    (resumed,) = client.prepare(given, part_bytes=8000)
    again = [path.rpartition("/")[2] for path in hub.asked if path.endswith(".parquet")]
    (newer,) = Client(tmp_path / "newer", hub).prepare(given, part_bytes=8000)
    assert newer["content"] != whole["content"]
    assert newer["data_revision"] == commit_of("lab/prose", "later")
    assert resumed["content"] == whole["content"]
    assert "held-0.parquet" not in again  # its documents were in the parts that were whole
    assert read[-1] in again
    # Prepared, it needs no network; and a plan knows its content.
    (offline,) = Client(client.cache).prepare(given, part_bytes=8000)
    assert offline["known"] == offline["content"] == whole["content"]


def test_a_broken_connection_keeps_what_was_prepared(client, hub):
    given = data("lab/prose:a")
    hub.breaks_after = 3
    (broken,) = client.prepare(given, part_bytes=4000)
    assert broken["error"].startswith("corpus: cannot read hf:lab/prose:a from huggingface.co/datasets/lab/prose: ")
    assert "run the same command again" in broken["hint"]
    hub.breaks_after = None
    (whole,) = client.prepare(given, part_bytes=4000)
    assert (whole["train"][0], whole["validation"][0]) == (240, 80)


REFUSED = [
    ("lab/none", "corpus: lab/none is no data set of the hub, or a private one", "HF_TOKEN"),
    (
        "lab/gated",
        "corpus: lab/gated is given only to those who ask for it",
        "datasets/lab/gated. For private and gated",
    ),
    ("lab/bare@new", "corpus: lab/bare has no such revision: hf:lab/bare@new", "huggingface.co/datasets/lab/bare"),
    ("lab/prose:c", "corpus: lab/prose has no configuration 'c'", "valid: a, b"),
    ("lab/prose", "corpus: lab/prose has several configurations, of which hf:lab/prose names none", "hf:lab/prose:a;"),
    ("lab/prose:b#body", "x.jsonl.gz has no column 'body' in line 1; its columns: text, url", "#COLUMN"),
    ("lab/prose:a#id", "held-0.parquet has no text, but int64", "a column of strings"),
    ("lab/tests", "corpus: hf:lab/tests has no split named train; its splits: test", "files:GLOB#COLUMN"),
    ("lab/script", "corpus: lab/script has several configurations", "hf:lab/script:de; valid: de, en"),
    ("lab/odd", "only the beginning of lab/odd to Parquet (partial-train)", "files:GLOB#COLUMN"),
]


def test_what_is_wrong_is_named(client, hub, root):
    shutil.copytree(root / "lab/bare", root / "lab/gated", dirs_exist_ok=True)
    hub.gated.add("lab/gated")
    found = client.prepare(*(data(corpus) for corpus, _, _ in REFUSED))
    for (corpus, said, hint), told in zip(REFUSED, found, strict=True):
        assert said in told.get("error", "no error"), corpus
        assert hint in told["hint"], corpus


def test_without_network_the_error_says_what_to_fetch(tmp_path):
    (told,) = Client(tmp_path).prepare(data("lab/bare#body"))
    assert "cannot read hf:lab/bare#body from huggingface.co/datasets/lab/bare" in told["error"]
    command = "hf download lab/bare --repo-type dataset --local-dir FOLDER"
    assert f"{command} (elsewhere), then corpus: files:FOLDER/**/*.parquet#body" in told["hint"]


@pytest.mark.parametrize("name", ["hf:", "hf:a/b/c", "hf:a b", "hf:a/b#", "hf:a/b:", "hf:/b"])
def test_names_that_cannot_be(name):
    with pytest.raises(ValueError, match=r"hf:NAME\[@REVISION\]\[:CONFIG\]\[#COLUMN\]"):
        DataSettings(corpus=name, tokenizer="bytes")


def test_a_run_id_covers_the_content_and_not_the_name():
    settings = {"tokenizer": "bytes", "rows": "pack"}
    stored = [DataSettings(corpus=f"hf:a/b{more}", **settings).stored() for more in ("", "#text", "@main", ":c")]
    assert stored == [{**stored[0], "corpus": "hf"}] * 4


def test_the_parts_of_a_name():
    corpus = HubDataSet(DataSettings(corpus="hf:a/b@refs/pr/1:c.d#e f", tokenizer="bytes"))
    assert corpus.identity()["data_set"] == ["a/b", "refs/pr/1", "c.d", "e f"]
    assert Corpus.named("hf:b") is HubDataSet
    assert HubDataSet(DataSettings(corpus="hf:b", tokenizer="bytes")).identity()["data_set"] == [
        "b",
        None,
        None,
        "text",
    ]
