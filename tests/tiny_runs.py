"""Runs so small that a test can train them: short documents as bytes for a LLaMA of width 32 and a BERT of width 16,
pictures of 8 x 8 pixels for a ResNet of width 4, sentences of the almanac for a Transformer of width 24, scenes for a
captioner; and the fixtures of tests that train them, which a conftest imports."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import isolation
import numpy as np
import pytest
import torch
from same_bits import Reason, assert_same_bits

from comt_cli.data.images.dataset import ImageDataset, ImageSplit
from comt_cli.data.tokenizer import ByteTokenizer
from comt_cli.layers.initialise import initialise
from comt_cli.models.build import wiring_of
from comt_cli.models.llama import Llama
from comt_cli.runs.directory import RunDirectory
from comt_cli.runs.plan import RunSpec, RunStart
from comt_cli.tasks import task_of
from comt_cli.training.devices import pick_device
from comt_cli.training.events import Evaluating, Event, Listener, Note, ignore
from comt_cli.training.loop import Training
from comt_cli.training.parallel import World
from comt_cli.training.processes import StopSignal

PROSE = "the gate reads a token and scales what the projection adds to the residual stream of every layer"
WORDS = PROSE.split()
TIMES = {
    *("train_seconds", "tokens_per_second", "images_per_second", "examples_per_second", "waiting_share"),
    *("peak_memory_bytes", "mfu", "git_commit"),
}
"""Keys of result.json in which two equal runs may differ."""

Options = dict[str, Any]
TEXT = {"tokenizer": "bytes", "sequence_length": 48, "validation_fraction": 0.2}
"""Documents as bytes."""


def write_corpus(folder: Path, documents: int = 90) -> str:
    """Files of 5 to 40 words, all different; returns the corpus as a recipe names it."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(documents):
        words = [WORDS[(number * 7 + i * i) % len(WORDS)] for i in range(5 + number * 5 % 36)]
        (folder / f"{number:03}.txt").write_text(f"{number} {' '.join(words)}", encoding="utf-8")
    return f"files:{folder}/*.txt"


def run_of(
    command: str,
    settings: Options,
    method: Options | str,
    *,
    known: tuple[str, str] | None = None,
    start: RunStart | None = None,
    seed: int = 1,
    table: str = "tiny",
    row: str = "a-row",
) -> RunSpec:
    """A run of no recipe, whose data is prepared, or `known` by its fingerprint and its content."""
    task = task_of(command)
    said = task.settings.model_validate(settings)
    fingerprint, content = known or (task.identify(said)[0], task.prepare(said).content_hash)
    method = {"name": method} if isinstance(method, str) else method
    names = {"paper": "comt", "table": table, "command": command, "scale": "smoke", "row": row, "column": "tiny"}
    data = {"data_fingerprint": fingerprint, "data_content": content}
    return RunSpec(**names, seed=seed, method=method, settings=said, start=start, **data)


