"""What is asked of the variants of a training step and of decoding. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from comt_cli.recipe.settings import Precision

_HOPPER = re.compile(r"NVIDIA H[12]00( 80GB HBM3)?")
"""The devices, as they call themselves, that the goals for a GPU are about."""
DECODE_GOAL = 1.05
DECODE_GOALS_ON_CPU = {1: 1.10, 64: DECODE_GOAL}
"""By the number of texts."""
BEAM = 4
"""The usual width of a translator's beam."""
_TRANSLATION_GOALS = {"plain-uncached": 2.0, "marian": 1.0}
_PROCESSOR = re.compile(r", \d+ threads?$")
"""How the name of a processor ends in the rows."""

Kind = Literal["step", "forward", "saved", "speed", "peer", "compiled", "compiled_peer"]
"""What a goal is about: the ratio of the step, of the forward pass, of what it keeps in memory; units a second; the
ratio of the step to that of another library, and to the plain compiled one; that of another library's compiled step to
the best plain one."""
Goals = dict[Kind, float]


@dataclass(frozen=True)
class Asked:
    """What is asked of a subject's variants: on an H100 or H200 in bf16 by published size, on a CPU by precision at any
    size. What is asked of a fused variant, such as `comt-fused`, is also asked of the same uncompiled
    (`comt-fused-eager`) and in CUDA graphs (`comt-fused-graphs`).

    `speed`, in units a second, and `peer`, the ratio of its step to that of the subject's first peer, are asked of the
    quickest plain variant on the whole batch. `beyond_arithmetic` is asked of the compiled variants of
    other networks on a CPU: the ratio of their step to the plain one is at most so many times that of their arithmetic
    (`arithmetic_ratio_to_plain` of their rows).
    """

    gpu: Mapping[str, Mapping[str, Goals]] = field(default_factory=dict)
    cpu: Mapping[str, Mapping[str, Goals]] = field(default_factory=dict)
    speed: Mapping[str, float] = field(default_factory=dict)
    peer: float | None = None
    beyond_arithmetic: float | None = None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Those there are goals of, in the order of the columns."""
        every = [goals for part in (*self.cpu.values(), *self.gpu.values()) for goals in part.values()]
        named: set[Kind] = {kind for goals in every for kind in goals} | ({"speed"} if self.speed else set())
        named |= {"peer"} if self.peer is not None else set()
        named |= {"step"} if self.beyond_arithmetic is not None else set()
        return tuple(kind for kind in get_args(Kind) if kind in named)

    def of(
        self,
        variant: str,
        size: str,
        device: str,
        precision: str,
        *,
        is_best_plain: bool = False,
        arithmetic: float | None = None,
    ) -> Goals:
        """The goals of `transponder-fused`, `plain-fused`, ... at a size, on a device of that name. `is_best_plain`:
        it is the quickest plain one, on the whole batch of that size. `arithmetic`: its ratio to the plain network's,
        where that is known."""
        base, _, how = variant.partition("-")
        name = f"{base}-fused" if how in ("fused-eager", "fused-graphs") else variant
        if _PROCESSOR.search(device):
            found = dict(self.cpu.get(precision, {}).get(name, {}))
            if self.beyond_arithmetic is not None and arithmetic is not None and base != "plain" and how == "compiled":
                found["step"] = round(self.beyond_arithmetic * arithmetic, 4)
        elif _HOPPER.fullmatch(device) and precision.startswith("bf16"):
            found = dict(self.gpu.get(size, {}).get(name, {}))
            if is_best_plain and size in self.speed:
                found["speed"] = self.speed[size]
        else:
            return {}
        if is_best_plain and self.peer is not None:
            found["peer"] = self.peer
        return found


def _by_size(
    sizes: tuple[str, ...], values: Mapping[tuple[str, Kind], tuple[float | None, ...]]
) -> dict[str, dict[str, Goals]]:
    """By size and variant, what is given by variant and kind for each size."""
    found: dict[str, dict[str, Goals]] = {size: {} for size in sizes}
    for (variant, kind), of_sizes in values.items():
        for size, value in zip(sizes, of_sizes, strict=True):
            if value is not None:
                found[size].setdefault(variant, {})[kind] = value
    return found


def _at_least(ratio: float) -> float:
    """How many times the best plain step another library's takes, where the former is to be `ratio` of the latter."""
    return round(1 / ratio, 4)


NOTHING = Asked()
OF_LLAMAS = Asked(
    gpu=_by_size(
        ("60m", "130m", "250m", "350m", "1b"),
        {
            ("transponder-fused", "step"): (1.08, 1.07, 1.07, 1.06, 1.035),
            ("transponder-fused", "saved"): (1.15,) * 5,
            ("transponder-compiled", "compiled"): (1.25, None, None, 1.2, 1.12),
            ("comt-fused", "step"): (1.04, 1.04, 1.04, 1.035, 1.02),
            ("comt-fused", "saved"): (1.15,) * 5,
            ("plain-fused", "compiled"): (0.95, None, None, 0.97, 0.98),
            ("transformers-compiled", "compiled_peer"): (_at_least(0.87), None, None, _at_least(0.9), _at_least(0.95)),
        },
    ),
    cpu={
        precision: {
            "transponder-fused": {"step": transponder, "forward": 1.10, "saved": 1.20},
            "comt-fused": {"step": comt},
            "transformers-compiled": {"compiled_peer": _at_least(plain)},
        }
        for precision, transponder, comt, plain in (("fp32", 1.12, 1.04, 0.95), ("bf16-pure", 1.20, 1.08, 0.62))
    },
)
OF_RESNETS = Asked(
    gpu={
        size: {"window-fused": {"step": 1.06}, "pixel-fused": {"step": 1.05}}
        for size in ("resnet18", "resnet18-b64", "resnet50", "resnet152", "resnet50-224")
    },
    cpu={each: {"window-fused": {"step": 1.10}, "pixel-fused": {"step": 1.10}} for each in get_args(Precision)},
    speed={"resnet18": 60_000},
)
OF_TRANSLATORS = OF_BERTS = Asked(peer=1.0)
OF_CONNECTIONS = Asked(beyond_arithmetic=1.05)


def goal_device(device_type: str, name: str) -> str:
    """`name` where goals may be asked of the device; Apple's MPS, which has its processor's name, has none."""
    return name if device_type in ("cpu", "cuda") else ""


def decode_goal(variant: str, device: str, dtype: str, batch: int) -> float | None:
    """The goal of a decode step's ratio to the plain one for so many texts: asked of gated models, fused, on an H100 or
    H200 in bf16, and on a CPU."""
    base, _, how = variant.partition("-")
    if how != "fused" or base == "plain":
        return None
    if _PROCESSOR.search(device):
        return DECODE_GOALS_ON_CPU.get(batch)
    return DECODE_GOAL if _HOPPER.fullmatch(device) and dtype == "bf16" else None


def translation_goals(row: Mapping[str, Any]) -> dict[str, float | None]:
    """The goals of a row of decode-translation.csv as they are now, by its columns: without a cache, and by another
    library, a search of the usual width takes at least so many times as long."""
    found = _TRANSLATION_GOALS.get(row["variant"]) if int(row["beam"]) == BEAM else None
    return {"goal_ratio_to_plain": found}


def decode_goals(row: Mapping[str, str]) -> dict[str, float | None]:
    """The goals of a row of decode.csv as they are now, by its columns."""
    return {"goal_decode_ratio": decode_goal(row["variant"], row["device"], row["dtype"], int(row["batch"]))}
