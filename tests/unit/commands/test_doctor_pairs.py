"""`comt doctor` on parallel text: the versions that decide it, what is prepared, and which package is missing."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from comt_cli.data.pairs.settings import PairData
from comt_cli.data.prepare import prepare
from comt_cli.doctor.data import PACKAGES, check_data


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_versions_are_those_that_decide_texts_and_scores(cache: Path) -> None:
    found = check_data("parallel text")
    assert (found.status, found.fix) == ("ok", None)
    assert found.text.endswith("in the cache: none yet")
    assert all(f"{name} {version(package)}" in found.text for package, name in PACKAGES.items())
    assert re.search(r"with CLDR \d+", found.text)
    assert not cache.exists()


@pytest.mark.parametrize("package", PACKAGES)
def test_a_missing_package_is_named_with_how_to_install_it(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    found = check_data("parallel text")
    assert found.status == "fail"
    assert f"{PACKAGES[package]} cannot be imported" in found.text
    assert found.fix is not None
    assert found.fix.endswith(f"install {package}")


def test_what_is_prepared_and_what_is_damaged_is_told() -> None:
    data = PairData(pairs=40, validation_pairs=5, test_pairs=5, tokenizer="bytes")
    folder = prepare(data).folder
    assert check_data("parallel text").text.endswith("in the cache: almanac en-de (40 training pairs)")
    (folder / "manifest.json").write_text("{}")
    found = check_data("parallel text")
    assert (found.status, found.fix) == ("warn", f"rm -r {folder}; then run the recipe again")
