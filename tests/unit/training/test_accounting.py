"""Cost of a run: FLOPs by the closed form, and speed as a share of a peak."""

from __future__ import annotations

import pytest
import torch
from tiny_runs import tiny_spec

from comt_cli.models.accounting import cost_of, total_flops
from comt_cli.training import speed
from comt_cli.training.devices import peak_flops
from comt_cli.training.parallel import World
from comt_cli.training.speed import mfu

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


def test_mfu(tiny_corpus, monkeypatch):
    """FLOPs of a position times positions a second, over the peak of all devices."""
    spec, cpu = tiny_spec(tiny_corpus, method="pre-ln"), torch.device("cpu")
    assert mfu(spec, World(cpu), 1000) is None
    monkeypatch.setattr(speed, "peak_flops", lambda device, precision: 1e9)
    share = mfu(spec, World(cpu), 1000)
    assert share == pytest.approx(1000 * cost_of(spec).flops_per_row / 48 / 1e9)
    assert mfu(spec, World(cpu, 0, 4), 1000) == pytest.approx(share / 4)
