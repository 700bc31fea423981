"""Runs of small translators over bytes, without data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tiny_runs import run_of
from torch import Tensor

from comt_cli.data.tokenizer import ByteTokenizer
from comt_cli.exchange.checkpoint import write_state
from comt_cli.layers.initialise import initialise
from comt_cli.methods import method_from
from comt_cli.models.transformer import Transformer
from comt_cli.runs.plan import RunSpec

TOKENIZER = ByteTokenizer(["begin"])


def toy_spec(row: str = "post-ln", method: dict[str, Any] | None = None, **model) -> RunSpec:
    data, train = {"tokenizer": "bytes", "max_length": 40}, {"steps": 8, "warmup_steps": 1}
    settings = {"model": {"size": "nano", **model}, "data": data, "train": train}
    return run_of("train-mt", settings, method or "post-ln", known=("none", "none"), row=row)


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
