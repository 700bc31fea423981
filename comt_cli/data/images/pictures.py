"""Picture files from users; and torchvision's data sets."""

from __future__ import annotations

import contextlib
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError

from comt_cli.data.storage import first_line
from comt_cli.errors import UserError
from comt_cli.files import open_file
from comt_cli.installing import install_package

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000", "TGA", "ICO", "AVIF")
"""Formats that Pillow reads itself. It passes PostScript, under any name, to Ghostscript, which executes it."""

CAPTIONED = "PNG and JPEG files can be captioned, or .npy and .npz files of features."

# Pillow warns about pictures of 90 million pixels, and refuses twice as many; the warning is not needed.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def check_image(path: Path) -> UserError | None:
    """The error that a picture or a file of features shows before a model is loaded; None if there is none."""
    try:
        with open_file(path) if path.suffix in (".npy", ".npz") else open_picture(path, CAPTIONED):
            return None
    except OSError as error:
        return UserError(f"{path}: its features cannot be read: {error.strerror or error}")
    except UserError as error:
        return error


@contextlib.contextmanager
def open_picture(path: Path, hint: str) -> Iterator[Image.Image]:
    """The picture in a file. Raises `UserError` if it is not in `FORMATS`, too large for Pillow, or damaged."""
    Image.init()
    built = [each for each in FORMATS if each in Image.OPEN]
    try:
        with open_file(path) as file, Image.open(file, formats=built) as image:
            yield image
    except Image.DecompressionBombError:
        reason = f"it has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels"
        raise UserError(f"cannot read the image {path}: {reason}", "Make it smaller first.") from None
    except (OSError, ValueError, SyntaxError, RuntimeError, EOFError, struct.error) as error:  # Pillow's, by format
        reason = getattr(error, "strerror", None) or first_line(error)
        if isinstance(error, UnidentifiedImageError):
            reason = "it is not a picture in a supported format"
        raise UserError(f"cannot read the image {path}: {reason}", hint) from error


def torchvision_datasets() -> Any:
    """The module `torchvision.datasets`. Raises `UserError` if it cannot be imported."""
    try:
        from torchvision import datasets
    except (ImportError, OSError, RuntimeError) as error:
        hint = "Install the version of torchvision that fits the installed torch: "
        hint += install_package("--upgrade", "torch", "torchvision")
        raise UserError(f"torchvision cannot be imported: {error}", hint) from error
    return datasets
