"""`comt doctor`: it goes on after a failure, says how to mend each, and its limits are those of pyproject.toml."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.commands import doctor_checks
from comt_cli.commands.doctor_checks import GIB, PYTHONS, TORCHES, Check, Finding, all_checks, run_check
from comt_cli.errors import UserError

PYPROJECT = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))


def raises(error: Exception):
    def check():
        raise error

    return check


INJECTED = [
    Check("one", raises(RuntimeError("driver gone"))),
    Check("two", raises(UserError("no room", "Make some."))),
    Check("three", raises(ModuleNotFoundError("No module named 'torch'", name="torch"))),
    Check("four", lambda: Finding("warn", "slow", "Wait.")),
    Check("five", lambda: Finding("ok", "fine")),
]


@pytest.fixture
def injected(monkeypatch):
    monkeypatch.setattr(doctor_checks, "all_checks", lambda runs: INJECTED)


@pytest.mark.usefixtures("injected")
def test_it_goes_on_after_failures_and_sums_up():
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert [line.split()[:3] for line in lines if re.match(r" \d", line)] == [
        ["1", "fail", "one:"],
        ["2", "fail", "two:"],
        ["3", "fail", "three:"],
        ["4", "warn", "four:"],
        ["5", "ok", "five:"],
    ]
    assert "driver gone" in lines[0]
    assert "to mend it: Make some." in result.output
    assert lines[-1] == "5 checks: 1 ok, 1 to look at, 3 failed"


@pytest.mark.usefixtures("injected")
def test_json():
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == 1
    answer = json.loads(result.output)
    assert answer["failed"] == 3
    assert answer["checks"][1] == {
        "number": 2,
        "name": "two",
        "status": "fail",
        "text": "no room",
        "mend": "Make some.",
    }


def test_warnings_alone_are_no_failure(monkeypatch):
    monkeypatch.setattr(doctor_checks, "all_checks", lambda runs: INJECTED[3:])
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0


def test_the_real_checks_all_answer_here(tmp_path):
    outcomes = [run_check(number, check) for number, check in enumerate(all_checks(tmp_path / "runs"), 1)]
    assert {outcome.name: outcome.text for outcome in outcomes if outcome.status == "fail"} == {}
    assert all(outcome.mend for outcome in outcomes if outcome.status != "ok")
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "cache").exists(), "doctor changes nothing"


def test_the_supported_versions_are_those_of_the_package():
    first, last = PYTHONS
    assert f'requires-python = ">={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}"' in PYPROJECT
    first, last = TORCHES
    assert f'"torch>={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}"' in PYPROJECT


@pytest.mark.parametrize(
    ("finding", "status"),
    [
        (lambda: doctor_checks.check_python((3, 10)), "fail"),
        (lambda: doctor_checks.check_python((3, 14)), "fail"),
        (lambda: doctor_checks.check_python((3, 13)), "ok"),
        (lambda: doctor_checks.check_torch("2.10.1"), "fail"),
        (lambda: doctor_checks.check_torch("2.15.0+cu130"), "ok"),
        (lambda: doctor_checks.check_memory(GIB // 2), "fail"),
        (lambda: doctor_checks.check_memory(2 * GIB), "warn"),
        (lambda: doctor_checks.check_memory(64 * GIB), "ok"),
    ],
)
def test_limits(finding, status):
    found = finding()
    assert found.status == status
    assert (found.mend is None) == (status == "ok")


def test_a_file_in_the_place_of_the_runs_folder_fails(tmp_path):
    (tmp_path / "runs").write_text("not a folder")
    found = doctor_checks.check_disk(tmp_path / "runs")
    assert found.status == "fail"
    assert "--runs" in found.mend


@pytest.mark.parametrize(("free", "status"), [(GIB // 10, "fail"), (GIB, "warn"), (100 * GIB, "ok")])
def test_disk_room(free, status, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor_checks.shutil, "disk_usage", lambda place: type("Usage", (), {"free": free}))
    assert doctor_checks.check_disk(tmp_path).status == status


def test_damaged_corpora_are_named(tmp_path):
    folder = tmp_path / "cache" / "corpora" / "0123456789abcdef"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{")
    found = doctor_checks.check_corpora()
    assert found.status == "warn"
    assert str(folder) in found.mend


def test_a_wrong_t5_vocabulary_fails(tmp_path, monkeypatch):
    (tmp_path / "spiece.model").write_bytes(b"something else")
    monkeypatch.setenv("COMT_T5_SPM", str(tmp_path / "spiece.model"))
    outcome = run_check(1, Check("tokenizers", doctor_checks.check_tokenizers))
    assert outcome.status == "fail"
    assert outcome.mend


def test_compilation_without_a_compiler(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(doctor_checks.shutil, "which", lambda name: None)
    found = doctor_checks.check_compilation()
    assert found.status == "warn"
    assert "C++ compiler" in found.mend
