"""In bf16, what a connection stores as the difference from where it starts takes effect, however small.

Beside 1 bf16 has no number nearer than 2^-8. A coefficient that is computed in the parameters' type, or that takes the
stream's type as a tensor of no dimension, keeps its start until an offset is as large as half of that; in fp32 an
offset of 2^-10 changes how about an eighth of all elements are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from naive import connections_of, normal
from same_bits import differ
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from comt_cli.layers.initialise import initialise
from comt_cli.layers.learned import Constant
from comt_cli.layers.residual.base import ResidualConnection, State
from comt_cli.layers.shared_values import ValueResidual
from comt_cli.methods.base import residual_connections

D = 16
LARGE, SMALL = 2**-3, 2**-10
MIX = normal(D, D).bfloat16() / D**0.5
STORES_NO_OFFSETS = {"rezero", "laurel-pa"}
"""Their constants are the numbers themselves: ReZero's has nothing added to it, LAuReL-PA's start at 1 / k."""
OPTIONS: dict[str, list[dict[str, object]]] = {
    "hyper-connections": [{"dynamic": False}, {"dynamic": True}],
    "start-lambdas": [{"start": "graded"}],
}


def branch(h_BTD: Tensor, *kv_BTD: Tensor) -> Tensor:
    return torch.tanh(sum(kv_BTD, h_BTD) @ MIX)


def steps(name: str, options: dict[str, object]) -> Iterator[tuple[ResidualConnection, State]]:
    """Every connection of three blocks in bf16, and a state that it may be handed. Offsets are `LARGE`: of a
    coefficient that stands alone beside zeros, a product with the stream may be rounded to the stream itself."""
    state = State(normal(8, 32, D).bfloat16())
    for connection in connections_of(name, D, **options):
        initialise(connection, seed=1)
        for module in connection.modules():
            if isinstance(module, Constant) and module.start == 0:
                nn.init.constant_(module.value, LARGE)
        connection.to(torch.bfloat16)
        yield connection, state
        with torch.no_grad():
            state = connection.step(state, branch)
        if state.has_streams:  # which are all alike at the start
            state = State(normal(*state.x.shape).bfloat16(), has_streams=True)


def tensors_of(state: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]


def without_effect(constant: Constant, result: Callable[[], Any]) -> list[int]:
    """The numbers of a constant of which a small offset does not change the result by any bit."""
    before, found = tensors_of(result()), []
    for index in range(constant.value.numel()):
        kept = constant.value.clone()
        constant.value.view(-1)[index] += SMALL
        after = tensors_of(result())
        if not differ(after, before):
            found.append(index)
        constant.value.copy_(kept)
    return found


@torch.no_grad()
def test_a_small_offset_takes_effect_in_bf16():
    named, dead = set(), []
    for name in residual_connections().keys() - STORES_NO_OFFSETS:
        for connection, state in (step for options in OPTIONS.get(name, [{}]) for step in steps(name, options)):
            for path, constant in connection.named_modules():
                if not isinstance(constant, Constant) or constant.start != 0:
                    continue
                none = without_effect(constant, partial(connection.step, state, branch))
                if name == "manifold-hyper-connections":
                    # The rest are logits of H_res: changes of exp(-8), and of what its rows are divided by.
                    none = [index for index in none if index < 2 * connection.n]
                named.add(name)
                dead += [f"{name} {connection.site.index} {path} {index}" for index in none]
    assert dead == []
    assert {"laurel-rw", "hyper-connections", "mudd", "start-lambdas"} <= named


@torch.no_grad()
def test_small_shares_of_values_take_effect_in_bf16():
    mixing = ValueResidual(1, learned=True).to(torch.bfloat16)
    initialise(mixing, seed=1)
    own, first = (normal(2, 2, 16, 8, seed=seed).bfloat16() for seed in range(2))
    assert without_effect(mixing.shares, lambda: mixing(own, own, [first])) == []
