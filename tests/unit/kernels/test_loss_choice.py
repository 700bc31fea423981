"""The choice of the loss: fused wherever it can be, by liger-kernel on CUDA and in C++ on a CPU."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest
import torch

from comt_cli.kernels import choice
from comt_cli.kernels.choice import Choice, choose_loss

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def test_the_loss_of_liger_kernel_is_for_cuda_where_it_is_installed(monkeypatch):
    monkeypatch.setattr(choice, "liger", lambda: ("0.8.5", torch.autograd.Function))
    assert choose_loss("auto", CUDA, torch.bfloat16) == Choice(True, "liger-kernel 0.8.5")
    assert choose_loss("fused", CUDA, torch.float32).fused
    assert choose_loss("reference", CUDA, torch.float32) == Choice(False, "as asked")
    assert choose_loss("auto", torch.device("meta"), torch.float32) == Choice(False, "there is no fused loss for meta")
    assert "float64" in choose_loss("fused", CUDA, torch.float64).reason
    monkeypatch.setattr(choice, "liger", lambda: "liger-kernel is not installed")
    assert choose_loss("auto", CUDA, torch.bfloat16) == Choice(False, "liger-kernel is not installed")


def test_the_loss_on_a_cpu_is_fused_where_it_can_be_compiled(monkeypatch):
    monkeypatch.setattr(choice, "cpu_obstacle", lambda *, may_build: None)
    assert choose_loss("auto", CPU, torch.bfloat16).fused
    assert choose_loss("reference", CPU, torch.float32) == Choice(False, "as asked")
    for dtype, name in ((torch.float16, "float16"), (torch.float64, "float64")):
        assert choose_loss("fused", CPU, dtype) == Choice(False, f"the fused loss does not compute in {name}")
    monkeypatch.setattr(choice, "cpu_obstacle", lambda *, may_build: "no C++ compiler")
    assert choose_loss("auto", CPU, torch.float32) == Choice(False, "no C++ compiler")


@pytest.fixture
def fresh():
    choice.liger.cache_clear()
    yield
    choice.liger.cache_clear()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("version", "says"),
    [
        (None, "is not installed: "),
        ("0.7.9", "is older than 0.8"),
        ("0.8.0", None),
        ("1.0.0rc1", None),
    ],
)
def test_versions_of_liger_kernel(monkeypatch, version, says):
    stand_in = types.SimpleNamespace(LigerFusedLinearCrossEntropyFunction=torch.autograd.Function)
    monkeypatch.setattr(choice, "version_of", lambda name: version)
    monkeypatch.setattr(choice.importlib, "import_module", lambda name: stand_in)
    if says is None:
        assert choice.liger() == (version, torch.autograd.Function)
    else:
        assert says in choice.liger()


def test_the_version_of_liger_kernel_is_that_of_the_package():
    project = (Path(__file__).resolve().parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    wanted = re.findall(r"liger-kernel>=(\d+)\.(\d+)", project)
    assert wanted
    assert {tuple(map(int, pair)) for pair in wanted} == {choice.LIGER}
