"""Settings of a process before it computes on a GPU. The settings are PyTorch's own and can be made without one."""

from __future__ import annotations

import os

import pytest
import torch

from comt_cli.training.devices import pick_device, prepare_process


@pytest.fixture
def cuda(monkeypatch):
    """A CUDA device as far as it is asked for one here; PyTorch's settings are put back afterwards."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(os, "environ", {})
    fills = torch.utils.deterministic.fill_uninitialized_memory
    torch.backends.cudnn.allow_tf32 = True
    yield torch.device("cuda", 0)
    torch.backends.cudnn.allow_tf32 = True
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = fills


@pytest.mark.usefixtures("cuda")
def test_no_convolution_is_rounded_to_tf32():
    """Also where nothing is trained: `pick_device` is all that verbs which look into a trained network ask for."""
    assert pick_device("cuda:0").type == "cuda"
    assert torch.backends.cudnn.conv.fp32_precision != "tf32"
    assert torch.backends.cudnn.fp32_precision != "tf32"  # what the compiler reads
    assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cuda.matmul.fp32_precision != "tf32"


@pytest.mark.parametrize("deterministic", [True, False])
def test_only_a_deterministic_run_forbids_kernels(cuda, deterministic):
    """Whatever an earlier run of the process asked for; cuBLAS is bound all the same, since one may follow."""
    prepare_process(cuda, deterministic=not deterministic)
    prepare_process(cuda, deterministic=deterministic)
    assert torch.are_deterministic_algorithms_enabled() is deterministic
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
