"""The contract of methods in an encoder-decoder: a kind of wiring each, in both stacks.

In float64, where nothing but a real dependence exceeds 1e-10: a sum of dozens of terms of order 1 is rounded to 1e-14.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from same_bits import Reason, assert_same_bits
from small_networks import (
    PAIR_METHODS,
    PAIRS,
    SMALL,
    SOURCE,
    TARGET,
    VOCABULARY,
    future_leaks,
    other_tokens,
    pair_loss,
    pair_model,
    pooling_gate,
)  # fmt: skip
from torch import Tensor

from comt_cli.layers.dropout import Masks
from comt_cli.layers.residual.norm_placement import PostNorm
from comt_cli.methods.base import Wiring
from comt_cli.models.transformer import Transformer

close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
_OWN = [*SMALL["train-mt"].tested, "comt", "eau", "eau-before-o", "transponder-static-cross", "full-rank-gate-mixed"]
each_pair_method = pytest.mark.parametrize("options", [PAIR_METHODS[name] for name in _OWN], ids=_OWN)
DROPPED = PAIRS.model_copy(update={"dropout": 0.3, "attention_dropout": 0.2, "relu_dropout": 0.1})


def leaks_of(model: Transformer) -> list[int]:
    return future_leaks(lambda target: model(SOURCE.repeat(len(target) // len(SOURCE), 1), target), TARGET, VOCABULARY)


@each_pair_method
def test_what_logits_depend_on_and_decoding_with_a_cache(options):
    """Targets up to their own, every token of their own source, no padding, no other pair. Decoding is the forward
    pass: a token at a time, two beams a source, whose order changes in the middle."""
    model = pair_model(options, trained=True).eval()
    assert leaks_of(model) == []
    with torch.no_grad():
        before = model(SOURCE, TARGET)
        for row, column in ((0, 6), (1, 0), (2, 5)):
            changed = SOURCE.clone()
            changed[row, column] = changed[row, column] % 30 + 1
            after, others = model(changed, TARGET), [other for other in range(3) if other != row]
            assert_same_bits(after[others], before[others], Reason.CAUSAL, "the other pairs")
            assert (after[row] != before[row]).any(dim=-1).all(), "every target sees the whole source"
        padded = torch.nn.functional.pad
        close(model(padded(SOURCE, (0, 3)), TARGET), before)
        close(model(SOURCE, padded(TARGET, (0, 2)))[:, :6], before)
        close(model(SOURCE[1:2, :4], TARGET[1:2]), before[1:2])

        memory, cache = model.encode(SOURCE), model.decoding_cache(rows=6, capacity=8)
        assert {tensor.shape for tensor in (*memory.keys, *memory.values)} == {(3, 4, 7, 6)}, "once a source"
        beams_RT = TARGET.clamp(min=1).repeat_interleave(2, dim=0)
        beams_RT[1::2] = other_tokens(beams_RT[1::2])
        sources_RS, order_R = SOURCE.repeat_interleave(2, dim=0), torch.tensor([1, 1, 3, 2, 5, 4])
        for t in range(6):
            if t == 3:
                cache.reorder(order_R)
                beams_RT = torch.cat([beams_RT[order_R, :3], beams_RT[:, 3:]], dim=1)
            logits_RV = model.step(beams_RT[:, t : t + 1], cache, memory)
            close(logits_RV, model(sources_RS, beams_RT[:, : t + 1])[:, -1])
        kept_R = torch.tensor([0, 1, 4, 5])  # the second source is done
        cache.reorder(kept_R)
        rest = type(memory)(*(tuple(x[[0, 2]] for x in each) for each in memory[:2]), memory.mask_BS[[0, 2]])
        logits_RV = model.step(beams_RT[kept_R, :1], cache, rest)
        whole_RT = torch.cat([beams_RT, beams_RT[:, :1]], dim=1)[kept_R]
        close(logits_RV, model(sources_RS[kept_R], whole_RT)[:, -1])


@each_pair_method
def test_checkpointing_and_micro_batches_change_nothing(options):
    """With every dropout on: its masks are those of the pair, in recomputation and in any division of the batch."""
    model = pair_model(options, DROPPED, trained=True)
    masks, positions_B = Masks(model), np.array([7, 2**21 + 5, 3])

    def gradients(*parts: slice) -> dict[str, Tensor]:
        model.zero_grad()
        for rows in parts:
            masks.move_to(1, positions_B[rows], torch.device("cpu"))
            model(SOURCE[rows], TARGET[rows]).square().sum().backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}

    plain, parts = gradients(slice(3)), gradients(slice(0, 1), slice(1, 3))
    model.activation_checkpointing = True
    assert_same_bits(gradients(slice(3)), plain, Reason.RECOMPUTED, "the gradients")
    torch.testing.assert_close(parts, plain, rtol=1e-8, atol=1e-8)
    with torch.no_grad():
        without = pair_model(options, trained=True)(SOURCE, TARGET)
        assert_same_bits(model.eval()(SOURCE, TARGET), without, Reason.SAME_CALL, "evaluation without dropout")


def test_without_cross_attention_logits_do_not_depend_on_the_source():
    """But every parameter has a gradient, of zeros where it is the encoder's: data parallel training waits for each."""
    settings = PAIRS.model_copy(update={"cross_attention": False})
    for name in ("post-ln", "sas", "transponder", "eau+grc"):
        model = pair_model({"name": name}, settings, trained=True)
        logits = model(SOURCE, TARGET)
        assert_same_bits(model(SOURCE % 30 + 1, TARGET), logits, Reason.CAUSAL, name)
        pair_loss(logits).backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        assert not any(parameter.grad.any() for parameter in model.encoder.parameters())


def test_the_check_catches_a_gate_that_pools_over_the_sequence():
    for site in ("v_proj", "o_proj", "up_proj", "down_proj"):
        model = pair_model(Wiring(PostNorm, {site: pooling_gate}), trained=True)
        assert leaks_of(model) == list(range(5)), site
