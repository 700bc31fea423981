"""The verb that shows a data set: what it writes is what a network reads."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from same_bits import same_integers
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.data.images.sets import glyphs
from comt_cli.errors import UserError

pytestmark = pytest.mark.usefixtures("quick_figures")


@pytest.fixture
def few_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(glyphs, "TRAIN_IMAGES", 60)
    monkeypatch.setattr(glyphs, "VALIDATION_IMAGES", 10)


@pytest.mark.usefixtures("few_images")
def test_a_picture_and_its_numbers(tmp_path: Path) -> None:
    arguments = ["plot-images", "glyphs10", "--size", "16", "--augmentation", "crop", "--out", str(tmp_path / "out")]
    ended = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert ended.exit_code == 0
    assert "60 images for training, 10 for validation, 10 classes, 16 pixels" in ended.output
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == [f"glyphs10-16-crop.{kind}" for kind in ("csv", "pdf", "png", "tex", "txt")]
    frame = pd.read_csv(tmp_path / "out" / "glyphs10-16-crop.csv", dtype={"class": str})
    assert frame["row"].nunique() == 10
    assert sorted(frame["index"]) == list(range(60))  # six of each class: all there are
    assert frame["class"].tolist() == ["35689BEGRS"[label] for label in frame["label"]]
    assert (frame["row"] == frame["label"]).all()
    assert same_integers(frame.groupby("row")["column"].max(), [5] * 10)


@pytest.mark.usefixtures("few_images")
def test_of_many_classes_some_are_shown_and_both_texts_state_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glyphs, "TRAIN_IMAGES", 200)
    ended = CliRunner().invoke(app, ["plot-images", "glyphs100", "--size", "8", "--out", str(tmp_path)])
    assert "The figure shows 20 of the 100 classes" in ended.stdout
    assert pd.read_csv(tmp_path / "glyphs100-8.csv")["row"].unique().tolist() == list(range(0, 100, 5))
    assert b"20 of 100 classes, at even distances" in (tmp_path / "glyphs100-8.png").read_bytes()


@pytest.mark.usefixtures("few_images")
@pytest.mark.parametrize("augmentation", ["crop", "crop-flip"])
def test_letters_are_not_mirrored_without_a_word(tmp_path: Path, augmentation: str) -> None:
    arguments = ["glyphs10", "--size", "8", "--augmentation", augmentation, "--out", str(tmp_path / "out")]
    ended = CliRunner().invoke(app, ["plot-images", *arguments])
    assert ended.exit_code == 0
    assert ("mirrors letters" in ended.stderr) == (augmentation == "crop-flip")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["glyph10"], "images: 'glyph10' is none of glyphs10"),
        (["cifar10", "--size", "16"], "the images of cifar10 are 32 pixels wide"),
        (["imagenet", "--augmentation", "crop"], "images of different sizes need resized-crop-flip"),
        (["imagenet", "--folder", "/nowhere"], "imagenet is not in /nowhere"),
        (["cifar100", "--folder", "/nowhere"], "--folder): there is no folder /nowhere to read cifar100 from"),
        (["glyphs10", "--folder", "/nowhere"], "--folder is for cifar10, cifar100 and imagenet"),
    ],
)
def test_what_cannot_be_drawn(arguments: list[str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(app, ["plot-images", *arguments], catch_exceptions=False)
    assert said in caught.value.message
