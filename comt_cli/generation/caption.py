"""Caption images: regions, beam search, and text.

Shapes: R regions of an image, V numbers of a region, T words, S pixels of an image's side.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from comt_cli.data.captions.dataset import patches, read_features
from comt_cli.data.captions.settings import CaptionData
from comt_cli.data.captions.words import SCENE_PIXELS
from comt_cli.data.images.pictures import CAPTIONED, open_picture
from comt_cli.data.tokenizer import SpecialTokens
from comt_cli.errors import UserError
from comt_cli.exchange.loaded import LoadedCaptioner
from comt_cli.generation.beam import Decoded, Forbidden, decode
from comt_cli.tasks.settings.translation import BeamSettings


def no_caption(special: SpecialTokens) -> Forbidden:
    """Constraints on captions: at least one word, and never the unknown one."""
    return Forbidden(() if special.unknown is None else (special.unknown,), least=1)


def look_at(path: Path, data: CaptionData) -> NDArray[np.float32]:
    """The regions of an image file, float32 [R, V], in the format of the model's data: patches of a resized picture, or
    features. Raises `UserError`."""
    if data.corpus == "scenes":
        regions_1RV = patches(pixels_of(path)[None])
        return np.squeeze(regions_1RV, axis=0)
    assert data.regions is not None
    assert data.features is not None
    return read_features(path, data.regions, data.features)


def pixels_of(path: Path) -> NDArray[np.uint8]:
    """The pixels of a picture, resized to the scenes' size, uint8 [S, S, 3]. Raises `UserError`."""
    with open_picture(path, CAPTIONED) as image:
        colours = _colours(ImageOps.exif_transpose(image), path)
        return np.array(colours.resize((SCENE_PIXELS, SCENE_PIXELS), Image.Resampling.LANCZOS))


def _colours(image: Image.Image, path: Path) -> Image.Image:
    """A picture in RGB of 8 bits, with transparency on white. Raises `UserError` if white is not defined."""
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))  # convert() would make most of it white
    if image.mode in ("I", "F"):
        raise UserError(f"{path} has 32-bit numbers without a defined white", "Save it with 8 or 16 bits per pixel.")
    if image.has_transparency_data:
        seen = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB")
    return image.convert("RGB")


class ImageCaptioner:
    """A loaded captioner on a device."""

    def __init__(self, loaded: LoadedCaptioner, device: torch.device) -> None:
        self.model, self.device = loaded.model.to(device, torch.float32).eval(), device
        self.tokenizer = loaded.tokenizer
        self.begin, self.end = self.tokenizer.special.need("begin"), self.tokenizer.special.end
        assert loaded.longest is not None
        self.longest = loaded.longest + 1

    def captions(self, regions_RV: NDArray[np.float32], settings: BeamSettings, n_best: int = 1) -> list[Decoded]:
        """Up to `n_best` captions of an image, the best first."""
        special, regions_1RV = self.tokenizer.special, torch.from_numpy(regions_RV)[None].to(self.device)
        mask_1R = torch.ones(regions_1RV.shape[:2], dtype=torch.bool, device=self.device)
        options: dict[str, Any] = {"max_lengths": [self.longest], "forbidden": no_caption(special)}
        (found,) = decode(
            self.model, regions_1RV, mask_1R, settings=settings, special=special, n_best=n_best, **options
        )
        return [Decoded(self.tokenizer.decode(each.tokens), each) for each in found]
