"""What a process is set to before it trains on a GPU. The settings are PyTorch's own and can be made without one."""

from __future__ import annotations

import pytest
import torch

from comt_cli.training.devices import prepare_process


@pytest.fixture
def cuda(monkeypatch):
    """A CUDA device as far as `prepare_process` asks for one; PyTorch's settings are put back afterwards."""
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    fills = torch.utils.deterministic.fill_uninitialized_memory
    torch.backends.cudnn.allow_tf32 = True
    yield torch.device("cuda", 0)
    torch.backends.cudnn.allow_tf32 = True
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = fills


def test_no_convolution_is_rounded_to_tf32(cuda):
    prepare_process(cuda)
    assert torch.backends.cudnn.conv.fp32_precision != "tf32"
    assert torch.backends.cudnn.fp32_precision != "tf32"  # what the compiler reads
    assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cuda.matmul.fp32_precision != "tf32"
