"""Runs so small that a test can train them: short documents as bytes for a LLaMA of width 32, pictures of 8 x 8 pixels
for a ResNet of width 4, and three hundred sentences of the almanac for a Transformer of width 24."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from same_bits import Reason, assert_same_bits

from comt_cli.data.images.dataset import ImageDataset, ImageSplit
from comt_cli.data.images.settings import ImageDataSettings
from comt_cli.data.pairs.dataset import PairDataset
from comt_cli.data.pairs.settings import PairData
from comt_cli.data.prepare import fingerprint, prepare
from comt_cli.data.text.dataset import Dataset
from comt_cli.data.text.settings import DataSettings, MaskedData
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks import tasks
from comt_cli.tasks.settings.images import ImageSettings, ImageTrainSettings, ResNetSettings
from comt_cli.tasks.settings.language import ModelSettings, Settings, TrainSettings
from comt_cli.tasks.settings.masked_lm import BertSettings, MaskedSettings, MaskedTrainSettings
from comt_cli.tasks.settings.translation import (
    DecodeSettings,
    TransformerSettings,
    TranslationSettings,
    TranslationTrainSettings,
)
from comt_cli.training.devices import pick_device
from comt_cli.training.events import Evaluating, Event, Listener, Note, ignore
from comt_cli.training.loop import Training
from comt_cli.training.parallel import World
from comt_cli.training.processes import StopSignal

PROSE = "the gate reads a token and scales what the projection adds to the residual stream of every layer"
WORDS = PROSE.split()
TIMES = {
    "train_seconds",
    "tokens_per_second",
    "images_per_second",
    "examples_per_second",
    "waiting_share",
    "peak_memory_bytes",
    "mfu",
    "git_commit",
}
"""Keys of result.json in which two equal runs may differ."""

MODEL = {"size": "tiny", "width": 32, "ffn_width": 48, "layers": 2, "heads": 2}
TRAIN = {
    "kernels": "reference",
    "steps": 30,
    "batch_size": 8,
    "learning_rate": 5e-3,
    "warmup_steps": 4,
    "log_every": 4,
    "save_every": 3,
}


def write_corpus(folder: Path, documents: int = 90) -> str:
    """Files of 5 to 40 words, all different; returns the corpus as a recipe names it."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(documents):
        words = [WORDS[(number * 7 + i * i) % len(WORDS)] for i in range(5 + number * 5 % 36)]
        (folder / f"{number:03}.txt").write_text(f"{number} {' '.join(words)}", encoding="utf-8")
    return f"files:{folder}/*.txt"


def tiny_spec(
    corpus: str,
    *,
    method: dict[str, Any] | str = "comt",
    seed: int = 1,
    model: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    **train: Any,
) -> RunSpec:
    """A run with ragged, padded rows of 48 bytes."""
    rows = DataSettings(
        **{"corpus": corpus, "tokenizer": "bytes", "rows": "pad", "sequence_length": 48, "validation_fraction": 0.2}
        | (data or {})
    )
    return RunSpec(
        paper="comt",
        table="tiny",
        command="train-lm",
        scale="smoke",
        row="a-row",
        column="tiny",
        seed=seed,
        method={"name": method} if isinstance(method, str) else method,
        settings=Settings(
            model=ModelSettings(**MODEL | (model or {})), data=rows, train=TrainSettings(**TRAIN | train)
        ),
        data_fingerprint=fingerprint(rows),
        data_content=prepare(rows).content_hash,
    )


RESNET = {"size": "resnet18", "width": 4, "blocks": (1, 1)}
TRAIN_IMAGES = {
    "kernels": "reference",
    "steps": 24,
    "batch_size": 8,
    "learning_rate": 0.05,
    "log_every": 4,
    "save_every": 3,
}
PICTURES = "tiny-pictures"
PICTURES_CONTENT = "of-pictures"
"""Fingerprint and content hash of `pictures()`."""


