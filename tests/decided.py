"""Texts that are chosen by scores, on processors whose scores differ in their last bits.

Scores that depend on the shape of a batch are the same to rounding. The tokens they choose are the same only where each
choice has a margin, which is asserted here.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from same_bits import same_integers
from torch import Tensor

from comt_cli.generation import cached

NEAR = 1e-5
"""Of the greatest logit: some ten times what fp32 rounds in a small network."""


def draw_with_a_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on every token that is drawn is asserted to be the same from logits that are moved by `NEAR`."""
    draw = cached.draw

    def checked(logits_BV: Tensor, *how: Any) -> Tensor:
        token_B = draw(logits_BV, *how)
        most, generator = NEAR * logits_BV.abs().max(), torch.Generator().manual_seed(0)
        for _ in range(4):
            moved = most * torch.empty(logits_BV.shape).uniform_(-1, 1, generator=generator)
            assert same_integers(draw(logits_BV + moved, *how), token_B), "the margin is too small for this test"
        return token_B

    monkeypatch.setattr(cached, "draw", checked)


def search_without_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search's log-probabilities become distances from the likeliest token: the scores of a table decoder are then
    the same on every processor, whatever the batch, and equal ones are equal.

    What is left out is the sum over the vocabulary, whose last bits may depend on the number of rows.
    """
    monkeypatch.setattr(Tensor, "log_softmax", lambda logits, dim: logits - logits.amax(dim, keepdim=True))
