"""`comt doctor` on image sets: it tells what is there, and what would keep others from being read."""

from __future__ import annotations

from pathlib import Path

import pytest

from comt_cli.data.images import glyph_faces, torchvision_import
from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.data.prepare import prepare
from comt_cli.doctor.data import check_data
from comt_cli.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torchvision_import, "torchvision_datasets", lambda: None)
    return tmp_path / "cache" / "images"


def draw_letters() -> str:
    data = ImageDataSettings(size=8, train_images=20, validation_images=10)
    return prepare(data).fingerprint


def test_an_empty_cache_is_no_fault(cache: Path) -> None:
    found = check_data("images")
    assert (found.status, found.fix) == ("ok", None)
    assert found.text == "glyphs10 and glyphs100, drawn here; in the cache: none yet"
    assert not cache.exists()


def test_what_is_in_the_cache_is_told(cache: Path) -> None:
    draw_letters()
    for folder in (cache / "cifar/cifar-10-batches-py", cache / "cifar/cifar-100-python", cache / "imagenet/train"):
        folder.mkdir(parents=True)
    assert check_data("images").text.endswith(
        "in the cache: glyphs10 of 8 pixels (20 and 10 images), cifar10, cifar100"
    )
    (cache / "imagenet/val").mkdir()
    assert check_data("images").text.endswith("cifar100, imagenet")


def test_damaged_letters_are_named(cache: Path) -> None:
    name = draw_letters()
    (cache / name / "manifest.json").write_text("{}")
    found = check_data("images")
    assert found.status == "warn"
    assert found.fix == f"rm -r {cache / name}; then run the recipe again"


def test_without_torchvision_there_are_letters_still(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> None:
        raise UserError("torchvision cannot be imported: x", "Install it.")

    monkeypatch.setattr(torchvision_import, "torchvision_datasets", gone)
    found = check_data("images")
    assert (found.status, found.fix) == ("warn", "Install it.")
    assert "no cifar10, cifar100 and imagenet: torchvision cannot be imported" in found.text
    folder = cache / draw_letters()
    (folder / "manifest.json").write_text("{}")
    assert check_data("images").fix == f"Install it. rm -r {folder}; then run the recipe again"


def test_without_fonts_there_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(glyph_faces, "font_files", lambda name: [tmp_path / "cmr10.ttf"])
    found = check_data("images")
    assert found.status == "fail"
    assert "matplotlib lacks the fonts cmr10.ttf" in found.text
