"""Scores of captions: equal to COCO's evaluation; METEOR and SPICE missing with a reason where Java is."""

from __future__ import annotations

import random
import shutil
from types import SimpleNamespace

import pytest

from comt_cli.data.captions.corpora.scenes import drawn_scenes
from comt_cli.scoring import captions
from comt_cli.scoring.captions import CAPTION_METRICS, JAVA_METRICS, Cider, caption_scores, java_scores, words_of
from comt_cli.scoring.scenes import facts_of, scene_f1

HYPOTHESES = ["a man rides a red horse", "two dogs play in the snow", "a bowl of fruit", "the the the the"]
REFERENCES = [
    ["a man rides a horse", "a person on a red horse", "man riding a brown horse in a field"],
    ["two dogs in the snow", "dogs play with a ball in snow"],
    ["a bowl full of fruit on a table", "fresh fruit in a white bowl", "a bowl of apples and pears"],
    ["the cat sits on the mat"],
]
BY_PYCOCOEVALCAP = [77.46371787050883, 70.71437610938094, 56.39232554707232, 37.26974863634707, 71.5856694308345,
                    244.1587730302766]  # 1.2, times 100 # fmt: skip


def test_scores_are_those_of_cocos_evaluation() -> None:
    found = caption_scores(HYPOTHESES, REFERENCES)
    assert tuple(found) == CAPTION_METRICS
    assert list(found.values()) == pytest.approx(BY_PYCOCOEVALCAP, rel=1e-12)


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


def test_scores_of_hostile_and_of_long_captions() -> None:
    """As Papineni et al. 2002, Lin 2004 and Vedantam et al. 2015 written out gave them."""
    expected = [66.57403182336908, 48.44433321008146, 35.454324551670204, 24.814364701743653, 46.07887106613892]
    assert list(caption_scores(*hostile(60)).values()) == pytest.approx([*expected, 172.0554534974959])
    longer = [f"{text} {text}" for text in HYPOTHESES]  # than their references: there is no reward for it
    expected = [47.499999998812505, 39.79112128666104, 29.138294404104148, 17.24084658552903, 54.727564102564095]
    assert list(caption_scores(longer, REFERENCES).values()) == pytest.approx([*expected, 87.18478606287827])


def test_cider_of_single_captions_is_that_of_the_corpus() -> None:
    hypotheses, references = hostile(60)
    cider = Cider(references)
    scores = [cider.score(text, image) for image, text in enumerate(hypotheses)]
    assert sum(scores) / 60 == pytest.approx(caption_scores(hypotheses, references)["cider"])
    assert cider.score(references[4][0], 4) > cider.score(references[5][0], 4) >= 0
    assert cider.score("", 4) == cider.score("zebra", 4) == 0


def test_scene_f1_is_the_harmonic_mean_of_precision_and_recall() -> None:
    drawn = list(drawn_scenes("test", 0, 20, captions=6))
    scenes = [each.scene for each in drawn]
    captions = [drawn[number - number % 2].captions[number % 6] for number in range(20)]  # half are of another scene
    expected = []
    for caption, scene in zip(captions, scenes, strict=True):
        said, true = facts_of(caption), scene.facts()
        precision, recall = (len(said & true) / len(each) for each in (said, true))
        expected.append(2 * precision * recall / (precision + recall) if precision else 0.0)
    assert scene_f1(captions, scenes) == pytest.approx(100 * sum(expected) / 20)
    assert 20 < scene_f1(captions, scenes) < 80


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
        ("boys' toys -- and girls' too", "boys toys and girls too"),
        ("what’s this? I'll go; we've been", "what 's this i 'll go we 've been"),
    ],
)
def test_words_are_those_of_java(text: str, words: str) -> None:
    """As Stanford's PTBTokenizer and COCO's list of punctuation cut these."""
    assert " ".join(words_of(text)) == words


def test_what_java_lacks_or_fails_at_is_missing_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert java_scores(HYPOTHESES, REFERENCES) == dict.fromkeys(JAVA_METRICS, "needs Java")
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/java")
    monkeypatch.setattr(captions, "find_spec", lambda name: None)
    assert java_scores(HYPOTHESES, REFERENCES) == dict.fromkeys(JAVA_METRICS, "needs comt[caption-metrics]")
    given = []

    class Scorer:
        def compute_score(self, truths: dict, found: dict) -> tuple[float, None]:
            given.append((truths[0], found))
            if len(given) > 1:
                raise ValueError("no such jar")
            return 0.25, None

    package = SimpleNamespace(Meteor=Scorer, Spice=Scorer)
    monkeypatch.setattr(captions, "why_missing", lambda name: None)
    monkeypatch.setattr(captions, "import_module", lambda name: package)
    scores = java_scores(["A dog, here.", "!"], [["A dog"], ["a cat"]])
    assert scores == {"meteor": 25.0, "spice": "spice failed: no such jar"}
    assert given[0] == (["a dog"], {0: ["a dog here"], 1: ["."]}), "an empty caption is a dot"
