"""Small models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from comt_cli.data.text.settings import DataSettings
from comt_cli.layers.initialise import initialise
from comt_cli.methods import method_from
from comt_cli.models.llama import Llama
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks.settings.language import ModelSettings, Settings, TrainSettings

SMALL = {"size": "tiny", "width": 64, "ffn_width": 96, "layers": 2, "heads": 4, "kv_heads": 2, "rope_theta": 500.0}


MakeLlama = Callable[..., Llama]


@pytest.fixture
def make_llama() -> MakeLlama:
    def make(vocabulary: int = 61, method: dict | None = None, **settings) -> Llama:
        model = Llama(
            ModelSettings(**{**SMALL, **settings}), vocabulary, method_from(method or {"name": "pre-ln"}).wiring()
        )
        initialise(model, 0)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                # Norms away from 1 and weights large enough that every one of them shows in the logits.
                noise = torch.rand(parameter.shape, generator=generator)
                parameter.mul_(4) if parameter.ndim == 2 else parameter.add_(noise)
        return model

    return make


@pytest.fixture
def save_run(tmp_path: Path, make_llama: MakeLlama) -> Callable[..., Path]:
    """Write a checkpoint as training does; returns its path."""
    from comt_cli.data.tokenizer import ByteTokenizer
    from comt_cli.exchange.checkpoint import write_state

    def save(method: dict | None = None, **model) -> Path:
        method, tokenizer = method or {"name": "pre-ln"}, ByteTokenizer()
        settings = Settings(
            model=ModelSettings(**{**SMALL, **model}),
            data=DataSettings(tokenizer="bytes", sequence_length=128),
            train=TrainSettings(steps=1),
        )
        names = {"paper": "comt", "table": "table3", "command": "train-lm", "scale": "smoke", "row": method["name"]}
        spec = RunSpec(**names, column="tiny", seed=1, method=method, settings=settings, data_fingerprint="none")
        path = tmp_path / "checkpoint.pt"
        llama = make_llama(tokenizer.vocabulary_size, method, **model)
        parts = {"vocabulary": tokenizer.vocabulary_size, "tokenizer": tokenizer.to_json(), "data": "none"}
        state = {"model": llama.state_dict(), "optimizer": None, "progress": {"step": 1}, "random": {}}
        write_state(path, {"spec": spec.model_dump(mode="json"), "id": spec.id, **parts, **state})
        return path

    return save
