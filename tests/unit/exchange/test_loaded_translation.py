"""A translation model is loaded with all that it needs, and nothing else is taken for one."""

from __future__ import annotations

import pytest
import torch
from same_bits import Reason, assert_same_bits
from toy_translation import TOKENIZER, toy_model, toy_spec, write_run

from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import write_state
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedTranslator
from comt_cli.tasks.settings.transformer import DecodeSettings


@pytest.fixture
def run(tmp_path):
    spec = toy_spec()
    return write_run(tmp_path / "run", spec, toy_model(spec))


def test_a_run_gives_model_tokenizer_and_settings(run):
    for source in (run, run / "checkpoint.pt"):
        loaded = load(source, LoadedTranslator)
        source_BS, target_BT = torch.tensor([[9, 8, 1]]), torch.tensor([[258, 5]])
        expected = toy_model(toy_spec())(source_BS, target_BT)
        assert_same_bits(loaded.model.eval()(source_BS, target_BT), expected, Reason.SAVED)
        assert (loaded.decode, loaded.longest, loaded.name) == (DecodeSettings(), 40, "post-ln-c-seed1")
        assert loaded.tokenizer.to_json() == TOKENIZER.to_json()


def test_what_does_not_translate_is_refused(run, tmp_path):
    with pytest.raises(UserError, match="there is no translator nowhere"):
        load("nowhere", LoadedTranslator)
    with pytest.raises(UserError, match="holds no translator"):
        load(tmp_path, LoadedTranslator)
    spec = toy_spec().model_dump(mode="json")
    state = {"spec": spec, "model": toy_model(toy_spec()).state_dict(), "vocabulary": 259, "tokenizer": {}}
    for change, message in (
        ({"tokenizer": {}}, "cannot be restored"),
        ({"model": toy_model(toy_spec(encoder_layers=1)).state_dict()}, "is missing"),
    ):
        write_state(tmp_path / "other.pt", {**state, **change})
        with pytest.raises(UserError, match=message):
            load(tmp_path / "other.pt", LoadedTranslator)
