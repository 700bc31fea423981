"""Which quantities a log has, and which of its values are spikes."""

from __future__ import annotations

import numpy as np
import pytest

from comt_cli.runs.logs import LEAST, WINDOW, is_spike, logged, quantities, quantity_in_words


def noise(count: int, seed: int = 0) -> list[float]:
    return [float(value) for value in np.random.default_rng(seed).normal(3.0, 0.1, count)]


def test_spikes_are_far_above_the_values_before() -> None:
    values = noise(300)
    values[40] += 1.5
    values[200] += 1.5
    values[250] -= 1.5  # below is no spike
    log = [{"step": 10 * n, "loss": value} for n, value in enumerate(values)]
    found = logged(log, "loss_spikes")
    assert [step for step, _ in found] == [10 * n for n in range(LEAST, 300)]
    assert [step for step, spike in found if spike] == [400, 2000]
    for n, (_, spike) in enumerate(found, LEAST):
        window = np.array(values[max(0, n - WINDOW) : n])
        assert spike == (values[n] > window.mean() + 6 * window.std()), n


@pytest.mark.parametrize(("deviations", "expected"), [(5.9, False), (6.1, True)])
def test_the_bound_is_six_deviations_of_the_last_values_alone(deviations: float, expected: bool) -> None:
    window = noise(WINDOW)
    value = float(np.mean(window) + deviations * np.std(window))
    assert is_spike(value, [100.0, *window]) is expected


def test_without_values_before_nothing_is_judged() -> None:
    assert is_spike(9.0, noise(LEAST - 1)) is None
    assert is_spike(9.0, noise(LEAST)) is True
    assert is_spike(9.0, [1.0] * LEAST) is False, "values that are all equal have no deviation"


def test_a_log_lists_what_can_be_drawn() -> None:
    line = {"step": 1, "tokens": 2, "loss": 3.0, "learning_rate": 0.1, "gradient_norm": 1.0}
    observed = {"step": 1, "tokens": 2, "gate_mean.q_proj.scalar": 0.5, "branch_cosine.decoder.cross": None}
    known = ["loss", "gradient_norm", "gate_mean.q_proj.scalar", "branch_cosine.decoder.cross"]
    assert quantities([line, observed]) == known
    assert quantities([*([line] * (LEAST + 1)), observed]) == [*known, "loss_spikes", "gradient_norm_spikes"]
    assert logged([line, observed], "branch_cosine.decoder.cross") == []


def test_quantities_have_words() -> None:
    words = {key: quantity_in_words(key) for key in ("loss", "validation_loss", "gradient_norm_spikes")}
    assert words == {
        "loss": "training loss",
        "validation_loss": "validation loss",
        "gradient_norm_spikes": "share of steps with a spike of the gradient norm",
    }
    assert quantity_in_words("gate_mean.decoder.cross.q_proj.scalar") == "mean of the gate, decoder cross q_proj scalar"
