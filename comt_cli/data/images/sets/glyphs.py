"""`glyphs10` and `glyphs100`: 50,000 training and 10,000 validation images, rendered once into the cache: characters in
the faces that matplotlib ships, rotated, sheared, faint, crowded, crossed out, noisy.

Both splits have the same faces. No two classes look alike in any face; characters that differ only in size, case or a
quarter rotation are left out. An image is a pure function of (version, set, side, number, size). All arithmetic is
integer hashing and element-wise IEEE additions, multiplications, divisions and square roots, so every machine draws the
same bytes from the same fonts and the same FreeType.

Shapes: K classes, F faces, M pixels of a mask's side, B images at once, S pixels of an image's side, G = 2 S points of
the sampling grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from comt_cli.data.images.settings import ImageDataSettings, ImageSet, ImageSplitName
from comt_cli.data.order import mix, sample_indices, uniform_draws
from comt_cli.data.storage import ProgressCallback, no_progress
from comt_cli.files import sha256

CHARACTERS: dict[str, str] = {
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
    *(f"DejaVuSans{family}{style}" for family in ("", "Mono") for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
)
_LATIN = ("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10")  # Computer Modern has no other letters
FACES: dict[str, tuple[str, ...]] = {"glyphs10": (*_SIXTEEN, *_LATIN), "glyphs100": _SIXTEEN}

_EM = 0.86  # height of a face's em square as a share of the mask's side


def font_files(faces: Sequence[str]) -> list[Path]:
    """The files of matplotlib's faces."""
    import matplotlib as mpl

    folder = Path(mpl.get_data_path()) / "fonts" / "ttf"
    return [folder / f"{face}.ttf" for face in faces]


def font_hash(faces: Sequence[str]) -> str:
    """Hexadecimal SHA-256 over the faces' files: another version of a font draws other images."""
    return sha256("".join(sha256(path.read_bytes()) for path in font_files(faces)))


def rasteriser() -> dict[str, str]:
    """The versions of the libraries that rasterise outlines."""
    from PIL import features

    return {"pillow": metadata.version("pillow"), "freetype": str(features.version("freetype2"))}


def face_masks(characters: Sequence[str], faces: Sequence[str], side: int) -> NDArray[np.float32]:
    """Every character in every face, centred: float32 [K, F, M, M] in [0, 1], M = `side`; 0 at the border."""
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


# ---- images

VERSION: dict[str, int] = {"glyphs10": 2, "glyphs100": 3}
"""Versions, see tests/contract/test_cache_versions.py."""

Floats = NDArray[np.float32]

_LARGEST_MASK, _DRAWS, _NEIGHBOURS, _STROKES = 256, 128, 3, 3
_WEAR: dict[str, tuple[float, float]] = {"glyphs10": (0.2, 1.05), "glyphs100": (0, 1)}  # of the best and the worst


class Chance:
    """Consumes the columns of a table of uniform random numbers one after another."""

    def __init__(self, draws: NDArray[np.float64]) -> None:
        self._columns: Iterator[NDArray[np.float64]] = iter(np.ascontiguousarray(draws.T))

    def between(self, low: float, high: float) -> Floats:
        """float32 [B], uniform in [low, high)."""
        return (low + (high - low) * next(self._columns)).astype(np.float32)

    def colours(self, low: float, high: float) -> Floats:
        """float32 [B, 3], uniform in [low, high)."""
        return np.stack([self.between(low, high) for _ in range(3)], axis=1)

    def choice(self, count: int) -> NDArray[np.int64]:
        """int64 [B], uniform in range(count)."""
        return np.floor(next(self._columns) * count).astype(np.int64)

    def bits(self) -> NDArray[np.uint64]:
        """uint64 [B], 53 random bits each."""
        return (next(self._columns) * 2.0**53).astype(np.uint64)


