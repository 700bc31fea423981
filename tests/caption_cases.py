"""Small captioners: a batch and networks for the contract of methods, and runs on sixty scenes."""

from __future__ import annotations

import functools
from typing import Any

import torch
from pair_method_cases import NEEDED, TARGET, VOCABULARY

from comt_cli.methods import methods
from comt_cli.runs.plan import RunSpec, RunStart
from comt_cli.tasks import tasks
from comt_cli.tasks.settings.captioning import CaptionerSettings, CaptioningSettings
from comt_cli.tasks.settings.transformer import ENCODER_DECODER_SITES

# Unlike in every number, and without dropout, which is on in training alone.
SHAPE = {"size": "nano", "width": 24, "ffn_width": 40, "encoder_layers": 2, "decoder_layers": 3, "heads": 4}
SETTINGS = CaptionerSettings(**SHAPE, dropout=0.0, region_dropout=0.0, region_positions="learned")
MEDIUM = CaptionerSettings(size="nano", width=256, ffn_width=512, encoder_layers=2, decoder_layers=2)
DIMENSIONS = {"vocabulary": VOCABULARY, "regions": 9, "features": 10}
_GENERATOR = torch.Generator().manual_seed(0)
REGIONS = torch.randn(3, 7, 10, generator=_GENERATOR)
MASK = torch.ones(3, 7, dtype=torch.bool)
MASK[1, 4:] = False
BATCH = (REGIONS, MASK, TARGET)
CAPTION_METHODS = {
    name: {"name": name, **NEEDED.get(name, {})}
    for name, method in methods().items()
    if method.fits(ENCODER_DECODER_SITES)
}
"""Without variants: they are tested in translators, whose blocks are the same."""

MODEL = {**SHAPE, "decoder_layers": 2, "region_positions": "learned", "region_dropout": 0.1}
DATA = {"corpus": "scenes", "images": 60, "validation_images": 10, "test_images": 12, "max_length": 12}
TRAIN = {
    "kernels": "reference",
    "steps": 12,
    "batch_size": 8,
    "learning_rate": 5e-3,
    "warmup_steps": 4,
    "log_every": 1,
    "save_every": 3,
}
CIDER = {"objective": "cider", "schedule": "constant", "warmup_steps": 0, "samples": 3}


def caption_spec(
    *, start: RunSpec | None = None, row: str = "a-row", method: dict[str, Any] | None = None, **train: Any
) -> RunSpec:
    """A run on sixty scenes, of dropout and words drawn from 81."""
    settings = CaptioningSettings.model_validate(
        {"model": MODEL, "data": DATA, "train": TRAIN | train, "decode": {"beam": 2}}
    )
    print_, content = _known()
    names = {"paper": "sas", "table": "tiny", "command": "train-caption", "scale": "smoke", "row": row, "column": "c"}
    return RunSpec(
        **names,
        seed=1,
        method=method or {"name": "post-ln"},
        settings=settings,
        data_fingerprint=print_,
        data_content=content,
        start=None if start is None else RunStart(run=start),
    )


@functools.cache
def _known() -> tuple[str, str]:
    task = tasks()["train-caption"]
    settings = CaptioningSettings.model_validate({"model": MODEL, "data": DATA, "train": TRAIN})
    return task.fingerprint(settings), task.prepare(settings).content_hash
