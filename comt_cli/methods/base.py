"""Interface of methods. A method is a residual connection, gates at sites, and their initialisation.

The file of a method holds a frozen configuration, whose fields are options with the paper's values as defaults, and the
function `wiring`. It imports no torch: layers are imported inside `wiring`. Recipes can therefore be checked and listed
without loading torch.
"""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field

from comt_cli.errors import UserError
from comt_cli.recipe.problems import nearest
from comt_cli.recipe.settings import Section
from comt_cli.tasks.base import ATTENTION, CONVOLUTIONS, NORMS, PLACES, PROJECTIONS, Sites, Stream

if TYPE_CHECKING:
    from torch import nn

    from comt_cli.layers.gates import GateFactory
    from comt_cli.layers.norms import NormFactory, NormPlace
    from comt_cli.layers.residual.base import ResidualConnection, ResidualFactory
    from comt_cli.layers.shared_values import SharedValues
    from comt_cli.layers.value_embedding import ValueEmbedding
    from comt_cli.tasks.settings.language import LlamaShape

SITE_SETS: dict[str, tuple[str, ...]] = {
    "all": PROJECTIONS,
    "self-attention": ATTENTION,
    "mlp": ("gate_proj", "up_proj", "down_proj"),
    "only_last": ("o_proj", "down_proj"),
    "only_first": ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"),
    "only_qk": ("q_proj", "k_proj"),
    "without_up_gate": ("q_proj", "k_proj", "v_proj", "o_proj", "down_proj"),
    **{place: tuple(f"{place}.{name}" for name in names) for place, names in PLACES.items()},
}
"""Names of sets of projections in the papers (CoMT, Table 4; Transponder, Table 5), and the sets of an
encoder-decoder."""


def _list_of(what: str, every: tuple[str, ...], sets: Mapping[str, tuple[str, ...]]) -> Any:
    """Type of an option: a list of sites, or the name of a set of sites."""

    def spelt_out(given: Any) -> Any:
        if not isinstance(given, str):
            return tuple(given) if isinstance(given, list) else given  # validation is strict
        if given not in sets:
            raise ValueError(f"there is no set of {what} {given!r}; {nearest(given, sets)}")
        return sets[given]

    def in_order(sites: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(sites)) < len(sites):
            raise ValueError("a site is named twice")
        for place, _, name in (site.rpartition(".") for site in sites):
            if place and name in sites:
                raise ValueError(f"{place}.{name} is named twice: {name} includes it")
        return tuple(sorted(sites, key=every.index))  # the order of names does not change the run id

    kind: Any = Literal[every]
    return Annotated[tuple[kind, ...], Field(min_length=1), BeforeValidator(spelt_out), AfterValidator(in_order)]


class Declared(NamedTuple):
    """Module and class of a named residual connection, and the model features that it `needs`."""

    module: str
    kind: str
    needs: tuple[str, ...]


@functools.cache
def residual_connections() -> Mapping[str, Declared]:
    """All named classes in `layers.residual` by name, sorted. Raises `UserError` as `declared_in`."""
    return declared_in(Path(__file__).parents[1] / "layers" / "residual")


