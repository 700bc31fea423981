"""Our own checkpoints, of any task: what training saved loads, and whatever else lies there is refused by name."""

from __future__ import annotations

import io
import zipfile

import pytest
import torch
from same_bits import Reason, assert_same_bits
from tiny_runs import image_spec, pictures, train
from torch import nn
from toy_translation import toy_model, toy_spec, write_run

from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import read_state
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import LoadedImageModel, LoadedModel, LoadedTranslator
from comt_cli.layers.image_input import ImageInput

TOKENS = torch.randint(258, (2, 17), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("method", [{"name": "comt"}, {"name": "deepnorm"}], ids=str)
def test_a_checkpoint_loads_with_its_method(method, save_run, make_llama) -> None:
    path = save_run(method)
    for source in (str(path), path.parent):
        loaded = load(source, LoadedModel)
        with torch.no_grad():
            assert_same_bits(loaded.model(TOKENS), make_llama(258, method)(TOKENS), Reason.SAVED)
        assert (loaded.name, loaded.context_length) == (f"{method['name']}-tiny-seed1", 128)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One trained run for all: its directory, which nobody may change."""
    return train(image_spec(method="comt-sliding-window", steps=3), tmp_path_factory.mktemp("runs"))


def test_an_image_classifier_loads_and_says_what_it_was_evaluated_at(trained):
    dataset = pictures()
    see = ImageInput(dataset, "validation", "none", torch.device("cpu"))
    images, labels = see(dataset.validation.batch(torch.arange(20).numpy()))
    loaded = load(trained.path, LoadedImageModel)
    with torch.no_grad():
        logits = loaded.model.eval()(images)
    assert 100 * float((logits.argmax(1) == labels).double().mean()) == pytest.approx(trained.result()["accuracy"])
    assert float(nn.functional.cross_entropy(logits, labels)) == pytest.approx(trained.result()["loss"], rel=1e-5)
    assert loaded.class_names == tuple("abcdefghij")
    assert (loaded.mean, loaded.std, loaded.size) == ((0.25, 0.24, 0.25), (0.17, 0.15, 0.15), 8)


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        (LoadedModel, {"format": 7}, "format 7"),
        (LoadedModel, {"spec": None}, "is not a checkpoint of comt"),
        (LoadedModel, {"spec": {"paper": "comt"}}, "its spec does not fit this version of comt: table: Field required"),
        (LoadedModel, {"model": {"w": torch.ones(2, dtype=torch.int8)}}, "dictionary of floating-point tensors"),
        (LoadedModel, {"model": {"w": torch.ones(2)}}, "is missing"),
        (LoadedModel, {"method": {"name": "teleport"}}, "'teleport', which this comt does not have"),
        (LoadedModel, {"tokenizer": None}, "has no tokenizer"),
        (LoadedModel, {"tokenizer": {"format": 1, "kind": "morse"}}, "kind 'morse' are unknown"),
        (LoadedImageModel, {"classes": None, "std": None}, "has no classes and no std"),
        (LoadedImageModel, {"classes": ["a", "b"]}, "classes"),
        (LoadedImageModel, {"size": -3}, "size: "),
        (LoadedImageModel, {"std": [0.1, 0.2, 0.0]}, "std.2: "),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused_by_name(kind, changes, words, save_run, trained, tmp_path) -> None:
    state = read_state(trained.checkpoint_file if kind is LoadedImageModel else save_run(), mapped=False)
    if "method" in changes:
        changes = {"spec": state["spec"] | changes}
    torch.save({key: value for key, value in (state | changes).items() if value is not None}, tmp_path / "copy.pt")
    with pytest.raises(UserError, match=words):
        load(tmp_path / "copy.pt", kind)


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
            noticed += "the checksum of its record" in error.message
            continue
        assert state["spec"] == whole["spec"]
        assert_same_bits(state["model"], whole["model"], Reason.SAVED, f"with byte {place} damaged")
    assert noticed > len(places) // 2, "nearly all of the file is weights"


def test_another_kind_of_model_is_refused(tmp_path) -> None:
    run = write_run(tmp_path / "run", toy_spec(), toy_model(toy_spec()))
    with pytest.raises(UserError, match="is not a model"):
        load(tmp_path, LoadedTranslator)
    with pytest.raises(UserError, match="is a translator, not a language model"):
        load(run, LoadedModel)


def test_damaged_and_foreign_files_give_an_error_for_people(save_run, tmp_path) -> None:
    path = save_run()
    content = path.read_bytes()
    for length in (0, 3, 10, 1000, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match="is not a checkpoint, or was cut off after"):
            load(path, LoadedModel)
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for info in source.infolist():  # torch would map its compressed records as the weights themselves
            packed.writestr(info.filename, source.read(info))
    with pytest.raises(UserError, match="its records are compressed"):
        load(path, LoadedModel)
    torch.save(nn.Linear(2, 2), path)  # a whole module: a pickle that would run code
    with pytest.raises(UserError, match="cannot be read as a checkpoint"):
        load(path, LoadedModel)
    torch.save(nn.Linear(2, 2).state_dict(), path)
    with pytest.raises(UserError, match="is not a checkpoint of comt"):
        load(path, LoadedModel)
