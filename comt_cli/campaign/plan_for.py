"""How fast training would be on a device that is not here: as it was measured there, else by an assumption that is said
to be one. Torch-free."""

from __future__ import annotations

import csv
from pathlib import Path

from comt_cli.runs.plan import RunSpec
from comt_cli.training.chips import chip_of
from comt_cli.training.hardware import Hardware

RESULTS = (Path("runs/results"), Path("results"), Path(__file__).resolve().parents[2] / "results")
"""Where measurements of `comt bench` are looked for: one's own, then those that came with the program."""


def planned_speed(spec: RunSpec, where: Hardware, processes: int) -> tuple[float, str]:
    """FLOP/s of a training of `spec` on so many devices `where.chip`, and where that comes from."""
    assert where.chip is not None
    train, share, known = spec.settings.train, spec.task.typical_share, None
    peak = where.chip.fp32_flops if train.precision == "fp32" else where.chip.bf16_flops
    if train.precision != "fp32" and spec.command == "train-lm":
        known = _measured(where.name, "plain-compiled" if train.compile else "plain-fused")
    if known is not None:
        share = float(known["mfu"])
        settled = "" if known["step_ms_settled"] == "True" else ", not settled"
        variant = f"{known['variant']}, {known['size']}, {known['precision']}{settled}"
        source = f"comt bench step on {known['device']} ({variant}): {share:.0%} of its peak, taken to hold at any size"
    else:
        most = f"{peak / 1e12:g} TFLOP/s that {where.name} has at most by its data sheet"
        source = f"an assumption: {share:.0%} of the {most}"
    return peak * share * processes, source + (", with no loss between devices" if processes > 1 else "")


def _measured(chip: str, variant: str) -> dict[str, str] | None:
    """A line of `comt bench step` on such a chip, in bf16; None where no file has one."""
    for path in (path for root in RESULTS for path in sorted(root.glob("bench/*/step.csv"))):
        try:
            with path.open(encoding="utf-8", newline="") as file:
                for line in csv.DictReader(file):
                    same = line["variant"] == variant and line["precision"] != "fp32"
                    if same and chip_of(line["device"]) == chip and 0 < float(line["mfu"] or 0) <= 1:
                        return line
        except (OSError, ValueError, KeyError):
            continue
    return None