def declared_in(folder: Path) -> Mapping[str, Declared]:
    """All named classes in the files of a folder by name, sorted.

    Raises:
        UserError: `name` or `needs` is not a literal, or two classes have the same name. The message has file and line.
    """
    found: dict[str, Declared] = {}
    for file in sorted(folder.glob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8"), str(file)).body:
            if isinstance(node, ast.ClassDef) and "name" in (given := _literals(node, file)):
                name = given["name"]
                if name in found:
                    said = f"{found[name].kind} in {found[name].module} has the name {name!r} already"
                    raise UserError(f"{_place(file, node)}: {said}", "Give one of them another name.")
                module = f"comt_cli.layers.residual.{file.stem}"
                found[name] = Declared(module, node.name, given.get("needs", ()))
    return dict(sorted(found.items()))


def _literals(node: ast.ClassDef, file: Path) -> dict[str, Any]:
    """Literals assigned to `name` and `needs` in a class body."""
    found = {}
    for statement in node.body:
        match statement:
            case ast.Assign([ast.Name(key)], value) | ast.AnnAssign(ast.Name(key), value=ast.expr() as value):
                if key in ("name", "needs"):
                    try:
                        found[key] = ast.literal_eval(value)
                    except ValueError as error:
                        said = f"{key} of {node.name} is not a literal, but is read without importing the file"
                        hint = 'Write it out: name = "...", needs = ("...",).'
                        raise UserError(f"{_place(file, statement)}: {said}", hint) from error
    return found


def _place(file: Path, node: ast.stmt) -> str:
    return f"residual connections (layers/residual/{file.name}, line {node.lineno})"


if TYPE_CHECKING:
    ResidualName = str
    ProjectionSites = tuple[str, ...]
    ConvolutionSites = tuple[str, ...]
    NormSites = tuple[str, ...]
else:
    ResidualName = Literal[tuple(residual_connections())]
    _EVERY = (*PROJECTIONS, *(name for place in PLACES for name in SITE_SETS[place]))
    ProjectionSites = _list_of("projections", _EVERY, SITE_SETS)
    ConvolutionSites = _list_of("convolutions", CONVOLUTIONS, {"all": CONVOLUTIONS})
    NormSites = _list_of("norms", NORMS, {"all": NORMS})


def has_connection(sites: Sites, name: ResidualName) -> bool:
    """Whether models that offer these sites support the residual connection of this name."""
    return {*residual_connections()[name].needs} <= {*sites.features}


def residual_connection(name: ResidualName) -> type[ResidualConnection]:
    """Class of the residual connection of this name. Raises `KeyError` if there is none."""
    found = residual_connections()[name]
    kind: type[ResidualConnection] = getattr(importlib.import_module(found.module), found.kind)
    return kind


Quantity = Literal["parameters", "flops"]


@dataclass(frozen=True)
class Widening:
    """Widen the feed-forward networks until the model has the parameters, or FLOPs, of one with the wiring `like`."""

    like: Wiring
    equal: Quantity


@dataclass(frozen=True)
class Wiring:
    """A method's parts of a model.

    Attributes:
        residual: Makes the residual connection of each residual add.
        gates: Makes a gate, by site name.
        norms: Makes a norm, by place (`NormPlace.of`); `*` stands for all other places.
        entry: Makes a module that follows the embedding, from the model's width.
        shared_values: Makes the module that shares keys and values between blocks, from the block's number (from 0) and
            the number of key-value heads.
        value_embedding: Makes the table whose rows are added to a block's values, or None, from the block's number
            (from 0), the widths of the model and the size of the vocabulary.
        exclude: Makes the module that takes something out of attention's output, given the values of the same tokens.
        widening: Cost that the feed-forward networks are widened to.

    Examples:
        >>> from comt_cli import method
        >>> sorted(method("sdpa-gate").wiring().gates)
        ['sdpa']
    """

    residual: ResidualFactory
    gates: Mapping[str, GateFactory] = field(default_factory=dict)
    norms: Mapping[str, NormFactory] = field(default_factory=dict)
    entry: Callable[[int], nn.Module] | None = None
    shared_values: Callable[[int, int], SharedValues] | None = None
    value_embedding: Callable[[int, LlamaShape, int], ValueEmbedding | None] | None = None
    exclude: Callable[[], nn.Module] | None = None
    widening: Widening | None = None

    def norm(self, place: NormPlace, usual: NormFactory) -> nn.Module:
        """Norm at a place: the method's, else the model's `usual` one."""
        return self.norms.get(place.of, self.norms.get("*", usual))(replace(place, usual=usual))


class Method(Section):
    """Base class of methods: the fields are options, `wiring` returns the parts of the model.

    Attributes:
        name: Name in recipes; by default the file's name with hyphens.
        streams: Models that the method is for: `tokens`, `maps` or both.
        needs: Sites and features that a model must offer.
    """

    name: ClassVar[str]
    streams: ClassVar[tuple[Stream, ...]] = ("tokens",)
    needs: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__module__.rpartition(".")[2].replace("_", "-")

    def wiring(self) -> Wiring:
        """Residual connection, gates and norms of a model with this method."""
        raise NotImplementedError

    @classmethod
    def fits(cls, sites: Sites) -> bool:
        """Whether models that offer these sites support the method."""
        return sites.stream in cls.streams and {*cls.needs} <= {*sites.names, *sites.features}

    def absent(self, sites: Sites) -> dict[str, str]:
        """Problems of options that name parts which models with these sites do not have, by option."""
        problems = {}
        residual: ResidualName | None = getattr(self, "residual", None)
        if residual is not None and not has_connection(sites, residual):
            fitting = [name for name in residual_connections() if has_connection(sites, name)]
            problems["residual"] = (
                f"{residual} needs several streams, the training update, or norms of heads, which these models do not "
                f"support; {nearest(residual, fitting)}"
            )
        named: tuple[str, ...] = getattr(self, "sites", ())
        absent = [site for site in named if "." in site and site not in sites.names]
        if absent:
            said = next((name for name, those in SITE_SETS.items() if those == named), absent[0])
            valid = [name for name in (*SITE_SETS, *PROJECTIONS) if name not in PLACES]
            problems["sites"] = f"the models have no {said}; {nearest(said, valid)}"
        return problems


class ConnectionMethod(Method):
    """A method that is only a residual connection. Its options are the connection's arguments, except those that it
    `fixes`. The connection has the method's name unless `connection` is set."""

    connection: ClassVar[ResidualName]
    fixes: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        super().__pydantic_init_subclass__()
        if not hasattr(cls, "connection"):
            cls.connection = cls.name

    @classmethod
    def fits(cls, sites: Sites) -> bool:
        return super().fits(sites) and has_connection(sites, cls.connection)

    def wiring(self) -> Wiring:
        return Wiring(partial(residual_connection(self.connection), **self.fixes, **dict(self)))


class NamesAnother(Method):
    """A method that names another one in an option. It cannot name one of its own kind: one widening would be lost."""
