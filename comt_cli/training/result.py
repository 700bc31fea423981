"""What `result.json` says."""

from __future__ import annotations

from typing import Any

from comt_cli.models.accounting import cost_of, total_flops
from comt_cli.training.clock import mfu, positions_per_step
from comt_cli.training.counters import Counters
from comt_cli.training.devices import peak_memory_bytes
from comt_cli.training.task import Evaluation, Task


def done_result(
    task: Task[Any],
    counters: Counters,
    environment: dict[str, Any],
    evaluation: Evaluation,
    evaluation_rows: int,
) -> dict[str, Any]:
    """The result of a run that reached its last step; `evaluation_rows` are those of one batch of one process."""
    return {
        "state": "done",
        **_common(task, counters, environment),
        "train_loss": counters.last_finite_loss,
        **evaluation.numbers(),
        "evaluation": {**evaluation.extent(), "batch_size": evaluation_rows, "processes": task.world.size},
    }


def diverged_result(task: Task[Any], counters: Counters, environment: dict[str, Any]) -> dict[str, Any]:
    """The result of a run whose loss was not finite at the step where the counters stand."""
    return {
        "state": "diverged",
        **_common(task, counters, environment),
        "diverged_at": counters.step,
        "last_finite_loss": counters.last_finite_loss,
    }


def _common(task: Task[Any], counters: Counters, environment: dict[str, Any]) -> dict[str, Any]:
    spec, world = task.spec, task.world
    cost = cost_of(spec)
    # Steps that were timed: a divergence can be noticed some steps later, and those took time too.
    rate = counters.timed_steps * positions_per_step(spec) / max(counters.seconds, 1e-9)
    return {
        "id": spec.id,
        "data_content": spec.data_content,
        "step": counters.step,
        "steps": spec.settings.train.steps,
        task.unit: counters.tokens,
        "parameters": cost.parameters,
        "extra_parameters": cost.extra_parameters,
        "extra_parameters_percent": cost.extra_parameters_percent,
        "flops": total_flops(spec),
        "train_seconds": round(counters.seconds, 3),
        f"{task.unit}_per_second": round(rate, 1),
        "mfu": mfu(spec, world, rate),
        "peak_memory_bytes": peak_memory_bytes(world.device),
        "waiting_share": round(counters.waiting_seconds / max(counters.seconds, 1e-9), 5),
        "device": environment.get("device"),
        "processes": world.size,
        "git_commit": environment.get("git_commit"),
        "mixed_environment": bool(environment.get("differs")),
    }
