"""The check of `comt doctor` for parallel text: what makes it and scores it, and which is in the cache."""

from __future__ import annotations

from importlib import import_module, metadata

from comt_cli.doctor.finding import Finding
from comt_cli.doctor.prepared import in_cache, prepared
from comt_cli.installing import install_package

PACKAGES = {"babel": "Babel", "sacrebleu": "sacreBLEU", "sacremoses": "sacremoses"}
"""What translation needs beside a network, by the names under which it is installed and imported."""


def check_pairs() -> Finding:
    """Sentences of almanac are made and scored with packages of other projects, whose versions decide both."""
    from comt_cli.data.pairs.record import PairManifest
    from comt_cli.files import cache_folder

    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
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

    def said(manifest: PairManifest) -> str:
        data = manifest.settings
        return f"{data['corpus']} {data['source']}-{data['target']} ({manifest.pairs:,} training pairs)"

    return in_cache(f"{text}; almanac is made here", *prepared(cache_folder() / "pairs", PairManifest, said))
