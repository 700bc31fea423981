"""Which batch norms of an image classifier are computed by a hand-written kernel, and switching them over.

A kernel takes a norm that follows a convolution, with the modulator of either, the addition and the ReLU behind it
(`ConvolutionNorm`). Norms that stand before a convolution, and evaluation, stay with PyTorch.
"""

from __future__ import annotations

import importlib

import torch

from comt_cli.kernels.choice import Choice, NormGate, Wanted, choose_norm
from comt_cli.layers.convolution import Convolution, ConvolutionNorm, PixelNorm
from comt_cli.models.resnet import ResNet

NAMES: dict[NormGate, str] = {
    "none": "batch_norm",
    "window": "window_norm",
    "pixel": "pixel_norm",
    "both": "window_and_pixel_norm",
}
"""What a record calls a batch norm behind a convolution, by the gates that either has."""
ALONE = "modulators away from a convolution with its norm behind it"
"""What a record calls gates that no kernel takes: where norms stand before convolutions."""


def use_image_kernels(
    model: ResNet, wanted: Wanted, device: torch.device, dtype: torch.dtype, *, compiled: bool, training: bool = True
) -> dict[str, Choice]:
    """Choose for every kind of norm of `model` between kernel and reference, switch them over, and say what and why.

    `device` is where the model will run, `dtype` the type of its convolutions (bf16 under autocast), `compiled` whether
    the rest of it will be compiled, `training` whether it will be. Kinds that the model does not have are left out.
    """
    units: dict[NormGate, list[ConvolutionNorm]] = {}
    for module in model.modules():
        if isinstance(module, ConvolutionNorm):
            units.setdefault(_gate(module), []).append(module)
    choices: dict[str, Choice] = {}
    for gate, of_this_kind in sorted(units.items()):
        hidden = max(map(_hidden, of_this_kind))
        channels = min(len(unit.norm.bias) for unit in of_this_kind)
        choice = choose_norm(wanted, device, dtype, channels, gate, hidden, compiled=compiled, training=training)
        choices[NAMES[gate]] = choice
        for unit in of_this_kind:
            unit.fused = choice.fused
    if _gates_elsewhere(model, units):
        choices[ALONE] = Choice(False, "there is no kernel for them")
    if any(choice.fused for choice in choices.values()):
        importlib.import_module("torch._dynamo")  # an operator's first call does, for seconds: here no clock runs
    return choices


def _gate(unit: ConvolutionNorm) -> NormGate:
    window, pixel = unit.convolution.gate is not None, isinstance(unit.norm, PixelNorm)
    return "both" if window and pixel else "window" if window else "pixel" if pixel else "none"


def _hidden(unit: ConvolutionNorm) -> int:
    """The hidden width of the unit's wider gate; 0 without any."""
    gate = unit.convolution.gate
    return max(0 if gate is None else gate.hidden, len(unit.norm.gate.A) if isinstance(unit.norm, PixelNorm) else 0)


def _gates_elsewhere(model: ResNet, units: dict[NormGate, list[ConvolutionNorm]]) -> bool:
    taken = {id(part) for each in units.values() for unit in each for part in (unit.convolution, unit.norm)}
    gated = (
        module
        for module in model.modules()
        if isinstance(module, PixelNorm) or (isinstance(module, Convolution) and module.gate is not None)
    )
    return any(id(module) not in taken for module in gated)
