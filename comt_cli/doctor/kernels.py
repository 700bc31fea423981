"""The check of `comt doctor` for kernels: which there are, and which `train.kernels: auto` would take."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from comt_cli.doctor.checks import Finding
from comt_cli.kernels import choice, products
from comt_cli.kernels.attend import MOST_TOKENS, attention_form
from comt_cli.kernels.choice import NORM_CHANNELS, Choice, Gates, NormGate, Op, version_of
from comt_cli.kernels.measurements import FILE, STEP_FILE, measurements
from comt_cli.tasks.settings.language import LLAMA_SIZES

TYPICAL = LLAMA_SIZES["130m"]
"""The size whose widths are asked about: a recipe's default."""
RANK, HIDDEN = 8, 2
"""The bottleneck of Transponder's gates, and the hidden width of pixel gates."""


def check_kernels() -> Finding:
    """The way gates, batch norms and the loss would be computed on each device here, and why no faster one is."""
    obstacle, kept = choice.cpu_obstacle(may_build=False), products.obstacle()
    parts = ["C++ kernels compiled when first used" if obstacle is None else f"no C++ kernels ({obstacle})"]
    for name in ("triton", "liger-kernel"):
        version = version_of(name)
        parts.append(f"{name} {version}" if version else f"no {name}")
    gpus = {torch.cuda.get_device_name(index): index for index in reversed(range(torch.cuda.device_count()))}
    names = [f"cuda:{index}" for index in sorted(gpus.values())] + ["mps"] * torch.backends.mps.is_available()
    lines = [
        "; ".join(parts),
        *(line for name in (*names, "cpu") for line in _lines(torch.device(name))),
        f"cpu, fp32 products: {f'PyTorch ({kept})' if kept else f'oneDNN ({products.GAIN})'}",
        f"cpu, bf16 attention of up to {MOST_TOKENS} tokens: {attention_form('cpu', torch.bfloat16)}",
    ]
    damaged = [str(path) for path in (*measurements(FILE)[1], *measurements(STEP_FILE)[1])]
    if not damaged:
        return Finding("ok", "\n".join(lines))
    fix = "Delete it and measure anew: comt bench kernels, comt bench step."
    return Finding("warn", "\n".join([*lines, f"damaged: {', '.join(damaged)}"]), fix)


def _lines(device: torch.device) -> list[str]:
    """A line for each answer on `device`, with the cases that it is of unless it is of all."""
    lines = []
    for what in ("gates", "ResNets", "loss"):
        said: dict[str, list[str]] = {}
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            for compiled in (False, True):
                text = choice.summary(_choices(what, device, dtype, compiled), compiled=compiled)
                said.setdefault(text, []).append(f"{name} compiled" if compiled else name)
        for text, cases in said.items():
            of = f", {' and '.join(cases)}" if len(said) > 1 else ""
            lines.append(f"{device}, {what}{of}: {text}")
    return lines


def _choices(what: str, device: torch.device, dtype: torch.dtype, compiled: bool) -> Mapping[str, Choice]:
    how = {"compiled": compiled, "may_build": False}
    if what == "loss":
        return {what: choice.choose_loss("auto", device, dtype, may_build=False)}
    if what == "ResNets":
        norms: tuple[NormGate, ...] = ("none", "window", "pixel")
        return {gate: choice.choose_norm("auto", device, dtype, NORM_CHANNELS, gate, HIDDEN, **how) for gate in norms}
    gates, one, two = Gates(channel=True, scalar=True, rank=RANK), TYPICAL.width, 2 * TYPICAL.ffn_width
    widths: dict[Op, int] = {"heads": 3 * one, "swiglu": two, "add_norm": one, "modulate": one}
    return {op: choice.choose(op, "auto", device, dtype, width, gates, **how) for op, width in widths.items()}
