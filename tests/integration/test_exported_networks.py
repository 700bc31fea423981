"""Exported BERTs and ResNets compute the same in a process that has no comt."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from initialised import initialised, shaken
from small_networks import SMALL
from without_comt import found_by

from comt_cli.errors import UserError
from comt_cli.exchange.loaded import LoadedCaptioner, LoadedClassifier, LoadedImageModel, LoadedMaskedModel
from comt_cli.library.export_any import write_model
from comt_cli.methods import method_from, methods

pytest.importorskip("transformers")

COLOURS = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.1), "size": 8}
CASES = [
    ("train-bert", "bert", "post-ln"),
    ("finetune", "classifier", "post-ln"),
    *(
        ("train-resnet", network, name)
        for network in SMALL["train-resnet"].networks
        for name in methods("train-resnet")
    ),
]


def model_of(command: str, network: str, method: str) -> Any:
    small = SMALL[command]
    options = small.methods.get(method, {"name": method})
    settings = small.networks[network]
    model = shaken(initialised(settings, method_from(options).wiring(), 1, **small.dimensions)).eval()
    with torch.no_grad():
        for name, each in model.named_buffers():
            if name.endswith("running_var"):
                each.abs_().add_(0.5)
    return model


def loaded(command: str, model: Any) -> Any:
    if command == "train-resnet":
        return LoadedImageModel(model, "m", "a test", tuple("abcdefghij"), **COLOURS)
    return {"train-bert": LoadedMaskedModel, "finetune": LoadedClassifier}[command](model, "m", "a test")


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, float]:
    root, expected = tmp_path_factory.mktemp("networks"), {}
    for case in CASES:
        try:
            model = model_of(*case)
        except UserError:  # sites that this network has not
            continue
        write_model(loaded(case[0], model), root / "-".join(case))
        inputs = [*SMALL[case[0]].batch]
        with torch.no_grad():
            expected["-".join(case)] = {"inputs": inputs, "outputs": model(*inputs)}
    torch.save(expected, root / "expected.pt")
    return found_by("loading_networks.py", root)


def test_networks_compute_the_same_without_comt(found) -> None:
    assert len(found) > 10
    assert {name: off for name, off in found.items() if not off < 1e-5} == {}


def test_what_is_not_written_is_refused_by_name(tmp_path) -> None:
    with pytest.raises(UserError, match="has no PreNorm"):
        write_model(loaded("train-bert", model_of("train-bert", "bert", "pre-ln")), tmp_path / "out")
    with pytest.raises(UserError, match="has no ComtGate"):
        write_model(loaded("finetune", model_of("finetune", "classifier", "comt")), tmp_path / "out")
    with pytest.raises(UserError, match="m is a captioner: no other program"):
        write_model(LoadedCaptioner(None, "m", "a test", None, None, None), tmp_path / "out")
    assert not (tmp_path / "out").exists()
