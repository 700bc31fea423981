"""Tasks made of text and of scenes: labels are right, splits share nothing, and one text alone tells nothing."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from kinds import FakeCorpus, fingerprint

from comt_cli.data.captions.words import FACES, INKS, KINDS, SHAPES, SIZES, SYMBOLS, WORDS
from comt_cli.data.draws import Draws
from comt_cli.data.glue.settings import GlueData
from comt_cli.data.glue.sources.scene_tasks import EXAMPLES, SceneExamples
from comt_cli.data.glue.sources.text_tasks import Passage, acceptability, follows, made_wrong, passages, sentences_of
from comt_cli.data.prepare import kind_of, prepare
from comt_cli.data.storage import no_progress
from comt_cli.data.text.settings import SHARED, DataSettings, split_of
from comt_cli.scoring.scenes import facts_of


def test_prose_is_read_and_code_is_not():
    text = """\
        Return the number of items in a container.  This one is
        wrapped over two lines; it's "quoted", too (and
        has parentheses).

        >>> len([1, 2])
        2

        Too short.  begins with a small letter and so is none.
        The value x = 3 is code and so no sentence is here.
        The method read() of sys.stdin and self.name are called once.
        It ends with an abbreviation that is not the end, e.g. this.
        Is this a question that a person would ask?
        Nothing ends this one that is long enough
        """
    assert list(sentences_of(text)) == [
        "Return the number of items in a container.",
        'This one is wrapped over two lines; it\'s "quoted", too (and has parentheses).',
        "The method read() of sys.stdin and self.name are called once.",
    ]
    assert list(
        sentences_of(" = Title = \n The game 's music was written by two men , and the rest by one . Yes . ")
    ) == ["The game 's music was written by two men , and the rest by one ."]
    for count, is_one in ((5, False), (6, True), (32, True), (33, False)):
        assert bool(list(sentences_of("A" + " word" * (count - 1) + "."))) is is_one


def numbered(*numbers):
    return " ".join(f"This is the sentence with the number {number}." for number in numbers)


def test_a_sentence_counts_once_and_never_in_both_splits():
    texts = [numbered(n, n + 1, n + 1, n + 2) for n in range(60)]
    splits = [split_of(text, 0.3) for text in texts]
    found = passages(FakeCorpus([texts]), 0.3, no_progress)
    all_of = {split: [each for passage in found[split] for each in passage.sentences] for split in found}
    assert Counter(splits) == {split: len(each) for split, each in found.items()}
    told = {each for text, split in zip(texts, splits, strict=True) if split == "train" for each in sentences_of(text)}
    assert len(all_of["train"]) == len(told) and {*all_of["train"]} == told  # noqa: PT018
    heard = {each for text in texts for each in sentences_of(text)}
    assert len(all_of["validation"]) == len({*all_of["validation"]})
    assert {*all_of["validation"]} == heard - told
    assert all(
        list(passage.sentences) == sorted(passage.sentences, key=lambda s: int(s.split()[-1][:-1]))
        for passage in found["train"]
    )
    assert len({passage.document for each in found.values() for passage in each}) == 60


def test_no_training_document_has_what_is_tested_on():
    """Not beyond those that training's sentences are from, nor where its sentence is no clean one."""
    texts = [numbered(n) for n in range(200)]
    known = [passage.sentences[0] for passage in passages(FakeCorpus([texts]), 0.3, no_progress, 20)["validation"]]
    forms = ["{}", "Class: {}", "{} x = 3", "- {}\n    y", "One. ({})", '"{}" ']
    forms = [form.format(text) for form, text in zip(forms, known, strict=False)]
    forms += [known[6].upper(), f"a {known[7][:-1]}", known[8].replace(" ", " \n ")]
    late = [next(f"{n} {form}" for n in range(99) if split_of(f"{n} {form}", 0.3) == "train") for form in forms]
    late += [f"{known[9].rsplit(maxsplit=1)[0]} 99999.", f"un{known[10].lower()}"]  # others
    found = passages(FakeCorpus([[*texts, *late]]), 0.3, no_progress, 20)
    assert [len(passage.sentences) for passage in found["validation"]] == [0] * 9 + [1] * 11
    assert {split: len(each) for split, each in found.items()} == {"train": 20, "validation": 20}


def test_one_thing_is_made_wrong():
    right = "This is the value of an option that counts."
    assert [made_wrong(right, Draws([share, 0.0])) for share in (0.43, 0.45, 0.83, 0.85)] == [
        "This is value the of an option that counts.",
        "This the value of an option that counts.",
        "This the value of an option that counts.",
        "This are the value of an option that counts.",
    ]
    for share in (0.0, 0.5, 0.9):  # another thing where the first cannot be
        wrong = made_wrong("Nothing here can go wrong at once quickly.", Draws([share, 0.0]))
        assert wrong == "Nothing here can go wrong once at quickly."
        assert made_wrong("Everything here remains very good always.", Draws([share, 0.0])) is None
    made = acceptability([Passage(n, (f"The first {n} is here.", "No place.")) for n in range(300)], "train")
    assert len(made) == 300
    assert all((each.first == f"The first {n} is here.") == (each.label == 1) for n, each in enumerate(made))
    assert 110 < sum(each.label for each in made) < 190


