"""The checks of `comt doctor` for data sets: what their kind needs on this machine, and which lie in the cache."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib import import_module, metadata
from importlib.util import find_spec

from comt_cli.data.captions.settings import CaptionManifest
from comt_cli.data.images import pictures
from comt_cli.data.images.sets import glyphs
from comt_cli.data.images.settings import ImageManifest
from comt_cli.data.pairs.settings import PairManifest
from comt_cli.data.prepare import MANIFEST, Manifest
from comt_cli.data.text.settings import TextManifest
from comt_cli.doctor.checks import Finding, judge
from comt_cli.errors import UserError
from comt_cli.files import cache_folder
from comt_cli.installing import install_extra, install_package
from comt_cli.scoring.captions import JAVA_METRICS, why_missing
from comt_cli.tasks.captioning import SCORES

PACKAGES = {"babel": "Babel", "sacrebleu": "sacreBLEU", "sacremoses": "sacremoses"}
"""What translation needs beside a network, by the names under which it is installed and imported."""
PUBLISHED = {
    "cifar10": ("cifar/cifar-10-batches-py",),
    "cifar100": ("cifar/cifar-100-python",),
    "imagenet": ("imagenet/train", "imagenet/val"),
}
"""The papers' image sets, by their folders in the cache; whether they are whole is seen when they are opened."""


def check_data(name: str) -> Finding:
    """What a kind of data needs here; with the sets in the cache, and those whose list of files cannot be read."""
    needs, place, manifest, said = KINDS[name]
    found, cache = needs(), cache_folder() / place
    here, damaged = [], []
    for folder in sorted(path.parent for path in cache.glob(f"*/{MANIFEST}")):
        try:
            here.append(said.format(manifest.read(folder, folder.name.partition("-")[0])))
        except UserError:
            damaged.append(str(folder))
    if name == "images":
        here += [each for each, parts in PUBLISHED.items() if all((cache / part).is_dir() for part in parts)]
    text = f"{name}: {found.text}; in the cache: {', '.join(here) or 'none yet'}"
    if not damaged:
        return Finding(found.status, text, found.fix)
    fix = f"rm -r {' '.join(damaged)}; then run the recipe again"
    status = "warn" if found.status == "ok" else found.status
    return Finding(status, f"{text}; damaged: {', '.join(damaged)}", f"{found.fix} {fix}" if found.fix else fix)


def _corpora() -> Finding:
    folders = [path for path in (cache_folder() / "corpora").glob("*") if path.is_dir()]
    unfinished = sum(not (folder / MANIFEST).exists() for folder in folders)
    said = f"; {unfinished} in preparation or stopped, which the next run resumes" if unfinished else ""
    return Finding("ok", f"prepared by the first run of a recipe{said}")


def _images() -> Finding:
    """Without network there are letters to train on; CIFAR and ImageNet need torchvision, and their files once."""
    fonts = [path.name for path in glyphs.font_files(glyphs.FACES["glyphs10"]) if not path.exists()]
    again = f"Install matplotlib again ({install_package('--force-reinstall', 'matplotlib')}), or use cifar10."
    text = "glyphs10 and glyphs100, drawn here"
    if fonts:
        return Finding("fail", f"{text}; matplotlib lacks the fonts {', '.join(fonts)}", again)
    try:
        pictures.torchvision_datasets()
    except UserError as error:
        return Finding("warn", f"{text}; no cifar10, cifar100 and imagenet: {error.message}", error.hint)
    return Finding("ok", text)


def _pairs() -> Finding:
    """Sentences of almanac are made and scored with packages of other projects, whose versions decide both."""
    said, missing = [], {}
    for package, name in PACKAGES.items():
        try:
            module = import_module(package)
        except ImportError as error:
            missing[package] = f"{name} cannot be imported: {error}"
        else:
            cldr = f" with CLDR {module.core.get_cldr_version()}" if package == "babel" else ""
            said.append(f"{name} {metadata.version(package)}{cldr}")
    text = "; ".join([*([", ".join(said)] if said else []), "almanac is made here"])
    return judge(text, (bool(missing), "fail", "; ".join(missing.values()), install_package(*missing)))


def _captions() -> Finding:
    """Scenes are drawn and scored here; METEOR and SPICE, which no training needs, take Java and a package."""
    reasons = {SCORES[key][0]: why_missing(key) for key in JAVA_METRICS}
    said = [name if reason is None else f"no {name} ({reason})" for name, reason in reasons.items()]
    if shutil.which("java") is None:
        said.append("to install Java: apt-get install default-jre")
    if find_spec("pycocoevalcap") is None:
        said.append(f"to install pycocoevalcap: {install_extra('caption-metrics')}")
    return Finding("ok", f"scenes, drawn here; {', '.join(said)}")


CORPUS = "{0.settings[corpus]} ({0.settings[tokenizer]} {0.vocabulary_size}, {0.settings[sequence_length]} a row)"
LETTERS = "{0.identity[0]} of {0.size} pixels ({0.images[train]:,} and {0.images[validation]:,} images)"
ALMANAC = "{0.settings[corpus]} {0.settings[source]}-{0.settings[target]} ({0.pairs:,} training pairs)"
SCENES = "{0.settings[corpus]} ({0.images[train]:,} training images)"
KINDS: dict[str, tuple[Callable[[], Finding], str, type[Manifest], str]] = {
    "corpora": (_corpora, "corpora", TextManifest, CORPUS),
    "images": (_images, "images", ImageManifest, LETTERS),
    "parallel text": (_pairs, "pairs", PairManifest, ALMANAC),
    "captions": (_captions, "captions", CaptionManifest, SCENES),
}
"""Whether this machine has what a kind needs, the cache's folder of its sets, their record, and what is said."""
