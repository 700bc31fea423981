"""The captioner: its size, what its words depend on, and decoding; its blocks are those of `test_encoder_decoder`."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from initialised import initialised, shaken
from same_bits import Reason, assert_same_bits
from small_networks import CAPTIONER, MASK, REGIONS, SMALL, TARGET

from comt_cli.models.build import empty_network, wiring_of
from comt_cli.models.captioner import Captioner
from comt_cli.models.flops import parameter_count
from comt_cli.tasks.settings.captioning import CaptionerSettings

close = partial(torch.testing.assert_close, rtol=1e-10, atol=1e-10)
BATCH, DIMENSIONS = SMALL["train-caption"].batch, SMALL["train-caption"].dimensions
METHODS = ("post-ln", "sas", "transponder")


def captioner(name: str = "post-ln", settings: CaptionerSettings = CAPTIONER) -> Captioner:
    """In float64, where nothing but a real dependence exceeds 1e-10."""
    return shaken(initialised(settings, wiring_of({"name": name}), 1, **DIMENSIONS)).double().eval()


def test_the_published_size_has_the_parameters_of_the_formulas():
    """V d + 6 (3,150,336 + 4,199,936) and a map of 2,048 numbers with a bias; SAS's gates at all 30 junctions."""
    for name, positions, more in (
        ("post-ln", "none", 0),
        ("sas", "none", 31_518_780),
        ("post-ln", "learned", 36 * 512),
    ):
        settings = CaptionerSettings(region_positions=positions)
        model = empty_network(settings, wiring_of({"name": name}), vocabulary=9567, regions=36, features=2048)
        assert parameter_count(model) == 50_049_024 + more


@pytest.mark.parametrize("name", METHODS)
def test_what_words_depend_on(name):
    """Words up to their own, every region of their own image, and nothing where there is no region."""
    model = captioner(name)
    with torch.no_grad():
        before = model(*BATCH)
        for t in range(TARGET.shape[1] - 1):
            changed = torch.cat([TARGET[:, : t + 1], TARGET[:, t + 1 :] % 30 + 1], dim=1)
            assert_same_bits(model(REGIONS, MASK, changed)[:, : t + 1], before[:, : t + 1], Reason.CAUSAL)
        noise = torch.where(MASK[..., None], REGIONS, 1e3)
        assert_same_bits(model(noise, MASK, TARGET), before, Reason.CAUSAL)
        padded = [torch.nn.functional.pad(REGIONS, (0, 0, 0, 2), value=7.0), torch.nn.functional.pad(MASK, (0, 2))]
        close(model(*padded, TARGET), before)
        close(model(REGIONS[1:2, :4], MASK[1:2, :4], TARGET[1:2]), before[1:2])
        changed = REGIONS.clone()
        changed[2, 5] += 1
        after = model(changed, MASK, TARGET)
        assert_same_bits(after[:2], before[:2], Reason.CAUSAL)
        assert (after[2] != before[2]).any(dim=-1).all(), "every word sees all regions"
