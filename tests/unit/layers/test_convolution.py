"""Convolutions, CoMT's modulators and batch norm against their equations."""

from __future__ import annotations

import pytest
import torch
from naive import close, normal, shaken
from torch import nn

from comt_cli.layers.convolution import EPSILON, LEAST_CHANNELS, BatchNorm, Convolution, PixelGate, WindowGate
from comt_cli.layers.gates import Site


def window_gate(ratio: int, window: int = 3, stride: int = 1) -> WindowGate:
    """The gate of a convolution of 4 channels."""
    return WindowGate.at(Site("conv1", "blocks", 0, 1, 4, 3, window=window, stride=stride), ratio=ratio)


def pixel_norm(*, weighted: bool = True) -> BatchNorm:
    """A gated norm of 3 channels."""
    gate = PixelGate(3, hidden=2)
    return BatchNorm(3, gate, weighted=weighted)


@pytest.mark.parametrize(("window", "stride", "ratio"), [(3, 1, 2), (3, 2, 2), (1, 1, 1), (1, 2, 64)])
def test_the_sliding_window_modulator(window, stride, ratio):
    """Eq. 13: sigma(Conv1x1(phi(Conv_kxk(x)))) * Conv_kxk(x)."""
    part = shaken(Convolution(4, 3, window, stride, window_gate(ratio, window, stride)))
    assert len(part.gate.filters) == max(1, 4 // ratio)
    x_BCHW = normal(2, 4, 5, 5)
    main, u = (
        nn.functional.conv2d(x_BCHW, filters, stride=stride, padding=window // 2)
        for filters in (part.weight, part.gate.filters)
    )
    g = torch.sigmoid(torch.einsum("h,bhij->bij", part.gate.w[0], torch.sigmoid(u)))[:, None]
    close(part(x_BCHW), g * main)
    close(part.gate(x_BCHW), g)


def test_the_gates_filters_are_in_the_main_convolution_and_what_fills_it_up_changes_nothing(monkeypatch):
    """On a GPU rows are filled up to a multiple of 8 numbers; here as if this were one."""
    part, x_BCHW = shaken(Convolution(4, 3, 3, gate=window_gate(2))), normal(2, 4, 5, 5)
    product, expected = part.product(x_BCHW), part(x_BCHW)
    assert product.shape == (2, 3 + 2, 5, 5)
    monkeypatch.setattr("comt_cli.layers.convolution.aligned", lambda rows, like: -(-rows // 8) * 8)
    filled = part.product(x_BCHW)
    assert filled.shape == (2, 8, 5, 5)
    close(filled[:, :5], product)
    assert not filled[:, 5:].any()
    close(part(x_BCHW), expected)


@pytest.mark.parametrize("gamma", ["kept", "dropped"])
def test_the_pixel_modulator(gamma):
    """Eq. 10 to 12, and gamma where it is kept."""
    norm = shaken(pixel_norm(weighted=gamma == "kept"))
    x_BCHW = normal(2, 3, 4, 4) * 3 + 1
    centred = x_BCHW - x_BCHW.mean((0, 2, 3), keepdim=True)
    n_BHWC = (centred / (centred.square().mean((0, 2, 3), keepdim=True) + EPSILON).sqrt()).permute(0, 2, 3, 1)
    assert (norm.weight is None) == (gamma == "dropped")
    g = torch.sigmoid(torch.sigmoid(n_BHWC @ norm.gate.A.T) @ norm.gate.b.T)
    close(norm.gate(norm.normalised(x_BCHW)).permute(0, 2, 3, 1), g)
    expected = g * (1 if norm.weight is None else norm.weight) * n_BHWC + norm.bias
    close(norm(x_BCHW).permute(0, 2, 3, 1), expected)


def test_batch_norm_and_its_running_statistics_are_torchs():
    """A tenth of each batch, unbiased variance, and evaluation by them; with a gate on what is normalised, too."""
    for gated in (False, True):
        ours, theirs = shaken(pixel_norm() if gated else BatchNorm(3)), nn.BatchNorm2d(3).double()
        with torch.no_grad():
            ours.running_mean.zero_()
            ours.running_var.fill_(1)
            if not gated:
                theirs.weight.copy_(ours.weight)
                theirs.bias.copy_(ours.bias)
        for seed in range(4):
            if seed == 3:
                ours.eval(), theirs.eval()
            x_BCHW = normal(4, 3, 5, 5, seed=seed) * 2 + seed
            y_BCHW, expected = ours(x_BCHW), theirs(x_BCHW)
            if gated:
                u_BhHW = nn.functional.conv2d(expected, ours.gate.A[:, :, None, None])
                scale, shift = (each[:, None, None] for each in (ours.weight, ours.bias))
                expected = ours.gate.scaled(expected, u_BhHW) * scale + shift
            close(y_BCHW, expected)
            close(ours.running_mean, theirs.running_mean)
            close(ours.running_var, theirs.running_var)


def test_running_statistics_keep_fp32_when_the_rest_goes_to_bf16():
    """In bf16 a running variance near 1 would not move by less than 0.4 %: a tenth of a batch's difference of 4 %."""
    norm = BatchNorm(2)
    with torch.no_grad():
        norm.weight.fill_(1)
        norm.bias.zero_()
        norm.running_mean.fill_(1.0009765625)  # no bf16 number
        norm.running_var.fill_(1)
    norm.to(torch.bfloat16)
    assert norm.weight.dtype == torch.bfloat16
    assert (norm.running_mean == 1.0009765625).all()
    x_BCHW = normal(64, 2, 4, 4).bfloat16() * 1.01
    before = norm.running_var.clone()
    y_BCHW = norm(x_BCHW)
    assert y_BCHW.dtype == torch.bfloat16
    values = x_BCHW.float().transpose(0, 1).flatten(1)
    torch.testing.assert_close(norm.running_var, 0.9 * before + 0.1 * values.var(dim=1), rtol=1e-4, atol=0)
    assert norm.double().running_mean.dtype == torch.float64  # a finer type is taken
    assert norm.to(torch.bfloat16).running_var.dtype == torch.float32  # bf16 maps go with no other
    assert norm.double().float().running_mean.dtype == torch.float32


@pytest.mark.parametrize("size", [7, 8])
def test_a_strided_1x1_convolution_and_its_gradients(size):
    """In float64, which oneDNN does not compute; sums of at most 8 numbers may be added in another order."""
    for channels in (LEAST_CHANNELS // 2, LEAST_CHANNELS):
        convolution = shaken(Convolution(channels, 8, 1, stride=2)).requires_grad_()
        x_BCHW = normal(3, channels, size, size).requires_grad_()
        found, expected = convolution(x_BCHW), nn.functional.conv2d(x_BCHW, convolution.weight, stride=2)
        close(found, expected)
        inputs = (x_BCHW, convolution.weight)
        gradients = (torch.autograd.grad(y, inputs, normal(*expected.shape, seed=1)) for y in (found, expected))
        close(*gradients)
