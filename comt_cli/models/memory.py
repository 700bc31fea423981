"""Device memory of training, from a network's counts. Torch-free."""

from __future__ import annotations

import math
from typing import NamedTuple

from comt_cli.models.accounting import cost_of
from comt_cli.runs.plan import RunSpec


class Memory(NamedTuple):
    """Bytes on one device. `gathered` is what FSDP2 holds in full at a time (see `memory_of`)."""

    weights: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int

    @property
    def total(self) -> int:
        return sum(self)


def memory_of(spec: RunSpec, processes: int = 1) -> Memory:
    """Estimated memory of each of `processes` that train a run.

    Counted are weights; for trained weights also gradients and the optimiser's state (Adam's two moments, or one of SGD
    and Muon); and the saved activations of one micro-batch. With `train.sharding: fsdp` (`training.parallel.shard`) a
    process has ceil(rows / processes) rows of every parameter. FSDP2 shards gradients only without accumulation. In
    full it holds parameters outside blocks, two blocks (the present one and the next), and gradients of as many; with
    accumulation those of one other block. `recipes/RUNNING.md` has what is not counted. A compiled step needs less.
    """
    cost, train = cost_of(spec), spec.settings.train
    share = math.ceil(train.batch_size / processes)
    rows = min(train.micro_batch_size or share, share)
    held, size = cost.parameters + cost.adapters, 2 if train.precision == "bf16-pure" else 4
    trained = held - cost.frozen
    state = train.optimizer_state(trained, cost.matrices)
    saved = (cost.kept_always + cost.kept_per_row * rows) * (4 if train.precision == "fp32" else 2)
    if not train.shards or processes == 1:
        return Memory(held * size, trained * size, state * size, 0, saved)
    local = sum(-(-outer // processes) * inner * many for outer, inner, many in cost.shapes)
    if rows < share:
        gathered, gradients = cost.outside_blocks + 3 * cost.largest_block, trained
    else:
        gathered, gradients = 2 * cost.outside_blocks + 4 * cost.largest_block, trained * local // held
    return Memory(local * size, gradients * size, state * local // held * size, gathered * size, saved)


def under_fsdp(spec: RunSpec) -> RunSpec | None:
    """The run with `train.sharding: fsdp`; None if its settings exclude that."""
    settings = spec.settings.model_dump(mode="json")
    settings["train"]["sharding"] = "fsdp"
    try:
        return spec.model_copy(update={"settings": type(spec.settings).model_validate(settings)})
    except ValueError:
        return None
