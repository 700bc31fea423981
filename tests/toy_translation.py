"""A task of the tests whose models translate, as far as checkpoints, loading and decoding ask; and runs of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import comt_cli.tasks
from comt_cli.data.tokenizer import ByteTokenizer
from comt_cli.exchange import average, checkpoint
from comt_cli.exchange.checkpoint import write_state
from comt_cli.layers.initialise import initialise
from comt_cli.methods import method_from
from comt_cli.methods.base import ENCODER_DECODER_SITES
from comt_cli.models.transformer import Transformer
from comt_cli.recipe.settings import RunSettings, Section
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.decoding import DecodeSettings
from comt_cli.tasks.settings.language import TrainSettings
from comt_cli.tasks.settings.transformer import TransformerSettings

TOKENIZER = ByteTokenizer(["begin"])


class ToyData(Section):
    """Sentences of up to so many tokens."""

    max_length: int = 40


class ToySettings(RunSettings):
    """The sections of a run that translates."""

    model: TransformerSettings
    data: ToyData
    train: TrainSettings
    decode: DecodeSettings = DecodeSettings()


class ToyTranslation:
    """What reading a checkpoint asks a task."""

    name = "toy"
    command = "train-toy"
    settings = ToySettings
    sites = ENCODER_DECODER_SITES
    checkpoint_parts = ("vocabulary", "tokenizer")
    runtime_keys = {}  # noqa: RUF012

    def dimensions(self, settings: ToySettings) -> dict[str, int]:
        return {"vocabulary": TOKENIZER.vocabulary_size, "length": settings.data.max_length}

    def network_and_data(self, settings: ToySettings) -> str:
        return "a small network on toys"


@pytest.fixture
def toy_task(monkeypatch):
    """The task is there, and every reader of checkpoints knows it."""
    known = {**comt_cli.tasks.tasks(), ToyTranslation.command: ToyTranslation()}
    for module in (comt_cli.tasks, checkpoint, average):
        monkeypatch.setattr(module, "tasks", lambda: known)
    return known


def toy_spec(row: str = "post-ln", **model) -> RunSpec:
    settings = ToySettings(
        model=TransformerSettings(size="nano", **model), data=ToyData(), train=TrainSettings(steps=8)
    )
    names = {"paper": "own", "table": "t", "command": "train-toy", "scale": "smoke", "row": row, "column": "c"}
    return RunSpec(**names, seed=1, method={"name": "post-ln"}, settings=settings, data_fingerprint="none")


def toy_model(spec: RunSpec, seed: int = 0) -> Transformer:
    """A network that is far from its start, so that it says various things."""
    wiring = method_from(spec.method).wiring()
    model = Transformer(spec.settings.model, TOKENIZER.vocabulary_size, wiring, spec.settings.data.max_length)
    initialise(model, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model.eval()


def write_run(folder: Path, spec: RunSpec, model: Transformer, **weights: dict[str, Tensor]) -> Path:
    """A run directory with a checkpoint, and with the weights of other steps: `step3={...}`."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {"spec": spec.model_dump(mode="json"), "id": spec.id}
    belongs = {"vocabulary": TOKENIZER.vocabulary_size, "tokenizer": TOKENIZER.to_json()}
    write_state(folder / "checkpoint.pt", {**about, **belongs, "model": model.state_dict()})
    for step, each in weights.items():
        number = int(step.removeprefix("step"))
        write_state(folder / f"weights-{number}.pt", {**about, "step": number, "model": each})
    return folder
