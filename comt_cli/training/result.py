"""What `result.json` and the lines of `metrics.jsonl` say."""

from __future__ import annotations

import math
from typing import Any

from comt_cli.models.accounting import cost_of, total_flops
from comt_cli.recipe.plan import RunSpec
from comt_cli.training.clock import mfu, positions_per_step
from comt_cli.training.counters import Counters
from comt_cli.training.devices import peak_memory_bytes
from comt_cli.training.evaluation import Evaluation
from comt_cli.training.world import World


def finite(value: float) -> float | None:
    """The value, or None where JSON has no number for it."""
    return value if math.isfinite(value) else None


def evaluation_line(step: int, evaluation: Evaluation) -> dict[str, Any]:
    """A line of `metrics.jsonl`; null where a number is not finite."""
    return {
        "step": step,
        "validation_loss": finite(evaluation.loss),
        "validation_perplexity": finite(evaluation.perplexity),
        "validation_galore_perplexity": finite(evaluation.galore_perplexity),
    }


def done_result(
    spec: RunSpec,
    counters: Counters,
    world: World,
    environment: dict[str, Any],
    evaluation: Evaluation,
    evaluation_rows: int,
) -> dict[str, Any]:
    """The result of a run that reached its last step; `evaluation_rows` are those of one batch of one process."""
    return {
        "state": "done",
        **_common(spec, counters, world, environment),
        "train_loss": counters.last_finite_loss,
        "loss": evaluation.loss,
        "perplexity": finite(evaluation.perplexity),
        "galore_perplexity": finite(evaluation.galore_perplexity),
        "evaluation": {
            "tokens": evaluation.tokens,
            "batches": evaluation.batches,
            "batch_size": evaluation_rows,
            "processes": world.size,
        },
    }


def diverged_result(spec: RunSpec, counters: Counters, world: World, environment: dict[str, Any]) -> dict[str, Any]:
    """The result of a run whose loss was not finite at the step where the counters stand."""
    return {
        "state": "diverged",
        **_common(spec, counters, world, environment),
        "diverged_at": counters.step,
        "last_finite_loss": counters.last_finite_loss,
    }


def _common(spec: RunSpec, counters: Counters, world: World, environment: dict[str, Any]) -> dict[str, Any]:
    cost = cost_of(spec)
    # Steps that were timed: a divergence can be noticed some steps later, and those took time too.
    rate = counters.timed_steps * positions_per_step(spec) / max(counters.seconds, 1e-9)
    return {
        "id": spec.id,
        "step": counters.step,
        "steps": spec.settings.train.steps,
        "tokens": counters.tokens,
        "parameters": cost.parameters,
        "extra_parameters": cost.extra_parameters,
        "extra_parameters_percent": cost.extra_parameters_percent,
        "flops": total_flops(spec),
        "train_seconds": round(counters.seconds, 3),
        "tokens_per_second": round(rate, 1),
        "mfu": mfu(spec, world, rate),
        "peak_memory_bytes": peak_memory_bytes(world.device),
        "waiting_share": round(counters.waiting_seconds / max(counters.seconds, 1e-9), 5),
        "device": environment.get("device"),
        "processes": world.size,
        "git_commit": environment.get("git_commit"),
        "mixed_environment": bool(environment.get("differs")),
    }
