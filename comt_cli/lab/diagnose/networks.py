"""Networks of one residual connection over and over, as they are at the start. Shapes: D width, x [..., D].

A `Setup` says what the connections' branches are: the chapter's own, or the block of our language models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.kernels.gates import Modulation
from comt_cli.layers.attention import rotation_table
from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.residual.base import Branch, ResidualConnection, ResidualSite, State
from comt_cli.layers.residual.scaled import ProgressiveResidual
from comt_cli.methods import methods
from comt_cli.methods.base import DECODER_SITES, Wiring, residual_connection, residual_connections
from comt_cli.models.build import empty_network, materialise
from comt_cli.tasks.settings.llama import ModelSettings

_HEAD_WIDTH, _VOCABULARY = 16, 64
"""Of the language models in the set-up `llama`, whose width is a multiple of the former."""
_ONE_STREAM = replace(DECODER_SITES, features=())
"""The sites of language models whose blocks share nothing but the stream."""


class Plain(ResidualConnection):
    """y = F(N(x)): no skip path at all, for comparison. Not a connection that a model may have."""

    def __init__(self, site: ResidualSite) -> None:
        super().__init__(site)
        self.norm = site.norm()

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        return branch(self.norm(x_BTD))


PLAIN = {"plain": Wiring(Plain)}


class FreeBranch(nn.Module):
    """W2 act(W1 h + b1) + b2, `wider` times D inside; act(W1 h + b1) if that is 0. It is 0 if it `ends_in_zeros`. No
    gate stands behind its last product."""

    def __init__(
        self, width: int, activation: Callable[[Tensor], Tensor], wider: int = 0, *, ends_in_zeros: bool = False
    ) -> None:
        super().__init__()
        self.activation = activation
        self.linear1 = nn.Linear(width, wider * width or width)
        self.linear2 = nn.Linear(wider * width, width) if wider else nn.Identity()
        if ends_in_zeros:
            for parameter in self.linear2.parameters():
                nn.init.zeros_(parameter)

    def forward(self, h: Tensor) -> Tensor:
        y: Tensor = self.linear2(self.activation(self.linear1(h)))
        return y

    def before_gate(self, h: Tensor) -> tuple[Tensor, Modulation] | None:
        return None


_UNCHANGED = nn.Identity()


@dataclass(frozen=True)
class Network:
    """Residual blocks, each from a state to the next, and what stands before and behind them. `module` holds all
    parameters."""

    module: nn.Module
    blocks: Sequence[Callable[[State], State]]
    entry: Callable[[Tensor], Tensor] = _UNCHANGED
    output: Callable[[Tensor], Tensor] = _UNCHANGED

    def streams(self, x: Tensor) -> list[Tensor]:
        """The residual stream before the first block and after every block, `depth` + 1 tensors like x."""
        states = [State(self.entry(x))]
        for block in self.blocks:
            states.append(block(states[-1]))
        return [state.stream for state in states]


@dataclass(frozen=True)
class Setup:
    """A kind of network. `leading` are the dimensions of x before its width, which is usually `width`; `branch` makes
    one of a width. Without it the blocks are those of our language models, with branches and norms of their own."""

    name: str
    says: str
    leading: tuple[int, ...]
    width: int
    branch: Callable[[int], FreeBranch] | None = None
    norm: Callable[[int], nn.Module] = nn.LayerNorm

    def build(self, wiring: Wiring, depth: int, seed: int, width: int | None = None) -> tuple[Network, Tensor, Tensor]:
        """A network at its start, its input x and a random tensor like x, N(0, 1). So is x, but of language models,
        where it is their own embedding of random tokens: beside a larger one their branches would vanish.

        A pure function of the arguments; drawn from PyTorch's global stream in the chapter's order (blocks, then x), so
        that a seed gives the chapter's numbers. The stream of the caller is left as it was.
        """
        D = width or self.width
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network, x = (_stack if self.branch else _llama)(self, wiring, depth, D, seed)
            return network, x, torch.randn_like(x)

    def fits(self, wiring: Wiring) -> bool:
        """Whether the set-up has a place for all of it: gates and norms of a method's own have one in `llama` only."""
        return self.branch is None or wiring == Wiring(wiring.residual)


