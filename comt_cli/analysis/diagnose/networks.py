"""Networks that consist of one residual connection over and over, as they are at the start.

A `Setup` says what the connections' branches are: the chapter's own two, or the block of our language models.
Shapes: D width, x [..., D].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comt_cli.errors import UserError
from comt_cli.kernels.gates import Modulation
from comt_cli.layers.initialise import Draw, Initialised
from comt_cli.layers.residual.base import Branch, Junction, ResidualConnection, State, stream_of
from comt_cli.layers.rotary import rotation_table
from comt_cli.methods import methods
from comt_cli.methods.base import DECODER_SITES, RESIDUAL_CONNECTIONS, Wiring, residual_connection
from comt_cli.models.build import empty_network, materialise
from comt_cli.recipe.problems import nearest
from comt_cli.tasks.settings.llama import ModelSettings

_HEAD_WIDTH, _VOCABULARY = 16, 64
"""Of the language models in the set-up `llama`, whose width is a multiple of the former."""


class Network(nn.Module):
    """A stack of residual blocks and what stands behind them."""

    def streams(self, x: Tensor) -> list[Tensor]:
        """The residual stream before the first block and after every block, `depth` + 1 tensors like x."""
        raise NotImplementedError

    def output(self, stream: Tensor) -> Tensor:
        """What the network puts out, given the stream after its last block."""
        return stream


class Plain(ResidualConnection):
    """y = F(N(x)): no skip path at all, for comparison. Not a connection that a model may have."""

    def __init__(self, junction: Junction) -> None:
        super().__init__(junction)
        self.norm = junction.norm()

    def forward(self, x_BTD: Tensor, branch: Branch) -> Tensor:
        return branch(self.norm(x_BTD))


class FreeBranch(nn.Module):
    """F as a module of its own: [..., D] -> [..., D]; no gate stands behind its last product."""

    def __init__(self, width: int, hidden: int, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.activation = activation
        self.linear1 = nn.Linear(width, hidden or width)
        self.linear2 = nn.Linear(hidden, width) if hidden else None

    def forward(self, h: Tensor) -> Tensor:
        """With `hidden` W2 act(W1 h + b1) + b2, and without act(W1 h + b1)."""
        inner = self.activation(self.linear1(h))
        return inner if self.linear2 is None else self.linear2(inner)

    def before_gate(self, h: Tensor) -> tuple[Tensor, Modulation] | None:
        return None


class Stack(Network):
    """Blocks of one connection and one branch each. As in our models two connections, of the kinds attention and mlp,
    count as one layer to those connections that ask: the i-th block is half of layer i // 2."""

    def __init__(
        self,
        wiring: Wiring,
        depth: int,
        width: int,
        norm: Callable[[int], nn.Module],
        branch: Callable[[int], nn.Module],
    ) -> None:
        super().__init__()
        self.branches, self.connections = nn.ModuleList(), nn.ModuleList()
        layers = (depth + 1) // 2
        before: tuple[ResidualConnection, ...] = ()
        for index in range(depth):
            layer, part, make = index // 2, ("attention", "mlp")[index % 2], partial(norm, width)
            junction = Junction(width, "decoder", index, 2 * layers, layer, layers, part, make, before)
            connection = wiring.residual(junction)
            before = () if index % 2 else (connection,)
            self.connections.append(connection)
            self.branches.append(branch(width))

    def initialise(self, seed: int) -> None:
        """Set what the connections learn; norms and branches keep PyTorch's defaults, as in the chapter."""
        for path, module in self.named_modules():
            if isinstance(module, Initialised):
                module.initialise(Draw(seed, path))

    def streams(self, x: Tensor) -> list[Tensor]:
        state: State = x
        found = [x]
        for connection, branch in zip(self.connections, self.branches, strict=True):
            state = connection.step(state, branch)  # type: ignore[operator]
            found.append(stream_of(state))
        return found


