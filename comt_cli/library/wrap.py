"""Gates and residual connections in an existing model.

Shapes: B batch, T tokens, D input width, N output width.
"""

from __future__ import annotations

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
from comt_cli.library.connect import Connected, adds_in, connect, is_addition, made_for, refuse_method
from comt_cli.library.gated import Gated, PlacedGate, add_gate, gates_in, is_one
from comt_cli.library.hosts import KNOWN, Where, matches, path_of, stack_of
from comt_cli.library.saving import as_plain, as_saved
from comt_cli.methods import Method, methods
from comt_cli.methods import method as method_with
from comt_cli.methods.base import Wiring
from comt_cli.models.base import TokenBlock
from comt_cli.models.build import wiring_of
from comt_cli.recipe.problems import nearest
from comt_cli.tasks.base import ATTENTION, DECODER_SITES, PROJECTIONS

M = TypeVar("M", bound=nn.Module)
Start = Literal["identity", "paper"]
BRANCHES = ("attention", "mlp")
ADDED = ("gate", "sdpa_gate", "gating", "host", "is_last", "attention_connection", "mlp_connection", "read_out")
"""Attributes added to modules: the first three with gates, the others with connections."""


@dataclass(frozen=True)
class Wrapping:
    """Configuration of a wrapped model, stored as its attribute `comt_wrapping`: the method's name with all options,
    the start, the names of the gated modules by site, and the mapping of sites if one was given."""

    method: dict[str, Any]
    start: Start
    sites: dict[str, tuple[str, ...]] = field(default_factory=dict)
    mapping: dict[str, str] | None = None


