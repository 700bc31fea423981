"""`comt doctor` on captioned images: what is prepared, and whether METEOR and SPICE can be had, which are optional."""

from __future__ import annotations

from pathlib import Path

import pytest

from comt_cli.data.captions.settings import CaptionData
from comt_cli.data.prepare import prepare
from comt_cli.doctor import data as doctor_data
from comt_cli.doctor.data import check_data
from comt_cli.scoring import java_metrics


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One that has Java, the package, and what SPICE needs besides, or not."""

    def has(*, java: bool, package: bool, corenlp: bool = False) -> str:
        class Found:  # as of a package
            submodule_search_locations = (str(tmp_path),)

        if corenlp:
            (tmp_path / "spice/lib").mkdir(parents=True)
            (tmp_path / "spice/lib/stanford-corenlp-3.6.0.jar").touch()
        for module in (doctor_data, java_metrics):
            monkeypatch.setattr(module.shutil, "which", lambda name: "/usr/bin/java" if java else None)
            monkeypatch.setattr(module, "find_spec", lambda name: Found if package else None)
        found = check_data("captions")
        assert (found.status, found.fix) == ("ok", None), "no training needs them"
        return found.text

    return has


def test_neither_java_nor_the_package(machine) -> None:
    text = machine(java=False, package=False)
    assert text.startswith("scenes, drawn here; Java not found, pycocoevalcap not found: ")
    assert "no METEOR (needs Java), no SPICE (needs Java)" in text
    assert "apt-get install default-jre" in text
    assert "caption-metrics" in text


def test_what_alone_is_missing_is_told(machine) -> None:
    assert "Java not found, pycocoevalcap found: no METEOR (needs Java), no SPICE" in machine(java=False, package=True)
    text = machine(java=True, package=False)
    assert "Java found, pycocoevalcap not found: no METEOR (needs comt[caption-metrics]), no SPICE" in text
    assert "default-jre" not in text


def test_spice_needs_more(machine) -> None:
    assert machine(java=True, package=True).endswith(
        ": METEOR, no SPICE (needs Stanford CoreNLP 3.6); in the cache: none yet"
    )
    assert machine(java=True, package=True, corenlp=True).endswith(
        "pycocoevalcap found: METEOR, SPICE; in the cache: none yet"
    )


def test_what_is_prepared_and_what_is_damaged_is_told(cache: Path) -> None:
    assert "in the cache: none yet" in check_data("captions").text
    assert not cache.exists()
    folder = prepare(CaptionData(images=4, validation_images=2, test_images=2)).folder
    assert "in the cache: scenes (4 training images)" in check_data("captions").text
    (folder / "manifest.json").write_text("{}")
    found = check_data("captions")
    assert (found.status, found.fix) == ("warn", f"rm -r {folder}; then run the recipe again")
