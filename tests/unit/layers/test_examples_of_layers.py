"""The examples in docstrings of public layers, and that each public gate has one."""

from __future__ import annotations

import doctest
import importlib

import pytest
import torch

from comt_cli import layers
from comt_cli.layers.gates import Gate

MODULES = ["comt_cli.layers.gates", "comt_cli.layers.convolution", "comt_cli.layers.residual.base"]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    with torch.random.fork_rng(devices=[]):
        result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0


def test_every_public_name_is_there_and_every_gate_and_connection_has_an_example_or_an_equation():
    for name in layers.__all__:
        found = getattr(layers, name)
        assert found.__module__.startswith("comt_cli.layers."), name
        assert found.__doc__, name
        if issubclass(found, Gate) and found is not Gate:
            assert ">>> " + name in found.__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'Comtgate'"):
        _ = layers.Comtgate
