"""The device, found out without torch."""

from __future__ import annotations

import pytest

from comt_cli.errors import UserError
from comt_cli.kernels import processors as build
from comt_cli.training import hardware
from comt_cli.training.hardware import Hardware, check_count, check_device_name

CUDA = "__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"


@pytest.fixture(autouse=True)
def on_linux(monkeypatch):
    monkeypatch.setattr(hardware.sys, "platform", "linux")


def test_it_agrees_with_torch():
    import torch

    build.torch_build.cache_clear()
    assert f"'{torch.__version__}'" in build.torch_build()
    assert build.built_for("cuda") == (torch.version.cuda is not None)


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "mps", "gpu", "cuda:x", ""])
def test_a_device_that_is_not_here_is_refused(monkeypatch, name):
    monkeypatch.setattr(hardware, "cuda_names", lambda: ())
    with pytest.raises(UserError):
        check_device_name(name)
    for fine in (None, "cpu", "cpu:0"):
        check_device_name(fine)


def test_gpus_are_counted(monkeypatch):
    monkeypatch.setattr(hardware, "cuda_names", lambda: ("H200", "A100"))
    assert hardware.hardware(None) == Hardware("cuda", "H200", 2)
    assert hardware.hardware("cuda:1") == Hardware("cuda", "A100", 1)
    assert hardware.hardware("cpu").kind == "cpu"
    with pytest.raises(UserError, match="2 CUDA devices are visible"):
        hardware.hardware("cuda:2")
    check_count(hardware.hardware("cuda"), 2)
    check_count(hardware.hardware("cpu"), 3)
    with pytest.raises(UserError, match="--gpus 3: 2 CUDA devices are visible"):
        check_count(hardware.hardware(None), 3)
