"""Masks that are a function of (seed, position, site, element), against NumPy's unsigned integers.

Their hash was tested for independence of samples, steps, seeds, sites, tokens and channels; it never changes.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from same_bits import Reason, assert_same_bits, differ, same_integers
from torch import nn

from comt_cli.layers.dropout import Dropout, Masks, hashed, sample_words

CPU = torch.device("cpu")
GOLDEN = [
    [0, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1],
    [0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0],
    [1, 0, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0],
]


class Net(nn.Module):
    """Two sites and two layers between, as a model has them."""

    def __init__(self, p: float = 0.25) -> None:
        super().__init__()
        self.first, self.second = Dropout(p), Dropout(p)
        self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)
        self.masks = Masks(self)


def alone(p: float, positions: list[int] | range, seed: int = 0) -> Dropout:
    """One site at these positions."""
    model = nn.Sequential(Dropout(p))
    Masks(model).move_to(seed, np.array(positions), CPU)
    return model[0]


def bits_in_numpy(words: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The same hash on unsigned integers, element by element."""
    mask = 0xFFFFFFFF

    def mixed(word: int) -> int:
        word = (word ^ (word >> 16)) * 0x7FEB352D & mask
        word = (word ^ (word >> 15)) * 0x846CA68B & mask
        return word ^ (word >> 16)

    found = np.zeros(shape, dtype=np.uint32)
    for place in np.ndindex(*shape):
        low, high = (int(word) & mask for word in words[:, place[0]])
        for coordinate in place[1:-1]:
            low ^= mixed((high + coordinate * 0x9E3779B9) & mask)
            high ^= mixed(low)
        bits = (low ^ mixed(place[-1] * 0x9E3779B9 & mask)) * 0x7FEB352D & mask
        found[place] = ((bits ^ (bits >> 15)) + high & mask) * 0x846CA68B & mask
    return found.view(np.int32)


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 7), (2, 2, 3, 5)], ids=str)
def test_the_hash_is_the_one_on_unsigned_integers(shape):
    words = sample_words(11, np.arange(shape[0]), np.array([7], dtype=np.uint64))[0]
    found = hashed(torch.from_numpy(words), torch.Size(shape)).numpy()
    assert same_integers(found, bits_in_numpy(words, shape))


def test_masks_never_change():
    """A run resumed with a later version must see the masks it would have seen."""
    site = alone(0.5, [0, 5, 10**9], seed=3)
    assert (site(torch.ones(3, 2, 8)) > 0).int().view(3, 16).tolist() == GOLDEN


@given(
    st.lists(st.integers(0, 2**60), min_size=1, max_size=9, unique=True),
    st.integers(1, 6),
    st.integers(1, 9),
    st.integers(-(2**70), 2**70),
    st.data(),
)
def test_any_division_and_any_padding_of_a_batch_has_the_same_masks(positions, T, D, seed, data):
    x = torch.rand(len(positions), T, D) + 1
    whole = alone(0.4, positions, seed)(x)
    cut = data.draw(st.integers(0, len(positions)))
    parts = [
        alone(0.4, part, seed)(x_part) for part, x_part in ((positions[:cut], x[:cut]), (positions[cut:], x[cut:]))
    ]
    assert_same_bits(torch.cat(parts), whole, Reason.EXACT)  # one product an element
    padded = nn.functional.pad(x, (0, 0, 0, data.draw(st.integers(0, 3))))  # more tokens
    assert_same_bits(alone(0.4, positions, seed)(padded)[:, :T], whole, Reason.EXACT)


def test_a_site_is_its_path_needs_a_position_in_training_and_is_the_identity_else():
    net, deeper = Net(), nn.ModuleDict({"more": Dropout(0.1), "first": Dropout(0.25), "second": Dropout(0.25)})
    x, before = torch.ones(2, 3, 8), torch.get_rng_state()
    for masks in (net.masks, Masks(deeper)):
        masks.move_to(5, np.arange(2), CPU)
    assert_same_bits(net.second(x), deeper["second"](x), Reason.SAME_CALL)
    assert differ(net.first(x), deeper["second"](x))
    assert same_integers(torch.get_rng_state(), before)
    assert {name.split(".")[0] for name in net.state_dict()} == {"inner", "outer"}
    assert Dropout(0.0)(x) is x
    assert Dropout(0.5).eval()(x) is x
    with pytest.raises(RuntimeError, match="has no position"):
        Dropout(0.5)(x)
    with pytest.raises(RuntimeError, match="the position of 2 samples but got 3"):
        alone(0.5, range(2))(torch.ones(3, 3))
