"""What a model costs: looked up where it was counted before, else counted on the model itself (`counting`).

Counting needs torch, looking up does not: this file imports none.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from comt_cli import methods
from comt_cli.files import sha256
from comt_cli.kernels.torch_build import torch_build
from comt_cli.line_cache import LineCache, line_cache
from comt_cli.recipe.image_settings import ImageTrainSettings
from comt_cli.recipe.plan import RunSpec
from comt_cli.recipe.settings import Settings

PLAIN = "pre-ln"
"""The method against whose model extra parameters are counted: LLaMA as published, the papers' baseline."""

PLAIN_IMAGE = "addition"
"""The same for image classifiers: ResNets as published."""

ROOMS = ("recipe", "data", "kernels", "layers", "methods", "models")
"""The rooms that a model's code may import, and so that can change what is counted; so may the files beside them."""


@dataclass(frozen=True)
class Cost:
    """Parameters are counts; FLOPs are of matrix products (2 per multiply-add, attention counted in full, as usual).

    A row is a row of tokens, or an image. For the backward pass `kept_per_row` numbers are kept for every row, and
    `kept_always` however many rows there are: a gated projection keeps its weights joined with its gates'.
    """

    parameters: int
    plain_parameters: int
    flops_per_row: int
    kept_per_row: int
    kept_always: int

    @property
    def extra_parameters(self) -> int:
        """How many parameters the method adds to the plain model of the same size; negative where it saves."""
        return self.parameters - self.plain_parameters

    @property
    def extra_parameters_percent(self) -> float:
        """`extra_parameters` in per cent of the plain model's."""
        return 100 * self.extra_parameters / self.plain_parameters


@dataclass(frozen=True)
class Network:
    """All that a cost depends on: runs that differ only in seed, or in most of the training, share one.

    Attributes:
        images: whether it is an image classifier.
        outputs: the size of the vocabulary, or the number of classes.
        length: tokens of a row, or pixels of a side.
        checkpointing: whether a language model computes its activations again.
    """

    images: bool
    model: str
    outputs: int
    method: str
    length: int
    checkpointing: bool = False


def network_of(spec: RunSpec) -> Network:
    """The network that a run trains."""
    settings, method = spec.settings, json.dumps(spec.method, sort_keys=True)
    model = settings.model.model_dump_json()
    if isinstance(settings, Settings):
        data, checkpointing = settings.data, settings.train.activation_checkpointing
        return Network(False, model, data.vocabulary_size, method, data.sequence_length, checkpointing)
    return Network(True, model, settings.data.classes, method, settings.data.size)


def cost_of(spec: RunSpec) -> Cost:
    """The cost of a run's model."""
    return _cost(network_of(spec))


def to_count(specs: Iterable[RunSpec]) -> Iterator[RunSpec]:
    """A run for each network of `specs` whose cost is not known yet."""
    first: dict[Network, RunSpec] = {}
    for spec in specs:
        first.setdefault(network_of(spec), spec)
    return (spec for network, spec in first.items() if _known(network) is None)


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
    moments = (1 if train.momentum else 0) if isinstance(train, ImageTrainSettings) else 2
    state = (2 + moments) * (2 if precision == "bf16-pure" else 4)
    activation = 4 if precision == "fp32" else 2
    return cost.parameters * state + (cost.kept_always + cost.kept_per_row * rows_at_once) * activation


_COUNTED: dict[Network, Cost] = {}


def _cost(network: Network) -> Cost:
    known = _known(network)
    if known is not None:
        return known
    return remember(network, *counted(network))


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
        if not all(type(number) is int for number in asdict(cost).values()):
            return None
        _COUNTED[network] = cost
    return _COUNTED[network]


def _cache() -> LineCache:
    return line_cache("costs", code_version())


@functools.cache
def code_version() -> str:
    """The hash of all code that counting a model runs, methods of one's own and PyTorch's version included."""
    package = Path(__file__).resolve().parents[1]
    folders = [*(package / room for room in ROOMS), *map(Path, methods.__path__)]
    files = {*package.glob("*.py"), *(file.resolve() for folder in folders for file in folder.rglob("*.py"))}
    hashes = sorted((str(file.relative_to(file.parents[1])), sha256(file.read_bytes())) for file in files)
    return sha256(json.dumps([hashes, torch_build()]))
