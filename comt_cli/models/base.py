"""Interface of all models, and the parts of a block that follow from a wiring.

Cost, FLOPs, memory, the choice of kernels and sharding depend only on `Model`.
Shapes: B batch, T tokens, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from comt_cli.errors import UserError
from comt_cli.kernels.gates import Modulation
from comt_cli.layers.gates import Gate, GateFactory, Site
from comt_cli.layers.initialise import xavier_std
from comt_cli.layers.norms import NormFactory, NormPlace
from comt_cli.layers.projection import GatedPath, Projections, Spread, TokenEmbedding
from comt_cli.layers.residual.base import OutputAggregation, ResidualConnection, ResidualSite, State
from comt_cli.methods.base import Wiring
from comt_cli.tasks.base import PLACES, Stream


@dataclass(frozen=True)
class Linear:
    """A number that grows with the rows: `always` plus `per_row` for each."""

    per_row: int
    always: int

    @classmethod
    def of(cls, number: int, rows: int) -> Linear:
        """From a number counted with a prime number of rows: it grows with the rows if they divide it."""
        return cls(0, number) if number % rows else cls(number // rows, 0)

    def __add__(self, other: Linear) -> Linear:
        return Linear(self.per_row + other.per_row, self.always + other.always)

    def at(self, rows: int) -> int:
        return self.always + rows * self.per_row


class Model(nn.Module):
    """Network whose blocks are listed in `stacks` and which can be run on an `example` without data."""

    stream: ClassVar[Stream]
    """Kind of the residual stream."""

    stacked: ClassVar[Mapping[str, str]]
    """Attributes that hold blocks, by stack."""

    activation_checkpointing = False
    """Whether training saves only the input of a block and recomputes the rest (`run_block`)."""

    @property
    def stacks(self) -> Mapping[str, nn.ModuleList]:
        return {name: getattr(self, attribute) for name, attribute in self.stacked.items()}

    def example(self, samples: int) -> tuple[Tensor, ...]:
        """Inputs for so many samples, on the meta device."""
        raise NotImplementedError

    @property
    def places(self) -> Mapping[int, int]:
        """Inputs of the `example` that are positions in a sequence, by index, with the number of positions."""
        return {}

    def body(self, *inputs: Tensor) -> Tensor:
        """Forward pass up to the part whose loss saves less than autograd would (`kept_behind_body`)."""
        return self(*inputs)

    def outputs(self, body: Tensor) -> Tensor:
        """Rest of the forward pass, from the output of `body`."""
        return body

    @property
    def largest(self) -> int:
        """Approximate size of the largest tensor per sample, in numbers."""
        raise NotImplementedError

    @property
    def kept_behind_body(self) -> Linear:
        """Saved activations after the body, including the loss, in numbers."""
        return Linear(0, 0)

    def keeps(self, tensor: Tensor, samples: int) -> bool:
        """Whether a real device would also save this tensor of the meta device for the backward pass."""
        return True

    def run_block(self, block: nn.Module, state: State, *inputs: Any) -> State:
        """State after a block; recomputed in the backward pass with `activation_checkpointing`."""
        if not (self.activation_checkpointing and self.training):
            return block(state, *inputs)
        # Separate tensors, so that they are counted as saved; a deferred add would save both of its terms.
        leaves, form = tree_flatten(State(state.stream, shared=state.shared) if state.deferred else state)

        def run(*values: Any) -> State:
            return block(tree_unflatten(values[: len(leaves)], form), *values[len(leaves) :])

        return checkpoint(run, *leaves, *inputs, use_reentrant=False)


def ids(*sizes: int) -> Tensor:
    """Token ids of this shape, without storage."""
    return torch.zeros(sizes, dtype=torch.long, device="meta")


class VocabularyModel(Model):
    """Model whose head maps positions to logits over a vocabulary, and whose blocks have attention between positions.
    `shape` has its widths and heads. `length` is the number of positions of an example sequence, `read_by_head` how
    many of them the head reads (None: all), `sequences` the number of sequences per sample. `keeps_attention`:
    attention weights are saved for the backward pass, because dropout acts on them."""

    shape: Any
    embedding: TokenEmbedding
    length: int
    sequences = 1
    read_by_head: int | None = None
    keeps_attention = False

    @property
    def head_weight(self) -> Tensor:
        """Matrix of the head, [V, D]; the embedding's unless the model has a separate one."""
        return self.embedding.weight

    @property
    def head_bias(self) -> Tensor | None:
        """Bias of the head, [V], or None."""
        return None

    def outputs(self, body: Tensor) -> Tensor:
        """Logits, [B, T, V], from the output of `body`."""
        return F.linear(body, self.head_weight, self.head_bias)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Logits, [B, T, V], in the parameters' type, from the inputs of `body`."""
        return self.outputs(self.body(*inputs))

    @property
    def attended(self) -> set[tuple[int, int]]:
        """Pairs (queries, keys) of all attention operations."""
        return {(self.length, self.length)}

    @property
    def largest(self) -> int:
        return int(self.sequences * self.shape.heads * max(T * S for T, S in self.attended))

    @property
    def kept_behind_body(self) -> Linear:
        """Gradients of the head's input and of its matrix: the loss never saves logits."""
        read = self.read_by_head or self.length
        return Linear(self.sequences * read * self.shape.width, self.head_weight.numel())

    def keeps(self, tensor: Tensor, samples: int) -> bool:
        """Attention weights, [T, S], are saved on the meta device, where attention is not fused. Real devices fuse it
        and save none, except for dropout on the weights."""
        last = tuple(tensor.shape[-2:])
        weights = samples * self.sequences * self.shape.heads * math.prod(last)
        return self.keeps_attention or last not in self.attended or tensor.numel() != weights


