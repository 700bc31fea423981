"""What `comt doctor` says about kernels: which there are, and which `train.kernels: auto` would take."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from comt_cli.kernels.choice import Choice, NormGate, Op

TYPICAL = "130m"
"""The size whose widths are asked about: a recipe's default."""
RANK = 8
"""The bottleneck of Transponder's gates."""


def kernel_lines() -> list[str]:
    """A line on what is installed, then a few for every device that is visible here."""
    import torch

    from comt_cli.kernels import products
    from comt_cli.kernels.attend import MOST_TOKENS, attention_form
    from comt_cli.kernels.choice import cpu_obstacle, version_of

    obstacle = cpu_obstacle(may_build=False)
    parts = ["C++ kernels compiled when first used" if obstacle is None else f"no C++ kernels ({obstacle})"]
    for name, package in (("Triton", "triton"), ("liger-kernel", "liger-kernel")):
        version = version_of(package)
        parts.append(f"no {name}" if version is None else f"{name} {version}")
    devices = {torch.cuda.get_device_name(index): index for index in reversed(range(torch.cuda.device_count()))}
    found = [torch.device("cuda", index) for index in sorted(devices.values())]
    if torch.backends.mps.is_available():
        found.append(torch.device("mps"))
    kept = products.obstacle()
    of_cpu = f"cpu, fp32 products: {f'PyTorch ({kept})' if kept else f'oneDNN ({products.GAIN})'}"
    devices_lines = [line for device in (*found, torch.device("cpu")) for line in device_lines(device)]
    attention = f"cpu, bf16 attention of up to {MOST_TOKENS} tokens: {attention_form('cpu', torch.bfloat16)}"
    return ["; ".join(parts), *devices_lines, of_cpu, attention]


def device_lines(device: torch.device) -> list[str]:
    """What auto would choose on `device` for Transponder's gates, the modulators of ResNets and the loss, in fp32 and
    bf16, compiled and not."""
    import torch

    from comt_cli.kernels.choice import choose_loss, summary

    cases: dict[str, list[str]] = {}
    norms: dict[str, list[str]] = {}
    losses: dict[str, list[str]] = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        for compiled in (False, True):
            label = f"{name} compiled" if compiled else name
            cases.setdefault(summary(_choices(device, dtype, compiled=compiled), compiled=compiled), []).append(label)
            norms.setdefault(summary(_norms(device, dtype, compiled=compiled), compiled=compiled), []).append(label)
        losses.setdefault(str(choose_loss("auto", device, dtype, may_build=False)), []).append(name)
    return [
        *_said(f"{device}, gates", cases, 4),
        *_said(f"{device}, ResNets", norms, 4),
        *_said(f"{device}, loss", losses, 2),
    ]


def _said(what: str, cases: dict[str, list[str]], count: int) -> list[str]:
    """One line for each text, followed by the cases it applies to unless it applies to all."""
    return [
        f"{what}: {text}" if len(labels) == count else f"{what}, {' and '.join(labels)}: {text}"
        for text, labels in cases.items()
    ]


def _choices(device: torch.device, dtype: torch.dtype, *, compiled: bool) -> dict[Op, Choice]:
    from comt_cli.kernels.choice import Gates, choose
    from comt_cli.tasks.settings.llama import LLAMA_SIZES

    size, gates = LLAMA_SIZES[TYPICAL], Gates(channel=True, scalar=True, rank=RANK)
    widths: dict[Op, int] = {
        "heads": 3 * size.width,
        "swiglu": 2 * size.ffn_width,
        "add_norm": size.width,
        "modulate": size.width,
    }
    return {
        op: choose(op, "auto", device, dtype, width, gates, compiled=compiled, may_build=False)
        for op, width in widths.items()
    }


def _norms(device: torch.device, dtype: torch.dtype, *, compiled: bool) -> dict[NormGate, Choice]:
    from comt_cli.kernels.choice import NORM_CHANNELS, choose_norm

    gates: tuple[NormGate, ...] = ("none", "window", "pixel")
    return {
        gate: choose_norm("auto", device, dtype, NORM_CHANNELS, gate, 2, compiled=compiled, may_build=False)
        for gate in gates
    }
