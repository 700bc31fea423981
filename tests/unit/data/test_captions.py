"""Captioned images: batches, a folder of MSCOCO's form, and scenes of which every caption is true."""

from __future__ import annotations

import json
import shutil
from functools import cache
from itertools import combinations, permutations

import numpy as np
import pytest
from kinds import fingerprint, known_content
from same_bits import same_integers

from comt_cli.data.captions.corpora import mscoco
from comt_cli.data.captions.corpora.scenes import chosen_scenes, content, drawn_scenes, rendered
from comt_cli.data.captions.settings import CaptionData, CaptionedImages
from comt_cli.data.captions.words import FACES, LETTERS, WORDS
from comt_cli.data.images.sets.glyphs import font_hash, rasteriser
from comt_cli.data.prepare import prepare
from comt_cli.data.split import IGNORE
from comt_cli.errors import UserError
from comt_cli.files import sha256
from comt_cli.scoring.scenes import facts_of

SCENES = CaptionData(images=30, validation_images=6, test_images=7, max_length=12)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMT_CACHE", str(tmp_path_factory.mktemp("captions")))
        yield prepare(SCENES)


def test_a_batch_has_the_pixels_and_the_words(scenes):
    indices = np.array([0, 7, 149, 7])
    batch = scenes.train.batch(indices)
    assert batch.images.tolist() == [0, 1, 29, 1]
    assert batch.regions.dtype == np.float32
    assert batch.regions.shape == (4, 36, 192)
    assert batch.region_mask.all()
    pixels = (batch.regions[2].reshape(6, 6, 8, 8, 3).transpose(0, 2, 1, 3, 4).reshape(48, 48, 3) + 1) * 127.5
    image = scenes.image("train", 29)
    assert image is not None
    assert same_integers(np.rint(pixels).astype(np.uint8), image)
    assert same_integers(image, rendered("train", drawn_scenes("train", 29, 1))[0])
    for row, index in enumerate(indices.tolist()):
        text = scenes.texts["train"].references[index // 5][index % 5]
        kept = text.split()[:12]
        out = batch.target_out[row]
        length = len(kept) + 1
        assert scenes.tokenizer.decode(out[: length - 1].tolist()).split() == kept
        assert out[length - 1] == scenes.tokenizer.special.end
        assert (out[length:] == IGNORE).all()
        assert batch.target_in[row, :length].tolist() == [scenes.tokenizer.special.begin, *out[: length - 1]]
        assert (batch.target_in[row, length:] == scenes.tokenizer.special.pad).all()
    assert batch.target_count == scenes.train.target_counts(indices).sum() == (batch.target_out != IGNORE).sum()


CAPTIONS = {  # cocoid: split, raw captions
    42: ("train", ["A man's dog.", "A dog sits on grass", "The dog"]),
    7: ("restval", ["A red bus, on a street!"]),
    100: ("val", ["A cat", "A cat sits"]),
    5: ("test", ["The bus sits", "A zebra"]),
}
REGIONS = {42: 3, 7: 1, 100: 2, 5: 4}
MSCOCO = CaptionData(corpus="mscoco", vocabulary_size=14, regions=4, features=6, max_length=3)


@pytest.fixture
def folder(tmp_path, cache):
    """A folder of four images; one has its features in a .npz."""
    folder = tmp_path / "coco"
    (folder / "features").mkdir(parents=True)
    images = [
        {
            "split": split,
            "cocoid": number,
            "sentences": [
                {"raw": raw, "tokens": raw.lower().replace("'s", "s").translate(str.maketrans("", "", ".,!")).split()}
                for raw in texts
            ],
        }
        for number, (split, texts) in CAPTIONS.items()
    ]
    (folder / "dataset_coco.json").write_text(json.dumps({"images": images}))
    for number, count in REGIONS.items():
        regions = np.full((count, 6), number, dtype=np.float16)
        if number == 7:
            np.savez(folder / "features" / "7.npz", feat=regions, other=np.zeros(2))
        else:
            np.save(folder / "features" / f"{number}.npy", regions)
    return folder


def coco(folder, **keys):
    return CaptionData.model_validate({**MSCOCO.model_dump(), "folder": str(folder), **keys})


def test_a_folder_of_features_is_read(folder):
    data = coco(folder)
    assert known_content(data, fingerprint(data)) is None
    dataset = prepare(data)
    assert (len(dataset.train), len(dataset.validation), len(dataset.test)) == (4, 1, 1)
    assert dataset.tokenizer.decode(range(4, 14)) == "a dog on bus grass mans red sits street the"
    assert dataset.texts["test"].references == [["The bus sits", "A zebra"]]
    assert dataset.scenes is None
    assert dataset.image("train", 0) is None
    batch = dataset.train.batch(np.array([3, 1]))
    assert batch.images.tolist() == [1, 0]
    assert batch.region_mask.tolist() == [[True, False, False], [True, True, True]]
    assert batch.regions[0].tolist() == [[7] * 6, [0] * 6, [0] * 6]
    assert (batch.regions[1] == 42).all()
    assert [dataset.tokenizer.decode(row[row > 0].tolist()) for row in batch.target_out] == ["a red bus", "a dog sits"]
    assert known_content(data, fingerprint(data)) == dataset.content_hash
    elsewhere = folder.with_name("elsewhere")
    shutil.copytree(folder, elsewhere)
    assert prepare(coco(elsewhere)).content_hash == dataset.content_hash
    assert fingerprint(coco(elsewhere)) == fingerprint(data)


def test_a_file_that_changed_is_other_content(folder):
    data = coco(folder)
    first = prepare(data)
    np.save(folder / "features" / "5.npy", np.ones((2, 6)))
    with pytest.raises(UserError, match=r"5\.npy: it has 2 regions, but had 4 when the data was prepared"):
        first.test.batch(np.array([0]))
    assert known_content(data, fingerprint(data)) is None
    second = prepare(data)
    assert second.content_hash != first.content_hash
    assert second.test.batch(np.array([0])).regions.tolist() == np.ones((1, 2, 6)).tolist()


@pytest.mark.parametrize(("rule", "words"), [("all", "dog cat bus"), ("karpathy-gt5", "bus"), ("nltk-ge5", "dog")])
def test_vocabularies_by_rule(rule, words):
    """`karpathy-gt5`: more than five times in all splits; `nltk-ge5`: at least five times in training."""
    images = {
        split: CaptionedImages([["not learned"]], [[text]])
        for split, text in {"train": "dog " * 5 + "cat " * 4 + "bus " * 3, "test": "bus " * 3 + "cat zebra"}.items()
    }
    size = 4 + len(words.split())
    found = mscoco.MSCOCO(CaptionData(corpus="mscoco", vocabulary_rule=rule, vocabulary_size=size)).tokenizer(images)
    assert " ".join(found.words) == words
    with pytest.raises(UserError, match=f"by the rule {rule} .* {size:,}, not 9,999") as caught:
        mscoco.MSCOCO(CaptionData(corpus="mscoco", vocabulary_rule=rule, vocabulary_size=9999)).tokenizer(images)
    assert f"Set vocabulary_size: {size} under data in the recipe's setup" in caught.value.hint


def spoil(number, regions):
    return lambda folder: np.save(folder / "features" / f"{number}.npy", regions)


def rewrite(change):
    def write(folder):
        content = json.loads((folder / "dataset_coco.json").read_text())
        change(content["images"][1])
        (folder / "dataset_coco.json").write_text(json.dumps(content))

    return write


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "dataset_coco.json").unlink(), "dataset_coco.json cannot be read"),
        (lambda folder: (folder / "dataset_coco.json").write_text('{"images": null}'), "dataset_coco.json: images: "),
        (lambda folder: shutil.rmtree(folder / "features"), "features: No such file"),
        (lambda folder: (folder / "features" / "7.npz").unlink(), "1 of 4 images have no features; the first are 7"),
        (spoil(100, np.ones((2, 5))), r"100\.npy: its features have the shape \[2, 5\] \(float64\), not \[1 to 4, 6\]"),
        (spoil(100, np.full((1, 6), np.nan)), "a value is not finite"),
        (lambda folder: (folder / "features" / "7.npz").write_bytes(b"PK\3\4 cut"), r"7\.npz: its features cannot be"),
        (rewrite(lambda image: image.update(split="dev")), "image 2: split: "),
        (rewrite(lambda image: image["sentences"][0].pop("raw")), "image 2: sentences: 0: raw: "),
        (rewrite(lambda image: image["sentences"][0].update(tokens=["new"])), "have 8 words, with 4 .* 12, not 14"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_folder_is_named(folder, damage, said):
    damage(folder)
    with pytest.raises(UserError, match=said):
        prepare(coco(folder))
    assert known_content(coco(folder), fingerprint(coco(folder))) is None


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
    monkeypatch.setattr("comt_cli.data.captions.corpora.scenes._ATTEMPTS", 1)
    with pytest.raises(UserError, match="validation_images: only 99 examples are in no earlier split, not 100"):
        chosen_scenes(data)


def test_pixels_are_the_same_everywhere():
    made_by = (font_hash([*FACES.values()])[:16], rasteriser()["freetype"])
    if made_by != ("eb5e808e04605732", "2.14.3"):
        pytest.skip(f"letters are drawn by {made_by}, of which no pixels are known")
    assert sha256(rendered("train", sample()[:50]).tobytes())[:16] == "df570ea1989b0018"
