"""`scene-nli` and `scene-similarity`: labels that another reader of the texts finds too, and that neither text alone
gives away."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from comt_cli.data.captions.words import FACES, INKS, KINDS, SHAPES, SIZES, SYMBOLS, WORDS
from comt_cli.data.glue.settings import GlueData
from comt_cli.data.glue.sources.scene_tasks import EXAMPLES, SceneExamples
from comt_cli.data.storage import no_progress
from comt_cli.scoring.scenes import facts_of

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
