"""`acceptability` and `follows`: made of documents that pre-training divides, wrong where they say so, and not to be
told from one text alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
from fake_corpus import FakeCorpus

from comt_cli.data.draws import Draws
from comt_cli.data.glue.settings import GlueData
from comt_cli.data.glue.sources.text_tasks import Passage, acceptability, follows, made_wrong, passages, sentences_of
from comt_cli.data.prepare import fingerprint, prepare
from comt_cli.data.storage import no_progress
from comt_cli.data.text.settings import DataSettings, split_of

# ---- sentences


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


# ---- examples


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