class LlamaStack(Network):
    """A language model of ours but for its head: the entry behind the embedding, blocks of attention and SwiGLU with a
    connection each, and the final norm."""

    def __init__(self, wiring: Wiring, depth: int, width: int) -> None:
        super().__init__()
        shape = {"width": width, "ffn_width": width * 8 // 3, "layers": depth, "heads": width // _HEAD_WIDTH}
        # Tied: a head of its own would never be read.
        settings = ModelSettings.model_validate({"size": "tiny", "tied_embeddings": True, **shape})
        self.model = empty_network(settings, wiring, vocabulary=_VOCABULARY)

    def streams(self, x: Tensor) -> list[Tensor]:
        model = self.model
        rotation = rotation_table(x.shape[-2], _HEAD_WIDTH, model.settings.rope_theta, x)
        state: State = model.entry(x)
        found = [stream_of(state)]
        for block in model.blocks:
            state = block(state, rotation)
            found.append(stream_of(state))
        return found

    def output(self, stream: Tensor) -> Tensor:
        y: Tensor = self.model.final_norm(stream)
        return y


@dataclass(frozen=True)
class Setup:
    """A kind of network. `leading` are the dimensions of x before its width; `width` is the usual one."""

    name: str
    says: str
    leading: tuple[int, ...]
    width: int
    norm: Callable[[int], nn.Module] = nn.LayerNorm
    branch: Callable[[int], nn.Module] | None = None
    """Of a width; None: the block of our language models, which has branches and norms of its own."""

    def build(self, wiring: Wiring, depth: int, seed: int, width: int | None = None) -> tuple[Network, Tensor, Tensor]:
        """A network at its start, its input x and a random tensor like x, N(0, 1). So is x, but of language models,
        where it is their own embedding of random tokens: beside a larger one their branches would vanish.

        A pure function of the arguments; drawn from PyTorch's global stream in the chapter's order (blocks, then x), so
        that a seed gives the chapter's numbers. The stream of the caller is left as it was.
        """
        D = width or self.width
        network: Network
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.branch is None:
                network = LlamaStack(wiring, depth, D)
                materialise(network.model, torch.device("cpu"), seed)
                x = network.model.embedding(torch.randint(_VOCABULARY, self.leading)).detach()
            else:
                network = Stack(wiring, depth, D, self.norm, self.branch)
                network.initialise(seed)
                x = torch.randn(*self.leading, D)
            return network, x, torch.randn_like(x)

    def fits(self, wiring: Wiring) -> bool:
        """Whether the set-up has a place for all of it: gates and norms of a method's own have one in `llama` only."""
        return self.branch is None or wiring == Wiring(wiring.residual)


LINEAR_RELU = Setup(
    "linear-relu",
    "F = ReLU(W h + b), LayerNorm, x of 4 samples",
    (4,),
    64,
    branch=partial(FreeBranch, hidden=0, activation=torch.relu),
)
"""The chapter's PreNormBlock and PostNormBlock."""


def gelu_mlp(width: int) -> FreeBranch:
    """A hidden layer four times as wide, with GELU."""
    return FreeBranch(width, 4 * width, F.gelu)


def relu_mlp(width: int) -> FreeBranch:
    """A hidden layer as wide, with ReLU."""
    return FreeBranch(width, width, torch.relu)


GELU_MLP = Setup(
    "gelu-mlp",
    "F = W2 GELU(W1 h + b1) + b2, four times as wide inside, LayerNorm, x of 4 x 8 tokens",
    (4, 8),
    128,
    branch=gelu_mlp,
)
"""The chapter's FlexibleResidualBlock."""
LLAMA = Setup(
    "llama",
    "attention and SwiGLU, two connections a block, RMSNorm, x the model's own embedding of 2 x 16 tokens",
    (2, 16),
    64,
)
"""The block that this program's connections are put into."""
RELU_MLP = Setup(
    "relu-mlp",
    "F = W2 ReLU(W1 x + b1) + b2, no norm, x of 1 sample",
    (1,),
    64,
    norm=lambda _: nn.Identity(),
    branch=relu_mlp,
)
"""The chapter's ScaledResidualBlock, which has no norm: the scalings are measured in it too."""

SETUPS = {setup.name: setup for setup in (LINEAR_RELU, GELU_MLP, LLAMA)}


ONE_STREAM = replace(DECODER_SITES, features=())
"""The sites of language models whose blocks share nothing but the stream."""


def wirings() -> Mapping[str, Wiring]:
    """Every residual connection by its name, and every other method for language models that needs no options; none
    that hands on more than a stream."""
    found = {name: Wiring(residual_connection(name)) for name in RESIDUAL_CONNECTIONS if not _has_states(name)}
    for name, method in methods().items():
        needs_options = any(field.is_required() for field in method.model_fields.values())
        if method.fits(ONE_STREAM) and not needs_options and name not in found:
            found[name] = method().wiring()
    return found


def _has_states(name: str) -> bool:
    connection = residual_connection(name)
    return isinstance(connection, type) and issubclass(connection, ResidualConnection) and connection.has_states


def wiring_named(name: str) -> Wiring:
    """What `name` is. Raises `UserError` where there is none; the hint names the nearest."""
    known = wirings()
    if name not in known and (name in RESIDUAL_CONNECTIONS or name in methods()):
        raise UserError(
            f"{name} cannot be diagnosed",
            "What is measured is the gradient in the one stream between blocks; this hands on more, or is for images.",
        )
    if name not in known:
        raise UserError(f"there is no residual connection or method {name!r}", nearest(name, known))
    return known[name]
