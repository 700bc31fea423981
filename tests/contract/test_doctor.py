"""`comt doctor`: it continues after a failure, says how to fix each, and its limits are those of pyproject.toml."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.data.captions.settings import CaptionData
from comt_cli.data.images import pictures
from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.data.pairs.settings import PairData
from comt_cli.data.prepare import prepare
from comt_cli.doctor import checks, needs
from comt_cli.doctor.checks import GIB, PYTHONS, TORCHES, all_checks, judge, run_check
from comt_cli.doctor.needs import check_data, check_kernels
from comt_cli.errors import UserError
from comt_cli.kernels import choice, measurements

PYPROJECT = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def raises(error: Exception):
    def check():
        raise error

    return check


WARNS = [lambda: judge("slow", (False, "fail", "not so", None), (True, "warn", "very", "Wait."))]
INJECTED = {
    "one": [raises(RuntimeError("driver gone"))],
    "two": [*WARNS, raises(UserError("no room", "Make some."))],
    "three": [raises(ModuleNotFoundError("No module named 'torch'", name="torch"))],
    "four": WARNS,
    "five": [lambda: judge("fine", (False, "fail", "not so", None))],
}


def test_it_goes_on_after_failures_and_sums_up(monkeypatch):
    monkeypatch.setattr(checks, "all_checks", lambda runs: INJECTED)
    told = CliRunner().invoke(app, ["doctor"])
    assert told.exit_code == 1
    assert told.output.splitlines()[-1] == "5 checks: 1 ok, 1 warning, 3 failed"
    found = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).output)
    assert found["failed"] == 3
    assert [check["status"] for check in found["checks"]] == ["fail", "fail", "fail", "warn", "ok"]
    assert found["checks"][1] == {
        "number": 2,
        "name": "two",
        "status": "fail",
        "text": "slow; very\nno room",
        "fix": "Wait. Make some.",
    }
    monkeypatch.setattr(checks, "all_checks", lambda runs: {"four": WARNS})
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0, "warnings alone are no failure"


def test_the_real_checks_all_answer_here(tmp_path, cache):
    outcomes = {name: run_check(parts) for name, parts in all_checks(tmp_path / "runs").items()}
    assert {name: outcome.text for name, outcome in outcomes.items() if outcome.status == "fail"} == {}
    assert all(outcome.fix for outcome in outcomes.values() if outcome.status != "ok")
    assert not (tmp_path / "runs").exists()
    assert not cache.exists(), "doctor changes nothing"


def test_the_supported_versions_are_those_of_the_package():
    first, last = PYTHONS
    assert f'requires-python = ">={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}"' in PYPROJECT
    first, last = TORCHES
    assert f'"torch>={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}"' in PYPROJECT


@pytest.mark.parametrize(
    ("finding", "status"),
    [
        (lambda: checks.check_python((3, 10)), "fail"),
        (lambda: checks.check_python((3, 14)), "fail"),
        (lambda: checks.check_python((3, 13)), "ok"),
        (lambda: checks.check_torch("2.10.1"), "fail"),
        (lambda: checks.check_torch("2.13.0+cu130"), "ok"),
        (lambda: checks.check_memory(GIB // 2), "fail"),
        (lambda: checks.check_memory(2 * GIB), "warn"),
    ],
)
def test_limits(finding, status):
    found = finding()
    assert found.status == status
    assert (found.fix is None) == (status == "ok")


@pytest.mark.parametrize(("free", "status"), [(GIB // 10, "fail"), (GIB, "warn"), (100 * GIB, "ok")])
def test_disk_room(free, status, tmp_path, monkeypatch):
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda place: type("Usage", (), {"free": free}))
    assert checks.check_disk(tmp_path).status == status


def test_a_file_in_the_place_of_a_folder_fails(tmp_path):
    (tmp_path / "runs").write_text("not a folder")
    outcome = run_check([lambda: checks.check_disk(tmp_path / "runs")])
    assert (outcome.status, "--runs" in str(outcome.fix)) == ("fail", True)


def test_compilation_without_a_compiler(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(checks.shutil, "which", lambda name: None)
    found = checks.check_compilation()
    assert (found.status, "C++ compiler" in str(found.fix)) == ("warn", True)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("images", ImageDataSettings(size=8, train_images=20, validation_images=10)),
        ("parallel text", PairData(pairs=40, validation_pairs=5, test_pairs=5, tokenizer="bytes")),
        ("captions", CaptionData(images=4, validation_images=2, test_images=2)),
    ],
)
def test_what_is_prepared_and_what_is_damaged_is_told(kind, data, cache, monkeypatch):
    monkeypatch.setattr(pictures, "torchvision_datasets", lambda: None)
    found = check_data(kind)
    assert (found.status, found.fix, cache.exists()) == ("ok", None, False)
    prepare(data)
    folder = next(cache.glob("*/*/manifest.json")).parent
    assert "in the cache: 1" in check_data(kind).text
    (folder / "manifest.json").write_text("{}")
    found = check_data(kind)
    assert (found.status, found.fix) == ("warn", f"rm -r {folder}; then run the recipe again")


@pytest.mark.parametrize("package", needs.PACKAGES)
def test_a_missing_package_is_named_with_how_to_install_it(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    found = check_data("parallel text")
    assert (found.status, found.fix.endswith(f"install {package}")) == ("fail", True)


def test_images_without_torchvision(monkeypatch):
    monkeypatch.setattr(pictures, "torchvision_datasets", raises(UserError("no torchvision", "Install it.")))
    found = check_data("images")
    assert (found.status, found.fix) == ("warn", "Install it.")


def test_kernels_and_damaged_files_of_measurements_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(choice, "cpu_obstacle", lambda **_: "there is no C++ compiler")
    monkeypatch.setattr(measurements, "roots", lambda: [tmp_path])
    found = check_kernels()
    assert found.status == "ok"
    assert "no C++ kernels (there is no C++ compiler); " in found.text
    (tmp_path / "a-cpu").mkdir()
    (tmp_path / "a-cpu/step-images.csv").write_text("a,b\n1,2\n")
    found = check_kernels()
    assert (found.status, "step-images.csv" in found.text) == ("warn", True)
