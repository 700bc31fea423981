"""The verb that shows a data set: what it writes is what a network reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.data.images import glyphs
from comt_cli.errors import UserError


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
    assert files == ["glyphs10-16-crop.csv", "glyphs10-16-crop.pdf", "glyphs10-16-crop.png"]
    frame = pd.read_csv(tmp_path / "out" / "glyphs10-16-crop.csv", dtype={"class": str})
    assert frame["row"].nunique() == 10
    assert sorted(frame["index"]) == list(range(60))  # six of each class: all there are
    assert frame["class"].tolist() == ["35689BEGRS"[label] for label in frame["label"]]
    assert (frame["row"] == frame["label"]).all()
    assert np.array_equal(frame.groupby("row")["column"].max(), [5] * 10)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["glyph10"], "images: Input should be 'glyphs10'"),
        (["cifar10", "--size", "16"], "the images of cifar10 are 32 pixels wide"),
        (["imagenet", "--augmentation", "crop"], "images of different sizes need resized-crop-flip"),
        (["imagenet", "--folder", "/nowhere"], "imagenet is not in /nowhere"),
    ],
)
def test_what_cannot_be_drawn(arguments: list[str], said: str) -> None:
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(app, ["plot-images", *arguments], catch_exceptions=False)
    assert said in caught.value.message
