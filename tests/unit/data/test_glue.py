"""The data of fine-tuning: settings, what is prepared once, batches that (seed, step) alone decides, and the splits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from comt_cli.data.glue.dataset import GlueSplit, cut, divided
from comt_cli.data.glue.settings import Example, GlueData, GlueSource
from comt_cli.data.prepare import prepare
from comt_cli.data.text.settings import MaskedData
from comt_cli.data.tokenizer import ByteTokenizer
from comt_cli.errors import UserError

TOKENIZER = ByteTokenizer(MaskedData.extras)
BEGIN, SEPARATOR = TOKENIZER.special.need("begin"), TOKENIZER.special.need("separator")
CORPUS = f"files:{__file__}"  # which is recognised at once: python-docs is extracted first
NLI = GlueData(task="scene-nli", corpus=CORPUS, tokenizer="bytes", sequence_length=200, train_examples=300)


@pytest.fixture(scope="module")
def nli(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMT_CACHE", str(tmp_path_factory.mktemp("glue")))
        yield prepare(NLI)


def test_the_text_is_that_of_a_pre_training():
    data = GlueData(task="follows", corpus="files:*.txt", vocabulary=300, validation_fraction=0.2)
    assert data.text == MaskedData(corpus="files:*.txt", vocabulary=300, validation_fraction=0.2)
    assert data.vocabulary_size == data.text.vocabulary_size == 300
    assert GlueData(tokenizer="bytes").vocabulary_size == TOKENIZER.vocabulary_size
    assert GlueData(tokenizer="bytes").validation_fraction == 0.05
    of_text = [task for task in GlueSource.all_names() if GlueSource.named(task).is_of_text]
    assert of_text == ["acceptability", "follows"]


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ({"task": "sst-2"}, "task"),
        ({"task": "mnli", "tokenizer": "t5"}, "tokenizer"),
        ({"task": "cola", "tokenizer": "sentencepiece"}, "vocabulary: is missing"),
        ({"task": "follows", "corpus": "c4", "max_train_tokens": 9}, "task: follows uses documents"),
        ({"task": "acceptability", "corpus": "hf:a/b"}, "which are unknown for hf:a/b, read in part"),
        ({"task": "cola", "corpus": "hf:a/b", "max_train_tokens": 9}, "does not change the vocabulary of hf:a/b"),
        ({"task": "follows", "glue_folder": "here"}, "glue_folder: "),
        ({"task": "scene-nli", "glue_folder": "here"}, "glue_folder: "),
        ({"task": "cola", "max_train_tokens": 9}, "max_train_tokens: does not change the vocabulary of python-docs"),
        ({"sequence_length": 4}, "sequence_length"),
        ({"held_out": 0}, "held_out"),
        ({"train_examples": 0}, "train_examples"),
        ({"rows": "pad"}, "rows"),
    ],
)
def test_what_cannot_be_meant(keys, wrong):
    with pytest.raises(ValidationError) as caught:
        GlueData(**{"tokenizer": "bytes", **keys})
    assert wrong in str(caught.value)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(5, 40))
def test_the_longer_text_loses_tokens(first, second, length):
    kept = [first, second]
    while sum(kept) + 3 > length:
        kept[0 if kept[0] > kept[1] else 1] -= 1
    assert cut(first, second, length) == tuple(kept)
    assert cut(first, None, length) == (min(first, length - 2), 0)


def test_a_batch_has_both_texts():
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
    assert split.batch(np.array([1])).tokens.shape == (1, 3)  # to the longest of the batch
    assert split.target_counts(np.array([1, 2])).tolist() == [1, 1]


def test_training_is_divided_by_the_text(nli):
    assert (len(nli.train), len(nli.test), nli.unseen) == (300, 1500, None)
    assert 500 < len(nli.validation) < 700
    texts = {split: {each.texts for each in examples} for split, examples in nli.examples.items()}
    assert sum(map(len, texts.values())) == len(set.union(*texts.values()))
    assert nli.examples["test"][4].label == nli.test.targets[4] == 1
    first = nli.tokenizer.decode(nli.test.batch(np.array([0])).tokens[0].tolist())
    assert first == "".join(nli.examples["test"][0][:2])


EXAMPLES = [Example(f"text {n}", None, n % 2) for n in range(200)]


def test_all_examples_of_a_premise_are_on_one_side():
    pairs = [Example(f"premise {n // 3}", f"hypothesis {n}", n % 3) for n in range(300)]
    for count in (None, 200):
        data = GlueData(task="mnli", tokenizer="bytes", held_out=0.2, train_examples=count)
        splits = divided({"train": pairs, "test": pairs[:3]}, data)
        trained, held = ({each.first for each in splits[split]} for split in ("train", "validation"))
        assert not trained & held
        assert len(splits["validation"]) == 3 * len(held) > 30


def test_what_is_missing_is_named():
    data = GlueData(task="cola", tokenizer="bytes", train_examples=190)
    with pytest.raises(
        UserError, match=r"train_examples: cola has 1\d\d examples to train on, without those held out, not 190"
    ):
        divided({"train": EXAMPLES, "test": EXAMPLES}, data)
    data = GlueData(task="cola", tokenizer="bytes")
    for read, split in (({"train": EXAMPLES, "test": []}, "test"), ({"train": EXAMPLES[:1], "test": EXAMPLES}, "val")):
        with pytest.raises(UserError, match=f"task: cola has no example in the {split}"):
            divided(read, data)  # type: ignore[arg-type]
