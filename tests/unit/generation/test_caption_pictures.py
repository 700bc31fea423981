"""Pictures of every kind as a captioner sees them: the same picture is the same pixels, or it is refused."""

from __future__ import annotations

import contextlib
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from same_bits import same_integers

from comt_cli.data.captions.settings import CaptionData
from comt_cli.errors import UserError
from comt_cli.generation.caption import look_at

DATA = CaptionData()
GREY = np.add.outer(np.arange(48), 4 * np.arange(48)).astype(np.uint8)  # from black to 235


def test_a_model_of_features_reads_no_pictures(tmp_path) -> None:
    data = CaptionData(corpus="mscoco", vocabulary_size=9, regions=4, features=6)
    Image.fromarray(GREY).save(tmp_path / "one.png")
    with pytest.raises(UserError, match=r"one\.png is no file of features, and this model reads no pictures"):
        look_at(tmp_path / "one.png", data)
    with pytest.raises(UserError, match=r"gone\.png: its features cannot be read: .*No such file"):
        look_at(tmp_path / "gone.png", data)
    np.save(tmp_path / "one.npy", np.ones((2, 6)))
    assert look_at(tmp_path / "one.npy", data).regions.shape == (2, 6)


def seen(path, image: Image.Image, **options) -> np.ndarray:
    image.save(path, **options)
    return look_at(path, DATA).pixels


@pytest.mark.parametrize("mode", ["L", "P", "RGB", "RGBA", "LA", "CMYK"])
def test_the_same_picture_is_the_same_pixels(tmp_path, mode) -> None:
    picture = Image.fromarray(GREY)
    name = "one.tif" if mode == "CMYK" else "one.png"
    assert same_integers(seen(tmp_path / name, picture.convert(mode)), np.stack([GREY] * 3, axis=-1))


def test_sixteen_bits_are_scaled(tmp_path) -> None:
    found = seen(tmp_path / "one.png", Image.fromarray(GREY.astype(np.uint16) * 257))
    assert same_integers(found, np.stack([GREY] * 3, axis=-1))
    (black, white) = (seen(tmp_path / "one.png", Image.new("1", (9, 5), colour)) for colour in (0, 1))
    assert (black.max(), white.min()) == (0, 255)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_lies_on_white(tmp_path, mode) -> None:
    """Not on what is hidden below it, which is black as a rule."""
    half = np.where(np.arange(48) < 24, 255, 0).astype(np.uint8)[None].repeat(48, 0)
    picture = Image.merge("LA", (Image.fromarray(np.zeros_like(GREY)), Image.fromarray(half)))
    if mode == "P":
        found = seen(tmp_path / "one.png", Image.fromarray(half).convert("P"), transparency=0)
        assert (found == 255).all()
        return
    found = seen(tmp_path / "one.png", picture.convert(mode))
    assert same_integers(found, np.stack([255 - half] * 3, axis=-1))


def test_a_photo_lies_as_its_camera_says(tmp_path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 3  # upside down
    found = seen(tmp_path / "one.png", Image.fromarray(GREY), exif=turned)
    assert same_integers(found[..., 0], GREY[::-1, ::-1])


def test_no_picture_starts_a_program(tmp_path, monkeypatch) -> None:
    """Pillow gives PostScript, whatever its name, to Ghostscript."""
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # looked for when first needed
    (tmp_path / "photo.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 48 48\n%%EndComments\nshowpage\n"
    )
    with pytest.raises(UserError, match=r"cannot read the image .*photo\.png: it is no picture that can be read"):
        look_at(tmp_path / "photo.png", DATA)
    assert not (tmp_path / "started").exists()
    with Image.open(tmp_path / "photo.png") as picture, contextlib.suppress(OSError):
        picture.load()
    assert (tmp_path / "started").exists(), "the picture would start one"


@pytest.mark.parametrize("name", ["x.png", "x.jpg", "x.gif", "x.bmp", "x.tif", "x.webp", "x.ppm", "x.tga", "x.ico"])
def test_formats_that_are_read(tmp_path, name) -> None:
    assert seen(tmp_path / name, Image.fromarray(np.stack([GREY] * 3, axis=-1))).shape == (48, 48, 3)


_LARGE = """
import sys
from pathlib import Path
from PIL import Image
from comt_cli.data.captions.settings import CaptionData
from comt_cli.generation.caption import look_at
folder = Path(sys.argv[1])
for name, side in (("large.png", 9600), ("larger.png", 14000)):
    Image.new("1", (side, side)).save(folder / name)
    try:
        print(look_at(folder / name, CaptionData()).pixels.max())
    except Exception as error:
        print(type(error).__name__, error.message)
"""


def test_large_pictures_are_read_in_silence_and_larger_ones_told_with_the_limit(tmp_path) -> None:
    command = [sys.executable, "-W", "error::PIL.Image.DecompressionBombWarning", "-c", _LARGE, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    small, large = result.stdout.splitlines()
    assert small == "0"
    assert re.fullmatch(r"UserError cannot read the image .*: it has too many pixels: 178,956,970 are the .*", large)


@pytest.mark.parametrize(
    "raised",
    [RuntimeError("Failed to decode frame 0: Truncated data"), EOFError(), struct.error("unpack requires 4 bytes")],
)
def test_what_decoders_raise_is_told_as_a_damaged_picture(tmp_path, monkeypatch, raised) -> None:
    def load(self) -> None:
        raise raised

    Image.fromarray(GREY).save(tmp_path / "one.png")
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", load)
    with pytest.raises(UserError, match=r"cannot read the image .*one\.png: (Failed|EOFError|unpack)"):
        look_at(tmp_path / "one.png", DATA)


def test_pipes_are_refused(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    os.mkfifo(tmp_path / "pipe.npy")
    features = CaptionData(corpus="mscoco", vocabulary_size=9, regions=4, features=6)
    for path, data in ((tmp_path / "pipe.png", DATA), (Path("/dev/zero"), DATA), (tmp_path / "pipe.npy", features)):
        with pytest.raises(UserError, match=rf"{path}: .*it is a (pipe|device), not a file"):
            look_at(path, data)


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_numbers_without_a_white_are_refused(tmp_path, kind) -> None:
    with pytest.raises(UserError, match=r"one.tif: its pixels are single numbers of 32 bits") as refused:
        seen(tmp_path / "one.tif", Image.fromarray(GREY.astype(kind)))
    assert "8 or 16 bits" in str(refused.value.hint)