class GlyphRenderer:
    """Renders the images of one split (`side`) of a set at one size."""

    def __init__(self, name: str, side: str, size: int) -> None:
        self.name, self.size = name, size
        self.classes, self.faces = len(CHARACTERS[name]), len(FACES[name])
        self._seed = int(sha256(f"{VERSION[name]} {name} {side}")[:16], 16)
        self._mask_side = min(2 * size, _LARGEST_MASK)
        self._masks = face_masks(CHARACTERS[name], FACES[name], self._mask_side).reshape(-1)
        # Positions of the sampling grid and of the pixels, in units of the image's side, 0 at the centre.
        self._grid_G, self._pixel_S = (
            ((np.arange(count) + 0.5) / count - 0.5).astype(np.float32) for count in (2 * size, size)
        )

    def labels(self, start: int, count: int) -> NDArray[np.int64]:
        """The classes of images [start, start + count), int64: every block of K, from 0 on, has each class once."""
        return sample_indices(self._seed, start, count, self.classes)

    def render(self, start: int, count: int) -> NDArray[np.uint8]:
        """Images [start, start + count), uint8 [count, S, S, 3]."""
        chance = Chance(uniform_draws(self._seed, start, count, _DRAWS))
        labels_B = self.labels(start, count)
        # Degradation of the print: the easiest images are learned within hundreds of steps, the hardest never.
        best, worst = _WEAR[self.name]
        share_B = chance.between(0, 1)
        wear_B = best + (worst - best) * (share_B if self.name == "glyphs10" else share_B * share_B)
        ink_B3, paper_B3 = _ink_and_paper(chance, wear_B)
        image_B3SS = self._background(chance, paper_B3)
        for _ in range(_NEIGHBOURS):
            alpha_BSS = self._neighbour(chance, wear_B)
            _paint(image_B3SS, alpha_BSS, _blend(ink_B3, chance.colours(0, 1), chance.between(0, 0.7)))
        shift_2B = [wear_B * chance.between(-0.16, 0.16) for _ in range(2)]
        _paint(image_B3SS, self._glyph(chance, wear_B, labels_B, *shift_2B), ink_B3)
        for number in range(_STROKES):
            colour_B3 = _blend((ink_B3, paper_B3)[number % 2], chance.colours(0, 1), chance.between(0, 0.5))
            _paint(image_B3SS, self._stroke(chance, wear_B), colour_B3)
        # Smaller images look like reduced larger ones, with less blur and noise.
        reduced = np.float32(min(1, self.size / 32))
        _blur(image_B3SS, reduced * wear_B * chance.between(0, 1))
        noise_B = reduced * (np.float32(0.01) + wear_B * wear_B * chance.between(0, 0.25))
        self._add_noise(image_B3SS, chance.bits(), noise_B)
        bytes_B3SS = np.floor(np.clip(image_B3SS, 0, 1) * np.float32(255) + np.float32(0.5)).astype(np.uint8)
        return np.ascontiguousarray(bytes_B3SS.transpose(0, 2, 3, 1))

    def _glyph(self, chance: Chance, wear_B: Floats, labels_B: NDArray[np.int64], x_B: Floats, y_B: Floats) -> Floats:
        """The share of each pixel that a character covers, [B, S, S], at (x, y), in a random face and shape."""
        side = self._mask_side
        # A rotation by theta from t = tan(theta / 2), without sines, whose values differ between machines.
        t_B = wear_B * chance.between(-0.3, 0.3)
        cosine_B, sine_B = (1 - t_B * t_B) / (1 + t_B * t_B), 2 * t_B / (1 + t_B * t_B)
        zoom_B = side / (1 + wear_B * chance.between(-0.5, 0.2))
        stretch_B, shear_B = 1 + wear_B * chance.between(-0.3, 0.3), wear_B * chance.between(-0.5, 0.5)
        # Maps a position in the image to one in the mask: (u, v) = A (x, y), pixels from the mask's centre.
        middle = np.float32((side - 1) / 2)
        a_B, b_B = zoom_B * (cosine_B + shear_B * sine_B), zoom_B * (shear_B * cosine_B - sine_B)
        c_B, d_B = zoom_B * stretch_B * sine_B, zoom_B * stretch_B * cosine_B
        dx_BG, dy_BG = self._grid_G - x_B[:, None], self._grid_G - y_B[:, None]
        u_BGG = (a_B[:, None] * dx_BG + middle)[:, None, :] + (b_B[:, None] * dy_BG)[:, :, None]
        v_BGG = (c_B[:, None] * dx_BG + middle)[:, None, :] + (d_B[:, None] * dy_BG)[:, :, None]
        which_B = labels_B * self.faces + chance.choice(self.faces)
        covered_BGG = self._sample(which_B, u_BGG, v_BGG)
        rows_BSG = covered_BGG[:, 0::2] + covered_BGG[:, 1::2]
        return (rows_BSG[:, :, 0::2] + rows_BSG[:, :, 1::2]) * np.float32(0.25)

    def _sample(self, which_B: NDArray[np.int64], u_BGG: Floats, v_BGG: Floats) -> Floats:
        """The masks at positions (u, v), by bilinear interpolation; 0 outside."""
        side = self._mask_side
        for places in (u_BGG, v_BGG):  # positions outside read the empty border
            np.clip(places, 0, np.float32(side - 1.001), out=places)
        left_BGG, top_BGG = u_BGG.astype(np.int32), v_BGG.astype(np.int32)
        u_BGG -= left_BGG
        v_BGG -= top_BGG
        corner_BGG = top_BGG * np.int32(side) + left_BGG + (which_B * side * side).astype(np.int32)[:, None, None]
        upper_BGG, lower_BGG = (self._between(corner_BGG + np.int32(row * side), u_BGG) for row in (0, 1))
        return np.asarray(upper_BGG + (lower_BGG - upper_BGG) * v_BGG)

    def _between(self, corner_BGG: NDArray[np.int32], share_BGG: Floats) -> Floats:
        left_BGG, right_BGG = self._masks.take(corner_BGG), self._masks.take(corner_BGG + np.int32(1))
        return left_BGG + (right_BGG - left_BGG) * share_BGG

    def _neighbour(self, chance: Chance, wear_B: Floats) -> Floats:
        """A character cut off by the image's edge, nearer with more degradation, [B, S, S]."""
        labels_B = chance.choice(self.classes)
        far_B, along_B = np.float32(0.8) - wear_B * chance.between(0, 0.32), chance.between(-0.6, 0.6)
        edge_B = chance.choice(4)
        far_B = np.where(edge_B % 2 == 0, far_B, -far_B)
        x_B, y_B = np.where(edge_B < 2, far_B, along_B), np.where(edge_B < 2, along_B, far_B)
        return self._glyph(chance, wear_B, labels_B, x_B, y_B)

    def _stroke(self, chance: Chance, wear_B: Floats) -> Floats:
        """A straight line across the image, wider with more degradation, [B, S, S]."""
        t_B = chance.between(-1, 1)
        cosine_B, sine_B = (1 - t_B * t_B) / (1 + t_B * t_B), 2 * t_B / (1 + t_B * t_B)
        turned_B = chance.choice(2) == 1
        sine_B, cosine_B = np.where(turned_B, cosine_B, sine_B), np.where(turned_B, sine_B, cosine_B)
        across_BSS = (cosine_B[:, None] * self._pixel_S)[:, None, :] + (sine_B[:, None] * self._pixel_S)[:, :, None]
        across_BSS += chance.between(-0.3, 0.3)[:, None, None]
        half_width_B = wear_B * chance.between(-0.01, 0.06)
        distance_BSS = np.abs(across_BSS) - half_width_B[:, None, None]
        return np.asarray(np.clip(-distance_BSS * np.float32(self.size), 0, 1))

    def _background(self, chance: Chance, paper_B3: Floats) -> Floats:
        """Paper whose colour varies smoothly between the corners, [B, 3, S, S]."""
        corners = [_blend(paper_B3, chance.colours(0, 1), chance.between(0, 0.3)) for _ in range(4)]
        s = self._pixel_S + np.float32(0.5)
        left_B3S, right_B3S = (
            first[:, :, None] + (second - first)[:, :, None] * s for first, second in (corners[:2], corners[2:])
        )
        return left_B3S[..., None] + (right_B3S - left_B3S)[..., None] * s

    def _add_noise(self, image_B3SS: Floats, keys_B: NDArray[np.uint64], strength_B: Floats) -> None:
        """Add noise to every number, nearly normal with standard deviation `strength`."""
        counters_SS = np.arange(1, self.size**2 + 1, dtype=np.uint64).reshape(self.size, self.size)
        bits_BSS = mix(keys_B[:, None, None] + counters_SS * np.uint64(0x9E3779B97F4A7C15))
        for colour in range(3):
            total_BSS = np.zeros(bits_BSS.shape, dtype=np.float32)
            for part in range(3):  # the sum of three integers below 128 has mean 190.5 and standard deviation 64
                total_BSS += (bits_BSS >> np.uint64(21 * colour + 7 * part)) & np.uint64(127)
            image_B3SS[:, colour] += (total_BSS - np.float32(190.5)) * (strength_B / 64)[:, None, None]


