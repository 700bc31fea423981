"""Gates and residual connections in a model that is there already.

Shapes: B batch, T tokens, D input width, N output width.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar, get_args

from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.layers.gates import HeadGate, Site
from comt_cli.layers.projection import Projections
from comt_cli.layers.residual.base import ResidualConnection
from comt_cli.layers.residual.norm_placement import PreNorm
from comt_cli.library.connect import Adds, Connected, adds_in, connect, is_addition, made_for, refuse_method
from comt_cli.library.gated import Gated, PlacedGate, add_gate, gates_in, is_one
from comt_cli.library.hosts import KNOWN, Stack, Where, matches, path_of, stack_of
from comt_cli.library.saving import as_plain, as_saved
from comt_cli.methods import Method, catalogue, methods
from comt_cli.methods.base import Wiring
from comt_cli.models.base import TokenBlock
from comt_cli.models.build import wiring_of
from comt_cli.recipe.load import resolve_method
from comt_cli.recipe.problems import Document, nearest
from comt_cli.tasks import task_of
from comt_cli.tasks.base import ATTENTION, DECODER_SITES, PROJECTIONS

M = TypeVar("M", bound=nn.Module)
Start = Literal["identity", "paper"]


@dataclass(frozen=True)
class Wrapping:
    """What a model was wrapped with, its attribute `comt_wrapping`: the method's name with all its options, the start,
    the names of the modules with the gates of each site, and the mapping of sites if one was given."""

    method: dict[str, Any]
    start: Start
    sites: dict[str, tuple[str, ...]] = field(default_factory=dict)
    mapping: dict[str, str] | None = None


def wrap(
    model: M, method: str | Mapping[str, Any] | Method, *, sites: str | Sequence[str] | Mapping[str, str] | None = None,
    start: Start = "identity", **options: Any,
) -> M:  # fmt: skip
    """Put a method's gates, and its residual connection, into a model, in place; returns the model.

    At each of the method's sites a projection's output z = x W^T (+ b), [B, T, N], becomes gamma(x) * z (CoMT, Eq. 4;
    Transponder, Eq. 5, 10), x [B, T, D]. The module stays the same object and an `nn.Linear`, or GPT-2's `Conv1D`, with
    its parameters under their names, and hooks and ties; `gate` is added, of its type and on its device: beside
    `q_proj.weight` there is `q_proj.gate.A`. Of a residual connection x + F(x) only the addition is replaced, F being
    the block's sublayer with its own norms: `library.connect.CONNECTIONS` names those of which that can be said.

    Args:
        model: any module whose projections are `nn.Linear`, with its weights, before DDP, FSDP or PEFT.
        method: what a row of a recipe says: a name, or a name with options, {"name": "comt", "hidden": 4, "residual":
            "laurel-lr"}.
        sites: the sites to gate, or the name of a set of them, as `only_last`; the method's own if None. These are
            known of LLaMA, Mistral, Qwen2, Qwen3, SmolLM3, OLMo2 and GPT-2 of transformers, whose `c_attn` gets three
            gates, and of comt's own LLaMA. For any other model: their modules by site, with `*` for the layer; `sdpa`,
            what attention mixed, is named by the projection behind it, and needs `q_proj`, whose input its gate reads.
        start: `identity`: the model computes what it did, to the last bit where nothing is compiled. Gates of CoMT and
            SDPA gates then have `scale: 2`. `paper`: gates and connections start as in the method's own networks.
        **options: of the method.

    Raises:
        UserError: no such method, option, site or module; a projection that is quantised, adapted, shared, or gated
            already; a connection that does more than replace an addition; a method that has no identity to start at.

    PEFT takes a gated projection for the linear one that it is and adds its delta behind the gate, gamma(x) * (x W^T) +
    B A x, so wrap first, then PEFT; `merge_and_unload` would put the delta before the gate. PEFT freezes gates, and
    does not save them: set their `requires_grad` behind `get_peft_model`. FSDP2 shards no numbers without a dimension,
    such as Transponder's `log_alpha`: give it those as `ignored_params`, and average their gradients yourself.

    >>> class Block(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
    ...     def forward(self, x):
    ...         return x + self.down(self.up(x).relu())
    >>> model = nn.Sequential(Block(), Block())
    >>> wrap(model, "comt", hidden=4, sites={"up_proj": "*.up", "down_proj": "*.down"}) is model
    True
    >>> [name for name, _ in model[1].down.named_parameters()], isinstance(model[1].down, nn.Linear)
    (['weight', 'bias', 'gate.A', 'gate.B'], True)
    >>> model.comt_wrapping.sites["up_proj"]
    ('0.up', '1.up')
    >>> type(unwrap(model)[1].down)
    <class 'torch.nn.modules.linear.Linear'>
    """
    if start not in get_args(Start):
        raise UserError(f"start: there is no {start!r}", "It is identity or paper.")
    _refuse_model(model)
    mapping = dict(sites) if isinstance(sites, Mapping) else None
    resolved = _resolved(model, _stated(method, options), sites, start)
    plan = _planned(model, resolved, mapping)
    if start == "identity":
        plan.start_at_identity(resolved["name"])
    return _installed(plan, model, Wrapping(resolved, start, plan.sites, mapping))


def attach(model: M, wrapping: Wrapping) -> M:
    """Put into a plain model, perhaps on the meta device, the modules of a wrapping, whose values are still to be
    loaded. Raises `UserError` as `wrap`."""
    plan = _planned(model, wrapping.method, wrapping.mapping)
    return _installed(plan, model, replace(wrapping, sites=plan.sites))


def _installed(plan: Plan, model: M, wrapping: Wrapping) -> M:
    plan.install(model)
    model.comt_wrapping = wrapping  # type: ignore[assignment]
    as_saved(model)
    return model


def unwrap(model: M, discard: bool = False) -> M:
    """Take gates and residual connections out of a wrapped model, in place; returns the model, with its own weights as
    they are. Raises `UserError` where it is not wrapped, or computes something else without them, unless `discard`."""
    owner = next((part for part in model.modules() if isinstance(getattr(part, "comt_wrapping", None), Wrapping)), None)
    if owner is None:
        raise UserError(f"{type(model).__name__} is not wrapped")
    _refuse_distributed(model)
    has_adds = not is_addition(wiring_of(owner.comt_wrapping.method))  # type: ignore[union-attr, arg-type]
    adds = adds_in(owner, stack_of(owner)) if has_adds else None  # a run's own stay
    moved = [f"{each.site.name} of {each.module}" for each in gates_in(owner) if not is_one(each)]
    if adds is not None and not adds.is_plain():
        moved.append(type(adds.made[0]).__name__)
    if moved and not discard:
        said = f"{len(moved)} gates or connections do something by now: {', '.join(moved[:3])}"
        raise UserError(said, "unwrap(model, discard=True) drops them, and with them what they do.")
    for part in [*owner.modules()]:
        if isinstance(part, Projections):
            part.gates = nn.ModuleDict()
            part.train(part.training)
        elif isinstance(part, TokenBlock):
            part.attention_path = part.mlp_path = None  # type: ignore[assignment]
            for name, old in [*part.named_children()] if has_adds else ():
                if isinstance(old, ResidualConnection):
                    setattr(part, name, PreNorm(replace(old.site, norm=partial(getattr, old, "norm"))))
        elif isinstance(part, Gated | Connected):
            for name in _OF_GATES if isinstance(part, Gated) else _OF_BLOCKS:
                if name in part.__dict__ or name in part._modules:
                    delattr(part, name)
            part.__class__ = part.original  # type: ignore[assignment]
    if has_adds and "read_out" in owner._modules:
        owner.read_out = None  # type: ignore[assignment]
    del owner.comt_wrapping
    as_plain(owner)
    return model


_OF_GATES = ("gate", "sdpa_gate", "gating")
_OF_BLOCKS = ("host", "is_last", "attention_connection", "mlp_connection", "read_out")


# ---- what is asked for


def _stated(method: str | Mapping[str, Any] | Method, options: Mapping[str, Any]) -> dict[str, Any]:
    """A method as a row of a recipe says it."""
    if isinstance(method, Method):
        return {"name": method.name, **method.stored(), **options}
    return {"name": method, **options} if isinstance(method, str) else {**method, **options}


def _resolved(model: nn.Module, given: dict[str, Any], sites: Any, start: Start) -> dict[str, Any]:
    """The method with all its options. Sites are those that the model has, and a scale is one that can be 1, where
    nothing is said. Raises `UserError` with everything that is wrong."""
    kind = methods().get(str(given.get("name")))
    fields = {} if kind is None else kind.model_fields
    if sites is not None and not isinstance(sites, Mapping):
        given["sites"] = sites
    elif "sites" in fields and "sites" not in given:
        usual = PROJECTIONS if isinstance(sites, Mapping) else fields["sites"].default
        given["sites"] = [site for site in usual if site in _where(model, sites)] or [*usual]
    if start == "identity" and "scale" in fields and get_args(fields["scale"].annotation) == (1, 2):
        given.setdefault("scale", 2)
    document = Document()
    resolved = resolve_method(json.loads(json.dumps(given)), (), document, catalogue(), task_of("train-lm"))
    if resolved is None:
        raise UserError("; ".join(str(problem) for problem in document.problems))
    return resolved


def _where(model: nn.Module, mapping: Mapping[str, str] | None) -> Mapping[str, Where]:
    """Where the sites of a model are. Raises `UserError`."""
    if mapping is None:
        stack = stack_of(model)
        return {} if stack is None else stack.sites
    wrong = next((site for site in mapping if site not in DECODER_SITES.names), None)
    if wrong is not None:
        raise UserError(f"sites: there is no site {wrong}", nearest(wrong, DECODER_SITES.names))
    if "sdpa" in mapping and "q_proj" not in mapping:
        raise UserError("sites: sdpa needs q_proj beside it: its gate reads what the query projection reads")
    return {site: Where(name, mapping["q_proj"] if site == "sdpa" else None) for site, name in mapping.items()}


# ---- what is made, before anything is changed


@dataclass(frozen=True)
class Plan:
    """Gates and residual connections made for a model that has neither yet."""

    gates: list[PlacedGate]
    stack: Stack | None
    adds: Adds | None

    @property
    def sites(self) -> dict[str, tuple[str, ...]]:
        """Modules with the gates of every site, by name."""
        names = dict.fromkeys(placed.site.name for placed in self.gates)
        return {name: tuple(each.module for each in self.gates if each.site.name == name) for name in names}

    def start_at_identity(self, method: str) -> None:
        """Set gates to 1. Raises `UserError` where they cannot be, or additions are not plain."""
        wrong = next((f"its gate at {each.site.name}" for each in self.gates if not each.gate.start_at_one()), None)
        if wrong is None and self.adds is not None and not self.adds.is_plain():
            wrong = f"its connection, {type(self.adds.made[0]).__name__},"
        if wrong is not None:
            said = f"{method}: {wrong} cannot leave what the model computes as it is, to the last bit"
            raise UserError(said, 'start="paper" starts as its networks do. Gates of a sigmoid can be 1 with scale 2.')

    def install(self, model: nn.Module) -> None:
        """Put them in."""
        for placed in self.gates:
            add_gate(model, placed)
        if self.adds is not None and self.stack is not None:
            connect(model, self.stack, self.adds)


def _planned(model: nn.Module, method: Mapping[str, Any], mapping: Mapping[str, str] | None) -> Plan:
    wiring, name, stack = wiring_of(method), method["name"], stack_of(model)
    refuse_method(wiring, name)
    gates = _gates(model, wiring, mapping)
    if is_addition(wiring):
        return Plan(gates, stack, None)
    if stack is None or any(hasattr(block, "crossattention") for block in stack.blocks):
        said = f"the blocks of {type(model).__name__} are not known, and so not where their two additions are"
        raise UserError(said, f"Residual connections can be put into {KNOWN}.")
    return Plan(gates, stack, made_for(stack, wiring, name))


def _gates(model: nn.Module, wiring: Wiring, mapping: Mapping[str, str] | None) -> list[PlacedGate]:
    """Gates for a model. Raises `UserError`."""
    where = _where(model, mapping)
    missing = next((site for site in wiring.gates if site not in where), None)
    if missing is not None and not where:
        said = f"the blocks of {type(model).__name__} are not known; known are {KNOWN}"
        raise UserError(said, f'Say where the sites are, * for the layer: sites={{"{missing}": "layers.*.{missing}"}}.')
    if missing is not None:
        raise UserError(f"sites: {type(model).__name__} has no {missing}", f"It has {', '.join(where)}.")
    read = {"q_proj"} if "sdpa" in wiring.gates else set()
    if unused := {*(mapping or ())} - {*wiring.gates} - read:
        raise UserError(f"sites: the method has no gate at {sorted(unused)[0]}", f"It has {', '.join(wiring.gates)}.")
    names = {site: matches(model, where[site].module) for site in sorted(wiring.gates, key=DECODER_SITES.names.index)}
    layers = [*dict.fromkeys(layer for found in names.values() for layer in found)]
    placed, seen = [], dict[int, str]()
    for site, found in names.items():
        readers = found if where[site].reads is None else matches(model, str(where[site].reads))
        for layer, name in found.items():
            if layer not in readers:
                raise UserError(f"sites: {name} has no counterpart in {where[site].reads}, which its gate reads")
            module, reader = model.get_submodule(name), model.get_submodule(readers[layer])
            for called, each in {name: module, readers[layer]: reader}.items():
                _refuse_module(each, called, seen, is_branch=site in ("attention", "mlp"))
            holder = model.get_submodule(readers[layer].rpartition(".")[0])
            d_in, d_out, heads = _sizes(site, module, reader, holder)
            part = "attention" if site in (*ATTENTION, "sdpa", "attention") else "mlp"
            width = d_out // where[site].parts
            at = Site(site, "decoder", layers.index(layer), len(layers), d_in, width, heads, part=part)
            gate = wiring.gates[site](at)
            if isinstance(gate, HeadGate) and not heads:
                raise UserError(
                    f"sites: {name}: how many heads there are is not known", "It needs a head_dim beside it."
                )
            like = next(reader.parameters())
            gate.to(like.device, like.dtype).train(module.training)
            placed.append(PlacedGate(at, gate, name, readers[layer], where[site].part, where[site].parts))
    return placed


def _sizes(site: str, module: nn.Module, reader: nn.Module, holder: nn.Module) -> tuple[int, int, int]:
    """D, N and the number of heads, 0 where it is not known. `holder` is what has the module that the gate reads."""
    if isinstance(module, TokenBlock):
        width = module.branches[0].connection.site.width
        return width, width, 1
    if isinstance(module, Projections):
        named = {each.name: each for each in module.sites}
        width = module.sites[0].d_in
        return (width, named[site].d_out, 1) if site in named else (width, width, holder.heads)  # type: ignore[return-value]
    if site in ("attention", "mlp"):
        like = next((part for part in reader.modules() if _is_projection(part)), None)
        if like is None:
            raise UserError(f"sites: {type(reader).__name__} has no projection by which its width would be known")
        return _widths(like)[0], _widths(like)[0], 1
    (d_in, _), (inner, d_out) = _widths(reader), _widths(module)
    head_width = getattr(holder, "head_dim", inner + 1)
    return (d_in, inner, inner // head_width) if site == "sdpa" else (d_in, d_out, 1)


# ---- what is refused


def _is_projection(module: nn.Module) -> bool:
    return type(module) is nn.Linear or path_of(type(module)) == "transformers.pytorch_utils.Conv1D"


def _widths(projection: nn.Module) -> tuple[int, int]:
    """D and N."""
    rows, columns = projection.get_parameter("weight").shape
    return (columns, rows) if isinstance(projection, nn.Linear) else (rows, columns)


def _refuse_module(module: nn.Module, name: str, seen: dict[int, str], *, is_branch: bool) -> None:
    """Raise `UserError` for a module that cannot carry a gate. `seen` are the weights of projections before."""
    if isinstance(module, Projections | TokenBlock):
        held = [*module.gates] if isinstance(module, Projections) else [module.attention_path, module.mlp_path]
        reason = "it has gates already" if any(each is not None for each in held) else None
    elif taken := next((each for each in ("gate", "sdpa_gate", "gating") if hasattr(module, each)), None):
        reason = f"it has a {taken} of its own, a name that is needed"
    else:
        reason = None if is_branch else _against(module)
    if reason is not None:
        raise UserError(f"{name} ({type(module).__name__}) cannot be gated: {reason}", "Wrap a model first of all.")
    if not is_branch and not isinstance(module, Projections | TokenBlock):
        other = seen.setdefault(id(module.weight), name)
        if other != name:
            said = f"sites: {name} and {other} have one weight in common, which would have two gates"
            raise UserError(said, "Untie them, or leave one of the sites out.")


def _against(module: nn.Module) -> str | None:
    """Why a module is not taken for a linear projection: only what is nothing else computes what is expected."""
    kind, weight = type(module), getattr(module, "weight", None)
    if kind.__module__.startswith("peft."):
        return "it is an adapter of PEFT"
    is_whole = type(weight) is nn.Parameter and weight.is_floating_point()
    if "quant" in kind.__module__ or (isinstance(weight, Tensor) and not is_whole):
        return "its weight is quantised"
    if not _is_projection(module):
        return f"it is {'a subclass of' if isinstance(module, nn.Linear) else 'no'} nn.Linear"
    return None


def _refuse_model(model: nn.Module) -> None:
    """Raise `UserError` for a model that cannot be wrapped, whatever with."""
    parts = [*model.modules()]
    if any(isinstance(part, Gated | Connected) or hasattr(part, "comt_wrapping") for part in parts):
        hint = "unwrap() it first. Gates and a residual connection are one method: residual=..."
        raise UserError(f"{type(model).__name__} is wrapped already", hint)
    _refuse_distributed(model)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UserError(f"{type(model).__name__} has no weights yet: they are on the meta device", "Load them first.")


def _refuse_distributed(model: nn.Module) -> None:
    is_sharded = any(hasattr(parameter, "device_mesh") for parameter in model.parameters())
    if is_sharded or any(isinstance(part, nn.parallel.DistributedDataParallel) for part in model.modules()):
        said = f"{type(model).__name__} is distributed already, and its processes would not share what changes"
        raise UserError(said, "Wrap or unwrap it before.")
