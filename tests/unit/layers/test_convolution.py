"""Narrow strided 1x1 convolutions, which take the pixels that they look at first, are what they were."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from comt_cli.layers.convolution import LEAST_CHANNELS, Convolution


@pytest.mark.parametrize("channels", [LEAST_CHANNELS // 2, LEAST_CHANNELS])
@pytest.mark.parametrize("size", [7, 8])
def test_a_strided_1x1_convolution_and_its_gradients(channels, size):
    """In float64, which oneDNN does not compute; sums of at most 8 numbers may be added in another order."""
    torch.manual_seed(0)
    convolution = Convolution(channels, 8, 1, stride=2).double()
    torch.nn.init.normal_(convolution.weight)
    x_BCHW = torch.randn(3, channels, size, size, dtype=torch.float64, requires_grad=True)
    found, expected = convolution(x_BCHW), F.conv2d(x_BCHW, convolution.weight, stride=2)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    upstream = torch.randn_like(expected)
    inputs = (x_BCHW, convolution.weight)
    for ours, theirs in zip(
        torch.autograd.grad(found, inputs, upstream), torch.autograd.grad(expected, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
