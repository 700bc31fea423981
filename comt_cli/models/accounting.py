"""Cost of a model and everything it depends on.

The cost is looked up, or counted on the model itself, which is built and run once on the meta device. There is no
second set of formulas that could differ from the code. Counting imports torch; looking up does not.
"""

from __future__ import annotations

import functools
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comt_cli import methods
from comt_cli.errors import UserError
from comt_cli.files import Cache, sha256
from comt_cli.kernels.processors import torch_build
from comt_cli.methods.mistakes import mistake_at, mistake_of
from comt_cli.runs.plan import RunSpec, WeightsStart

if TYPE_CHECKING:
    from torch import Tensor

    from comt_cli.models.base import Linear, Model
    from comt_cli.models.flops import Trace


@dataclass(frozen=True)
class Cost:
    """Parameters are counts. FLOPs are those of matrix products (2 per multiply-add, attention counted in full). A row
    is a sample: a sequence of tokens, or an image. `kept_per_row` and `kept_always` are saved activations, in numbers,
    per row and independent of the rows (a gated projection saves its weights joined with its gates'). `unused` is the
    problem of a method with a parameter that would never be trained. `frozen` parameters are not trained. `adapters`
    are LoRA's parameters, which are not part of the trained model. `roles` are all parameters by role
    (`layers.roles`), `matrices` those that Muon would update. `shapes` are those of all parameters as (length of the
    first dimension, numbers in a slice of it, number of such parameters). `largest_block` and `outside_blocks` are
    parameters, adapters included."""

    parameters: int
    plain_parameters: int
    flops_per_row: int
    kept_per_row: int
    kept_always: int
    unused: str
    frozen: int
    adapters: int
    roles: Mapping[str, int]
    matrices: int
    shapes: Sequence[Sequence[int]]
    largest_block: int
    outside_blocks: int

    @property
    def extra_parameters(self) -> int:
        """Parameters that the method adds to the plain model of the same size; negative if it saves some."""
        return self.parameters - self.plain_parameters

    @property
    def extra_parameters_percent(self) -> float:
        return 100 * self.extra_parameters / self.plain_parameters


@dataclass(frozen=True)
class Network:
    """Everything that a cost depends on. Runs that differ only in seed, or in most of the training, have the same
    network.

    Attributes:
        model, dimensions, method: Settings of the model, sizes that follow from the data, and the method, as JSON.
        plain: Method whose model extra parameters are counted against.
        recomputes: Whether blocks are recomputed in the backward pass.
        adaptation: LoRA's rank, scale and new parts, as JSON, for a model that starts from weights; "" if all is
            trained.
    """

    model: str
    dimensions: str
    method: str
    plain: str
    recomputes: bool = False
    adaptation: str = ""


def network_of(spec: RunSpec) -> Network:
    """Network of a run."""
    settings, task, train = spec.settings, spec.task, spec.settings.train
    dimensions, method = (json.dumps(each, sort_keys=True) for each in (task.dimensions(settings), spec.method))
    new = None if isinstance(spec.start, WeightsStart) else spec.start and spec.start.new  # None: published weights
    adaptation = "" if spec.start is None or train.lora is None else json.dumps([*train.lora, new])
    model = settings.model.model_dump_json()
    return Network(model, dimensions, method, task.plain_method, train.recomputes, adaptation)


def cost_of(spec: RunSpec) -> Cost:
    """Cost of a run's model."""
    network = network_of(spec)
    if (known := _known(network)) is not None:
        return known
    cost, depends_on_us_alone = count(network)
    _COUNTED[network] = cost
    if depends_on_us_alone:
        _cache().put(asdict(network), asdict(cost))
    return cost


def to_count(specs: Iterable[RunSpec]) -> Iterator[RunSpec]:
    """One run for each network of `specs` whose cost is not known."""
    first: dict[Network, RunSpec] = {}
    for spec in specs:
        first.setdefault(network_of(spec), spec)
    return (spec for network, spec in first.items() if _known(network) is None)


def check_methods(specs: Iterable[RunSpec]) -> None:
    """Count one network of each method, so that a mistake in a method's file is found before training. For runs that
    have not begun; others must continue. Raises `UserError` as `count`, or if a parameter is unused."""
    for spec in {json.dumps([spec.command, spec.method], sort_keys=True): spec for spec in specs}.values():
        if unused := cost_of(spec).unused:
            raise UserError(unused)


def total_flops(spec: RunSpec) -> float:
    """FLOPs of the whole training, forward and backward, without evaluation and the optimiser's (Muon's products)."""
    return float(cost_of(spec).flops_per_row) * spec.settings.train.batch_size * spec.settings.train.steps


_COUNTED: dict[Network, Cost] = {}


def _known(network: Network) -> Cost | None:
    if network not in _COUNTED:
        found: Any = _cache().get(asdict(network))
        try:
            _COUNTED[network] = Cost(**found)
        except TypeError:
            return None
    return _COUNTED[network]


def _cache() -> Cache:
    return Cache("costs", code_version())


