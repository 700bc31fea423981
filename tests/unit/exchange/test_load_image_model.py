"""Checkpoints of image classifiers: what training saved loads, and whatever else lies there is refused by name."""

from __future__ import annotations

import pytest
import torch
from tiny_runs import image_spec, pictures, train
from torch import nn

from comt_cli.errors import UserError
from comt_cli.exchange.load import load_model
from comt_cli.exchange.load_image import holds_image_model, load_image_model
from comt_cli.layers.image_input import ImageInput


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One trained run for all: its directory, which nobody may change."""
    return train(image_spec(method="comt-sliding-window", steps=3), tmp_path_factory.mktemp("runs"))


@pytest.fixture
def path(trained, tmp_path):
    """A copy of its checkpoint."""
    copy = tmp_path / "checkpoint.pt"
    copy.write_bytes(trained.checkpoint_file.read_bytes())
    return copy


def test_a_checkpoint_loads_with_its_method_and_says_what_it_was_evaluated_at(trained):
    dataset = pictures()
    images, labels = ImageInput(dataset, "validation", "none", torch.device("cpu"))(
        dataset.validation.batch(torch.arange(20).numpy())
    )
    for source in (trained.checkpoint_file, str(trained.checkpoint_file), trained.path):
        assert holds_image_model(source)
        loaded = load_image_model(source)
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
        ({"model": [1]}, "its model is a list"),
        ({"model": {"w": torch.ones(2)}}, "0 layers"),
        ({"classes": None, "std": None}, "lacks classes and std"),
        ({"classes": "abc"}, "its classes are not a list of names"),
        ({"classes": ["a", "b"]}, "names 2 classes; its spec has 10"),
        ({"size": -3}, "its size is -3"),
        ({"mean": [0.1, 0.2]}, "its mean is not a number for each of three colours"),
        ({"std": [0.1, 0.2, 0.0]}, "its std is not positive"),
        ({"mean": [0.1, 0.2, float("nan")]}, "its mean is not a number"),
    ],
)
def test_checkpoints_that_do_not_fit_are_refused_by_name(changes, words, path):
    changed(path, **changes)
    with pytest.raises(UserError, match=words):
        load_image_model(path)


def test_methods_and_weights_that_are_not_here_are_named(path):
    state = changed(path)
    changed(path, spec={**state["spec"], "method": {"name": "teleport"}})
    with pytest.raises(UserError, match="'teleport', which this comt does not have"):
        load_image_model(path)
    changed(path, spec={**state["spec"], "method": {"name": "addition"}})
    with pytest.raises(UserError, match=r"gate\.filters has no place.*more"):
        load_image_model(path)
    changed(path, spec={**state["spec"], "method": {"name": "transponder"}})
    with pytest.raises(UserError, match="'transponder', which is not for such a model"):
        load_image_model(path)
    settings = {**state["spec"]["settings"], "train": {"steps": 0}}
    changed(path, spec={**state["spec"], "settings": settings})
    with pytest.raises(UserError, match="its spec does not fit this version of comt"):
        load_image_model(path)


def test_damaged_and_foreign_files_give_an_error_for_people(path):
    content = path.read_bytes()
    for length in (0, 3, 1000, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match=r"not a checkpoint|cannot be read as a checkpoint: it is cut short, after"):
            load_image_model(path)
    torch.save(nn.Linear(2, 2), path)  # a whole module: a pickle that would run code
    with pytest.raises(UserError, match="cannot be read as a checkpoint"):
        load_image_model(path)


def test_folders_that_hold_nothing(tmp_path):
    with pytest.raises(UserError, match="holds no image classifier: it has nothing"):
        load_image_model(tmp_path)
    assert not holds_image_model(tmp_path)
    (tmp_path / "spec.json").write_text("{}")
    with pytest.raises(UserError, match="saved no checkpoint yet"):
        load_image_model(tmp_path)
    with pytest.raises(UserError, match="there is no image classifier nowhere"):
        load_image_model("nowhere")
    assert not holds_image_model("owner/model")


def test_the_other_kind_is_named_and_who_takes_it(path, save_run):
    with pytest.raises(UserError, match="checkpoint of comt train-resnet, not of a language model") as refused:
        load_model(path)
    assert "comt analyze-gates" in str(refused.value.hint)
    text = save_run()  # writes where `path` is
    assert not holds_image_model(text)
    with pytest.raises(UserError, match="checkpoint of comt train-lm, not of an image classifier") as refused:
        load_image_model(text)
    assert "generate" in str(refused.value.hint)
