"""Devices: their choice, settings of a process before it computes on a GPU, and the share of their peak (MFU)."""

from __future__ import annotations

import os

import pytest
import torch
from tiny_runs import tiny_spec

from comt_cli.errors import UserError
from comt_cli.models.accounting import cost_of, total_flops
from comt_cli.training import hardware, record
from comt_cli.training.devices import peak_flops, pick_device, prepare_process
from comt_cli.training.hardware import Hardware, check_count, check_device_name
from comt_cli.training.parallel import World
from comt_cli.training.record import mfu


@pytest.fixture
def cuda(monkeypatch):
    """A CUDA device as far as it is asked for one here; PyTorch's settings are put back afterwards."""
    monkeypatch.setattr(hardware, "cuda_names", lambda: ("H200",))
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


D, FFN, LAYERS, V, T = 32, 48, 2, 258, 48
MATRICES = LAYERS * (4 * D * D + 3 * D * FFN)


def test_flops_of_the_plain_model(tiny_corpus):
    """6 N T for the matrices that multiply (blocks and head, not the embedding), forward and backward; attention's two
    T x T products a layer, each 2 T^2 D FLOPs forward, and twice that backward."""
    spec = tiny_spec(tiny_corpus, method="pre-ln")
    expected = 6 * (MATRICES + V * D) * T + 3 * LAYERS * 2 * 2 * T * T * D
    assert cost_of(spec).flops_per_row == expected
    assert total_flops(spec) == expected * 8 * 30


NAMES = {
    "NVIDIA H200": 989.5e12,
    "NVIDIA H200 MIG 1g.18gb": None,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 80GB HBM3": 989.5e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA GB200": None,
    "NVIDIA GH200 480GB": None,
    "NVIDIA GeForce RTX 4090": 165.2e12,
    "NVIDIA GeForce RTX 4090 Laptop GPU": None,
}


@pytest.mark.parametrize(("name", "peak"), NAMES.items())
def test_a_peak_is_known_or_not_but_never_another_chips(monkeypatch, name, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    cuda = torch.device("cuda", 0)
    assert peak_flops(cuda, "bf16-mixed") == peak_flops(cuda, "bf16-pure") == peak
    assert peak_flops(cuda, "fp32") is None, "the table is of bf16"
    assert peak_flops(torch.device("cpu"), "bf16-pure") is None


def test_an_a100_is_the_one_with_its_memory():
    assert hardware.chip_of("NVIDIA A100-SXM4-40GB") == hardware.planned_hardware("a100_40gb", 1).name == "A100 40GB"
    assert hardware.planned_hardware("A100", 2) == hardware.planned_hardware("a100-80gb", 2)


def test_mfu(tiny_corpus, monkeypatch):
    """FLOPs of a position times positions a second, over the peak of all devices."""
    spec, cpu = tiny_spec(tiny_corpus, method="pre-ln"), torch.device("cpu")
    assert mfu(spec, World(cpu), 1000) is None
    monkeypatch.setattr(record, "peak_flops", lambda device, precision: 1e9)
    share = mfu(spec, World(cpu), 1000)
    assert share == pytest.approx(1000 * cost_of(spec).flops_per_row / 48 / 1e9)
    assert mfu(spec, World(cpu, 0, 4), 1000) == pytest.approx(share / 4)
