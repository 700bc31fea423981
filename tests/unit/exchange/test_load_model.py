"""Our own checkpoints: what training saved loads, and whatever else lies there is refused by name."""

from __future__ import annotations

import sys
import zipfile

import pytest
import torch
from torch import nn

from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import read_state
from comt_cli.exchange.load import load_model
from comt_cli.exchange.sources import HUB_NAME

TOKENS = torch.randint(258, (2, 17), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    "method", [{"name": "comt"}, {"name": "transponder", "rank": 4}, {"name": "deepnorm"}], ids=str
)
def test_a_checkpoint_loads_with_its_method(method, save_run, make_llama) -> None:
    path = save_run(method)
    for source in (path, str(path), path.parent):
        loaded = load_model(source)
        with torch.no_grad():
            assert torch.equal(loaded.model(TOKENS), make_llama(258, method)(TOKENS))
        assert loaded.name == f"{method['name']}-tiny-seed1"
        assert method["name"] in loaded.description
        assert loaded.context_length == 128
    codec = loaded.text_codec()
    assert codec.pieces(codec.encode("ab")) == ["a", "b", "</s>"]


def test_weights_keep_their_type(save_run) -> None:
    assert load_model(save_run(dtype=torch.bfloat16)).model.embedding.weight.dtype == torch.bfloat16


def changed(path, **changes):
    state = torch.load(path, weights_only=True)
    state.update(changes)
    torch.save({key: value for key, value in state.items() if value is not None}, path)
    return state


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 7}, "format 7"),
        ({"spec": None}, "it holds a dictionary with format"),
        ({"spec": {"paper": "comt"}}, "its spec does not fit this version of comt: table: Field required"),
        ({"model": [1]}, "its model is a list"),
        ({"model": {"w": torch.ones(2, dtype=torch.int8)}}, "not floating-point tensors"),
        ({"model": {"w": torch.ones(2)}}, "0 layers"),
        ({"vocabulary": "many"}, "its vocabulary is .many., not a number of tokens"),
        ({"vocabulary": 5}, "its vocabulary is 5, and its weights are of 258 tokens"),
        ({"vocabulary": True}, "its vocabulary is True, not a number of tokens"),
        ({"vocabulary": 2**62}, "its vocabulary is 4611686018427387904, not a number of tokens"),
        ({"tokenizer": None}, "lacks tokenizer"),
        ({"tokenizer": {"format": 1, "kind": "morse"}}, "unknown kind 'morse'"),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused_by_name(changes, words, save_run) -> None:
    path = save_run()
    changed(path, **changes)
    with pytest.raises(UserError, match=words):
        load_model(path)


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (("method", "name"), [], "which this comt does not have"),
        (("method",), {"name": "comt", "hidden": 10**18}, "less than or equal to"),
        (("method",), {"name": "comt", "hidden": True}, "should be a valid integer"),
        (("settings", "model", "width"), 2**62, "less than or equal to"),
        (("settings", "model", "layers"), True, "should be a valid integer"),
        (("settings", "data", "sequence_length"), 10**30, "less than or equal to"),
    ],
    ids=str,
)
def test_sizes_that_no_model_has_are_refused_by_name(keys, value, words, save_run) -> None:
    path = save_run()
    spec = changed(path)["spec"]
    inner = spec
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    changed(path, spec=spec)
    with pytest.raises(UserError, match=words):
        load_model(path)


def test_a_flipped_bit_is_noticed(save_run) -> None:
    """Wherever it is: either the file is refused, or nothing that is read of it has changed (padding)."""
    path = save_run()
    whole, content = read_state(path), path.read_bytes()
    noticed = 0
    places = {place * 104729 % len(content) for place in range(40)} | {len(content) - 5}
    for place in sorted(places):
        damaged = bytearray(content)
        damaged[place] ^= 16
        path.write_bytes(damaged)
        try:
            state = read_state(path, mapped=False)
        except UserError as error:
            noticed += "damaged: its record" in error.message
            continue
        assert state["spec"] == whole["spec"]
        for name, weight in whole["model"].items():
            assert torch.equal(state["model"][name], weight), (place, name)
    assert noticed > len(places) // 2, "nearly all of the file is weights"


def test_a_packed_archive_is_refused(save_run) -> None:
    """torch would map its compressed records as the weights themselves; and a few bytes can stand for gigabytes."""
    path = save_run()
    packed = path.with_name("packed.pt")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for info in source.infolist():
            target.writestr(info.filename, source.read(info))
    for checked in (True, False):
        with pytest.raises(UserError, match=r"its record .* is compressed"):
            read_state(packed, checked=checked)


def test_methods_that_are_not_here_are_named(save_run) -> None:
    path = save_run()
    state = changed(path)
    changed(path, spec={**state["spec"], "method": {"name": "teleport"}})
    with pytest.raises(UserError, match="'teleport', which this comt does not have"):
        load_model(path)
    changed(path, spec={**state["spec"], "method": {"name": "comt"}})
    with pytest.raises(UserError, match=r"blocks\.0\.attention\.qkv\.gates.* is missing.*more"):
        load_model(path)


def test_damaged_and_foreign_files_give_an_error_for_people(save_run, tmp_path) -> None:
    path = save_run()
    content = path.read_bytes()
    for length in (0, 3, 10, 1000, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match=r"not a checkpoint|cannot be read as a checkpoint: it is cut short, after"):
            load_model(path)
    torch.save(nn.Linear(2, 2), path)  # a whole module: a pickle that would run code
    with pytest.raises(UserError, match="cannot be read as a checkpoint"):
        load_model(path)
    torch.save(nn.Linear(2, 2).state_dict(), path)
    with pytest.raises(UserError, match=r"it holds 2 tensors \(weight, bias, \.\.\.\)"):
        load_model(path)


def test_folders_and_names_that_hold_nothing(tmp_path) -> None:
    with pytest.raises(UserError, match="it has nothing"):
        load_model(tmp_path)
    (tmp_path / "spec.json").write_text("{}")
    with pytest.raises(UserError, match="saved no checkpoint yet"):
        load_model(tmp_path)
    with pytest.raises(UserError, match="there is no model nowhere"):
        load_model("nowhere")
    (tmp_path / "w.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="weights alone"):
        load_model(tmp_path / "w.safetensors")


def test_hub_names_without_network_say_so(monkeypatch) -> None:
    import huggingface_hub

    def offline(*_, **__):
        raise ConnectionError("no network here\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(UserError, match="cannot be had from the Hugging Face hub: no network here\n") as caught:
        load_model("owner/model")
    assert "downloaded folder" in str(caught.value)
    assert HUB_NAME.fullmatch("../model") is None
    assert "huggingface_hub" in sys.modules