@functools.cache
def code_version() -> str:
    """Hash of all code that counting a model runs, including the user's methods and PyTorch's version."""
    rooms = ("recipe", "data", "tasks", "runs", "kernels", "layers", "methods", "models")  # all that a model may import
    package = Path(__file__).resolve().parents[1]
    folders = [*(package / room for room in rooms), *map(Path, methods.__path__)]
    files = {*package.glob("*.py"), *(file.resolve() for folder in folders for file in folder.rglob("*.py"))}
    hashes = sorted((str(file.relative_to(file.parents[1])), sha256(file.read_bytes())) for file in files)
    return sha256(json.dumps([hashes, torch_build()]))


def count(network: Network) -> tuple[Cost, bool]:
    """Cost of a network, and whether it depends only on this package and PyTorch (a method may use layers from
    elsewhere, whose changes would not be noticed). With checkpointing, each block saves its input and one recomputed
    block saves all.

    Raises:
        UserError: The network cannot be built or run although the plain method's can; names the method's file.
    """
    method = methods.methods()[json.loads(network.method)["name"]]
    try:
        return _count(network)
    except (UserError, MemoryError, OSError):
        raise
    except Exception as error:
        if method.name == network.plain or sys.flags.dev_mode:
            raise
        _count(replace(network, method=json.dumps({"name": network.plain})))
        if (mistake := mistake_of(method, error)) is None:
            raise
        raise mistake from None


def _count(network: Network) -> tuple[Cost, bool]:
    from torch import nn

    from comt_cli.layers.roles import ROLES, hidden_matrices, roles_of
    from comt_cli.models.base import Linear
    from comt_cli.models.build import beyond
    from comt_cli.models.flops import Trace, parameter_count, trace_of
    from comt_cli.models.pretrained import adapt

    model = _built(network.model, network.dimensions, json.loads(network.method))
    parameters, roles = parameter_count(model), dict.fromkeys(ROLES, 0)
    for parameter, role in roles_of(model).items():
        roles[role] += parameter.numel()
    if network.adaptation:
        rank, scale, new = json.loads(network.adaptation)
        plain = _built(network.model, network.dimensions, {"name": network.plain})
        adapt(model, rank, scale, beyond(plain, model) if new is None else new)
    held, frozen = parameter_count(model), sum(each.numel() for each in model.parameters() if not each.requires_grad)
    with trace_of(model) as trace:
        body, kept = _kept(trace, model)
        output = model.outputs(body)
    unused = _unused(model, output, methods.methods()[json.loads(network.method)["name"]].__module__)
    flops = trace.flops_of_one(output)
    if network.recomputes:
        model.activation_checkpointing = True
        with Trace(trace.rows) as again:
            inputs = _kept(again, model)[1]
        blocks = sum(map(len, model.stacks.values()))
        two, three = (inputs.at(samples) + kept.at(samples) // blocks for samples in (2, 3))
        kept = Linear(three - two, 3 * two - 2 * three)
    kept += model.kept_behind_body
    plain_parameters = _plain_parameters(network.model, network.dimensions, network.plain)
    is_ours = all(type(module).__module__.partition(".")[0] in ("comt_cli", "torch") for module in model.modules())
    matrices = sum(map(nn.Parameter.numel, hidden_matrices(model)))
    shapes = Counter((each.shape[:1].numel(), each.shape[1:].numel()) for each in model.parameters())
    in_blocks = [parameter_count(block) for stack in model.stacks.values() for block in stack]
    counted = (parameters, plain_parameters, flops, kept.per_row, kept.always, unused, frozen, held - parameters)
    by_role = {str(role): count for role, count in roles.items()}
    sizes = [[*shape, many] for shape, many in shapes.items()], max(in_blocks, default=0), held - sum(in_blocks)
    return Cost(*counted, by_role, matrices, *sizes), is_ours


def _unused(model: Model, output: Tensor, file: str) -> str:
    """Message about a parameter in the method's file that no object uses and that is therefore never trained; "" if all
    are used. A parameter that only some blocks use is not an error."""
    from comt_cli.models.flops import behind

    used = {id(node.variable) for node in behind(output) if hasattr(node, "variable")}
    own = [
        (type(layer), name, id(parameter) in used or not parameter.requires_grad)
        for layer in model.modules()
        for name, parameter in (layer.named_parameters(recurse=False) if type(layer).__module__ == file else ())
    ]
    # By name: a function defines another class at each call.
    trained = {(kind.__qualname__, name) for kind, name, is_trained in own if is_trained}
    left = ((kind, name) for kind, name, _ in own if (kind.__qualname__, name) not in trained)
    said = (mistake_at(kind, f"{kind.__name__} never uses its parameter {name}").message for kind, name in left)
    return next(said, "")


def _kept(trace: Trace, model: Model) -> tuple[Tensor, Linear]:
    return trace.kept_by(
        model, lambda: model.body(*model.example(trace.rows)), lambda tensor: not model.keeps(tensor, trace.rows)
    )


@functools.lru_cache(maxsize=64)
def _plain_parameters(model: str, dimensions: str, method: str) -> int:
    from comt_cli.models.flops import parameter_count

    return parameter_count(_built(model, dimensions, {"name": method}))


def _built(model: str, dimensions: str, method: dict[str, Any]) -> Model:
    from comt_cli.models.build import empty_network, settings_from, wiring_of

    return empty_network(settings_from(model), wiring_of(method), **json.loads(dimensions))
