"""Scores of captions: equal to COCO's evaluation; METEOR and SPICE missing with a reason where Java is."""

from __future__ import annotations

import random
import shutil

import pytest

from comt_cli.data.captions.corpora.scenes import drawn_scenes
from comt_cli.scoring import java_metrics
from comt_cli.scoring.captions import CAPTION_METRICS, Cider, caption_scores, words_of
from comt_cli.scoring.java_metrics import JAVA_METRICS, java_scores
from comt_cli.scoring.scenes import scene_f1

HYPOTHESES = ["a man rides a red horse", "two dogs play in the snow", "a bowl of fruit", "the the the the"]
REFERENCES = [
    ["a man rides a horse", "a person on a red horse", "man riding a brown horse in a field"],
    ["two dogs in the snow", "dogs play with a ball in snow"],
    ["a bowl full of fruit on a table", "fresh fruit in a white bowl", "a bowl of apples and pears"],
    ["the cat sits on the mat"],
]
BY_PYCOCOEVALCAP = {  # 1.2, times 100
    "bleu1": 77.46371787050883,
    "bleu2": 70.71437610938094,
    "bleu3": 56.39232554707232,
    "bleu4": 37.26974863634707,
    "rouge_l": 71.5856694308345,
    "cider": 244.1587730302766,
}


def test_scores_are_those_of_cocos_evaluation() -> None:
    assert caption_scores(HYPOTHESES, REFERENCES) == pytest.approx(BY_PYCOCOEVALCAP, rel=1e-12)
    assert tuple(BY_PYCOCOEVALCAP) == CAPTION_METRICS


def hostile(count: int) -> tuple[list[str], list[list[str]]]:
    """Captions of scenes, some of them shuffled, cut, unknown or empty, with one to five references."""
    chance, hypotheses, references = random.Random(0), [], []
    for number, each in enumerate(drawn_scenes("test", 0, count, captions=6)):
        words = each.captions[5].split()
        if number % 3 == 0:
            chance.shuffle(words)
        if number % 7 == 0:
            words = words[: chance.randrange(4)]
        hypotheses.append("zebra" if number % 50 == 1 else " ".join(words))
        references.append(list(each.captions[: chance.randrange(1, 6)]))
    return hypotheses, references


def test_cider_of_single_captions_is_that_of_the_corpus() -> None:
    hypotheses, references = hostile(60)
    cider = Cider(references)
    scores = [cider.score(text, image) for image, text in enumerate(hypotheses)]
    assert sum(scores) / 60 == pytest.approx(caption_scores(hypotheses, references)["cider"])
    assert cider.score(references[4][0], 4) > cider.score(references[5][0], 4) >= 0
    assert cider.score("", 4) == cider.score("zebra", 4) == 0


def test_scores_need_a_caption_for_every_image() -> None:
    for hypotheses, references in ([], []), (["a"], []), (["a"], [[]]):
        with pytest.raises(ValueError, match="captions for"):
            caption_scores(hypotheses, references)
    with pytest.raises(ValueError, match="captions for"):
        scene_f1(["a"], [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A man's dog doesn't sit.", "a man 's dog does n't sit"),
        ("Two black-and-white cats; one is on the table!", "two black-and-white cats one is on the table"),
        ('a "quoted" sign... reads $5 & up', "a quoted sign reads $ 5 & up"),
        ("An 8x10 photo/print of 1,000 people at 5:30", "an 8x10 photo/print of 1,000 people at 5:30"),
        ("A <unk> dog, <unk>.", "a <unk> dog <unk>"),
        ("boys' toys -- and girls' too", "boys toys and girls too"),
        ("what’s this? I'll go; we've been", "what 's this i 'll go we 've been"),
    ],
)
def test_words_are_those_of_java(text: str, words: str) -> None:
    """As Stanford's PTBTokenizer and COCO's list of punctuation cut these."""
    assert " ".join(words_of(text)) == words


def test_what_java_lacks_is_missing_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert java_scores(HYPOTHESES, REFERENCES) == ({}, dict.fromkeys(JAVA_METRICS, "needs Java"))
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/java")
    monkeypatch.setattr(java_metrics, "find_spec", lambda name: None)
    assert java_scores(HYPOTHESES, REFERENCES) == ({}, dict.fromkeys(JAVA_METRICS, "needs comt[caption-metrics]"))