def _ink_and_paper(chance: Chance, wear_B: Floats) -> tuple[Floats, Floats]:
    """Two colours, [B, 3] each, with a random contrast; in one of five images the ink is the lighter one."""
    direction_B3 = chance.colours(-0.3, 1)
    direction_B3 *= np.where(chance.between(0, 1) < 0.8, np.float32(-1), np.float32(1))[:, None]
    largest_B = np.maximum(np.abs(direction_B3).max(axis=1), np.float32(1e-3))
    contrast_B = 1 - wear_B * chance.between(0.2, 0.95)
    half_B3 = direction_B3 * (contrast_B / largest_B / 2)[:, None]
    room_B3 = np.abs(half_B3)
    middle_B3 = room_B3 + (1 - 2 * room_B3) * chance.colours(0, 1)
    return middle_B3 + half_B3, middle_B3 - half_B3


def _blend(first_B3: Floats, second_B3: Floats, share_B: Floats) -> Floats:
    return first_B3 + (second_B3 - first_B3) * share_B[:, None]


def _paint(image_B3SS: Floats, alpha_BSS: Floats, colour_B3: Floats) -> None:
    """Blend a colour into the image in place, with weight alpha."""
    image_B3SS += (colour_B3[:, :, None, None] - image_B3SS) * alpha_BSS[:, None]


