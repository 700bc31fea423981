"""Files of pictures that anybody may have made, opened so that no program but this one reads them."""

from __future__ import annotations

import contextlib
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from comt_cli.data.storage import first_line
from comt_cli.errors import UserError
from comt_cli.files import open_file

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000", "TGA", "ICO", "AVIF")
"""Pillow tells formats by content, whatever a file is called, and gives PostScript to Ghostscript: a stranger's picture
would be a program that runs. These it reads by itself."""

CAPTIONED = "PNG and JPEG files can be captioned, or .npy and .npz files of features."

# Pillow warns of a picture of 90 million pixels, and refuses twice as many: what it reads needs no warning.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def check_image(path: Path) -> UserError | None:
    """What the begin of a file shows to be wrong with a picture, or with a file of features, before a model is loaded
    to caption it."""
    try:
        with open_file(path) if path.suffix in (".npy", ".npz") else open_picture(path, CAPTIONED):
            return None
    except OSError as error:
        return UserError(f"{path}: its features cannot be read: {error.strerror or error}")
    except UserError as error:
        return error


@contextlib.contextmanager
def open_picture(path: Path, hint: str) -> Iterator[Image.Image]:
    """The picture in a file. Raises `UserError` where it is no ordinary file, none of `FORMATS`, larger than Pillow's
    limit, or damaged, which is seen when its pixels are used."""
    Image.init()
    built = [each for each in FORMATS if each in Image.OPEN]
    try:
        with open_file(path) as file, Image.open(file, formats=built) as image:
            yield image
    except Image.DecompressionBombError:
        reason = f"it has too many pixels: {2 * (Image.MAX_IMAGE_PIXELS or 0):,} are the most that are read"
        raise UserError(f"cannot read the image {path}: {reason}", "Make it smaller first.") from None
    except (OSError, ValueError, SyntaxError, RuntimeError, EOFError, struct.error) as error:  # Pillow's, by format
        reason = getattr(error, "strerror", None) or first_line(error)
        if isinstance(error, UnidentifiedImageError):
            reason = "it is no picture that can be read"
        raise UserError(f"cannot read the image {path}: {reason}", hint) from error