@dataclass  # not frozen: PyTorch 2.11's compiler does not find the fields of a frozen one that it makes
class GatedBranch:
    """Branch of a token block: y = last(inner(h)), then optionally the gate on the whole branch and dropout."""

    inner: Callable[..., Tensor]
    last: Projections
    path: GatedPath | None
    dropout: nn.Module | None = None

    def __call__(self, h_BTD: Tensor, *kv_BTD: Tensor) -> Tensor:
        y_BTD: Tensor = self.last(self.inner(h_BTD, *kv_BTD))[0]
        if self.path is not None:
            y_BTD = self.path(h_BTD, y_BTD)
        return y_BTD if self.dropout is None else self.dropout(y_BTD)

    def before_gate(self, h_BTD: Tensor) -> tuple[Tensor, Modulation] | None:
        """The last product, [B, T, C], and its gate, for a deferred add; None if something follows the gate."""
        modulation = self.last.modulation()
        if self.path is not None or self.dropout is not None or modulation is None:
            return None
        return self.last.product(self.inner(h_BTD)), modulation


class TokenBlock(nn.Module):
    """Block whose stream is a sequence of vectors. Each of its `parts` is a module with `inner`, followed by the
    projections named by `last`. A part has a connection, `PART_connection`, the gate on the whole branch or None,
    `PART_path`, and in some models `PART_dropout`."""

    parts: ClassVar[tuple[str, ...]] = ("attention", "mlp")

    @property
    def connections(self) -> list[ResidualConnection]:
        return [getattr(self, f"{part}_connection") for part in self.parts]

    def add(self, part: str, state: State, **inputs: Any) -> State:
        """State after the residual add of a part, x + branch(norm(x)) for pre-norm. `inner` also gets `inputs`."""
        module, connection, path = (getattr(self, name) for name in (part, f"{part}_connection", f"{part}_path"))
        last, dropout = getattr(module, module.last), getattr(self, f"{part}_dropout", None)
        after: State = connection.step(state, GatedBranch(partial(module.inner, **inputs), last, path, dropout))
        return after


