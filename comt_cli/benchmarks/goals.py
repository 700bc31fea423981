"""What is asked of the variants of a training step and of decoding. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

H200 = "NVIDIA H200"
"""The device, as it calls itself, that the goals for a GPU are about."""
DECODE_GOAL = 1.05
DECODE_GOALS_ON_CPU = {1: 1.10, 64: DECODE_GOAL}
"""By the number of texts."""
BEAM = 4
"""The usual width of a translator's beam."""
_TRANSLATION_GOALS = {"plain-uncached": 2.0, "marian": 1.0}
_PROCESSOR = re.compile(r", \d+ threads?$")
"""How the name of a processor ends in the rows."""

Kind = Literal["step", "forward", "saved", "mfu", "speed", "peer", "compiled_peer"]
"""What a goal is about: the ratio of the step, of the forward pass, of what it keeps in memory; MFU; units a second;
the ratio of the step to that of another library; that of another library's compiled step to the best plain one."""
Goals = dict[Kind, float]


@dataclass(frozen=True)
class Asked:
    """What is asked of a subject, by the variant's base: on an H200 in bf16 by published size, on a CPU at any size.

    `speed`, in units a second, and `peer`, the ratio of its step to that of the subject's first peer, are asked of the
    quickest plain variant on the whole batch; `compiled_peer` too, on a CPU: its step is at most so much of that peer's
    compiled one, whose row shows the goal, as the inverse. `beyond_arithmetic` is asked of the compiled variants of
    other networks on a CPU: the ratio of their step to the plain one is at most so many times that of their arithmetic
    (`arithmetic_ratio_to_plain` of their rows); the others of what is fused.
    """

    gpu: Mapping[str, Mapping[str, Goals]] = field(default_factory=dict)
    cpu: Mapping[str, Goals] = field(default_factory=dict)
    speed: Mapping[str, float] = field(default_factory=dict)
    peer: float | None = None
    compiled_peer: float | None = None
    beyond_arithmetic: float | None = None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Those there are goals of, in the order of the columns."""
        every = [goals for of_base in self.gpu.values() for goals in of_base.values()]
        named: set[Kind] = {kind for goals in every for kind in goals} | ({"speed"} if self.speed else set())
        named |= {"peer"} if self.peer is not None else set()
        named |= {"compiled_peer"} if self.compiled_peer is not None else set()
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
        is_compiled_peer: bool = False,
        arithmetic: float | None = None,
    ) -> Goals:
        """The goals of `transponder-fused`, `plain-fused`, ... at a size, on a device of that name. `is_best_plain`:
        it is the quickest plain one, on the whole batch of that size. `is_compiled_peer`: it is the first of the other
        libraries' networks, compiled. `arithmetic`: its ratio to the plain network's,
        where that is known."""
        base, _, how = variant.partition("-")
        fused = how in ("fused", "fused-eager")
        if _PROCESSOR.search(device):
            found = dict(self.cpu.get(base, {})) if fused else {}
            if self.beyond_arithmetic is not None and arithmetic is not None and base != "plain" and how == "compiled":
                found["step"] = round(self.beyond_arithmetic * arithmetic, 4)
            if self.compiled_peer is not None and is_compiled_peer:
                found["compiled_peer"] = round(1 / self.compiled_peer, 4)
        elif device == H200 and precision.startswith("bf16"):
            found = dict(self.gpu.get(size, {}).get(base, {})) if fused else {}
            if is_best_plain and size in self.speed:
                found["speed"] = self.speed[size]
        else:
            return {}
        if is_best_plain and self.peer is not None:
            found["peer"] = self.peer
        return found


def _transposed(
    by_kind: Mapping[tuple[str, Kind], tuple[float, ...]], sizes: tuple[str, ...]
) -> dict[str, dict[str, Goals]]:
    """By size and base, what is given by base and kind for each size."""
    found: dict[str, dict[str, Goals]] = {size: {} for size in sizes}
    for (base, kind), values in by_kind.items():
        for size, value in zip(sizes, values, strict=True):
            found[size].setdefault(base, {})[kind] = value
    return found


NOTHING = Asked()
OF_LLAMAS = Asked(
    gpu=_transposed(
        {
            ("transponder", "step"): (1.08, 1.07, 1.07, 1.06, 1.035),
            ("transponder", "forward"): (1.05, 1.04, 1.04, 1.035, 1.02),
            ("transponder", "saved"): (1.15,) * 5,
            ("comt", "step"): (1.04, 1.04, 1.04, 1.035, 1.02),
            ("comt", "saved"): (1.15,) * 5,
            ("plain", "mfu"): (0.45, 0.50, 0.50, 0.50, 0.55),
        },
        ("60m", "130m", "250m", "350m", "1b"),
    ),
    cpu={"transponder": {"step": 1.12, "forward": 1.10, "saved": 1.20}, "comt": {"step": 1.04}},
    compiled_peer=0.97,
)
OF_RESNETS = Asked(
    gpu={
        size: {"window": {"step": 1.06}, "pixel": {"step": 1.05}}
        for size in ("resnet18", "resnet18-b64", "resnet50", "resnet152", "resnet50-224")
    },
    cpu={"window": {"step": 1.10}, "pixel": {"step": 1.10}},
    speed={"resnet18": 60_000},
)
OF_TRANSLATORS = OF_BERTS = Asked(peer=1.0)
OF_CONNECTIONS = Asked(beyond_arithmetic=1.05)


def goal_device(device_type: str, name: str) -> str:
    """`name` where goals may be asked of the device; Apple's MPS, which has its processor's name, has none."""
    return name if device_type in ("cpu", "cuda") else ""


def decode_goal(variant: str, device: str, dtype: str, batch: int) -> float | None:
    """The goal of a decode step's ratio to the plain one for so many texts: asked of gated models, fused, on an H200 in
    bf16, and on a CPU."""
    base, _, how = variant.partition("-")
    if how != "fused" or base == "plain":
        return None
    if _PROCESSOR.search(device):
        return DECODE_GOALS_ON_CPU.get(batch)
    return DECODE_GOAL if (device, dtype) == (H200, "bf16") else None


def translation_goals(row: Mapping[str, Any]) -> dict[str, float | None]:
    """The goals of a row of decode-translation.csv as they are now, by its columns: without a cache, and by another
    library, a search of the usual width takes at least so many times as long."""
    found = _TRANSLATION_GOALS.get(row["variant"]) if int(row["beam"]) == BEAM else None
    return {"goal_ratio_to_plain": found}


def decode_goals(row: Mapping[str, str]) -> dict[str, float | None]:
    """The goals of a row of decode.csv as they are now, by its columns."""
    return {"goal_decode_ratio": decode_goal(row["variant"], row["device"], row["dtype"], int(row["batch"]))}
