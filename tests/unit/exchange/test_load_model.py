"""Our own checkpoints, of any task: what training saved loads, and whatever else lies there is refused by name."""

from __future__ import annotations

import zipfile

import pytest
import torch
from same_bits import Reason, assert_same_bits
from tiny_runs import image_spec, pictures, train
from torch import nn

from comt_cli.errors import UserError
from comt_cli.exchange.checkpoint import read_state
from comt_cli.exchange.load import load
from comt_cli.exchange.loaded import Loaded, LoadedImageModel, LoadedModel
from comt_cli.layers.image_input import ImageInput
from comt_cli.layers.initialise import initialise
from comt_cli.models.build import model_of
from comt_cli.runs.plan import RunSpec
from comt_cli.training.checkpoint import save_checkpoint

TOKENS = torch.randint(258, (2, 17), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    "method", [{"name": "comt"}, {"name": "transponder", "rank": 4}, {"name": "deepnorm"}], ids=str
)
def test_a_checkpoint_loads_with_its_method(method, save_run, make_llama) -> None:
    path = save_run(method)
    for source in (path, str(path), path.parent):
        loaded = load(source, LoadedModel)
        with torch.no_grad():
            assert_same_bits(loaded.model(TOKENS), make_llama(258, method)(TOKENS), Reason.SAVED)
        assert loaded.name == f"{method['name']}-tiny-seed1"
        assert method["name"] in loaded.description
        assert loaded.context_length == 128
    codec = loaded.text_codec()
    assert codec.pieces(codec.encode("ab")) == ["a", "b", "</s>"]


def test_weights_keep_their_type(save_run) -> None:
    assert load(save_run(dtype=torch.bfloat16), LoadedModel).model.embedding.weight.dtype == torch.bfloat16


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One trained run for all: its directory, which nobody may change."""
    return train(image_spec(method="comt-sliding-window", steps=3), tmp_path_factory.mktemp("runs"))


@pytest.fixture
def of_images(trained, tmp_path):
    """A copy of its checkpoint."""
    copy = tmp_path / "of-images.pt"
    copy.write_bytes(trained.checkpoint_file.read_bytes())
    return copy


def test_an_image_classifier_loads_and_says_what_it_was_evaluated_at(trained):
    dataset = pictures()
    images, labels = ImageInput(dataset, "validation", "none", torch.device("cpu"))(
        dataset.validation.batch(torch.arange(20).numpy())
    )
    for source in (trained.checkpoint_file, str(trained.checkpoint_file), trained.path):
        loaded = load(source, LoadedImageModel)
        loaded.model.eval()
        with torch.no_grad():
            logits = loaded.model(images)
        right = 100 * float((logits.argmax(1) == labels).double().mean())
        assert right == pytest.approx(trained.result()["accuracy"])
        loss = float(nn.functional.cross_entropy(logits, labels))
        assert loss == pytest.approx(trained.result()["loss"], rel=1e-5)
        assert loaded.name == "a-row-tiny-seed1"
        assert loaded.class_names == tuple("abcdefghij")
        assert (loaded.mean, loaded.std, loaded.size) == ((0.25, 0.24, 0.25), (0.17, 0.15, 0.15), 8)
        assert loaded.spec == trained.spec()
        assert "comt-sliding-window" in loaded.description
        assert "10 classes" in loaded.description


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
        ({"model": {"w": torch.ones(2)}}, "is missing"),
        ({"tokenizer": None}, "lacks tokenizer"),
        ({"tokenizer": {"format": 1, "kind": "morse"}}, "unknown kind 'morse'"),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused_by_name(changes, words, save_run) -> None:
    path = save_run()
    changed(path, **changes)
    with pytest.raises(UserError, match=words):
        load(path, LoadedModel)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"w": torch.ones(2)}}, "is missing"),
        ({"classes": None, "std": None}, "lacks classes and std"),
        ({"classes": "abc"}, "classes"),
        ({"classes": ["a", "b"]}, "classes"),
        ({"size": -3}, "size: "),
        ({"mean": [0.1, 0.2]}, "mean: "),
        ({"std": [0.1, 0.2, 0.0]}, "std.2: "),
        ({"mean": [0.1, 0.2, float("nan")]}, "mean.2: "),
    ],
)
def test_image_classifiers_that_do_not_fit_are_refused_by_name(changes, words, of_images) -> None:
    changed(of_images, **changes)
    with pytest.raises(UserError, match=words):
        load(of_images, LoadedImageModel)


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
        assert_same_bits(state["model"], whole["model"], Reason.SAVED, f"with byte {place} damaged")
    assert noticed > len(places) // 2, "nearly all of the file is weights"


def test_a_packed_archive_is_refused(save_run) -> None:
    """torch would map its compressed records as the weights themselves; and a few bytes can stand for gigabytes."""
    path = save_run()
    packed = path.with_name("packed.pt")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for info in source.infolist():
            target.writestr(info.filename, source.read(info))
    with pytest.raises(UserError, match=r"its record .* is compressed"):
        read_state(packed)


def test_methods_that_are_not_here_are_named(save_run) -> None:
    path = save_run()
    state = changed(path)
    changed(path, spec={**state["spec"], "method": {"name": "teleport"}})
    with pytest.raises(UserError, match="'teleport', which this comt does not have"):
        load(path, LoadedModel)
    changed(path, spec={**state["spec"], "method": {"name": "comt"}})
    with pytest.raises(UserError, match=r"blocks\.0\.attention\.qkv\.gates.* is missing.*more"):
        load(path, LoadedModel)


def test_damaged_and_foreign_files_give_an_error_for_people(save_run, tmp_path) -> None:
    path = save_run()
    content = path.read_bytes()
    for length in (0, 3, 10, 1000, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match=r"not a checkpoint|cannot be read as a checkpoint: it is cut short, after"):
            load(path, LoadedModel)
    torch.save(nn.Linear(2, 2), path)  # a whole module: a pickle that would run code
    with pytest.raises(UserError, match="cannot be read as a checkpoint"):
        load(path, LoadedModel)
    torch.save(nn.Linear(2, 2).state_dict(), path)
    with pytest.raises(UserError, match=r"it holds 2 tensors \(weight, bias, \.\.\.\)"):
        load(path, LoadedModel)


@pytest.mark.usefixtures("copying_task")
def test_a_model_of_another_task_loads_without_a_file_for_it(tmp_path, of_images) -> None:
    """The toy task, which no file of the program names."""
    network = {"size": "tiny", "width": 16, "ffn_width": 24, "layers": 2, "heads": 2}
    settings = {"model": network, "data": {}, "train": {"steps": 1}}
    labels = {"paper": "mine", "table": "copy", "scale": "smoke", "row": "gated", "column": "whole", "seed": 1}
    spec = RunSpec(
        command="train-copying", method={"name": "comt"}, settings=settings, data_fingerprint="none", **labels
    )
    model = model_of(spec).to_empty(device="cpu")
    initialise(model, 0)
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, spec, {"data": "none"}, model, None, {"step": 1})
    loaded = load(path, Loaded)
    assert (loaded.name, loaded.spec) == ("gated-whole-seed1", spec)
    assert "method comt, LLaMA tiny on 4 random symbols" in loaded.description
    tokens = torch.tensor([[1, 2, 0, 1]])
    assert_same_bits(loaded.model(tokens), model(tokens), Reason.SAVED)
    with pytest.raises(UserError, match="is a checkpoint of comt train-copying, not of a language model") as refused:
        load(path, LoadedModel)
    assert refused.value.hint is None