def pictures(train: int = 64, validation: int = 20, size: int = 8) -> ImageDataset:
    """Noise under ten textures (rows, columns, a chessboard or all, in one of three colours); always the same."""
    generator = np.random.default_rng(5)

    def side(count: int) -> ImageSplit:
        labels = generator.integers(10, size=count)
        pixels = generator.integers(120, size=(count, size, size, 3), dtype=np.uint8)
        rows, columns = np.indices((size, size)) % 2
        textures = np.stack([rows, columns, (rows + columns) % 2, np.ones_like(rows)]).astype(np.uint8)
        pixels[np.arange(count), :, :, labels % 3] += 130 * textures[labels // 3]
        return ImageSplit(labels.astype(np.int64), pixels)

    names, mean, std = tuple("abcdefghij"), (0.25, 0.24, 0.25), (0.17, 0.15, 0.15)
    return ImageDataset(PICTURES, PICTURES_CONTENT, names, mean, std, size, side(train), side(validation))


def image_spec(
    *,
    method: dict[str, Any] | str = "addition",
    seed: int = 1,
    model: dict[str, Any] | None = None,
    augmentation: str = "crop",
    **train: Any,
) -> RunSpec:
    """A run on `pictures()`."""
    return RunSpec(
        paper="comt",
        table="tiny-images",
        command="train-resnet",
        scale="smoke",
        row="a-row",
        column="tiny",
        seed=seed,
        method={"name": method} if isinstance(method, str) else method,
        settings=ImageSettings(
            model=ResNetSettings(**RESNET | (model or {})),
            data=ImageDataSettings(images="glyphs10", size=8, augmentation=augmentation),  # type: ignore[arg-type]
            train=ImageTrainSettings(**TRAIN_IMAGES | train),
        ),
        data_fingerprint=PICTURES,
        data_content=PICTURES_CONTENT,
    )


BERT = {"size": "tiny", "width": 16, "ffn_width": 24, "layers": 2, "heads": 2, "positions": 48}
TRAIN_MASKED = {
    "kernels": "reference",
    "steps": 12,
    "batch_size": 4,
    "learning_rate": 5e-3,
    "warmup_steps": 2,
    "log_every": 1,
    "save_every": 3,
    "evaluate_every": 6,
}


def masked_spec(
    corpus: str,
    *,
    method: dict[str, Any] | str = "post-ln",
    seed: int = 1,
    data: dict[str, Any] | None = None,
    **train: Any,
) -> RunSpec:
    """A run over packed bytes of which some are hidden; dropout is on."""
    rows = {"corpus": corpus, "tokenizer": "bytes", "sequence_length": 48, "validation_fraction": 0.2}
    settings = MaskedSettings(
        model=BertSettings(**BERT),
        data=MaskedData(**rows | (data or {})),
        train=MaskedTrainSettings(**TRAIN_MASKED | train),
    )
    task = tasks()["train-bert"]
    return RunSpec(
        paper="comt",
        table="tiny-masked",
        command="train-bert",
        scale="smoke",
        row="a-row",
        column="tiny",
        seed=seed,
        method={"name": method} if isinstance(method, str) else method,
        settings=settings,
        data_fingerprint=task.fingerprint(settings),
        data_content=task.prepare(settings).content_hash,
    )


TRANSFORMER = {"size": "nano", "width": 24, "ffn_width": 32, "encoder_layers": 1, "decoder_layers": 1, "heads": 2}
PAIRS = {
    "corpus": "almanac",
    "difficulty": "easy",
    "source": "en",
    "target": "vi",
    "pairs": 300,
    "validation_pairs": 20,
    "test_pairs": 20,
    "vocabulary_size": 1000,
    "max_length": 64,
    "batch_tokens": 192,
}
TRAIN_PAIRS = {
    "kernels": "reference",
    "steps": 12,
    "batch_size": 1,
    "learning_rate": 2e-3,
    "warmup_steps": 4,
    "log_every": 1,
    "save_every": 3,
}
DECODE = {"beam": 2, "alpha": 2.0, "max_extra": 5}


def pair_spec(
    *,
    method: dict[str, Any] | str = "post-ln",
    seed: int = 1,
    model: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    **train: Any,
) -> RunSpec:
    """A run over sentences of the almanac, English to Vietnamese; dropout is on."""
    settings = TranslationSettings(
        model=TransformerSettings(**TRANSFORMER | (model or {})),
        data=PairData(**PAIRS | (data or {})),
        train=TranslationTrainSettings(**TRAIN_PAIRS | train),
        decode=DecodeSettings(**DECODE),
    )
    task = tasks()["train-mt"]
    return RunSpec(
        paper="comt",
        table="tiny-pairs",
        command="train-mt",
        scale="smoke",
        row="a-row",
        column="tiny",
        seed=seed,
        method={"name": method} if isinstance(method, str) else method,
        settings=settings,
        data_fingerprint=task.fingerprint(settings),
        data_content=task.prepare(settings).content_hash,
    )


def dataset_of(spec: RunSpec) -> Any:
    """What a tiny run is trained on."""
    return pictures() if spec.data_fingerprint == PICTURES else spec.task.prepare(spec.settings)


def training(
    spec: RunSpec,
    runs: Path,
    *,
    listener: Listener = ignore,
    stop: StopSignal | None = None,
    dataset: Dataset | ImageDataset | PairDataset | None = None,
    device: str = "cpu",
) -> Training:
    """The run of `spec` below `runs`, not started."""
    return Training(
        spec,
        RunDirectory.of(runs, spec),
        dataset or dataset_of(spec),
        World(pick_device(device)),
        listener,
        stop or StopSignal(),
    )


def train(spec: RunSpec, runs: Path, **options: Any) -> RunDirectory:
    """Train `spec` to its end."""
    training(spec, runs, **options).run()
    return RunDirectory.of(runs, spec)


def assert_same_run(directory: RunDirectory, other: RunDirectory) -> None:
    """Equal to the bit: the lines of metrics.jsonl and gradients.jsonl, all weights and running statistics, and all of
    result.json but the times."""
    assert directory.metrics_file.read_bytes() == other.metrics_file.read_bytes()
    assert directory.gradients_file.exists() == other.gradients_file.exists()
    if directory.gradients_file.exists():
        assert directory.gradients_file.read_bytes() == other.gradients_file.read_bytes()
    assert directory.metrics_table.read_bytes() == other.metrics_table.read_bytes()
    mine, theirs = (torch.load(each.checkpoint_file, weights_only=True) for each in (directory, other))
    assert_same_bits(mine["model"], theirs["model"], Reason.SAME_RUN, "the weights")
    assert untimed(directory) == untimed(other)


def untimed(directory: RunDirectory) -> dict[str, Any]:
    """result.json without the keys in which equal runs may differ."""
    result = json.loads(directory.result_file.read_text(encoding="utf-8"))
    return {key: value for key, value in result.items() if key not in TIMES}


class Stopped(Exception):
    """Thrown into a run to end it."""


class StopAt:
    """A listener that raises at the n-th event: a start of the run, a logged step or the start of an evaluation."""

    def __init__(self, event: int, error: type[BaseException] = Stopped) -> None:
        self.left, self.error = event, error

    def __call__(self, event: Event) -> None:
        if isinstance(event, Note) or (isinstance(event, Evaluating) and event.done):
            return
        self.left -= 1
        if self.left == 0:
            raise self.error("stopped by the test")