def test_second_sentences_are_exchanged():
    found = [Passage(n, (f"A{n}", f"B{n}" + " w" * (n * 7 % 12), f"C{n}", f"D{n}", f"E{n}")) for n in range(150)]
    examples = follows(found, "train")
    seconds = {
        first: second
        for passage in found
        for first, second in zip(passage.sentences[::2], passage.sentences[1::2], strict=False)
    }
    used = [text for each in examples for text in (each.first, each.second)]
    assert len({*used}) == len(used)
    assert {*used} <= {text for passage in found for text in passage.sentences}
    assert 290 < len(examples) <= 300
    for each in examples:
        assert (seconds[each.first] == each.second) == (each.label == 1)
        if not each.label:  # of another document
            assert each.first[1:] != str(each.second).split()[0][1:]
    apart = [len(str(each.second).split()) - len(seconds[each.first].split()) for each in examples if not each.label]
    assert np.mean(np.abs(apart)) < 2


def test_the_split_is_that_of_pre_training(cache, tmp_path):
    """Shown on the prepared rows: their validation documents are those that the test is made of."""
    for n in range(40):
        (tmp_path / f"{n:02}.txt").write_text(numbered(*range(4 * n, 4 * n + 4)), encoding="utf-8")
    keys = {"corpus": f"files:{tmp_path}/*.txt", "tokenizer": "bytes", "validation_fraction": 0.3}
    rows = prepare(DataSettings(**keys, rows="pad", sequence_length=400))
    held = [
        rows.tokenizer.decode(rows.validation.batch(np.array([n])).tokens[0].tolist())
        for n in range(len(rows.validation))
    ]
    dataset = prepare(GlueData(task="follows", **keys))
    tested = {text for each in dataset.examples["test"] for text in (each.first, each.second)}
    assert tested == {sentence for text in held for sentence in sentences_of(text)}
    assert 5 < len(held) < 20
    assert len(dataset.test) == 2 * len(held)
    other = GlueData(task="follows", **keys | {"validation_fraction": 0.2})
    assert fingerprint(other) != dataset.fingerprint


def test_examples_of_few_documents_say_that_splits_share_them(cache, tmp_path):
    for n in range(2):
        (tmp_path / f"{n}.txt").write_text(numbered(*range(200 * n, 200 * n + 200)), encoding="utf-8")
    keys = {"corpus": f"files:{tmp_path}/*.txt", "tokenizer": "bytes", "validation_fraction": 0.3}
    data = GlueData(task="follows", **keys)
    assert prepare(data).facts == {"data_note": SHARED}
    assert kind_of(data).known(fingerprint(data)).note == SHARED
    assert prepare(GlueData(task="scene-nli", train_examples=50, **keys)).facts == {}


NLI: str = "scene-nli"
SIMILARITY: str = "scene-similarity"


@cache
def read(task):
    return SceneExamples(GlueData(task=task, tokenizer="bytes")).read(no_progress)


def named(facts):
    return {fact[0] for fact in facts if len(fact) == 1}


def one_of(fact):
    """What only one of can be true, and of which this fact says which."""
    if fact[0] == "paper":
        return ("paper",)
    if len(fact) == 3:
        return ("where", *sorted((fact[0], fact[2])))
    for what, values in (("colour", INKS), ("size", SIZES), ("face", FACES)):
        if len(fact) == 2 and fact[1] in values:
            return (what, fact[0])
    return None


def judged(premise, hypothesis):
    """0 where every fact of the hypothesis is one of the premise, 2 where one is not and cannot be, else 1."""
    known, said = facts_of(premise), facts_of(hypothesis)
    known |= {(symbol, KINDS[symbol]) for symbol in named(known) if symbol in KINDS}  # nobody needs to be told
    new = said - known
    taken = {one_of(fact) for fact in known} - {None}
    return 0 if not new else 2 if any(one_of(fact) in taken for fact in new) else 1


def in_common(first, second):
    """How many of size, colour, paper, kind and symbol are the same."""

    def said(text):
        facts = facts_of(text)
        (symbol,) = named(facts)
        attributes = {fact[1] for fact in facts if len(fact) == 2 and fact[0] == symbol}
        (paper,) = (fact[1] for fact in facts if fact[0] == "paper")
        (size,), (colour,) = attributes & {*SIZES}, attributes & {*INKS}
        return size, colour, paper, KINDS.get(symbol, "shape"), symbol

    return sum(one == other for one, other in zip(said(first), said(second), strict=True))


@pytest.mark.parametrize("split", ["train", "test"])
def test_labels_are_what_the_texts_say(split):
    for example in read(NLI)[split]:
        assert judged(example.first, example.second or "") == example.label, example
        assert len(named(facts_of(example.first))) == 2
        assert named(facts_of(example.second or "")) <= named(facts_of(example.first))
    for example in read(SIMILARITY)[split]:
        assert in_common(example.first, example.second or "") == example.label, example


@pytest.mark.parametrize(("task", "labels"), [(NLI, 3), (SIMILARITY, 6)])
def test_splits_are_balanced_and_share_no_example(task, labels):
    splits = read(task)
    assert {split: len(examples) for split, examples in splits.items()} == EXAMPLES == {"train": 6000, "test": 1500}
    texts = [example.texts for examples in splits.values() for example in examples]
    assert len({*texts}) == len(texts)
    for examples in splits.values():
        held = Counter(example.label for example in examples)
        assert sorted(held) == list(range(labels))
        assert max(held.values()) < 1.05 * min(held.values())
        assert {word for each in examples for word in each.texts.split()} <= {*WORDS}
    assert {word for each in splits["train"] for word in each.first.split()} >= {*SYMBOLS, *SHAPES, "digit", "letter"}
