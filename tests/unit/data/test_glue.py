"""The data of fine-tuning: settings, what is prepared once, batches that (seed, step) alone decides, and the splits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from same_bits import same_integers

from comt_cli.data.glue import dataset as preparation
from comt_cli.data.glue.batches import GlueBatch, GlueSplit, cut
from comt_cli.data.glue.corpus import Example, divided
from comt_cli.data.glue.dataset import GlueDataset, fingerprint, known_content, prepare
from comt_cli.data.glue.settings import TASKS, GlueData, GlueTask
from comt_cli.data.loader import TrainBatches
from comt_cli.data.settings import MaskedData
from comt_cli.data.split import IGNORE
from comt_cli.data.tokenizer import ByteTokenizer
from comt_cli.errors import UserError

TOKENIZER = ByteTokenizer(MaskedData.extras)
BEGIN, SEPARATOR = TOKENIZER.special.need("begin"), TOKENIZER.special.need("separator")
CORPUS = f"files:{__file__}"  # which is recognised at once: python-docs is extracted first
NLI = GlueData(task="scene-nli", corpus=CORPUS, tokenizer="bytes", sequence_length=200, train_examples=300)


@pytest.fixture(scope="module")
def nli(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMT_CACHE", str(tmp_path_factory.mktemp("glue")))
        yield prepare(NLI)


# ---- settings


def test_the_text_is_that_of_a_pre_training() -> None:
    data = GlueData(task="follows", corpus="files:*.txt", vocabulary=300, validation_fraction=0.2)
    assert data.text == MaskedData(corpus="files:*.txt", vocabulary=300, validation_fraction=0.2)
    assert data.vocabulary_size == data.text.vocabulary_size == 300
    assert GlueData(tokenizer="bytes").vocabulary_size == TOKENIZER.vocabulary_size
    assert GlueData(tokenizer="bytes").validation_fraction == 0.05
    assert [task for task in TASKS if GlueData(task=task, tokenizer="bytes").of_text] == ["acceptability", "follows"]


def test_every_task_has_measures() -> None:
    assert tuple(TASKS) == get_args(GlueTask)
    for asked in TASKS.values():
        assert (asked.measures[0] in ("pearson", "spearman")) == (asked.classes == 1)
    mrpc = GlueData(task="mrpc", tokenizer="bytes")
    assert (mrpc.classes, mrpc.measures) == (2, ("accuracy", "f1"))


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ({"task": "sst-2"}, "task"),
        ({"task": "mnli", "tokenizer": "t5"}, "tokenizer"),
        ({"task": "cola", "tokenizer": "sentencepiece"}, "vocabulary: a SentencePiece"),
        ({"task": "follows", "corpus": "c4", "max_train_tokens": 9}, "task: follows is made of documents"),
        ({"task": "follows", "glue_folder": "here"}, "glue_folder: this is a key of GLUE's own tasks"),
        ({"task": "scene-nli", "glue_folder": "here"}, "glue_folder: "),
        ({"task": "cola", "max_train_tokens": 9}, "max_train_tokens: the vocabulary of python-docs does not depend"),
        ({"sequence_length": 4}, "sequence_length"),
        ({"held_out": 0}, "held_out"),
        ({"train_examples": 0}, "train_examples"),
        ({"rows": "pad"}, "rows"),
    ],
)
def test_what_cannot_be_meant(keys: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValidationError) as caught:
        GlueData(**{"tokenizer": "bytes", **keys})
    assert wrong in str(caught.value)


def test_what_fits() -> None:
    GlueData(task="follows", tokenizer="bytes", corpus="wikitext-103")
    GlueData(task="cola", tokenizer="bytes", corpus="c4", max_train_tokens=9, glue_folder="here")


# ---- sequences


@given(st.integers(0, 30), st.integers(0, 30), st.integers(5, 40))
def test_the_longer_text_loses_tokens(first: int, second: int, length: int) -> None:
    kept = [first, second]
    while sum(kept) + 3 > length:
        kept[0 if kept[0] > kept[1] else 1] -= 1
    assert cut(first, second, length) == tuple(kept)
    assert cut(first, None, length) == (min(first, length - 2), 0)


def test_a_batch_has_both_texts() -> None:
    examples = [Example("one", "three", 1), Example("a", None, 0), Example("0123456789", "abc", 2)]
    split = GlueSplit(examples, TOKENIZER, 3, 12)
    batch = split.batch(np.array([1, 0, 2, 0]))
    single = [BEGIN, *TOKENIZER.encode("a"), SEPARATOR]
    pair = [BEGIN, *TOKENIZER.encode("one"), SEPARATOR, *TOKENIZER.encode("three"), SEPARATOR]
    long = [BEGIN, *TOKENIZER.encode("012345"), SEPARATOR, *TOKENIZER.encode("abc"), SEPARATOR]
    assert [row[row > 0].tolist() for row in batch.tokens] == [single, pair, long, pair]
    assert batch.tokens.shape == (4, 12)
    assert (batch.tokens[0, 3:] == 0).all()
    assert batch.segments.tolist() == [[0] * 12, [0] * 5 + [1] * 6 + [0], [0] * 8 + [1] * 4, [0] * 5 + [1] * 6 + [0]]
    assert batch.targets.tolist() == [0, 1, 2, 1]
    assert batch.positions.tolist() == [1, 0, 2, 0]
    assert (batch.tokens.dtype, batch.segments.dtype, batch.targets.dtype) == (np.int64,) * 3
    assert (batch.target_count, batch.uncounted().target_count) == (4, 0)
    assert split.batch(np.array([1])).tokens.shape == (1, 3)  # to the longest of the batch
    assert split.target_counts(np.array([1, 2])).tolist() == [1, 1]
    with pytest.raises(IndexError):
        split.batch(np.array([3]))


def test_numbers_are_targets_where_there_are_no_classes() -> None:
    batch = GlueSplit([Example("a", "b", 2.5), Example("c", "d", 0)], TOKENIZER, 1, 12).batch(np.array([0, 1]))
    assert batch.targets.dtype == np.float32
    assert batch.targets.tolist() == [2.5, 0]
    assert (batch.target_count, batch.uncounted().target_count) == (2, 0)
    assert batch.uncounted().targets.tolist() == [IGNORE, IGNORE]


def test_examples_are_tokenised_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = [Example(f"text {n}", f"other {n}" if n % 3 else None, n % 2) for n in range(10)]
    whole = GlueSplit(examples, TOKENIZER, 2, 30).batch(np.arange(10))
    monkeypatch.setattr("comt_cli.data.glue.batches._AT_ONCE", 3)
    parts = GlueSplit(examples, TOKENIZER, 2, 30).batch(np.arange(10))
    assert same_integers(whole.tokens, parts.tokens)
    assert same_integers(whole.segments, parts.segments)


def samples(step: list[GlueBatch]) -> list[tuple[Any, ...]]:
    """Samples one by one, without the padding of their batches."""
    return [
        (
            batch.tokens[row][batch.tokens[row] > 0].tolist(),
            batch.segments[row][batch.tokens[row] > 0].tolist(),
            batch.targets[row],
            batch.positions[row],
        )
        for batch in step
        for row in range(len(batch.tokens))
    ]


def test_a_step_is_the_same_however_it_is_divided(nli: GlueDataset) -> None:
    def steps(micro: int | None, rank: int = 0, world: int = 1, first: int = 0) -> list[list[tuple[Any, ...]]]:
        with TrainBatches(
            nli.train, seed=3, batch_size=16, micro_batch_size=micro, rank=rank, world_size=world, first_step=first
        ) as batches:
            return [samples(next(batches)) for _ in range(25 - first)]

    whole = steps(None)  # more than an epoch of 300 examples
    assert steps(3) == whole
    assert [one + other for one, other in zip(steps(None, 0, 2), steps(None, 1, 2), strict=True)] == whole
    assert steps(5, first=20) == whole[20:]
    assert [sample[3] for step in whole for sample in step] == list(range(400))


# ---- splits


def test_training_is_divided_by_the_text(nli: GlueDataset) -> None:
    assert {split: len(each) for split, each in nli.examples.items()} == {
        "train": 300,
        "test": 1500,
        "validation": len(nli.validation),
    }
    assert (len(nli.train), len(nli.test), nli.unseen) == (300, 1500, None)
    assert 500 < len(nli.validation) < 700
    texts = {split: {each.texts for each in examples} for split, examples in nli.examples.items()}
    assert sum(map(len, texts.values())) == len(set.union(*texts.values()))
    assert nli.examples["test"][4].label == nli.test.targets[4] == 1
    assert nli.tokenizer.decode(nli.test.batch(np.array([0])).tokens[0].tolist()) == "".join(
        nli.examples["test"][0][:2]
    )


EXAMPLES = [Example(f"text {n}", None, n % 2) for n in range(200)]


@given(st.permutations(EXAMPLES), st.integers(1, 150))
def test_which_are_used_depends_on_their_text_alone(examples: list[Example], count: int) -> None:
    read: dict[Any, list[Example]] = {"train": EXAMPLES, "test": EXAMPLES[:3]}
    every, some = (divided(read, GlueData(task="cola", tokenizer="bytes", train_examples=n)) for n in (None, count))
    assert len(some["train"]) == count
    assert every["validation"] == some["validation"]
    assert sorted([*every["train"], *every["validation"]]) == sorted(EXAMPLES)  # type: ignore[type-var]
    more = divided(read, GlueData(task="cola", tokenizer="bytes", train_examples=count + 1))["train"]
    assert {*some["train"]} < {*more}
    again = divided(read | {"train": examples}, GlueData(task="cola", tokenizer="bytes", train_examples=count))
    assert {*again["train"]} == {*some["train"]}
    assert again["train"] == [each for each in examples if each in {*some["train"]}]


def test_all_examples_of_a_premise_are_on_one_side() -> None:
    pairs = [Example(f"premise {n // 3}", f"hypothesis {n}", n % 3) for n in range(300)]
    for count in (None, 200):
        data = GlueData(task="mnli", tokenizer="bytes", held_out=0.2, train_examples=count)
        splits = divided({"train": pairs, "test": pairs[:3]}, data)
        trained, held = ({each.first for each in splits[split]} for split in ("train", "validation"))
        assert not trained & held
        assert len(splits["validation"]) == 3 * len(held) > 30


def test_what_is_missing_is_named() -> None:
    data = GlueData(task="cola", tokenizer="bytes", train_examples=190)
    with pytest.raises(UserError, match=r"train_examples: cola has 1\d\d to train on beside those held out, not 190"):
        divided({"train": EXAMPLES, "test": EXAMPLES}, data)
    data = GlueData(task="cola", tokenizer="bytes")
    for read, split in (({"train": EXAMPLES, "test": []}, "test"), ({"train": EXAMPLES[:1], "test": EXAMPLES}, "val")):
        with pytest.raises(UserError, match=f"task: cola has no example in the {split}"):
            divided(read, data)  # type: ignore[arg-type]


# ---- what is prepared


def test_what_is_prepared_is_not_made_again(nli: GlueDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMT_CACHE", str(nli.folder.parents[1]))
    monkeypatch.setattr(preparation, "_write", None)
    again = prepare(NLI)
    assert again.fingerprint == nli.fingerprint == fingerprint(NLI)
    assert again.content_hash == nli.content_hash == known_content(NLI, nli.fingerprint)
    assert again.examples == nli.examples
    assert again.tokenizer.to_json() == TOKENIZER.to_json()
    assert again.vocabulary_size == TOKENIZER.vocabulary_size
    assert known_content(NLI, "0" * 16) is None


@pytest.mark.parametrize(
    "change",
    [
        {"task": "scene-similarity"},
        {"sequence_length": 100},
        {"validation_fraction": 0.2},
        {"held_out": 0.2},
        {"train_examples": None},
        {"tokenizer": "sentencepiece", "vocabulary": 300},
    ],
)
def test_other_data_has_another_fingerprint(nli: GlueDataset, change: dict[str, Any]) -> None:
    assert fingerprint(GlueData(**NLI.model_dump() | change)) != nli.fingerprint


@pytest.mark.parametrize(
    ("task", "version"),
    [
        ("scene-nli", "dataset.GLUE_FORMAT"),
        ("scene-nli", "scene_tasks.SCENE_TASKS_VERSION"),
        ("follows", "text_tasks.SENTENCES_VERSION"),
    ],
)
def test_versions_are_part_of_the_fingerprint(monkeypatch: pytest.MonkeyPatch, task: GlueTask, version: str) -> None:
    data = NLI.model_copy(update={"task": task})
    before = fingerprint(data)
    monkeypatch.setattr(f"comt_cli.data.glue.{version}", 99)
    assert fingerprint(data) != before


def test_what_was_killed_begins_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = GlueData(task="scene-similarity", corpus=CORPUS, tokenizer="bytes")
    whole = preparation.write_json
    written: list[str] = []

    def breaks(path: Path, value: Any) -> None:
        written.append(path.name)
        if len(written) == 3:
            raise KeyboardInterrupt
        whole(path, value)

    monkeypatch.setattr(preparation, "write_json", breaks)
    with pytest.raises(KeyboardInterrupt):
        prepare(data)
    assert known_content(data, fingerprint(data)) is None
    left = next((cache / "glue").glob("*/train.json"))
    left.with_name(".train.json.tmp").write_text("cut")
    monkeypatch.setattr(preparation, "write_json", whole)
    dataset = prepare(data)
    assert known_content(data, dataset.fingerprint) == dataset.content_hash
    assert sorted(path.name for path in dataset.folder.iterdir()) == [
        "manifest.json",
        "test.json",
        "tokenizer.json",
        "train.json",
        "validation.json",
        "verified.json",
    ]


@pytest.mark.parametrize(
    ("harm", "name"),
    [
        (lambda path: path.unlink(), "test.json"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "train.json"),
        (lambda path: path.write_text(path.read_text().replace("red", "tan")), "validation.json"),
        (lambda path: path.write_text("{"), "manifest.json"),
    ],
)
def test_damage_is_named(nli: GlueDataset, cache: Path, harm: Callable[[Path], None], name: str) -> None:
    import shutil

    shutil.copytree(nli.folder, cache / "glue" / nli.fingerprint)
    (cache / "glue" / nli.fingerprint / "verified.json").unlink()
    harm(cache / "glue" / nli.fingerprint / name)
    with pytest.raises(UserError, match=f"prepared data is damaged: .*{name}") as caught:
        prepare(NLI)
    assert "Delete the folder" in str(caught.value.hint)
