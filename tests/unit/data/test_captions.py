"""Captioned images: settings, what is prepared once, batches that (seed, step) alone decides, and a folder of MSCOCO's
form."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from same_bits import same_integers

from comt_cli.data.captions import settings as preparation
from comt_cli.data.captions.corpora import mscoco
from comt_cli.data.captions.corpora.scenes import SceneRenderer, drawn_scenes
from comt_cli.data.captions.settings import CaptionData, CaptionedImages
from comt_cli.data.prepare import fingerprint, known_content, prepare
from comt_cli.data.split import IGNORE
from comt_cli.errors import UserError

SCENES = CaptionData(images=30, validation_images=6, test_images=7, max_length=12)


@pytest.fixture(scope="module")
def module_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("captions")
        patch.setenv("COMT_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def scenes(module_cache):
    return prepare(SCENES)


# ---- batches of scenes


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
    assert same_integers(image, SceneRenderer("train").render(drawn_scenes("train", 29, 1))[0])
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
    assert batch.uncounted().target_count == 0
    with pytest.raises(IndexError):
        scenes.train.batch(np.array([150]))


# ---- prepared once


def test_what_identifies_the_data(monkeypatch):
    changes = [{}, {"images": 31}, {"difficulty": "easy"}, {"validation_images": 7}, {"test_images": 8}]
    changes.append({"max_length": 9})
    prints = {fingerprint(SCENES.model_copy(update=change)) for change in changes}
    assert len(prints) == 6
    monkeypatch.setattr(preparation, "CAPTION_FORMAT", 0)
    assert fingerprint(SCENES) not in prints


# ---- MSCOCO


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
    with pytest.raises(UserError, match=r"5\.npy: it has 2 regions; it had 4 when it was prepared"):
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
    assert f"Say vocabulary_size: {size} under data in the recipe's setup" in caught.value.hint


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
        (spoil(100, np.ones((2, 5))), r"100\.npy: its features have the shape \[2, 5\], not \[1 to 4, 6\]"),
        (spoil(100, np.full((1, 6), np.nan)), "a number in it is not finite"),
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
