"""The device, found out without torch."""

from __future__ import annotations

import pytest

from comt_cli.errors import UserError
from comt_cli.training import hardware
from comt_cli.training.hardware import Hardware, check_count, check_device_name


def test_gpus_are_counted_and_what_is_not_here_is_refused(monkeypatch):
    monkeypatch.setattr(hardware.sys, "platform", "linux")
    monkeypatch.setattr(hardware, "cuda_names", lambda: ("H200", "A100"))
    assert hardware.hardware(None) == Hardware("cuda", "H200", 2)
    assert hardware.hardware("cuda:1") == Hardware("cuda", "A100", 1)
    assert hardware.hardware("cpu").kind == "cpu"
    for name in ("cuda:2", "cuda:x", "mps", "gpu", ""):
        with pytest.raises(UserError):
            check_device_name(name)
    check_count(hardware.hardware("cuda"), 2)
    check_count(hardware.hardware("cpu"), 3)
    with pytest.raises(UserError, match="--gpus 3: 2 CUDA devices are visible here"):
        check_count(hardware.hardware(None), 3)