def _stack(setup: Setup, wiring: Wiring, depth: int, width: int, seed: int) -> tuple[Network, Tensor]:
    """Blocks of one connection and one branch each. As in our models two connections, of the kinds attention and mlp,
    count as one layer to those connections that ask: the i-th block is half of layer i // 2. And their input."""
    assert setup.branch is not None
    layers = (depth + 1) // 2
    pairs: list[tuple[ResidualConnection, FreeBranch]] = []
    for index in range(depth):
        kind, norm = ("attention", "mlp")[index % 2], partial(setup.norm, width)
        before = (pairs[-1][0],) if index % 2 else ()
        place = ResidualSite(width, "decoder", index, 2 * layers, index // 2, layers, kind, norm, before)
        pairs.append((wiring.residual(place), setup.branch(width)))
    connections, branches = (nn.ModuleList(parts) for parts in zip(*pairs, strict=True))
    module = nn.ModuleDict({"connections": connections, "branches": branches})
    for path, part in module.named_modules():  # norms and branches keep PyTorch's defaults, as in the chapter
        if isinstance(part, Initialised):
            part.initialise(Draw(seed, path))
    blocks = [partial(connection.step, branch=branch) for connection, branch in pairs]
    return Network(module, blocks), torch.randn(*setup.leading, width)


def _llama(setup: Setup, wiring: Wiring, depth: int, width: int, seed: int) -> tuple[Network, Tensor]:
    """A language model of ours but for its head: the entry behind the embedding, blocks of attention and SwiGLU with a
    connection each, and the final norm. And the embedding of random tokens."""
    shape = {"width": width, "ffn_width": width * 8 // 3, "layers": depth, "heads": width // _HEAD_WIDTH}
    # Tied: a head of its own would never be read.
    settings = ModelSettings.model_validate({"size": "tiny", "tied_embeddings": True, **shape})
    model = empty_network(settings, wiring, vocabulary=_VOCABULARY)
    materialise(model, torch.device("cpu"), seed)
    x = model.embedding(torch.randint(_VOCABULARY, setup.leading)).detach()
    rotation = rotation_table(setup.leading[-1], _HEAD_WIDTH, settings.rope_theta, x)
    blocks = [partial(block, rotation=rotation) for block in model.blocks]
    return Network(model, blocks, model.entry, model.final_norm), x


LINEAR_RELU = Setup(  # the chapter's PreNormBlock and PostNormBlock
    "linear-relu",
    "F = ReLU(W h + b), LayerNorm, x of 4 samples",
    (4,),
    64,
    partial(FreeBranch, activation=torch.relu),
)
GELU_MLP = Setup(  # the chapter's FlexibleResidualBlock
    "gelu-mlp",
    "F = W2 GELU(W1 h + b1) + b2, four times as wide inside, LayerNorm, x of 4 x 8 tokens",
    (4, 8),
    128,
    partial(FreeBranch, activation=F.gelu, wider=4),
)
LLAMA = Setup(
    "llama",
    "attention and SwiGLU, two connections a block, RMSNorm, x the model's own embedding of 2 x 16 tokens",
    (2, 16),
    64,
)
RELU_MLP = Setup(  # the chapter's ScaledResidualBlock, which has no norm
    "relu-mlp",
    "F = W2 ReLU(W1 x + b1) + b2, no norm, x of 1 sample",
    (1,),
    64,
    partial(FreeBranch, activation=torch.relu, wider=1),
    norm=lambda _: nn.Identity(),
)
ZERO_BRANCH = replace(
    RELU_MLP, name="zero_branch", branch=partial(FreeBranch, activation=torch.relu, wider=1, ends_in_zeros=True)
)
SETUPS = {setup.name: setup for setup in (LINEAR_RELU, GELU_MLP, LLAMA)}


def wirings() -> dict[str, Wiring]:
    """Every residual connection by its name, and every other method for language models that needs no options; none
    that passes more than a stream."""
    connections = {name: residual_connection(name) for name in residual_connections()}
    found = {
        name: Wiring(each)
        for name, each in connections.items()
        if "states" not in each.needs or issubclass(each, ProgressiveResidual)  # which follows training, on one stream
    }
    for name, method in methods().items():
        needs_options = any(field.is_required() for field in method.model_fields.values())
        if method.fits(_ONE_STREAM) and not needs_options and name not in found:
            found[name] = method().wiring()
    return found
