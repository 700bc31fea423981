"""Rendered characters: decidable labels, the same bytes every time, and a cache that survives what happens to it."""

from __future__ import annotations

import numpy as np
import pytest
from same_bits import same_integers

from comt_cli.data.images.sets.glyphs import CHARACTERS, GlyphRenderer, GlyphSet
from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.data.prepare import fingerprint, prepare

DATA = ImageDataSettings(size=16, train_images=50, validation_images=20)
SETS: tuple[GlyphSet, ...] = ("glyphs10", "glyphs100")


@pytest.fixture
def dataset(cache):
    return prepare(DATA)


def folder_of(cache):
    return cache / "images" / fingerprint(DATA)


@pytest.mark.parametrize(("name", "size"), [("glyphs10", 8), ("glyphs10", 16), ("glyphs100", 33)])
def test_an_image_is_a_pure_function_of_its_number(name, size):
    whole = GlyphRenderer(name, "train", size).render(0, 12)
    assert whole.shape == (12, size, size, 3)
    assert whole.dtype == np.uint8
    renderer = GlyphRenderer(name, "train", size)
    parts = [renderer.render(start, count) for start, count in ((5, 7), (0, 1), (1, 4))]
    assert same_integers(whole, np.concatenate([parts[1], parts[2], parts[0]]))
    assert same_integers(renderer.labels(3, 9), renderer.labels(0, 12)[3:])


def test_rendered_once_and_opened_again(dataset, cache, monkeypatch):
    renderer = GlyphRenderer("glyphs10", "train", 16)
    assert same_integers(dataset.train.pixels, renderer.render(0, 50))
    assert same_integers(dataset.train.labels, renderer.labels(0, 50))
    assert (len(dataset.train), len(dataset.validation), dataset.size) == (50, 20, 16)
    assert "".join(dataset.class_names) == CHARACTERS["glyphs10"]
    assert dataset.fingerprint == fingerprint(DATA)
    scaled = renderer.render(0, 50) / 255
    assert dataset.mean == pytest.approx(scaled.mean((0, 1, 2)))
    assert dataset.std == pytest.approx(scaled.std((0, 1, 2)))

    monkeypatch.setattr("comt_cli.data.images.dataset.write", None)  # nothing is rendered again
    again = prepare(DATA.model_copy(update={"augmentation": "crop", "folder": "/elsewhere"}))
    assert again.content_hash == dataset.content_hash
    assert same_integers(again.train.pixels, dataset.train.pixels)


def test_what_identifies_the_images(monkeypatch):
    changes: list[dict[str, object]] = [
        {"size": 17}, {"images": "glyphs100"}, {"train_images": 51}, {"validation_images": None},
    ]  # fmt: skip
    prints = {fingerprint(DATA.model_copy(update=change)) for change in [{}, *changes]}
    assert len(prints) == 5
    same = DATA.model_copy(update={"augmentation": "crop-flip", "folder": "/elsewhere"})
    assert fingerprint(same) == fingerprint(DATA)
    monkeypatch.setattr("comt_cli.data.images.sets.glyphs.font_hash", lambda name: "another edition of the fonts")
    assert fingerprint(DATA) not in prints