def _blur(image_B3SS: Floats, share_B: Floats) -> None:
    """Move every pixel by `share` towards the mean of its neighbourhood (weights 1, 2, 1), in place."""
    padded = np.pad(image_B3SS, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    rows = padded[:, :, :-2] + padded[:, :, 2:] + 2 * padded[:, :, 1:-1]
    soft = (rows[..., :-2] + rows[..., 2:] + 2 * rows[..., 1:-1]) * np.float32(1 / 16)
    image_B3SS += (soft - image_B3SS) * share_B[:, None, None, None]


# ---- the sets

IMAGES: dict[ImageSplitName, int] = {"train": 50_000, "validation": 10_000}


class Glyphs(ImageSet):
    """Rendered characters, which are also the names of the classes."""

    classes: ClassVar[Mapping[str, int]] = {name: len(characters) for name, characters in CHARACTERS.items()}
    names = tuple(classes)
    order = 0

    @classmethod
    def contradictions(cls, data: ImageDataSettings) -> Iterator[str]:
        if data.augmentation == "resized-crop-flip":
            yield f"augmentation: resized-crop-flip is for imagenet; {data.images} has crop and crop-flip"
        if data.folder is not None:
            yield f"folder: {data.images} is drawn into the cache, not read from a folder; leave the key out"

    def identity(self, progress: ProgressCallback = no_progress) -> list[Any]:
        name = self.data.images
        return [name, VERSION[name], CHARACTERS[name], FACES[name], font_hash(FACES[name]), rasteriser()]
