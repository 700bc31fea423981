"""What a forward pass keeps, counted against what can be counted by hand."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from comt_cli.lab.bench.memory import mebibytes, peak_beyond, peak_of, saved_bytes


class TwoLayers(nn.Module):
    """y = W2 sigmoid(W1 x), x: 5 x 3, W1: 7 x 3, W2: 2 x 7."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 7, bias=False), nn.Linear(7, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.sigmoid(self.first(x)))


def test_by_hand():
    """fp32: x, which dW1 needs, and sigmoid's output, which sigmoid's derivative and dW2 share. No weight."""
    model, x = TwoLayers(), torch.randn(5, 3)
    assert saved_bytes(lambda: model(x), model.parameters()) == 4 * (5 * 3 + 5 * 7)


def test_a_storage_counts_once_and_whole():
    """A view of 2 numbers keeps all 100 alive; a second view of the same adds nothing."""
    whole = torch.randn(100, requires_grad=True).exp()
    assert saved_bytes(lambda: (whole[:2].square(), whole[50:].square()), []) == 4 * 100


def test_temporaries_do_not_share_an_address_by_chance():
    """A chain whose every link is freed but for what is kept: n tensors, not fewer."""
    x = torch.randn(1000, requires_grad=True)

    def forward() -> Tensor:
        y = x
        for _ in range(5):
            y = torch.sigmoid(y * 1.5)  # keeps its output, and not the product
        return y

    assert saved_bytes(forward, [x]) == 5 * 4 * 1000


@pytest.mark.parametrize("keeps_output", [True, False], ids=["an output", "an input"])
def test_what_was_saved_can_be_freed(keeps_output):
    """A node that keeps its own output must not keep itself alive by it."""
    saved: list[weakref.ref[Tensor]] = []
    w = torch.randn(3, 7, requires_grad=True)

    def forward() -> Tensor:
        x = torch.randn(5, 3) @ w
        y = x.exp() if keeps_output else x.square()
        saved.extend(map(weakref.ref, (x, y)))
        return y.sum()

    assert saved_bytes(forward, [w]) == 4 * (5 * 3 + 5 * 7)
    gc.collect()
    assert [reference() for reference in saved] == [None, None]


def test_peaks_are_known_on_cuda_alone():
    assert peak_beyond(lambda: None, torch.device("cpu")) is None
    assert mebibytes(None) is None
    assert mebibytes(3 * 2**19) == 1.5
    assert mebibytes(2**10) == 0.001


def test_the_peak_by_hand():
    """What is alive at once: b and c of 400 bytes each while c is made, then c and 600 of what it is joined
    to; a view and an operation in place take nothing, nor does what was there before."""
    a = torch.ones(100)

    def part():
        b = a.view(10, 10) + 1
        b.add_(1)
        c = b.exp()
        del b
        return torch.cat([c.flatten(), a[:50]])

    assert peak_of(part, torch.device("cpu")) == 4 * (100 + 150)
    assert peak_of(lambda: a.view(10, 10), torch.device("cpu")) == 0