def write_language_model(folder: Path, method: Options | str, factor: float = 1.0) -> Path:
    """A run directory with the checkpoint of a LLaMA of bytes: its parameters at the start, times a factor."""
    settings = {
        "model": {"size": "tiny", "width": 32, "ffn_width": 48, "layers": 2, "heads": 4},
        "data": {"tokenizer": "bytes", "sequence_length": 64},
        "train": {"steps": 1},
    }
    spec = run_of("train-lm", settings, method, known=("none", "none"), seed=3)
    model = Llama(spec.settings.model, 258, wiring_of(spec.method))
    initialise(model, 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    state = {"format": 1, "spec": spec.model_dump(mode="json"), "vocabulary": 258, "model": model.state_dict()}
    folder.mkdir(exist_ok=True)
    torch.save({**state, "tokenizer": ByteTokenizer().to_json()}, folder / "checkpoint.pt")
    return folder


MODEL = {"size": "tiny", "width": 32, "ffn_width": 48, "layers": 2, "heads": 2}
EVERY = {"kernels": "reference", "log_every": 1, "save_every": 3}
TRAIN = {**EVERY, "steps": 30, "batch_size": 8, "learning_rate": 5e-3, "warmup_steps": 4, "log_every": 4}


def tiny_spec(
    corpus: str,
    *,
    method: Options | str = "comt",
    seed: int = 1,
    model: Options | None = None,
    data: Options | None = None,
    **train: Any,
) -> RunSpec:
    """A run with ragged, padded rows of 48 bytes."""
    rows = {**TEXT, "corpus": corpus, "rows": "pad"} | (data or {})
    settings = {"model": MODEL | (model or {}), "data": rows, "train": TRAIN | train}
    return run_of("train-lm", settings, method, seed=seed)


RESNET = {"size": "resnet18", "width": 4, "blocks": (1, 1)}
TRAIN_IMAGES = {**EVERY, "steps": 24, "batch_size": 8, "learning_rate": 0.05, "log_every": 4}
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
    method: Options | str = "addition",
    seed: int = 1,
    model: Options | None = None,
    augmentation: str = "crop",
    **train: Any,
) -> RunSpec:
    """A run on `pictures()`."""
    data = {"images": "glyphs10", "size": 8, "augmentation": augmentation}
    settings = {"model": RESNET | (model or {}), "data": data, "train": TRAIN_IMAGES | train}
    known = PICTURES, PICTURES_CONTENT
    return run_of("train-resnet", settings, method, known=known, seed=seed, table="tiny-images")


BERT = {"size": "tiny", "width": 16, "ffn_width": 24, "layers": 2, "heads": 2, "positions": 48}
TRAIN_MASKED = {
    **EVERY, "steps": 12, "batch_size": 4, "learning_rate": 5e-3, "warmup_steps": 2, "evaluate_every": 6,
}  # fmt: skip


def masked_spec(
    corpus: str, *, method: Options | str = "post-ln", seed: int = 1, data: Options | None = None, **train: Any
) -> RunSpec:
    """A run over packed bytes of which some are hidden; dropout is on."""
    rows = {**TEXT, "corpus": corpus} | (data or {})
    settings = {"model": BERT, "data": rows, "train": TRAIN_MASKED | train}
    return run_of("train-bert", settings, method, seed=seed)


TRANSFORMER = {"size": "nano", "width": 24, "ffn_width": 32, "encoder_layers": 1, "decoder_layers": 1, "heads": 2}
PAIRS = {
    **{"corpus": "almanac", "difficulty": "easy", "source": "en", "target": "vi"},
    **{"pairs": 300, "validation_pairs": 20, "test_pairs": 20},
    **{"vocabulary_size": 1000, "max_length": 64, "batch_tokens": 192},
}
TRAIN_PAIRS = {**EVERY, "steps": 12, "batch_size": 1, "learning_rate": 2e-3, "warmup_steps": 4}
DECODE = {"beam": 2, "alpha": 2.0, "max_extra": 5}


def pair_spec(
    *,
    method: Options | str = "post-ln",
    seed: int = 1,
    model: Options | None = None,
    data: Options | None = None,
    **train: Any,
) -> RunSpec:
    """A run over sentences of the almanac, English to Vietnamese; dropout is on."""
    sizes = {"model": TRANSFORMER | (model or {}), "data": PAIRS | (data or {})}
    return run_of("train-mt", {**sizes, "train": TRAIN_PAIRS | train, "decode": DECODE}, method, seed=seed)


CAPTIONER = {"size": "nano", "width": 24, "ffn_width": 40, "encoder_layers": 2, "decoder_layers": 2, "heads": 4}
CAPTIONER |= {"region_positions": "learned", "region_dropout": 0.1}
SCENES = {"corpus": "scenes", "images": 60, "validation_images": 10, "test_images": 12, "max_length": 12}
TRAIN_CAPTIONS = {**EVERY, "steps": 12, "batch_size": 8, "learning_rate": 5e-3, "warmup_steps": 4}
CIDER = {"objective": "cider", "schedule": "constant", "warmup_steps": 0, "samples": 3}