def wrap(
    model: M, method: str | Mapping[str, Any] | Method, *, sites: str | Sequence[str] | Mapping[str, str] | None = None,
    start: Start = "identity", **options: Any,
) -> M:  # fmt: skip
    """Put a method's gates and residual connection into a model, in place.

    A gate multiplies the output z = x W^T (+ b), [B, T, N], of a projection by gamma(x), where x, [B, T, D], is the
    projection's input (CoMT, Eq. 4; Transponder, Eq. 5, 10). The projection stays the same object and an `nn.Linear`
    (or GPT-2's `Conv1D`), with its parameter names, hooks and ties. It gets a submodule `gate` of its type and on its
    device: `q_proj.gate.A` next to `q_proj.weight`. A residual connection replaces only the addition in x + F(x), where
    F is the block's sublayer with its own norms. `library.connect.CONNECTIONS` lists the connections that can do this.

    With PEFT, wrap first. PEFT treats a gated projection as linear and adds its update after the gate, gamma(x) * (x
    W^T) + B A x; `merge_and_unload` would apply the gate to the update too. PEFT freezes gates and does not save them:
    set their `requires_grad` after `get_peft_model`. FSDP2 does not shard parameters without a dimension, such as
    Transponder's `log_alpha`: pass them as `ignored_params`, and average their gradients yourself.

    Args:
        model: Any module whose projections are `nn.Linear`, with weights, before DDP, FSDP or PEFT.
        method: Name of a method, or a mapping with options: `{"name": "comt", "hidden": 4, "residual": "laurel-lr"}`.
        sites: Sites to gate, or the name of a set of sites such as `only_last`; by default the method's own. Sites are
            known for LLaMA, Mistral, Qwen2, Qwen3, SmolLM3, OLMo2 and GPT-2 of transformers (`c_attn` gets three
            gates), and for comt's LLaMA. For any other model, give a mapping from site to module name, with `*` for the
            layer. `sdpa`, the attention output, is named by the projection that follows it. It also needs `q_proj`,
            whose input its gate reads.
        start: `identity`: outputs do not change, bit for bit unless the model is compiled; CoMT and SDPA gates then use
            `scale: 2`. `paper`: gates and connections start as in the method's own networks.
        **options: Options of the method.

    Returns:
        The same model.

    Raises:
        UserError: The method, option, site or module does not exist; a projection is quantised, adapted, patched,
            shared or already gated; the connection changes more than an addition; the method cannot start at the
            identity.

    Examples:
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
        raise UserError(f"start: {start!r} is unknown", "It is identity or paper.")
    _refuse_model(model)
    mapping = dict(sites) if isinstance(sites, Mapping) else None
    given: Any = {"name": method.name, **method.stored()} if isinstance(method, Method) else method
    given = {**(given if isinstance(given, Mapping) else {"name": given}), **options}
    if not isinstance(given.get("name"), str):
        raise UserError("name: missing", 'A method is a name or a mapping: {"name": "comt", ...}.')
    resolved = _resolved(model, given.pop("name"), given, sites, start)
    return _with_added(model, resolved, start, mapping, at_identity=start == "identity")


def attach(model: M, wrapping: Wrapping) -> M:
    """Add the modules of a wrapping to a plain model, also on the meta device, without values. Raises as `wrap`."""
    return _with_added(model, wrapping.method, wrapping.start, wrapping.mapping, at_identity=False)


def unwrap(model: M, discard: bool = False) -> M:
    """Remove gates and residual connections from a wrapped model, in place. Its own weights do not change.

    Args:
        model: A wrapped model.
        discard: Remove gates and connections even if they change the outputs.

    Returns:
        The same model.

    Raises:
        UserError: The model is not wrapped, or its outputs would change and `discard` is false.
    """
    parts = _parts(model)
    owner = next((part for part in parts if isinstance(getattr(part, "comt_wrapping", None), Wrapping)), None)
    if owner is None:
        raise UserError(f"{type(model).__name__} is not wrapped")
    _refuse_distributed(model)
    has_adds = not is_addition(wiring_of(owner.comt_wrapping.method))  # type: ignore[union-attr, arg-type]
    adds = adds_in(owner, stack_of(owner)) if has_adds else None  # a run keeps its own
    moved = [f"{each.site.name} of {each.module}" for each in gates_in(owner) if not is_one(each)]
    if adds is not None and not adds.is_plain():
        moved.append(type(adds.made[0]).__name__)
    if moved and not discard:
        said = f"{len(moved)} gates or connections change the outputs: {', '.join(moved[:3])}"
        raise UserError(said, "unwrap(model, discard=True) removes them all the same.")
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
            for name in ADDED[:3] if isinstance(part, Gated) else ADDED[3:]:
                part.__dict__.pop(name, None)
                part._modules.pop(name, None)
            part.__class__ = part.original  # type: ignore[assignment]
    if has_adds and "read_out" in owner._modules:
        owner.read_out = None  # type: ignore[assignment]
    del owner.comt_wrapping
    as_plain(owner)
    return model


# ---- the request


def _resolved(model: nn.Module, name: str, given: dict[str, Any], sites: Any, start: Start) -> dict[str, Any]:
    """The method with all its options. The default sites are those that the model has, and the default scale is 2 where
    a gate must start at 1. Raises `UserError` with all problems at once."""
    fields = methods()[name].model_fields if name in methods() else {}
    if sites is not None and not isinstance(sites, Mapping):
        given["sites"] = sites
    elif "sites" in fields and "sites" not in given:
        usual = PROJECTIONS if isinstance(sites, Mapping) else fields["sites"].default
        given["sites"] = [site for site in usual if site in _where(model, sites)] or [*usual]
    if start == "identity" and "scale" in fields and get_args(fields["scale"].annotation) == (1, 2):
        given.setdefault("scale", 2)
    return {"name": name, **method_with(name, **given).stored()}


def _where(model: nn.Module, mapping: Mapping[str, str] | None) -> Mapping[str, Where]:
    if mapping is None:
        stack = stack_of(model)
        return {} if stack is None else stack.sites
    for site, name in mapping.items():
        if site not in DECODER_SITES.names:
            raise UserError(f"sites: there is no site {site}", nearest(str(site), DECODER_SITES.names))
        if not isinstance(name, str):
            raise UserError(f"sites: {site}: {name!r} is not a module name", 'Example: "layers.*.attn.query".')
    if "sdpa" in mapping and "q_proj" not in mapping:
        raise UserError("sites: sdpa also needs q_proj: its gate reads the input of the query projection")
    return {site: Where(name, mapping["q_proj"] if site == "sdpa" else None) for site, name in mapping.items()}


# ---- new parts, made before anything is changed


def _with_added(
    model: M, method: dict[str, Any], start: Start, mapping: dict[str, str] | None, *, at_identity: bool
) -> M:
    """The model with a method's gates and connections. Nothing is changed before all is checked. Raises `UserError`."""
    wiring, name, stack = wiring_of(method), method["name"], stack_of(model)
    refuse_method(wiring, name)
    gates = _gates(model, wiring, mapping)
    adds = None if is_addition(wiring) else made_for(model, stack, wiring, name)
    if at_identity:
        wrong = next((f"its gate at {each.site.name}" for each in gates if not each.gate.start_at_one()), None)
        if wrong is None and adds is not None and not adds.is_plain():
            wrong = f"its connection, {type(adds.made[0]).__name__},"
        if wrong is not None:
            said = f"{name}: {wrong} cannot start without changing the outputs, bit for bit"
            hint = " With scale=2 its gates can be 1." if "scale" in methods()[name].model_fields else ""
            raise UserError(said, f'start="paper" starts as in the method\'s own networks.{hint}')
    for placed in gates:
        add_gate(model, placed)
    if adds is not None and stack is not None:
        connect(model, stack, adds)
    names: dict[str, tuple[str, ...]] = {}
    for placed in gates:
        names[placed.site.name] = (*names.get(placed.site.name, ()), placed.module)
    model.comt_wrapping = Wrapping(method, start, names, mapping)  # type: ignore[assignment]
    as_saved(model)
    return model


