"""Cost of a model: looked up where it was counted before, else counted on the model itself (`counting`).

Counting needs torch, looking up does not: this file imports none.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from comt_cli import methods
from comt_cli.errors import UserError
from comt_cli.files import Cache, sha256
from comt_cli.kernels.processors import torch_build
from comt_cli.models.cost import Cost, Network, network_of
from comt_cli.runs.plan import RunSpec

ROOMS = ("recipe", "data", "tasks", "runs", "kernels", "layers", "methods", "models")
"""The rooms that a model's code may import, and so that can change what is counted; so may the files beside them."""


def cost_of(spec: RunSpec) -> Cost:
    """The cost of a run's model."""
    network = network_of(spec)
    return _known(network) or remember(network, *counted(network))


def to_count(specs: Iterable[RunSpec]) -> Iterator[RunSpec]:
    """A run for each network of `specs` whose cost is not known yet."""
    first: dict[Network, RunSpec] = {}
    for spec in specs:
        first.setdefault(network_of(spec), spec)
    return (spec for network, spec in first.items() if _known(network) is None)


def check_methods(specs: Iterable[RunSpec]) -> None:
    """Count one network of each method: so a mistake in the file of a method is told before anything is trained. For
    runs that have not begun: others must go on. Raises `UserError`: see `counting.count`, or a parameter is unused."""
    for spec in {json.dumps([spec.command, spec.method], sort_keys=True): spec for spec in specs}.values():
        if unused := cost_of(spec).unused:
            raise UserError(unused)


def total_flops(spec: RunSpec) -> float:
    """FLOPs of the whole training, forward and backward (evaluation not counted)."""
    return float(cost_of(spec).flops_per_row) * spec.settings.train.batch_size * spec.settings.train.steps


def training_bytes(spec: RunSpec, rows_at_once: int) -> int:
    """Estimated device memory of training: weights, gradients, the optimiser's state (Adam's two moments, or the
    momentum of stochastic gradient descent), and what one micro-batch keeps for the backward pass. An estimate: the
    allocator, temporary buffers and a language model's current block of logits come on top; a compiled step needs less.
    """
    cost = cost_of(spec)
    train = spec.settings.train
    precision = train.precision
    state = (2 + train.moments_per_parameter) * (2 if precision == "bf16-pure" else 4)
    activation = 4 if precision == "fp32" else 2
    return cost.parameters * state + (cost.kept_always + cost.kept_per_row * rows_at_once) * activation


_COUNTED: dict[Network, Cost] = {}


def counted(network: Network) -> tuple[Cost, bool]:
    """`counting.count`, by a name that a process can be handed which has not imported torch yet."""
    from comt_cli.models.counting import count

    return count(network)


def remember(network: Network, cost: Cost, depends_on_us_alone: bool) -> Cost:
    """Note what `counting.count` found: for this process, and for later ones where nothing else can change it."""
    _COUNTED[network] = cost
    if depends_on_us_alone:
        _cache().put(asdict(network), asdict(cost))
    return cost


def _known(network: Network) -> Cost | None:
    """The cost as it was counted before, perhaps by an earlier process; None if it was not."""
    if network not in _COUNTED:
        found: Any = _cache().get(asdict(network))
        try:
            cost = Cost(**found)
        except TypeError:
            return None
        if not all(type(each) is (str if key == "unused" else int) for key, each in asdict(cost).items()):
            return None
        _COUNTED[network] = cost
    return _COUNTED[network]


def _cache() -> Cache:
    return Cache("costs", code_version())


@functools.cache
def code_version() -> str:
    """The hash of all code that counting a model runs, methods of one's own and PyTorch's version included."""
    package = Path(__file__).resolve().parents[1]
    folders = [*(package / room for room in ROOMS), *map(Path, methods.__path__)]
    files = {*package.glob("*.py"), *(file.resolve() for folder in folders for file in folder.rglob("*.py"))}
    hashes = sorted((str(file.relative_to(file.parents[1])), sha256(file.read_bytes())) for file in files)
    return sha256(json.dumps([hashes, torch_build()]))
