"""The characters of `glyphs10` and `glyphs100`, and their shapes in the faces that matplotlib ships.

A label must be decidable: no two classes look alike in any face (a test compares all pairs), and what differs only in
size, case or a quarter turn is left out, since size and angle are drawn at random. All faces of a set have all of its
characters. Shapes: K classes, F faces, M pixels of a mask's side.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from comt_cli.files import sha256

GlyphSet = Literal["glyphs10", "glyphs100"]

CHARACTERS: dict[GlyphSet, str] = {
    # Ten that share their strokes: a loop closed or open is the difference between many of them.
    "glyphs10": "35689BEGRS",
    "glyphs100": (
        "ABCDEFGHJKLMNOPQRSTUVWXYZ"  # no I: it is an l
        "abdefghimnqrty"  # no small letter that is its capital made smaller, or upside down another one
        "23456789"  # no 0 and 1: they are O and l
        "ΓΔΞΣΦΨΩβδεζλμξσω"
        "БДЖЛЦЧШЩЪЫЭЮЯ"
        "#%&@$?!+=<>{}~§¶€£¥±©∂Æ["
    ),
}

_SIXTEEN = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
)
FACES: dict[GlyphSet, tuple[str, ...]] = {
    # Computer Modern has Latin letters and digits only.
    "glyphs10": (*_SIXTEEN, "cmr10", "cmb10", "cmss10", "cmti10", "cmtt10"),
    "glyphs100": _SIXTEEN,
}

_EM = 0.86
"""Height of a face's em square as a share of the mask's side. What would be wider than the mask is drawn smaller."""


def font_files(faces: Sequence[str]) -> list[Path]:
    """The files of faces that matplotlib ships, in their order."""
    import matplotlib as mpl

    folder = Path(mpl.get_data_path()) / "fonts" / "ttf"
    return [folder / f"{face}.ttf" for face in faces]


def font_hash(faces: Sequence[str]) -> str:
    """Hexadecimal SHA-256 over the faces' files: another edition of a font draws other images."""
    return sha256("".join(sha256(path.read_bytes()) for path in font_files(faces)))


def rasteriser() -> dict[str, str]:
    """The versions of what makes pixels of a face's outlines."""
    from PIL import features

    return {"pillow": metadata.version("pillow"), "freetype": str(features.version("freetype2"))}


def face_masks(characters: Sequence[str], faces: Sequence[str], side: int) -> NDArray[np.float32]:
    """Every character in every face, in the middle: float32 [K, F, M, M], 0 outside and 1 inside, M = `side`. The
    outermost pixels are 0."""
    from PIL import Image, ImageDraw, ImageFont

    masks = np.zeros((len(characters), len(faces), side, side), dtype=np.float32)
    for number, path in enumerate(font_files(faces)):
        face = ImageFont.truetype(path, _EM * side, layout_engine=ImageFont.Layout.BASIC)
        for label, character in enumerate(characters):
            font = face
            left, top, right, bottom = font.getbbox(character)
            if right - left > side - 4:
                font = face.font_variant(size=_EM * side * (side - 4) / (right - left))
                left, top, right, bottom = font.getbbox(character)
            image = Image.new("L", (side, side))
            place = ((side - left - right) / 2, (side - top - bottom) / 2)
            ImageDraw.Draw(image).text(place, character, fill=255, font=font)
            masks[label, number, 1:-1, 1:-1] = np.asarray(image, dtype=np.float32)[1:-1, 1:-1] / 255
    return masks
