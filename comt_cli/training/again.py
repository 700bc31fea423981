"""Finished runs, evaluated again: what a result lacks, such as a metric that came later, is added to it."""

from __future__ import annotations

import datetime
import math
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from comt_cli import __version__
from comt_cli.commit import git_commit
from comt_cli.errors import UserError
from comt_cli.files import write_json
from comt_cli.runs.directory import RunDirectory
from comt_cli.training.devices import device_name
from comt_cli.training.evaluation import Evaluation, finite
from comt_cli.training.events import ignore
from comt_cli.training.loop import Training
from comt_cli.training.parallel import World
from comt_cli.training.processes import StopSignal


class NotAsBefore(UserError):
    """A finished run evaluates to other values than its result has."""

    exit_status = 1


def evaluate_again(directory: RunDirectory, world: World) -> tuple[list[str], float]:
    """Evaluate the weights that a run has ended with, and add to its result what that lacks, with when and by what.
    Returns the keys of that, and the largest part of itself by which another value is off. Raises `NotAsBefore` (then
    nothing is added), `UserError`, `BeingTrained`, `StorageError`."""
    spec = directory.spec()
    with directory.lock(), tempfile.TemporaryDirectory() as outputs:
        if (result := directory.result()) is None or result["state"] != "done":
            said = "has not ended" if result is None else f"has {result['state']}"
            raise UserError(f"{directory.shown} {said}", "Only what is done has weights to evaluate again.")
        dataset = spec.task.prepare(spec.settings)
        training = Training(spec, directory, dataset, world, ignore, StopSignal())
        training.outputs = Path(outputs)
        # Other processors and versions round otherwise.
        tolerance = 1e-4 if training.settings.precision == "fp32" else 1e-3
        scores = {key for key, metric in spec.task.metrics.items() if metric.better == "higher"}
        added, differing, largest = merge(result, training.evaluations(), tolerance, scores)
        if differing:
            raise NotAsBefore(
                f"{directory.shown} does not come out as before, and nothing is added: {'; '.join(differing)}",
                f"Trained on {result.get('device')}, processes: {result.get('processes')}, {result.get('git_commit')}.",
            )
        if added:
            when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            origin = {"comt": __version__, "git_commit": git_commit(), "torch": torch.__version__}
            again = {"when": when, "added": added, "device": device_name(world.device), **origin}
            result["evaluated_again"] = [*result.get("evaluated_again", []), again]
            write_json(directory.result_file, result)
    return added, largest


def merge(
    result: dict[str, Any], found: Mapping[str, Evaluation], tolerance: float, scores: Collection[str]
) -> tuple[list[str], list[str], float]:
    """Add to `result`, in place, what evaluations by split have and it lacks. Returns the keys of that, a phrase for
    each value that is off by more than `tolerance`, and the largest part of itself that one is off by. What `scores`
    samples, in per cent, may also be off by one sample: of two equally probable answers either is given."""
    added: list[str] = []
    differing: list[str] = []
    largest = 0.0
    for split, each in found.items():
        begins, told = "", result
        if split != "validation":
            begins, told = f"{split}_", result.setdefault(f"{split}_evaluation", dict(each.extent))
        samples = each.extent["samples"]
        if (were := result.get(f"{begins}evaluation", {}).get("samples", samples)) != samples:
            differing.append(f"{begins}samples were {were:,} and are {samples:,}")
        for key, value in {"loss": finite(each.loss), **each.metrics}.items():
            before = result.get(begins + key)
            if value is None:  # it needs what is not here, or is not finite
                continue
            if before is None:
                result[begins + key] = value
                added.append(begins + key)
                if key in each.signatures:
                    told.setdefault("signature", each.signed["signature"])
                    told["signatures"] = {**told.get("signatures", {}), key: each.signatures[key]}
                told.get("missing", {}).pop(key, None)
                continue
            largest = max(largest, abs(value - before) / max(abs(before), 1e-9))
            least = 100 / samples if key in scores else tolerance / 10
            pair = map(math.log, (before, value)) if key.endswith("perplexity") else (before, value)
            if not math.isclose(*pair, rel_tol=tolerance, abs_tol=least):
                differing.append(f"{begins}{key} was {before:.6g} and is {value:.6g}")
    return added, differing, largest