def _gates(model: nn.Module, wiring: Wiring, mapping: Mapping[str, str] | None) -> list[PlacedGate]:
    where = _where(model, mapping)
    missing = next((site for site in wiring.gates if site not in where), None)
    if missing is not None and mapping is None and not where:
        said = f"the blocks of {type(model).__name__} are unknown; known are {KNOWN}"
        raise UserError(said, f'Name the modules, with * for the layer: sites={{"{missing}": "layers.*.{missing}"}}.')
    if missing is not None:
        who = type(model).__name__ if mapping is None else "the mapping"
        raise UserError(f"sites: {who} has no {missing}", f"It has {', '.join(where) or 'none'}.")
    read = {"q_proj"} if "sdpa" in wiring.gates else set()
    if unused := {*(mapping or ())} - {*wiring.gates} - read:
        raise UserError(f"sites: the method has no gate at {sorted(unused)[0]}", f"It has {', '.join(wiring.gates)}.")
    names = {site: matches(model, where[site].module) for site in sorted(wiring.gates, key=DECODER_SITES.names.index)}
    layers = [*dict.fromkeys(layer for found in names.values() for layer in found)]
    placed, seen = list[PlacedGate](), dict[Any, str]()
    for site, found in names.items():
        reads, parts = where[site].reads, where[site].parts
        readers = found if reads is None else matches(model, reads)
        for layer, name in found.items():
            if layer not in readers:
                raise UserError(f"sites: {name} has no counterpart in {reads}, whose input its gate reads")
            module, reader = model.get_submodule(name), model.get_submodule(readers[layer])
            for called, each in {name: module, readers[layer]: reader}.items():
                _refuse_module(each, called, site)
            if not isinstance(module, Projections | TokenBlock):
                carries = id(getattr(module, "weight", module)), site if parts > 1 or site == "sdpa" else ""
                if carries in seen:
                    said = f"sites: {name} would have two gates: it is {seen[carries]}, or shares its weight"
                    raise UserError(said, "Untie them, or omit one of the sites.")
                seen[carries] = name
            holder = model.get_submodule(readers[layer].rpartition(".")[0])
            d_in, d_out, heads = _sizes(site, module, reader, holder)
            part = "attention" if site in (*ATTENTION, "sdpa", "attention") else "mlp"
            at = Site(site, "decoder", layers.index(layer), len(layers), d_in, d_out // parts, heads, part=part)
            gate = wiring.gates[site](at)
            if isinstance(gate, HeadGate) and not heads:
                said = f"sites: {name}: the number of heads is unknown"
                raise UserError(said, "Give its parent module a head_dim.")
            like = next(reader.parameters())
            gate.to(like.device, like.dtype).train(module.training)
            placed.append(PlacedGate(at, gate, name, readers[layer], where[site].part, parts))
    return placed


def _sizes(site: str, module: nn.Module, reader: nn.Module, holder: nn.Module) -> tuple[int, int, int]:
    """D, N and the number of heads (0 if unknown). `holder` is the parent of the module that the gate reads."""
    if isinstance(module, TokenBlock):
        width = module.connections[0].site.width
        return width, width, 1
    if isinstance(module, Projections):
        named, width = {each.name: each for each in module.sites}, module.sites[0].d_in
        return (width, named[site].d_out, 1) if site in named else (width, width, holder.heads)  # type: ignore[return-value]
    if site in BRANCHES:
        like = next((part for part in reader.modules() if _is_projection(part)), None)
        if like is None:
            raise UserError(f"sites: {type(reader).__name__} has no projection, so its width is unknown")
        return _widths(like)[0], _widths(like)[0], 1
    (d_in, _), (inner, d_out) = _widths(reader), _widths(module)
    head_width = getattr(holder, "head_dim", inner + 1)
    return (d_in, inner, inner // head_width) if site == "sdpa" else (d_in, d_out, 1)


def _is_projection(module: nn.Module) -> bool:
    return type(module) is nn.Linear or path_of(type(module)) == "transformers.pytorch_utils.Conv1D"


def _widths(projection: nn.Module) -> tuple[int, int]:
    rows, columns = projection.get_parameter("weight").shape
    return (columns, rows) if isinstance(projection, nn.Linear) else (rows, columns)


# ---- checks


def _refuse_module(module: nn.Module, name: str, site: str) -> None:
    """Raise `UserError` for a module that cannot be gated or read."""
    kind, weight, reason = type(module), getattr(module, "weight", None), None
    if isinstance(module, Projections | TokenBlock):
        own = [*BRANCHES] if isinstance(module, TokenBlock) else ["sdpa", *(each.name for each in module.sites)]
        held = [*module.gates] if isinstance(module, Projections) else [module.attention_path, module.mlp_path]
        if site not in own:
            reason = f"it has no {site}"
        elif any(each is not None for each in held):
            reason = "it has gates already"
    elif taken := next((each for each in ADDED[:3] if hasattr(module, each)), None):
        reason = f"its attribute {taken} has a name that is needed"
    elif "forward" in vars(module):
        reason = "its forward pass was replaced, as by accelerate's hooks"
    elif site not in BRANCHES:  # only plain projections
        is_whole = type(weight) is nn.Parameter and weight.is_floating_point()
        if kind.__module__.startswith("peft."):
            reason = "it is an adapter of PEFT"
        elif "quant" in kind.__module__ or (isinstance(weight, Tensor) and not is_whole):
            reason = "its weight is quantised"
        elif not _is_projection(module):
            reason = f"it is {'a subclass of' if isinstance(module, nn.Linear) else 'not'} nn.Linear"
    if reason is not None:
        raise UserError(f"{name} ({kind.__name__}) cannot be gated: {reason}", "Wrap a model before anything else.")


def _refuse_model(model: nn.Module) -> None:
    if any(isinstance(part, Gated | Connected) or hasattr(part, "comt_wrapping") for part in _parts(model)):
        hint = "unwrap() it first. For gates with a residual connection: residual=..."
        raise UserError(f"{type(model).__name__} is wrapped already", hint)
    _refuse_distributed(model)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UserError(f"{type(model).__name__} has no weights yet: they are on the meta device", "Load them first.")


def _parts(model: Any) -> list[nn.Module]:
    if not isinstance(model, nn.Module):
        raise UserError(f"{model!r} is not a torch.nn.Module", "load() makes one from a run or a folder.")
    return [*model.modules()]


def _refuse_distributed(model: nn.Module) -> None:
    is_sharded = any(hasattr(parameter, "device_mesh") for parameter in model.parameters())
    if is_sharded or any(isinstance(part, nn.parallel.DistributedDataParallel) for part in model.modules()):
        said = f"{type(model).__name__} is distributed already: its processes would not share the change"
        raise UserError(said, "Wrap or unwrap it before distributing it.")
