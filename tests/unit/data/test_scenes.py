"""`scenes`: every caption true, no scene of an earlier split, the same pixels everywhere, and scores that see what is
wrong."""

from __future__ import annotations

from functools import cache
from itertools import combinations, permutations
from pathlib import Path

import pytest

from comt_cli.data.captions.corpora import scenes
from comt_cli.data.captions.corpora.scenes import SceneRenderer, chosen_scenes, content, drawn_scenes
from comt_cli.data.captions.settings import CaptionData
from comt_cli.data.captions.words import FACES, LETTERS, WORDS
from comt_cli.data.images.sets.glyphs import font_hash, rasteriser
from comt_cli.errors import UserError
from comt_cli.files import sha256
from comt_cli.scoring.scenes import facts_of

ROOT = Path(__file__).resolve().parents[3]

PIXELS = {  # the first images of a split, by what draws their letters
    ("eb5e808e04605732", "2.14.3"): "df570ea1989b0018"
}


@cache
def sample(easy=False):
    return list(drawn_scenes("train", 0, 300 if easy else 1200, captions=7, easy=easy))


@pytest.mark.parametrize("easy", [False, True])
def test_every_caption_is_true(easy):
    for each in sample(easy):
        for text in each.captions:
            assert facts_of(text) <= each.scene.facts(), (text, each.scene)
            assert len(facts_of(text)) >= 2, text


def test_the_words_are_those_that_captions_have():
    assert {word for each in sample() for text in each.captions for word in text.split()} == set(WORDS)


@pytest.mark.parametrize("easy", [False, True])
def test_what_scenes_promise(easy):
    assert {len(each.scene.objects) for each in sample(easy)} == ({1, 2} if easy else {1, 2, 3})
    for each in (each.scene for each in sample(easy)):
        assert len({thing.symbol for thing in each.objects}) == len(each.objects)
        for one, other in combinations(each.objects, 2):
            right, down = one.column - other.column, one.row - other.row
            assert abs(right) != abs(down)
            farther = {"left": -right, "right": right, "above": -down, "below": down}
            assert one.relation_to(other) == max(farther, key=lambda where: farther[where])
        if easy:
            assert all((thing.size, thing.face, thing.shift) == ("large", "plain", (0, 0)) for thing in each.objects)
            assert not {thing.symbol for thing in each.objects} & {*LETTERS}
        relations = {fact for fact in each.facts() if len(fact) == 3}
        assert len(relations) == len(each.objects) * (len(each.objects) - 1) // 2


def test_a_scene_is_a_pure_function_of_its_number():
    parts = [each for start, count in ((0, 3), (3, 40), (43, 1)) for each in drawn_scenes("train", start, count, 7)]
    assert parts == sample()[:44]
    assert list(drawn_scenes("test", 0, 3, 7)) != sample()[:3]


def test_no_scene_of_an_earlier_split(monkeypatch):
    data = CaptionData(images=1200, validation_images=100, test_images=500)
    chosen = chosen_scenes(data)
    assert [each.number for each in chosen["train"]] == list(range(1200))
    kept = {split: [content(each.scene) for each in some] for split, some in chosen.items()}
    assert {split: len(some) for split, some in kept.items()} == {"train": 1200, "validation": 100, "test": 500}
    for one, other in permutations(kept, 2):
        assert not set(kept[one]) & set(kept[other])
    assert chosen["test"][-1].number > 499  # some were left out
    easy = chosen_scenes(CaptionData(images=1200, validation_images=5, test_images=5, difficulty="easy"))
    assert easy["train"][:300] == [each._replace(captions=each.captions[:5]) for each in sample(easy=True)]
    monkeypatch.setattr(scenes, "_ATTEMPTS", 1)
    with pytest.raises(UserError, match=r"validation_images: scenes has 99 that are in no earlier split, not 100"):
        chosen_scenes(data)


# ---- pixels


def test_pixels_are_the_same_everywhere():
    made_by = (font_hash([*FACES.values()])[:16], rasteriser()["freetype"])
    if made_by not in PIXELS:
        pytest.skip(f"letters are drawn by {made_by}, of which no pixels are known")
    found = sha256(SceneRenderer("train").render(sample()[:50]).tobytes())[:16]
    assert found == PIXELS[made_by]
