"""The check of `comt doctor` for image sets: which are in the cache, and whether the others could be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from comt_cli.doctor.finding import Finding
from comt_cli.doctor.prepared import in_cache, prepared
from comt_cli.errors import UserError
from comt_cli.installing import install_package

if TYPE_CHECKING:
    from comt_cli.data.images.glyphs import GlyphManifest

CIFAR = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
"""The folders that torchvision keeps them in."""


def check_images() -> Finding:
    """Without network there are letters to train on; CIFAR and ImageNet need torchvision, and their files once."""
    from comt_cli.data.images.glyph_faces import FACES, font_files
    from comt_cli.data.images.glyphs import GlyphManifest
    from comt_cli.data.images.torchvision_import import torchvision_datasets
    from comt_cli.files import cache_folder

    cache = cache_folder() / "images"
    letters, damaged = prepared(cache, GlyphManifest, _letters)
    found = in_cache("glyphs10 and glyphs100, drawn here", [*letters, *_published(cache)], damaged)
    missing = [path.name for path in font_files(FACES["glyphs10"]) if not path.exists()]
    if missing:
        fix = f"Install matplotlib again ({install_package('--force-reinstall', 'matplotlib')}), or use cifar10."
        return Finding("fail", f"{found.text}; matplotlib lacks the fonts {', '.join(missing)}", fix)
    try:
        torchvision_datasets()
    except UserError as error:
        return Finding("warn", f"{found.text}; no cifar10, cifar100 and imagenet: {error.message}", error.hint)
    return found


def _letters(manifest: GlyphManifest) -> str:
    return (
        f"glyphs{len(manifest.class_names)} of {manifest.size} pixels "
        f"({manifest.images['train']:,} and {manifest.images['validation']:,} images)"
    )


def _published(cache: Path) -> Iterator[str]:
    """The papers' sets whose folders are there; whether they are whole is seen when they are opened."""
    yield from (name for name, folder in CIFAR.items() if (cache / "cifar" / folder).is_dir())
    if (cache / "imagenet" / "train").is_dir() and (cache / "imagenet" / "val").is_dir():
        yield "imagenet"
