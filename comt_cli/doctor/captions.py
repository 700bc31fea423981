"""The check of `comt doctor` for captioned images: which are in the cache, and which scores can be had."""

from __future__ import annotations

import shutil
from importlib.util import find_spec

from comt_cli.doctor.finding import Finding
from comt_cli.doctor.prepared import in_cache, prepared
from comt_cli.installing import install_extra


def check_captions() -> Finding:
    """Scenes are drawn and scored here; METEOR and SPICE are optional, and need Java and a package."""
    from comt_cli.data.captions.dataset import CaptionManifest
    from comt_cli.files import cache_folder

    def said(manifest: CaptionManifest) -> str:
        return f"{manifest.settings['corpus']} ({manifest.images['train']:,} training images)"

    found = prepared(cache_folder() / "captions", CaptionManifest, said)
    return in_cache(f"scenes, drawn here; {_java_scores()}", *found)


def _java_scores() -> str:
    """Whether Java and the package are there, and which scores that makes; no training needs them."""
    from comt_cli.scoring.java_metrics import JAVA_METRICS, why_missing
    from comt_cli.tasks.captioning import SCORES

    java, package = shutil.which("java") is not None, find_spec("pycocoevalcap") is not None
    reasons = {SCORES[key][0]: why_missing(key) for key in JAVA_METRICS}
    said = [name for name, reason in reasons.items() if reason is None]
    said += [f"no {name} ({reason})" for name, reason in reasons.items() if reason is not None]
    if not java:
        said.append("to install Java: apt-get install default-jre")
    if not package:
        said.append(f"to install pycocoevalcap: {install_extra('caption-metrics')}")
    found = {True: "found", False: "not found"}
    return f"Java {found[java]}, pycocoevalcap {found[package]}: {', '.join(said)}"
