"""What is measured: the published sizes on a GPU, small ones on a CPU; and what the issue asks of them.

Torch-free.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from comt_cli.recipe.load import select
from comt_cli.tasks.settings.llama import LLAMA_SIZES, ModelSettings

VOCABULARY = 32000
LENGTH = 256
TOKENS = 65536
"""Tokens in a step of the published sizes."""


@dataclass(frozen=True)
class Shape:
    """What is trained: a LLaMA of these sizes on batches of `batch` x `length` tokens."""

    size: str = "bench"
    width: int = 256
    ffn_width: int = 688
    layers: int = 4
    heads: int = 4
    vocabulary: int = 4096
    batch: int = 16
    length: int = 128

    def __str__(self) -> str:
        sizes = f"d{self.width}-f{self.ffn_width}-l{self.layers}-h{self.heads}-v{self.vocabulary}"
        return f"{sizes}-b{self.batch}x{self.length}"

    @property
    def tokens(self) -> int:
        """Tokens in a step."""
        return self.batch * self.length

    @property
    def amount(self) -> str:
        """The same in words."""
        return f"{self.tokens:,} tokens"

    def halved(self) -> Shape:
        """The same with half the batch."""
        return replace(self, batch=self.batch // 2)

    def model(self) -> ModelSettings:
        """The model's settings."""
        return ModelSettings(
            size="tiny", width=self.width, ffn_width=self.ffn_width, layers=self.layers, heads=self.heads
        )

    def dimensions(self) -> dict[str, int]:
        """What the text gives the model."""
        return {"vocabulary": self.vocabulary, "length": self.length}


def _published(name: str) -> Shape:
    size = LLAMA_SIZES[name]
    return Shape(name, size.width, size.ffn_width, size.layers, size.heads, VOCABULARY, TOKENS // LENGTH, LENGTH)


GPU_SIZES = ("60m", "130m", "250m", "350m", "1b")
SHAPES: dict[str, Shape] = {
    "smoke": Shape("smoke", 128, 344, 4, 4, 2048, 4, 128),
    "bench": Shape(),
    **{name: _published(name) for name in GPU_SIZES},
}
"""By name: what recipes train at scale smoke, a somewhat larger one for a CPU, and the published sizes."""


def default_sizes(device_type: str, what: str) -> list[str]:
    """The sizes that are measured on a kind of device unless others are named."""
    if device_type == "cuda":
        return list(GPU_SIZES)
    return ["bench", "smoke"] if what == "kernels" else ["bench"]


def sizes_from(names: str | None, device_type: str, what: str) -> list[Shape]:
    """The shapes of a comma-separated selection, or the device's own.

    Raises:
        UserError: a size has no shape; the hint names the nearest.
    """
    chosen = select(names, SHAPES, "size") if names is not None else default_sizes(device_type, what)
    return [SHAPES[name] for name in chosen]


# ---- what is asked of them (ratios to the best plain step, forward pass, and so on)

_STEP: dict[str, Sequence[float]] = {
    "transponder": (1.08, 1.07, 1.07, 1.06, 1.035),
    "comt": (1.04, 1.04, 1.04, 1.035, 1.02),
}
_FORWARD: dict[str, Sequence[float]] = {"transponder": (1.05, 1.04, 1.04, 1.035, 1.02)}
_CPU_STEP = {"transponder": 1.15, "comt": 1.08}
_CPU_FORWARD = {"transponder": 1.10}
_MFU = (0.45, 0.50, 0.50, 0.50, 0.55)
DECODE_GOAL = 1.05
SAVED_GOAL = 1.15
H200 = "NVIDIA H200"
"""The device, as it calls itself, that the goals for a GPU are about."""
_PROCESSOR = re.compile(r", \d+ threads?$")
"""How the name of a processor ends in the rows."""


@dataclass(frozen=True)
class Goals:
    """What is asked of one variant at one size; None where nothing is."""

    step: float | None = None
    forward: float | None = None
    saved: float | None = None
    mfu: float | None = None


def goal_device(device_type: str, name: str) -> str:
    """`name` where goals may be asked of the device; Apple's MPS, which has its processor's name, has none."""
    return name if device_type in ("cpu", "cuda") else ""


def is_processor(device: str) -> bool:
    """Whether rows name a CPU so: with its threads."""
    return _PROCESSOR.search(device) is not None


def goals_of(variant: str, size: str, device: str, precision: str) -> Goals:
    """The goals of `transponder-fused`, `plain-fused`, ... at a size, on a device of that name.

    They are asked of the fused variants: on an H200 in bf16 at the published sizes, on a CPU in bf16 and fp32.
    """
    base, _, how = variant.partition("-")
    if how != "fused":
        return Goals()
    if is_processor(device):
        return Goals(step=_CPU_STEP.get(base), forward=_CPU_FORWARD.get(base))
    if device != H200 or size not in GPU_SIZES or not precision.startswith("bf16"):
        return Goals()
    place = GPU_SIZES.index(size)
    if base == "plain":
        return Goals(mfu=_MFU[place])
    if base not in _STEP:
        return Goals()
    forward = _FORWARD[base][place] if base in _FORWARD else None
    return Goals(step=_STEP[base][place], forward=forward, saved=SAVED_GOAL)


def decode_goal(variant: str, device: str, dtype: str) -> float | None:
    """The goal of a decode step's ratio to the plain one: asked of gated models, fused, on an H200 in bf16."""
    base, _, how = variant.partition("-")
    return DECODE_GOAL if how == "fused" and base != "plain" and (device, dtype) == (H200, "bf16") else None


def step_goals(row: Mapping[str, str]) -> dict[str, float | None]:
    """The goals of a row of step.csv as they are now, by its columns."""
    goals = goals_of(row["variant"], row["size"], row["device"], row["precision"])
    return {
        "goal_step_ratio": goals.step,
        "goal_forward_ratio": goals.forward,
        "goal_saved_ratio": goals.saved,
        "goal_mfu": goals.mfu,
    }


def decode_goals(row: Mapping[str, str]) -> dict[str, float | None]:
    """The same of a row of decode.csv."""
    return {"goal_decode_ratio": decode_goal(row["variant"], row["device"], row["dtype"])}
