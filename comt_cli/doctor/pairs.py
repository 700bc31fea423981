"""The check of `comt doctor` for parallel text: what makes it and scores it, and which is in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path

from comt_cli.doctor.finding import Finding
from comt_cli.errors import UserError
from comt_cli.installing import install_package

PACKAGES = {"babel": "Babel", "sacrebleu": "sacreBLEU", "sacremoses": "sacremoses"}
"""What translation needs beside a network, by the names under which it is installed and imported."""


def check_pairs() -> Finding:
    """Sentences of almanac are made and scored with packages of other projects, whose versions decide both."""
    from comt_cli.files import cache_folder

    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
    damaged: list[str] = []
    for package, name in PACKAGES.items():
        try:
            import_module(package)
            versions[package] = f"{name} {metadata.version(package)}"
        except ImportError as error:
            missing[package] = f"{name} cannot be imported: {error}"
    if "babel" in versions:
        versions["babel"] += f" with CLDR {import_module('babel.core').get_cldr_version()}"
    text = "; ".join(filter(None, (", ".join(versions.values()), *missing.values())))
    if missing:
        return Finding("fail", text, install_package(*missing))
    here = list(_prepared(cache_folder() / "pairs", damaged))
    text = f"{text}; almanac is made here; in the cache: {', '.join(here) or 'none yet'}"
    if damaged:
        fix = f"rm -r {' '.join(damaged)}; then run the recipe again"
        return Finding("warn", f"{text}; damaged: {', '.join(damaged)}", fix)
    return Finding("ok", text)


def _prepared(cache: Path, damaged: list[str]) -> Iterator[str]:
    """The corpora that were prepared; folders whose list of files cannot be read go to `damaged`."""
    from comt_cli.data.manifest import MANIFEST
    from comt_cli.data.pairs.record import PairManifest

    for path in sorted(cache.glob(f"*/{MANIFEST}")):
        folder = path.parent
        try:
            manifest = PairManifest.read(folder, folder.name)
        except UserError:
            damaged.append(str(folder))
            continue
        data = manifest.settings
        yield f"{data['corpus']} {data['source']}-{data['target']} ({manifest.pairs:,} training pairs)"