def caption_spec(
    *, start: RunSpec | None = None, row: str = "a-row", method: Options | str = "post-ln", **train: Any
) -> RunSpec:
    """A run on sixty scenes, of dropout and words drawn from 81."""
    settings = {"model": CAPTIONER, "data": SCENES, "train": TRAIN_CAPTIONS | train, "decode": {"beam": 2}}
    begins = None if start is None else RunStart(run=start)
    return run_of("train-caption", settings, method, known=_scenes(), start=begins, row=row)


@functools.cache
def _scenes() -> tuple[str, str]:
    task = task_of("train-caption")
    settings = task.settings.model_validate({"model": CAPTIONER, "data": SCENES, "train": TRAIN_CAPTIONS})
    return task.identify(settings)[0], task.prepare(settings).content_hash


NEW = {"new": ("pooler", "classifier"), "drop": ("head",)}


def glue_spec(
    corpus: str,
    *,
    task: str = "scene-nli",
    start: RunSpec | None = None,
    parts: dict[str, tuple[str, ...]] = NEW,
    method: str = "post-ln",
    seed: int = 1,
    data: Options | None = None,
    **train: Any,
) -> RunSpec:
    """A run of a classifier of texts on the beginnings of 60 examples; dropout is on."""
    rows = {**TEXT, "corpus": corpus, "task": task, "held_out": 0.02, "train_examples": 60} | (data or {})
    sizes = {**TRAIN_MASKED, "batch_size": 8, "evaluation_batch_size": 400}
    begins = None if start is None else RunStart(run=start, **parts)
    return run_of("finetune", {"model": BERT, "data": rows, "train": sizes | train}, method, start=begins, seed=seed)


def dataset_of(spec: RunSpec) -> Any:
    """What a tiny run is trained on."""
    return pictures() if spec.data_fingerprint == PICTURES else spec.task.prepare(spec.settings)


def training(
    spec: RunSpec,
    runs: Path,
    *,
    listener: Listener = ignore,
    stop: StopSignal | None = None,
    world: World | None = None,
    dataset: Any = None,
    device: str = "cpu",
) -> Training:
    """The run of `spec` below `runs`, not started, in this process of a world."""
    world, data = world or World(pick_device(device)), dataset or dataset_of(spec)
    return Training(spec, RunDirectory.of(runs, spec), data, world, listener, stop or StopSignal())


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


def stopped_at(events: Any, spec: RunSpec, runs: Path, **options: Any) -> RunDirectory:
    """Train `spec`, started anew after each of these events."""
    for event in events:
        with pytest.raises(Stopped):
            train(spec, runs, listener=StopAt(event), **options)
    return RunDirectory.of(runs, spec)


def assert_resumes(spec: RunSpec, folder: Path, *events: int, **options: Any) -> RunDirectory:
    """That it ends to the bit as when undisturbed, if it is stopped at these events, one start after the other."""
    expected = train(spec, folder / "undisturbed", **options)
    stopped_at(events, spec, folder / "stopped", **options)
    assert_same_run(train(spec, folder / "stopped", **options), expected)
    return expected


def stopped_everywhere(spec: RunSpec, runs: Path) -> int:
    """Train `spec` to its end, stopped at its first event, at the second one of the next start, and so on: how often it
    was started."""
    for event in count(1):
        try:
            train(spec, runs, listener=StopAt(event))
        except Stopped:
            continue
        return event
    raise AssertionError


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("tiny") / "texts")


@pytest.fixture(autouse=True)
def tiny_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's, in which kernels are compiled once for all workers: a cache of each worker's own costs 20 s."""
    monkeypatch.setenv("COMT_CACHE", str(isolation.cache_folder()))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Bits are the same for the same number of threads, and runs in other processes have one. On a busy machine two
    threads that wait for each other after every tiny operation take a hundred times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
