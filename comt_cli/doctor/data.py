"""The checks of `comt doctor` for data sets: what their kind needs on this machine, and whether the cache is whole."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

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


def check_data(name: str) -> Finding:
    """The needs of a kind of data here, its sets in the cache, and those whose list of files cannot be read."""
    needs, place, manifest = KINDS[name]
    found, here, damaged = needs(), 0, []
    for folder in sorted(path.parent for path in (cache_folder() / place).glob(f"*/{MANIFEST}")):
        try:
            manifest.read(folder, folder.name.partition("-")[0])
            here += 1
        except UserError:
            damaged.append(str(folder))
    text = f"{name}: {found.text}; sets in the cache: {here}"
    if not damaged:
        return Finding(found.status, text, found.fix)
    fixes = [*([found.fix] if found.fix else []), f"rm -r {' '.join(damaged)}; then run the recipe again"]
    status = "warn" if found.status == "ok" else found.status
    return Finding(status, f"{text}; damaged: {', '.join(damaged)}", " ".join(fixes))


def _corpora() -> Finding:
    """Without network there is text to train on: this Python carries its library's sources and its topics."""
    missing = [not any(Path(sysconfig.get_path("stdlib")).glob("*.py")), find_spec("pydoc_data.topics") is None]
    return judge(
        "without network python-docs, python-source and files:GLOB; c4 and openwebtext need it once",
        (
            any(missing),
            "fail" if all(missing) else "warn",
            "this Python lacks sources or topics of its library: python-docs is smaller, and numbers will differ",
            "Use a Python with its whole library (from python.org or pyenv), or --set data.corpus=files:GLOB.",
        ),
    )


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
    if any(reasons.values()):
        said.append(f"to install them: apt-get install default-jre; {install_extra('caption-metrics')}")
    return Finding("ok", f"scenes, drawn here; {', '.join(said)}")


KINDS: dict[str, tuple[Callable[[], Finding], str, type[Manifest]]] = {
    "corpora": (_corpora, "corpora", TextManifest),
    "images": (_images, "images", ImageManifest),
    "parallel text": (_pairs, "pairs", PairManifest),
    "captions": (_captions, "captions", CaptionManifest),
}
"""Whether this machine has what a kind needs, the cache's folder of its sets, and their record."""
