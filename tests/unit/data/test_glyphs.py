"""Rendered characters: decidable labels, the same bytes every time, and a cache that survives what happens to it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from same_bits import same_integers

from comt_cli.data.images.dataset import ImageDataset
from comt_cli.data.images.glyph_faces import CHARACTERS, FACES, GlyphSet, face_masks, font_files
from comt_cli.data.images.glyph_render import GlyphRenderer
from comt_cli.data.images.sets import glyphs
from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.data.prepare import fingerprint, prepare
from comt_cli.errors import UserError

DATA = ImageDataSettings(size=16, train_images=50, validation_images=20)
SETS: tuple[GlyphSet, ...] = ("glyphs10", "glyphs100")


@pytest.fixture
def dataset(cache: Path) -> ImageDataset:
    return prepare(DATA)


def folder_of(cache: Path) -> Path:
    return cache / "images" / fingerprint(DATA)


@pytest.mark.parametrize("name", SETS)
def test_every_class_is_a_character_of_every_face(name: GlyphSet) -> None:
    from matplotlib.ft2font import FT2Font

    assert len(CHARACTERS[name]) == len(set(CHARACTERS[name])) == ImageDataSettings(images=name).classes
    assert len(FACES[name]) == len(set(FACES[name]))
    for path in font_files(FACES[name]):
        drawn = FT2Font(str(path)).get_charmap()
        assert [character for character in CHARACTERS[name] if ord(character) not in drawn] == [], path.name


@pytest.mark.parametrize("side", [32, 64])
@pytest.mark.parametrize("name", SETS)
def test_no_character_is_cut_off(name: GlyphSet, side: int) -> None:
    """The outermost pixels of a mask are empty, and next to them there is next to no ink."""
    masks = face_masks(CHARACTERS[name], FACES[name], side)
    for edge, least in ((0, 0.0), (1, 0.5)):
        for number in (edge, -1 - edge):
            assert masks[:, :, number].max() <= least
            assert masks[:, :, :, number].max() <= least


@pytest.mark.parametrize("name", SETS)
def test_no_two_classes_look_alike_in_any_face(name: GlyphSet) -> None:
    """Scaled to one size, since size is drawn at random: the ink of two characters differs by a good share."""
    from PIL import Image

    masks = face_masks(CHARACTERS[name], FACES[name], 48)
    for face in range(masks.shape[1]):
        scaled = []
        for mask in masks[:, face]:
            assert mask.max() > 0.8
            rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
            ink = Image.fromarray(mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])
            zoom = 24 / max(ink.size)
            ink = ink.resize((max(1, round(ink.width * zoom)), max(1, round(ink.height * zoom))))
            page = Image.new("F", (24, 24))
            page.paste(ink, ((24 - ink.width) // 2, (24 - ink.height) // 2))
            scaled.append(np.asarray(page))
        flat = np.stack(scaled).reshape(len(scaled), -1)
        differ = np.abs(flat[:, None] - flat[None]).sum(2) / (flat[:, None] + flat[None]).sum(2)
        np.fill_diagonal(differ, 1)
        first, second = np.unravel_index(differ.argmin(), differ.shape)
        assert differ.min() > 0.05, (FACES[name][face], CHARACTERS[name][first], CHARACTERS[name][second])


@pytest.mark.parametrize(("name", "size"), [("glyphs10", 8), ("glyphs10", 16), ("glyphs100", 33)])
def test_an_image_is_a_pure_function_of_its_number(name: GlyphSet, size: int) -> None:
    whole = GlyphRenderer(name, "train", size).render(0, 12)
    assert whole.shape == (12, size, size, 3)
    assert whole.dtype == np.uint8
    renderer = GlyphRenderer(name, "train", size)
    parts = [renderer.render(start, count) for start, count in ((5, 7), (0, 1), (1, 4))]
    assert same_integers(whole, np.concatenate([parts[1], parts[2], parts[0]]))
    assert same_integers(renderer.labels(3, 9), renderer.labels(0, 12)[3:])


def test_classes_come_equally_often() -> None:
    labels = GlyphRenderer("glyphs10", "train", 16).labels(0, 200)
    assert np.bincount(labels).tolist() == [20] * 10
    assert len({tuple(labels[place : place + 10]) for place in range(0, 200, 10)}) > 15


def test_the_ink_is_where_the_character_is() -> None:
    """The label is that of the character in the middle: averaged over many images, it is what differs from class to
    class, and mean images of one class resemble each other more than those of another."""
    renderer = GlyphRenderer("glyphs10", "train", 16)
    pixels, labels = renderer.render(0, 3000).astype(float).mean(3), renderer.labels(0, 3000)
    contrast = np.abs(pixels - np.median(pixels, axis=(1, 2), keepdims=True))
    means = np.stack([[contrast[half::2][labels[half::2] == label].mean(0) for label in range(10)] for half in (0, 1)])
    means = (means - means.mean(1, keepdims=True)).reshape(2, 10, -1)
    means /= np.linalg.norm(means, axis=2, keepdims=True)
    alike = means[0] @ means[1].T
    assert (alike.argmax(1) == np.arange(10)).sum() >= 8


def test_rendered_once_and_opened_again(dataset: ImageDataset, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = GlyphRenderer("glyphs10", "train", 16)
    assert same_integers(dataset.train.pixels, renderer.render(0, 50))
    assert same_integers(dataset.train.labels, renderer.labels(0, 50))
    assert (len(dataset.train), len(dataset.validation), dataset.size) == (50, 20, 16)
    assert "".join(dataset.class_names) == CHARACTERS["glyphs10"]
    assert dataset.fingerprint == fingerprint(DATA)
    scaled = renderer.render(0, 50) / 255
    assert dataset.mean == pytest.approx(scaled.mean((0, 1, 2)))
    assert dataset.std == pytest.approx(scaled.std((0, 1, 2)))

    monkeypatch.setattr(glyphs.Glyphs, "write", None)  # nothing is rendered again
    again = prepare(DATA.model_copy(update={"augmentation": "crop", "folder": "/elsewhere"}))
    assert again.content_hash == dataset.content_hash
    assert same_integers(again.train.pixels, dataset.train.pixels)


def test_what_identifies_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[dict[str, object]] = [
        {"size": 17}, {"images": "glyphs100"}, {"train_images": 51}, {"validation_images": None},
    ]  # fmt: skip
    prints = {fingerprint(DATA.model_copy(update=change)) for change in [{}, *changes]}
    assert len(prints) == 5
    same = DATA.model_copy(update={"augmentation": "crop-flip", "folder": "/elsewhere"})
    assert fingerprint(same) == fingerprint(DATA)
    monkeypatch.setattr("comt_cli.data.images.glyph_faces.font_hash", lambda name: "another edition of the fonts")
    assert fingerprint(DATA) not in prints


def test_fewer_images_are_the_first_ones(dataset: ImageDataset) -> None:
    fewer = prepare(DATA.model_copy(update={"train_images": 7}))
    assert dataset.train.pixels is not None
    assert same_integers(fewer.train.pixels, dataset.train.pixels[:7])


def test_a_disk_without_room(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10, 9, 1000))  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="70 images of 16 pixels need"):
        prepare(DATA)
