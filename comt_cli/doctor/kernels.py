"""What `comt doctor` says about kernels: which there are, and which `train.kernels: auto` would take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from comt_cli.doctor.finding import Finding

if TYPE_CHECKING:
    import torch

    from comt_cli.kernels.choice import Choice, NormGate, Op

TYPICAL = "130m"
"""The size whose widths are asked about: a recipe's default."""
RANK, HIDDEN = 8, 2
"""The bottleneck of Transponder's gates, and the hidden width of pixel gates."""


def check_kernels() -> Finding:
    """What would compute gates, batch norms and the loss on each device here, and why nothing faster does."""
    import torch

    from comt_cli.kernels import products
    from comt_cli.kernels.attend import MOST_TOKENS, attention_form
    from comt_cli.kernels.choice import cpu_obstacle, version_of
    from comt_cli.kernels.measurements import FILE, STEP_FILE, measurements

    obstacle, kept = cpu_obstacle(may_build=False), products.obstacle()
    parts = ["C++ kernels compiled when first used" if obstacle is None else f"no C++ kernels ({obstacle})"]
    for name, version in (("Triton", version_of("triton")), ("liger-kernel", version_of("liger-kernel"))):
        parts.append(f"{name} {version}" if version else f"no {name}")
    gpus = {torch.cuda.get_device_name(index): index for index in reversed(range(torch.cuda.device_count()))}
    names = [*(f"cuda:{index}" for index in sorted(gpus.values())), "mps", "cpu"]
    devices = [torch.device(name) for name in names if name != "mps" or torch.backends.mps.is_available()]
    lines = [
        "; ".join(parts),
        *(line for device in devices for line in device_lines(device)),
        f"cpu, fp32 products: {f'PyTorch ({kept})' if kept else f'oneDNN ({products.GAIN})'}",
        f"cpu, bf16 attention of up to {MOST_TOKENS} tokens: {attention_form('cpu', torch.bfloat16)}",
    ]
    damaged = [str(path) for path in (*measurements(FILE)[1], *measurements(STEP_FILE)[1])]
    if not damaged:
        return Finding("ok", "\n".join(lines))
    fix = "Delete it and measure anew: comt bench kernels, comt bench step."
    return Finding("warn", "\n".join([*lines, f"damaged: {', '.join(damaged)}"]), fix)


def device_lines(device: torch.device) -> list[str]:
    """What auto would choose on `device` for Transponder's gates, the modulators of ResNets and the loss, in fp32 and
    bf16, compiled and not: a line for each answer, with the cases that it is of unless it is of all."""
    import torch

    from comt_cli.kernels.choice import summary

    lines = []
    for what in ("gates", "ResNets", "loss"):
        said: dict[str, list[str]] = {}
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            for compiled in (False, True):
                text = summary(_choices(what, device, dtype, compiled), compiled=compiled)
                said.setdefault(text, []).append(f"{name} compiled" if compiled else name)
        for text, cases in said.items():
            of = f", {' and '.join(cases)}" if len(said) > 1 else ""
            lines.append(f"{device}, {what}{of}: {text}")
    return lines


def _choices(what: str, device: torch.device, dtype: torch.dtype, compiled: bool) -> Mapping[str, Choice]:
    from comt_cli.kernels.choice import NORM_CHANNELS, Gates, choose, choose_loss, choose_norm
    from comt_cli.tasks.settings.llama import LLAMA_SIZES

    how = {"compiled": compiled, "may_build": False}
    if what == "loss":
        return {what: choose_loss("auto", device, dtype, may_build=False)}
    if what == "ResNets":
        norms: tuple[NormGate, ...] = ("none", "window", "pixel")
        return {gate: choose_norm("auto", device, dtype, NORM_CHANNELS, gate, HIDDEN, **how) for gate in norms}
    size, gates = LLAMA_SIZES[TYPICAL], Gates(channel=True, scalar=True, rank=RANK)
    one, two = size.width, 2 * size.ffn_width
    widths: dict[Op, int] = {"heads": 3 * one, "swiglu": two, "add_norm": one, "modulate": one}
    return {op: choose(op, "auto", device, dtype, width, gates, **how) for op, width in widths.items()}
