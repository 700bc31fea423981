"""The quantities of `metrics.jsonl`: those that are logged, and spikes, which are computed from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Log = Sequence[Mapping[str, Any]]

OBSERVED = {
    "gate_mean": "mean of the gate",
    "gate_saturation": "saturated share of the gate",
    "stream_norm": "norm of the stream",
    "branch_norm": "norm of the branch",
    "branch_cosine": "cosine of stream and branch",
}
"""What `train.observe_every` logs, in words. A key has the place after a full stop: `gate_mean.q_proj.scalar` (site and
kind), `stream_norm.attention` (branch), in networks with several stacks `gate_mean.decoder.cross.q_proj.scalar`.

The values of a gate are saturated within 5 % of either end of its range (`models.recorded.NEAR_END`). x is the stream
before a residual add (`ResidualConnection.read`) and F the output of the branch; norms are |x| and |F| in L2, and the
cosine is <x, F> / (|x| |F|). All are means over tokens (or pixels) and channels of a layer, then over layers.
"""

SPIKES = {"loss_spikes": "loss", "gradient_norm_spikes": "gradient_norm"}
"""Quantities that say for each logged value of another one whether it is a spike: 1 or 0."""
WINDOW, LEAST, DEVIATIONS = 128, 32, 6.0


def is_spike(value: float, before: Sequence[float]) -> bool | None:
    """Whether a value is more than 6 standard deviations above the mean of the `WINDOW` logged values before it (or of
    as many as there are); None if there are fewer than `LEAST`.

    The rule of OLMo-core's `StabilityMonitorCallback` (`train/callbacks/stability_monitor.py`). Deviations: values are
    those of logged steps (`train.log_every`), not of all; loss and gradient norm are apart; the window need not be
    full, since short runs would have no value.
    """
    window = before[-WINDOW:]
    if len(window) < LEAST:
        return None
    mean = math.fsum(window) / len(window)
    deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in window) / len(window))
    return deviation > 0 and value > mean + DEVIATIONS * deviation


def quantities(log: Log) -> list[str]:
    """The quantities of a log that have curves."""
    keys = list(dict.fromkeys(key for line in log for key in line))
    found = [key for key in keys if key in SPIKES.values() or key.startswith("validation_") or is_observed(key)]
    return [*found, *(key for key, of in SPIKES.items() if len(logged(log, of)) > LEAST)]


def is_observed(key: str) -> bool:
    """Whether a quantity is one of `OBSERVED` at some place."""
    return key.partition(".")[0] in OBSERVED


def logged(log: Log, key: str) -> list[tuple[int, float]]:
    """Step and value of every line that has one, without those of selected or averaged weights."""
    lines = (line for line in log if not line.get("chosen"))
    of = SPIKES.get(key, key)
    found = [(line["step"], line[of]) for line in lines if isinstance(line.get(of), int | float)]
    if key not in SPIKES:
        return found
    values = [value for _, value in found]
    judged = (is_spike(value, values[max(0, at - WINDOW) : at]) for at, value in enumerate(values))
    return [(step, float(spike)) for (step, _), spike in zip(found, judged, strict=True) if spike is not None]


def quantity_in_words(key: str) -> str:
    """A quantity in words: `training loss`, `mean of the gate, q_proj scalar`."""
    name, _, place = key.partition(".")
    if key in SPIKES:
        return f"share of steps with a spike of the {SPIKES[key].replace('_', ' ')}"
    if is_observed(key):
        return f"{OBSERVED[name]}, {place.replace('.', ' ')}"
    return "training loss" if key == "loss" else key.replace("_", " ")
