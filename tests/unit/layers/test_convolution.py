"""Convolutions, CoMT's modulators and batch norm against their equations, written out a pixel at a time (`naive`)."""

from __future__ import annotations

import math

import pytest
import torch
from naive import close, dot, matrix, normal, shaken, sigmoid, sigmoids
from torch import Tensor, nn

from comt_cli.layers.convolution import (
    EPSILON,
    LEAST_CHANNELS,
    BatchNorm,
    Convolution,
    PixelGate,
    WindowGate,
)
from comt_cli.layers.gates import Site


def window_gate(ratio: int, window: int = 3) -> WindowGate:
    """The gate of a convolution of 4 channels."""
    return WindowGate(Site("conv1", "blocks", 0, 1, 4, 3, window=window), ratio, "torch-linear")


def pixel_norm(*, weighted: bool = True) -> BatchNorm:
    """A gated norm of 3 channels."""
    gate = PixelGate(Site("norm1", "blocks", 0, 1, 3, 3), 2, "torch-linear")
    return BatchNorm(3, gate, weighted=weighted)


def naive_convolution(x_CHW: Tensor, filters: Tensor, stride: int) -> Tensor:
    """Sums over the window with zeros around the image, one output number at a time."""
    k = filters.shape[-1]
    padded = nn.functional.pad(x_CHW, [k // 2] * 4)
    size = (x_CHW.shape[-1] - 1) // stride + 1
    out = torch.empty(len(filters), size, size, dtype=torch.float64)
    for n, filter_Ckk in enumerate(filters):
        for i in range(size):
            for j in range(size):
                patch = padded[:, i * stride : i * stride + k, j * stride : j * stride + k]
                out[n, i, j] = dot(patch.flatten(), filter_Ckk.flatten())
    return out


@pytest.mark.parametrize(("window", "stride", "ratio"), [(3, 1, 2), (3, 2, 2), (1, 1, 1), (1, 2, 64)])
def test_the_sliding_window_modulator(window, stride, ratio):
    """Eq. 13: sigma(Conv1x1(phi(Conv_kxk(x)))) * Conv_kxk(x)."""
    part = shaken(Convolution(4, 3, window, stride, window_gate(ratio, window)))
    assert len(part.gate.filters) == max(1, 4 // ratio)
    x_BCHW = normal(2, 4, 5, 5)
    maps = []
    part.gate.register_forward_hook(lambda gate, read, _: maps.append(gate.values(read[1])["scalar"]))
    y_BCHW = part(x_BCHW)
    for b in range(2):
        main = naive_convolution(x_BCHW[b], part.weight, stride)
        u = naive_convolution(x_BCHW[b], part.gate.filters, stride)
        for i in range(main.shape[1]):
            for j in range(main.shape[2]):
                g = sigmoid(dot(sigmoids(u[:, i, j]), part.gate.w[0]))
                close(maps[0][b, 0, i, j].item(), g)
                close(y_BCHW[b, :, i, j], g * main[:, i, j])


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


def naive_normalised(x_BCHW: Tensor) -> Tensor:
    """Eq. 10, channel by channel, with the biased variance of the batch."""
    n_BCHW = torch.empty_like(x_BCHW)
    for c in range(x_BCHW.shape[1]):
        values = x_BCHW[:, c].flatten().tolist()
        mean = math.fsum(values) / len(values)
        variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
        n_BCHW[:, c] = (x_BCHW[:, c] - mean) / math.sqrt(variance + EPSILON)
    return n_BCHW


@pytest.mark.parametrize("gamma", ["kept", "dropped"])
def test_the_pixel_modulator(gamma):
    """Eq. 10 to 12, and gamma where it is kept."""
    norm = shaken(pixel_norm(weighted=gamma == "kept"))
    x_BCHW = normal(2, 3, 4, 4) * 3 + 1
    y_BCHW, n_BCHW = norm(x_BCHW), naive_normalised(x_BCHW)
    assert (norm.weight is None) == (gamma == "dropped")
    for b in range(2):
        for i in range(4):
            for j in range(4):
                n_C = n_BCHW[b, :, i, j]
                g = sigmoid(dot(sigmoids(matrix(norm.gate.A, n_C)), norm.gate.b[0]))
                scale_C = 1 if norm.weight is None else norm.weight
                close(y_BCHW[b, :, i, j], g * scale_C * n_C + norm.bias)


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
                expected = ours.gate(expected, u_BhHW) * scale + shift
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
