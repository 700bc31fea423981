"""Convolutions and batch norms, and CoMT's gates on them (Zhang et al. 2025, Eq. 9 to 13, Figure A5).

Shapes: B images, C channels (of the input or the output), H x W pixels, k x k window, h hidden width of the gate on a
convolution, r that of the gate on a norm. Any memory layout is accepted; channels-last is the fast one.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.kernels.modulated_norm import modulated_norm
from comt_cli.layers.gates import Gate, draw_gate_weight
from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.norms import NormPlace
from comt_cli.layers.projection import aligned
from comt_cli.recipe.settings import GateInit

EPSILON = 1e-5
LEAST_CHANNELS = 8
"""With fewer channels, oneDNN's AVX2 code for the weights' gradient of a strided 1x1 convolution corrupts the heap
(torch 2.13, channels last). The pixels that it reads are then selected first, which gives the same sum."""
MOMENTUM = 0.1
"""Weight of the newest batch in the running statistics. Both values are torch's and the papers' code's."""


class MapGate(Gate):
    """One scalar in (0, 1) per pixel: sigmoid(w sigmoid(u)), without biases. `names` are those of its matrices."""

    factor_range = (0.0, 1.0)
    names: ClassVar[tuple[str, str]]
    stride = 1

    def __init__(self, init: GateInit, hidden: int, *read: int) -> None:
        super().__init__()
        self.init = init
        for name, shape in zip(self.names, ((hidden, *read), (1, hidden)), strict=True):
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))

    def down_projection(self) -> Tensor:
        return self.get_parameter(self.names[0])

    def values(self, u_BhHW: Tensor | None) -> dict[str, Tensor]:
        assert u_BhHW is not None
        return {"scalar": torch.sigmoid(_pixelwise(torch.sigmoid(u_BhHW), self.get_parameter(self.names[1])))}

    def forward(self, x_BDHW: Tensor) -> Tensor:
        """gamma, [B, 1, H, W] of the output."""
        A = self.down_projection()
        filters = A if A.ndim == 4 else A[..., None, None]
        u_BhHW = F.conv2d(x_BDHW, filters, stride=self.stride, padding=filters.shape[-1] // 2)
        return self.values(u_BhHW)["scalar"]

    def initialise(self, draw: Draw) -> None:
        for name in self.names:
            draw_gate_weight(draw, self.get_parameter(name), name, self.init)


class WindowGate(MapGate):
    """CoMT's sliding-window modulator: sigmoid(w sigmoid(filters * x)) (Eq. 13). [B, D, H, W] -> [B, 1, H', W'].

    It has max(1, D / ratio) filters. Its convolution computes filters * x together with its own output. Both have the
    same odd `window`, padded by half of it, and the same `stride`.

    Examples:
        >>> WindowGate(64, window=3, stride=2)(torch.randn(5, 64, 8, 8)).shape
        torch.Size([5, 1, 4, 4])
    """

    names = ("filters", "w")
    filters: Tensor
    w: Tensor

    def __init__(
        self, d_in: int, window: int = 3, ratio: int = 64, init: GateInit = "torch-linear", stride: int = 1
    ) -> None:
        super().__init__(init, max(1, d_in // ratio), d_in, window, window)
        self.stride = stride


class PixelGate(MapGate):
    """CoMT's pixel modulator: sigmoid(b sigmoid(A n)) (Eq. 11), n the normalised features. [B, C, H, W] -> [B, 1, H,
    W].

    Examples:
        >>> PixelGate(64)(nn.BatchNorm2d(64, affine=False)(torch.randn(5, 64, 8, 8))).shape
        torch.Size([5, 1, 8, 8])
    """

    names = ("A", "b")
    A: Tensor
    b: Tensor

    def __init__(self, d_in: int, hidden: int = 2, init: GateInit = "torch-linear") -> None:
        super().__init__(init, hidden, d_in)


class Convolution(Initialised):
    """filters * x without a bias, times its gate if there is one: [B, C, H, W] -> [B, C, H, W]. Weights start as N(0, 2
    / (C_out k^2)) (He et al. 2015), as in the papers' code."""

    def __init__(self, d_in: int, d_out: int, window: int, stride: int = 1, gate: Gate | None = None) -> None:
        super().__init__()
        self.stride, self.padding, self.d_out = stride, window // 2, d_out
        self.weight = nn.Parameter(torch.empty(d_out, d_in, window, window))
        self.gate = gate

    def forward(self, x_BCHW: Tensor) -> Tensor:
        product = self.product(x_BCHW)
        if self.gate is None:
            return product
        C, filters = self.d_out, self.gate.down_projection()
        u_BhHW = None if filters is None else product[:, C : C + len(filters)]
        return self.gate.scaled(product[:, :C], u_BhHW)

    def product(self, x_BCHW: Tensor) -> Tensor:
        """All filters on x, [B, K, H, W]: C of the convolution, h of its gate; on a GPU padded to a multiple of 8."""
        weight: Tensor = self.weight
        if self.gate is not None and (filters := self.gate.down_projection()) is not None:
            rows = self.d_out + len(filters)
            filling = aligned(rows, weight) - rows
            zeros = [weight.new_zeros(filling, *weight.shape[1:])] if filling else []
            weight = torch.cat([weight, filters, *zeros])
        if self.padding == 0 and self.stride > 1 and x_BCHW.shape[1] < LEAST_CHANNELS and not x_BCHW.is_cuda:
            return F.conv2d(x_BCHW[:, :, :: self.stride, :: self.stride], weight)
        return F.conv2d(x_BCHW, weight, stride=self.stride, padding=self.padding)

    def initialise(self, draw: Draw) -> None:
        draw.normal_(self.weight, "weight", math.sqrt(2 / (self.d_out * self.weight[0, 0].numel())))


class BatchNorm(Initialised):
    """Batch normalisation (Ioffe and Szegedy 2015; CoMT, Eq. 9): [B, C, H, W] -> [B, C, H, W]. Statistics are fp32. The
    running ones, for evaluation, take in a tenth of each batch's, with the unbiased variance. With a gate the output is
    g(n) gamma n + bias (CoMT, Eq. 10 to 12); g reads the normalised n. Eq. 12 has no gamma: `weighted=False`."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, width: int, gate: Gate | None = None, *, weighted: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width)) if weighted else None
        self.bias = nn.Parameter(torch.empty(width))
        self.register_buffer("running_mean", torch.empty(width))
        self.register_buffer("running_var", torch.empty(width))
        self.gate = gate

    def forward(self, x_BCHW: Tensor) -> Tensor:
        if self.gate is None:
            return self.normalised(x_BCHW, self.weight, self.bias)
        n_BCHW, A = self.normalised(x_BCHW), self.gate.down_projection()
        scaled_BCHW = self.gate.scaled(n_BCHW, None if A is None else _pixelwise(n_BCHW, A))
        if self.weight is not None:
            scaled_BCHW = scaled_BCHW * _per_channel(self.weight, n_BCHW)
        return scaled_BCHW + _per_channel(self.bias, n_BCHW)

    def normalised(self, x_BCHW: Tensor, weight_C: Tensor | None = None, bias_C: Tensor | None = None) -> Tensor:
        """weight n + bias, updating the running statistics in training; without both n, which a gate reads."""
        mean_C, var_C = self.running_mean, self.running_var
        weight_C, bias_C = (None if each is None else each.to(mean_C.dtype) for each in (weight_C, bias_C))
        return F.batch_norm(x_BCHW, mean_C, var_C, weight_C, bias_C, self.training, MOMENTUM, EPSILON)

    def observe(self, mean_C: Tensor, var_C: Tensor, pixels: int) -> None:
        """Update the running statistics with the mean and biased variance of a batch of `pixels`, as `forward` does."""
        with torch.no_grad():
            self.running_mean.lerp_(mean_C.to(self.running_mean.dtype), MOMENTUM)
            self.running_var.lerp_((var_C * (pixels / (pixels - 1))).to(self.running_var.dtype), MOMENTUM)

    def _apply(self, *arguments: Any, **options: Any) -> Self:
        before = self.running_mean, self.running_var
        moved: Self = super()._apply(*arguments, **options)  # type: ignore[no-untyped-call]
        if self.running_mean.itemsize < torch.float32.itemsize:  # a tenth of a batch would be lost in rounding
            device = self.running_mean.device
            self.running_mean, self.running_var = (kept.to(device, torch.float32) for kept in before)
        return moved

    def initialise(self, draw: Draw) -> None:
        if self.weight is not None:
            nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.running_mean)
        nn.init.ones_(self.running_var)


def batch_norm(place: NormPlace, *, weighted: bool = True) -> BatchNorm:
    """Batch norm with the gate of its place. Its gain, if `weighted`, starts at 1."""
    return BatchNorm(place.width, place.gate, weighted=weighted)


class MapLayerNorm(Initialised):
    """Layer normalisation (Ba et al. 2016) of each image (`sample`) or of each pixel (`pixel`). Gain and shift are per
    channel, so the parameters do not depend on the image size."""

    def __init__(self, width: int, over: Literal["sample", "pixel"]) -> None:
        super().__init__()
        self.over = over
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x_BHWC: Tensor) -> Tensor:
        """[B, H, W, C] -> [B, H, W, C]."""
        n_BHWC = F.layer_norm(x_BHWC, x_BHWC.shape[1 if self.over == "sample" else 3 :], eps=EPSILON)
        return (self.weight * n_BHWC + self.bias).to(x_BHWC.dtype)

    def initialise(self, draw: Draw) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)


class MapBatchNorm(BatchNorm):
    """Batch normalisation of maps with the channels last."""

    def forward(self, x_BHWC: Tensor) -> Tensor:
        return super().forward(x_BHWC.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class ConvolutionNorm(nn.Module):
    """Convolution, norm, optional skip path and ReLU: y = act(N(conv(x)) + skip). In training with `fused`, one kernel
    computes everything after the convolution (`models.kernels`); evaluation is step by step."""

    def __init__(self, convolution: Convolution, norm: nn.Module, *, relu: bool) -> None:
        super().__init__()
        self.convolution, self.norm, self.relu = convolution, norm, relu
        self.fused = False

    def forward(self, x_BCHW: Tensor, skip_BCHW: Tensor | None = None) -> Tensor:
        """[B, C, H, W] -> [B, C, H, W]; `skip` has the shape of the output."""
        if self.fused and self.training:
            return self._fused(x_BCHW, skip_BCHW)
        return self.joined(skip_BCHW, self.norm(self.convolution(x_BCHW)))

    def joined(self, skip_BCHW: Tensor | None, F_BCHW: Tensor) -> Tensor:
        """act(F + skip), [B, C, H, W] each: the residual add if this is the last convolution of a branch F."""
        if skip_BCHW is not None:
            F_BCHW = F_BCHW + skip_BCHW
        return F.relu(F_BCHW) if self.relu else F_BCHW

    def _fused(self, x_BCHW: Tensor, skip_BCHW: Tensor | None) -> Tensor:
        norm: Any = self.norm
        window: Any = self.convolution.gate
        product_BKHW = self.convolution.product(x_BCHW)
        B, _, H, W = product_BKHW.shape
        product_PK = _rows(product_BKHW)
        if len(product_PK) < 2:
            raise ValueError(f"in training a batch norm needs more than one pixel; [B, H, W] is {[B, H, W]}")
        w_h = None if window is None else window.w[0]
        A_rC, b_r = (None, None) if norm.gate is None else (norm.gate.A, norm.gate.b[0])
        skip_PC = None if skip_BCHW is None else _rows(skip_BCHW)
        y_PC, mean_C, var_C = modulated_norm(
            product_PK, w_h, A_rC, b_r, norm.weight, norm.bias, skip_PC, self.relu, EPSILON
        )
        norm.observe(mean_C, var_C, len(product_PK))
        return y_PC.view(B, H, W, -1).permute(0, 3, 1, 2)


def _pixelwise(x_BCHW: Tensor, weight: Tensor) -> Tensor:
    """1x1 convolution, [N, C] filters, as a matrix product over pixels: [B, C, H, W] -> [B, N, H, W]."""
    return F.linear(x_BCHW.permute(0, 2, 3, 1), weight).permute(0, 3, 1, 2)


def _rows(x_BCHW: Tensor) -> Tensor:
    return x_BCHW.permute(0, 2, 3, 1).reshape(-1, x_BCHW.shape[1])


def _per_channel(values_C: Tensor, like: Tensor) -> Tensor:
    return values_C.to(like.dtype)[:, None, None]
