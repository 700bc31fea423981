"""Pictures of every kind as a captioner sees them: the same picture is the same pixels, or it is refused."""

from __future__ import annotations

import os

import numpy as np
import pytest
from PIL import Image
from same_bits import same_integers

from comt_cli.errors import UserError
from comt_cli.generation.caption import pixels_of

GREY = np.add.outer(np.arange(48), 4 * np.arange(48)).astype(np.uint8)  # from black to 235


def seen(path, image: Image.Image, **options) -> np.ndarray:
    image.save(path, **options)
    return pixels_of(path)


@pytest.mark.parametrize("mode", ["P", "RGB", "RGBA", "LA", "CMYK", "I;16"])
def test_the_same_picture_is_the_same_pixels(tmp_path, mode) -> None:
    sixteen = mode == "I;16"
    picture = Image.fromarray(GREY.astype(np.uint16) * 257) if sixteen else Image.fromarray(GREY).convert(mode)
    name = "one.tif" if mode == "CMYK" else "one.png"
    assert same_integers(seen(tmp_path / name, picture), np.stack([GREY] * 3, axis=-1))


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_what_is_transparent_lies_on_white(tmp_path, mode) -> None:
    """Not on what is hidden below it, which is black as a rule."""
    half = np.where(np.arange(48) < 24, 255, 0).astype(np.uint8)[None].repeat(48, 0)
    picture = Image.merge("LA", (Image.fromarray(np.zeros_like(GREY)), Image.fromarray(half)))
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
    with pytest.raises(UserError, match=r"cannot read the image .*photo\.png: it is not a picture"):
        pixels_of(tmp_path / "photo.png")
    assert not (tmp_path / "started").exists()
