"""Residual connections in existing blocks. Only the addition is replaced: a branch is the block's own sublayer with its
norms, so the connections have no norms.

Blocks pass the state of such a connection instead of the stream. A model does not look at it between blocks, and after
the last block it is a stream again.
Shapes: B batch, T tokens, D width.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.layers.residual.base import OutputAggregation, ResidualConnection, ResidualSite, State
from comt_cli.layers.residual.norm_placement import PreNorm
from comt_cli.library.gated import Remade, remade_class
from comt_cli.library.hosts import HOSTS, KNOWN, Host, Stack, path_of
from comt_cli.methods.base import Wiring
from comt_cli.models.base import TokenBlock

CONNECTIONS = (
    *("pre-norm", "scaled", "highway", "grc", "laurel-rw", "laurel-lr", "laurel-rw-lr", "laurel-pa"),
    *("start-lambdas", "denseformer", "backout", "skip-gates", "attention-residuals", "delta-attention-residuals"),
    *("hyper-connections", "manifold-hyper-connections"),
)
"""Residual connections that replace only an addition."""
_INSIDE = "it reads the inside of other blocks, or has several attention inputs"
REASONS = {
    **dict.fromkeys(("post-norm", "deepnorm", "deepnorm-mixln-code", "mix-ln", "sas", "grc"), "it places norms anew"),
    "hybrid-norm": "it normalises queries, keys and values",
    **dict.fromkeys(("sandwich-ln", "keel", "siamese-norm"), "it adds norms"),
    **dict.fromkeys(("mudd", "deep-cross-attention"), _INSIDE),
    "layernorm-scaling": "it scales the output of a norm",
    "rezero": "it removes norms",
    "progressive": "it needs the training update, which only comt's training passes",
    "scaled-init": "it only changes the initialisation",
}
"""Why others cannot be used in existing blocks; `grc` if its norm follows the sum."""


def refuse_method(wiring: Wiring, method: str) -> None:
    """Raise `UserError` for a method that changes more than gates and additions, or nothing."""
    reasons = {
        "it replaces norms": wiring.norms,
        "it changes the start of the stream": wiring.entry,
        _INSIDE: wiring.shared_values,
        "it reads token ids in blocks": wiring.value_embedding,
        "it changes attention": wiring.exclude,
        "it changes widths": wiring.widening,
        "it has no gates and no other residual connection": is_addition(wiring) and not wiring.gates,
    }
    reason = next((said for said, part in reasons.items() if part), None)
    if reason is not None:
        raise UserError(f"a model cannot be wrapped with {method}: {reason}")


def is_addition(wiring: Wiring) -> bool:
    """Whether a method keeps the additions of Pre-LN."""
    return (wiring.residual.func if isinstance(wiring.residual, functools.partial) else wiring.residual) is PreNorm


@dataclass(frozen=True)
class Adds:
    """Residual connections of a stack, two per block. `end` reduces the last state to a stream of the type of
    `like`."""

    made: tuple[ResidualConnection, ...]
    end: OutputAggregation | None
    like: Tensor

    def is_plain(self) -> bool:
        """Whether they compute x + F(N(x)), and `end` the stream, bit for bit; F differs between the adds of this
        test."""
        stream = torch.randn(1, 8, len(self.like), generator=torch.Generator().manual_seed(0)).to(self.like)
        state = State(stream)
        with torch.no_grad():
            for i, connection in enumerate(self.made):
                norm = getattr(connection, "norm", nn.Identity())
                branch: Any = lambda h_BTD, shift=i + 1: torch.tanh(h_BTD.roll(shift, -1))  # noqa: E731
                state, stream = connection.step(state, branch), stream + branch(norm(stream))
            return torch.equal(state.stream if self.end is None else self.end(state), stream)


def made_for(model: nn.Module, stack: Stack | None, wiring: Wiring, method: str) -> Adds:
    """Connections for the blocks of a model. Raises `UserError` for others than `CONNECTIONS`, or unknown blocks."""
    blocks = () if stack is None else stack.blocks
    if stack is None or any(hasattr(block, "crossattention") or _adds_its_own_way(block) for block in blocks):
        said = f"the blocks of {type(model).__name__} are unknown or patched, so their additions cannot be found"
        raise UserError(said, f"Residual connections work in {KNOWN}.")
    made: list[ResidualConnection] = []
    likes = [block.get_submodule(stack.host.norms[0]).get_parameter("weight") for block in blocks]
    for layer, (block, like) in enumerate(zip(blocks, likes, strict=True)):
        for i, part in enumerate(("attention", "mlp")):
            old = getattr(block, f"{part}_connection", None)  # comt's own blocks; it holds their norms
            if not isinstance(old, PreNorm | None):
                raise UserError(f"the network already has another residual connection: {type(old).__name__}")
            norm = nn.Identity if old is None else functools.partial(getattr, old, "norm")
            index, before = 2 * layer + i, tuple(made[-i:] if i else ())
            site = ResidualSite(len(like), "decoder", index, 2 * len(likes), layer, len(likes), part, norm, before)
            connection = wiring.residual(site).to(like.device, like.dtype)
            connection.site = replace(site, norm=nn.Identity)
            name = getattr(connection, "name", type(connection).__name__)
            if name not in CONNECTIONS or connection.ends_in_norm:
                reason = REASONS.get(name, "it is not tested")
                said = f"the residual connection {name} of {method} cannot replace an addition: {reason}"
                raise UserError(said, f"Possible are {', '.join(CONNECTIONS)}.")
            made.append(connection)
    end = made[-1].output_aggregation(nn.Identity)
    return Adds(tuple(made), None if end is None else end.to(likes[-1].device, likes[-1].dtype), likes[-1])


def _adds_its_own_way(block: nn.Module) -> bool:
    known: Any = next(kind for kind in type(block).__mro__ if path_of(kind) in HOSTS)
    return getattr(block.forward, "__func__", None) is not known.forward


class Connected(Remade):
    """Block whose additions are residual connections. `read_out` of the last block reduces the state to one stream. If
    a connection passes more than a stream, [B, T, D], the next block gets a pair of the stream and the state. The
    stream comes first because `output_hidden_states` of transformers collects the first element."""

    host: Host
    is_last: bool
    attention_connection: ResidualConnection
    mlp_connection: ResidualConnection
    read_out: Any

    def forward(self, hidden_states: Any, *more: Any, **inputs: Any) -> Any:
        """Stream, [B, T, D], or the previous block's pair -> the same after this block. With pre-norm connections: h =
        x + attention(norm(x)), y = h + mlp(norm(h))."""
        if isinstance(hidden_states, tuple):  # libraries may convert other types
            self._refuse_reentrant()
            state = State(*hidden_states[1])
        else:
            state = State(hidden_states)
        inputs |= dict(zip(self.host.arguments, more, strict=False))
        state = self.attention_connection.step(state, self._branch(0, inputs))
        state = self.mlp_connection.step(state, self._branch(1, {}))
        if self.is_last:
            return state.stream if self.read_out is None else self.read_out(state)
        return (state.stream, state) if state.has_streams or state.sources else state.x

    def _branch(self, i: int, inputs: dict[str, Any]) -> Any:
        norm, module = getattr(self, self.host.norms[i]), getattr(self, self.host.sublayers[i])

        def branch(h_BTD: Tensor) -> Any:
            y = module(h_BTD if self.host.norm_is_behind else norm(h_BTD), **inputs)
            y_BTD = y[0] if isinstance(y, tuple) else y  # attention also returns its weights
            return norm(y_BTD) if self.host.norm_is_behind else y_BTD

        return branch

    def _refuse_reentrant(self) -> None:
        function = getattr(self, "_gradient_checkpointing_func", None) if self.training else None
        if getattr(self, "gradient_checkpointing", False) and getattr(function, "keywords", {}).get("use_reentrant"):
            said = "re-entrant gradient checkpointing loses gradients of connections that pass several tensors"
            hint = 'Use gradient_checkpointing_kwargs={"use_reentrant": False}, the default of transformers 5.'
            raise UserError(said, hint)


def as_connected(block: nn.Module, host: Host, is_last: bool) -> None:
    """Convert a block of another library, whose residual connections are added later. Its class keeps its name, by
    which libraries know what must not be split."""
    block.__class__ = remade_class(Connected, type(block))  # type: ignore[arg-type]
    block.host, block.is_last = host, is_last  # type: ignore[assignment]
    block.register_module("read_out", None)


def connect(model: nn.Module, stack: Stack, adds: Adds) -> None:
    """Replace the additions of a stack."""
    for i, block in enumerate(stack.blocks):
        if not isinstance(block, TokenBlock):
            as_connected(block, stack.host, i == len(stack.blocks) - 1)
        block.attention_connection, block.mlp_connection = adds.made[2 * i : 2 * i + 2]
    owner = model if isinstance(stack.blocks[-1], TokenBlock) else stack.blocks[-1]
    owner.read_out = adds.end  # type: ignore[assignment]


def adds_in(model: nn.Module, stack: Stack | None) -> Adds | None:
    """Connections of a wrapped model, or of one of comt's; None for plain additions."""
    blocks = () if stack is None else stack.blocks
    made = tuple(part for block in blocks for part in block.children() if isinstance(part, ResidualConnection))
    if not made:
        return None
    end = getattr(model, "read_out", None) or getattr(blocks[-1], "read_out", None)
    return Adds(made, end, next(model.parameters()).new_empty(made[0].site.width))
