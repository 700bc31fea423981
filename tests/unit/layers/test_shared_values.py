"""Keys and values of earlier blocks (ResFormer, SVFormer, LIMe), against their definitions."""

from __future__ import annotations

import torch
from naive import close, normal, shaken
from same_bits import Reason, assert_same_bits

from comt_cli.layers.shared_values import LayerRouter, SingleValue, ValueResidual


def test_values_of_the_first_block():
    """Against the two equations, with numbers for tensors."""
    for mixing, expected in (
        (ValueResidual(1, 0.25, 2.0), 0.25 * 3 + 2 * 5),
        (shaken(ValueResidual(1, learned=True)), None),
        (SingleValue(1), 5),
    ):
        kept = []
        k, v_1 = torch.full((1, 2, 3, 4), 7.0).double(), torch.full((1, 2, 3, 4), 5.0).double()
        assert_same_bits(type(mixing)(0)(k, v_1, kept)[1], v_1, Reason.MOVED)
        own = v_1 * 0.6 if mixing.has_values else None
        found_k, found_v = mixing(k, own, kept)
        a, b = (0.0, 0.0) if expected is not None else (0.5 + mixing.shares.value).tolist()
        assert found_k is k
        close(found_v, torch.full_like(v_1, 3 * a + 5 * b if expected is None else expected))


def test_routed_keys_and_values():
    routers, kept = [shaken(LayerRouter(layer, 2)) for layer in range(3)], []
    raw = [(normal(1, 2, 3, 4, seed=2 * layer), normal(1, 2, 3, 4, seed=2 * layer + 1)) for layer in range(3)]
    for layer, router in enumerate(routers):
        found = router(*raw[layer], kept)
        for which in range(2):
            heads = [raw[earlier][which][0, head] for earlier in range(layer + 1) for head in range(2)]
            for head in range(2):
                expected = raw[layer][which][0, head]
                if layer:
                    expected = expected + sum(router.router[head, j].item() * h for j, h in enumerate(heads))
                close(found[which][0, head], expected)
