"""`comt doctor`: it continues after a failure, says how to fix each, and its limits are those of pyproject.toml."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from comt_cli.app import app
from comt_cli.doctor import checks as doctor_checks
from comt_cli.doctor.checks import GIB, PYTHONS, TORCHES, all_checks, run_check
from comt_cli.doctor.data import check_data
from comt_cli.doctor.finding import Finding, judge
from comt_cli.doctor.kernels import check_kernels, device_lines
from comt_cli.errors import UserError

PYPROJECT = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "cache"))


def raises(error: Exception):
    def check():
        raise error

    return check


INJECTED = {
    "one": raises(RuntimeError("driver gone")),
    "two": raises(UserError("no room", "Make some.")),
    "three": raises(ModuleNotFoundError("No module named 'torch'", name="torch")),
    "four": lambda: judge("slow", (False, "fail", "not so", None), (True, "warn", "very", "Wait.")),
    "five": lambda: judge("fine", (False, "fail", "not so", None)),
}


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
    assert "to fix it: Make some." in result.output
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
        "fix": "Make some.",
    }


def test_warnings_alone_are_no_failure(monkeypatch):
    monkeypatch.setattr(doctor_checks, "all_checks", lambda runs: {"four": INJECTED["four"]})
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0


def test_the_real_checks_all_answer_here(tmp_path):
    outcomes = {name: run_check(check) for name, check in all_checks(tmp_path / "runs").items()}
    assert {name: outcome.text for name, outcome in outcomes.items() if outcome.status == "fail"} == {}
    assert all(outcome.fix for outcome in outcomes.values() if outcome.status != "ok")
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
        (lambda: doctor_checks.check_torch("2.13.0+cu130"), "ok"),
        (lambda: doctor_checks.check_memory(GIB // 2), "fail"),
        (lambda: doctor_checks.check_memory(2 * GIB), "warn"),
        (lambda: doctor_checks.check_memory(64 * GIB), "ok"),
    ],
)
def test_limits(finding, status):
    found = finding()
    assert found.status == status
    assert (found.fix is None) == (status == "ok")


def test_a_file_in_the_place_of_the_runs_folder_fails(tmp_path):
    (tmp_path / "runs").write_text("not a folder")
    outcome = run_check(lambda: doctor_checks.check_disk(tmp_path / "runs"))
    assert outcome.status == "fail"
    assert "--runs" in outcome.fix


def test_a_cache_that_cannot_be_made_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COMT_CACHE", str(tmp_path / "file" / "cache"))
    outcome = run_check(lambda: doctor_checks.check_disk(tmp_path))
    assert outcome.status == "fail"
    assert outcome.text.startswith("COMT_CACHE: ")
    assert "Name another folder by COMT_CACHE" in outcome.fix


@pytest.mark.parametrize(
    ("version", "visible", "why"),
    [(None, None, "CPU build"), ("13.0", "", "CUDA_VISIBLE_DEVICES"), ("13.0", None, "shows no GPU")],
)
def test_why_there_is_no_cuda_is_one_line(version, visible, why, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(doctor_checks, "_has_nvidia_device", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert why in doctor_checks.check_devices().text.splitlines()[0]


@pytest.mark.parametrize(("free", "status"), [(GIB // 10, "fail"), (GIB, "warn"), (100 * GIB, "ok")])
def test_disk_room(free, status, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor_checks.shutil, "disk_usage", lambda place: type("Usage", (), {"free": free}))
    assert doctor_checks.check_disk(tmp_path).status == status


def test_damaged_corpora_are_named(tmp_path):
    folder = tmp_path / "cache" / "corpora" / "0123456789abcdef"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{")
    found = check_data("corpora")
    assert found.status == "warn"
    assert str(folder) in found.fix


def test_a_wrong_t5_vocabulary_fails(tmp_path, monkeypatch):
    (tmp_path / "spiece.model").write_bytes(b"something else")
    monkeypatch.setenv("COMT_T5_SPM", str(tmp_path / "spiece.model"))
    outcome = run_check(doctor_checks.check_tokenizers)
    assert outcome.status == "fail"
    assert outcome.fix


def test_compilation_without_a_compiler(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(doctor_checks.shutil, "which", lambda name: None)
    found = doctor_checks.check_compilation()
    assert found.status == "warn"
    assert "C++ compiler" in found.fix


@pytest.fixture
def kernels(monkeypatch, tmp_path):
    """No measurements but those written below the folder that this gives."""
    from comt_cli.kernels import choice, measurements
    from comt_cli.kernels.processors import Device

    monkeypatch.setattr(choice, "cpu_obstacle", lambda **_: None)
    monkeypatch.setattr(choice, "device_here", lambda device: Device(device.type, "A CPU", "AMD AVX2", 2))
    monkeypatch.setattr(measurements, "roots", lambda: [tmp_path / "bench"])
    return tmp_path / "bench"


def write_measurements(folder: Path, *rows: str) -> Path:
    folder.mkdir(parents=True)
    head = "device,device_type,device_class,op,shape,tokens,width,gates,dtype,variant,step_ms,torch,triton"
    text = "\n".join([head, *(f"{row},{torch.__version__}," for row in rows)])
    (folder / "kernels.csv").write_text(text.replace('"A CPU",cpu', '"A CPU, 2 threads",cpu,AMD AVX2') + "\n")
    return folder / "kernels.csv"


def lines_on_the_cpu() -> list[str]:
    return device_lines(torch.device("cpu"))


@pytest.mark.usefixtures("kernels")
def test_kernels_without_measurements():
    found = check_kernels()
    assert found.status == "ok"
    first, *others = found.text.splitlines()
    assert re.fullmatch(
        r"C\+\+ kernels compiled when first used; (no Triton|Triton [\d.]+); (no )?liger-kernel( [\d.]+)?", first
    )
    assert others[-5:-2] == lines_on_the_cpu()
    assert re.match(r"cpu, fp32 products: (oneDNN|PyTorch) \(", others[-2])
    assert others[-1].startswith("cpu, bf16 attention of up to 512 tokens: ")
    unknown = "was measured on this processor or another of its class, AMD AVX2"
    assert lines_on_the_cpu() == [
        f"cpu, gates: reference (no kernel {unknown}: comt bench kernels)",
        f"cpu, ResNets: reference (no kernel {unknown}: comt bench step)",
        "cpu, loss: fused (softmax and gradient in one pass)",
    ]


def test_kernels_that_were_measured(kernels):
    """Fused wins where fp32 is compiled; of bf16 one operation was measured."""
    times = {"reference": (6, 3, 3, 3), "reference-compiled": (2, 1, 3, 3), "fused": (4, 4, 2, 1.5)}
    ops = ("heads", "swiglu", "add_norm", "modulate")
    fp32 = [
        f'"A CPU",cpu,{op},d,9,512,transponder-r8,fp32,{variant},{time}'
        for variant, each in times.items()
        for op, time in zip(ops, each, strict=True)
    ]
    bf16 = [
        f'"A CPU",cpu,heads,d,9,512,transponder-r8,bf16,{variant},{time}'
        for variant, time in (("reference", 2), ("fused", 1))
    ]
    write_measurements(kernels / "a-cpu", *fp32, *bf16)
    place = "measured on A CPU, 2 threads"
    noise = "or with too much noise to decide: comt bench kernels"
    unmeasured = f"reference ({{}} with gates of rank 8 in bf16 was not measured beside the {{}}, {noise})"
    assert lines_on_the_cpu()[:-2] == [
        "cpu, gates, fp32: heads fused (1.50), swiglu reference (0.75), add_norm fused (1.50), modulate fused (2.00); "
        f"fused over reference, {place}",
        "cpu, gates, fp32 compiled: heads reference (0.50), swiglu reference (0.25), add_norm fused (1.50), "
        f"modulate fused (2.00); fused over compiled reference, {place}",
        "cpu, gates, bf16: heads fused (2.00), "
        + ", ".join(f"{op} {unmeasured.format(op, 'reference')}" for op in ops[1:])
        + f"; fused over reference, {place}",
        "cpu, gates, bf16 compiled: " + ", ".join(f"{op} {unmeasured.format(op, 'compiled reference')}" for op in ops),
    ]


def test_why_there_are_no_kernels(kernels, monkeypatch):
    """A compiler that lacks is no reason for what would not be used anyway."""
    from comt_cli.kernels import choice

    rows = (
        f'"A CPU",cpu,{op},d,9,512,transponder-r8,fp32,{v}'
        for op in ("heads", "swiglu", "add_norm", "modulate")
        for v in ("reference,2", "fused,1")
    )
    write_measurements(kernels / "a-cpu", *rows)
    monkeypatch.setattr(choice, "cpu_obstacle", lambda **_: "there is no C++ compiler")
    found = check_kernels()
    assert found.text.startswith("no C++ kernels (there is no C++ compiler); ")
    assert "cpu, gates, fp32: reference (there is no C++ compiler)" in found.text.splitlines()


def test_damaged_files_of_measurements_are_named(kernels):
    path = write_measurements(kernels / "a-cpu", '"A CPU",cpu,heads,d,9,512,none,fp32,fused,fast')
    steps = kernels / "a-cpu" / "step-images.csv"
    steps.write_text("a,b\n1,2\n")
    found = check_kernels()
    assert found.status == "warn"
    assert f"damaged: {path}, {steps}" in found.text
    assert found.fix


@pytest.mark.usefixtures("kernels")
def test_every_gpu_is_asked_about_once(monkeypatch):
    names = ["NVIDIA H200", "NVIDIA H200", "NVIDIA L4"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: names[torch.device("cuda", device).index])
    gates = [line.partition(",")[0] for line in check_kernels().text.splitlines() if ", gates" in line]
    assert gates == ["cuda:0", "cuda:2", "cpu"]


def test_lines_below_the_first_are_set_in(monkeypatch):
    monkeypatch.setattr(doctor_checks, "all_checks", lambda runs: {"one": lambda: Finding("ok", "a\nb")})
    assert CliRunner().invoke(app, ["doctor"]).output.splitlines()[:2] == [" 1  ok    one: a", " " * 10 + "b"]