@dataclass(frozen=True, kw_only=True)
class BlockParts:
    """Makes the parts of one block from a wiring: block `layer` of `layers` in its stack, with a stream of `width`
    channels. `parts` are the names of the block's branches in order; `norm` is the model's usual norm. Projections
    start from a normal distribution, optionally `truncated`, of standard deviation `init_std`; if that is None, from
    Glorot's uniform one. `depths` are the depths of all stacks, in models with several. `separate_qkv`: self-attention
    takes separate inputs for queries, keys and values."""

    wiring: Wiring
    stack: str
    layer: int
    layers: int
    width: int
    parts: tuple[str, ...]
    norm: NormFactory
    epsilon: float
    init_std: float | None = 0.0
    depths: Mapping[str, int] = field(default_factory=dict)
    truncated: bool = False
    separate_qkv: bool = False

    def connection(
        self, part: str, *before: ResidualConnection, norm: Callable[[], nn.Module] | None = None
    ) -> ResidualConnection:
        """Residual connection of a branch; `before` are those of the block's earlier branches. `norm` makes its norms,
        by default those of the place named like the part."""
        adds = len(self.parts)
        site = ResidualSite(
            width=self.width, stack=self.stack, index=self.layer * adds + self.parts.index(part),
            count=self.layers * adds, layer=self.layer, layers=self.layers, part=part,
            norm=norm or partial(self.norm_at, part, self.width), before=before, depths=self.depths,
        )  # fmt: skip
        made = self.wiring.residual(site)
        if {"values", "heads"} & {*made.needs} and not self.separate_qkv:
            said = (
                "residual: the connection has inputs or norms for each of queries, keys and values, but attention one"
            )
            raise UserError(said, "Attention of language models can have three.")
        return made

    def head_norms(self, connection: ResidualConnection, width: int) -> nn.ModuleDict | None:
        """Norms of each head's queries, keys and values, of `width` channels, if the connection has them."""
        part = connection.site.part
        return nn.ModuleDict({of: self.norm_at(part, width) for of in "qkv"}) if connection.norms_heads else None

    def norm_at(self, of: str, width: int, gate: Gate | None = None) -> nn.Module:
        return self.wiring.norm(NormPlace(width, self.epsilon, of, gate), self.norm)

    def site(self, name: str, d_in: int, d_out: int, heads: int = 1, **others: Any) -> Site:
        return Site(name, self.stack, self.layer, self.layers, d_in, d_out, heads, **others)

    def gates(self, part: str) -> dict[str, GateFactory]:
        """Gates of a branch by site name: those for all sites of a name, and those for this branch (`PLACES`)."""
        place = part if part in PLACES else self.stack
        gates = self.wiring.gates
        return {site.rpartition(".")[2]: gate for site, gate in gates.items() if site.rpartition(".")[0] in ("", place)}

    def gate(self, site: Site) -> Gate | None:
        """Gate at a site; None if the wiring has none."""
        gates = self.gates(site.part)
        return gates[site.name](site) if site.name in gates else None

    def projections(
        self, connection: ResidualConnection, widths: Mapping[str, tuple[int, int]], heads: int = 0, *,
        bias: bool = False,
    ) -> Projections:  # fmt: skip
        """Projections of one input, by site name with (input, output) widths, for the branch of `connection`. With
        `heads`, the attention output is the site `sdpa`, whose gate reads the same input."""
        part = connection.site.part
        sites = [self.site(name, d_in, d_out, part=part) for name, (d_in, d_out) in widths.items()]
        later = [self.site("sdpa", self.width, self.width, heads, part=part)] if heads else []

        def std_of(site: Site) -> float:
            own = xavier_std(site.d_in, site.d_out) if self.init_std is None else self.init_std
            return connection.initial_std(site, own)

        spread: Spread = "uniform" if self.init_std is None else "truncated" if self.truncated else "normal"
        return Projections(sites, self.gates(part), std_of, later, bias=bias, spread=spread)

    def path(self, part: str, *instead: str) -> GatedPath | None:
        """Gate on a whole branch, or None. If the wiring does not name it, the first of `instead` that it names."""
        gates = self.gates(part)
        named = next((name for name in (part, *instead) if name in gates), None)
        if named is None:
            return None
        return GatedPath(self.site(part, self.width, self.width, part=part), gates[named])


def refuse_absent(
    wiring: Wiring, sites: Sequence[str], norms: Sequence[str], model: str, served_by: Mapping[str, str] | None = None,
    *, changes_values: bool = False,
) -> None:  # fmt: skip
    """Raise `UserError` for a site, place of a norm, or change of attention that a model's blocks do not have: it would
    silently be left out. A site that is `served_by` another one is accepted if that one is named too."""
    for part in ("shared_values", "value_embedding", "exclude"):
        if getattr(wiring, part) is not None and not changes_values:
            raise UserError(f"{model} cannot have {part} of a wiring", "Attention of language models can.")
    for named, offered in ((wiring.gates.keys(), sites), (wiring.norms.keys() - {"*"}, norms)):
        for site in named:
            if site not in offered and (served_by or {}).get(site) not in named:
                raise UserError(f"sites: the blocks of {model} have no {site}", f"They have {', '.join(offered)}.")


def end_of_stack(
    wiring: Wiring, last: ResidualConnection, place: NormPlace, usual: NormFactory, *, after_norm: bool = False
) -> tuple[OutputAggregation | None, nn.Module]:
    """Module that reduces the state after a stack's `last` add to one stream, and the final norm. The norm is the
    identity if the method has none there, or (without `after_norm`) if that add ends in a norm."""
    norm = partial(wiring.norm, place, usual)
    keeps_norm = last.keeps_final_norm and (after_norm or not last.ends_in_norm)
    return last.output_aggregation(norm), norm() if keeps_norm else nn.Identity()
