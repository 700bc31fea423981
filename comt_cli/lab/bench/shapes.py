"""What is measured: networks of a task on batches of so many samples, in the words of a recipe. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from comt_cli.recipe.settings import Precision, RunSettings
from comt_cli.runs.plan import RunSpec
from comt_cli.tasks import Task, task_of
from comt_cli.tasks.settings.bert import BertSettings
from comt_cli.tasks.settings.captioner import CaptionerSettings
from comt_cli.tasks.settings.llama import LLAMA_SIZES
from comt_cli.tasks.settings.transformer import EncoderDecoderSettings, TransformerSettings

VOCABULARY = 32000
LENGTH = 256
TOKENS = 65536
"""Tokens in a step of the published sizes."""


@dataclass(frozen=True)
class Shape:
    """A network of the task that `command` trains, on batches of `batch` samples.

    `size` is its name here, `network` what rows call the network alone; `model` and `data` are sections of a recipe.
    """

    size: str
    command: str
    network: str
    model: Mapping[str, Any]
    data: Mapping[str, Any]
    batch: int

    def __str__(self) -> str:
        """The network, what the data gives it, the batch, and how long or wide a sample is: `...-v4096-b16x128`."""
        *others, (_, extent) = self.dimensions.items()
        return f"{self.network}{''.join(f'-{name[0]}{n}' for name, n in others)}-b{self.batch}x{extent}"

    @property
    def task(self) -> Task[Any]:
        """What the network is trained to do."""
        return task_of(self.command)

    @cached_property
    def settings(self) -> RunSettings:
        """The settings of its training. The rate, which no schedule changes here, only has to keep the weights
        finite."""
        return self._settings("fp32")

    def _settings(self, precision: Precision) -> RunSettings:
        train = {"steps": 1, "warmup_steps": 1, "batch_size": self.batch, "learning_rate": 1e-4}
        given = {"model": dict(self.model), "data": dict(self.data), "train": train | {"precision": precision}}
        settings: RunSettings = self.task.settings.model_validate(given)
        return settings

    @property
    def dimensions(self) -> dict[str, int]:
        """What the data gives the model."""
        return self.task.dimensions(self.settings)

    @property
    def built(self) -> Any:
        """The widths and depth that the network is built from."""
        return self.settings.model.shape()

    @property
    def units(self) -> int:
        """What speeds count, in a step: tokens, images."""
        return self.batch * self.task.positions(self.settings)

    @property
    def amount(self) -> str:
        """The same in words: `2,048 tokens`."""
        return f"{self.units:,} {self.task.unit.name}"

    def halved(self) -> Shape:
        """The same with half the batch."""
        return replace(self, batch=self.batch // 2)

    def spec(self, method: Mapping[str, Any], precision: Precision = "fp32") -> RunSpec:
        """A run of it with a method."""
        return RunSpec(
            paper="bench",
            table="step",
            command=self.command,
            scale="smoke",
            row="bench",
            column=self.size,
            seed=0,
            method=dict(method),
            settings=self._settings(precision),
            data_fingerprint="none",
        )


def of_run(spec: RunSpec) -> Shape:
    """The network of a run on as many samples as go through it at once in one process."""
    settings, train = spec.settings, spec.settings.train
    return Shape(
        spec.column,
        spec.command,
        spec.column,
        settings.model.model_dump(),
        settings.data.model_dump(),
        min(train.micro_batch_size or train.batch_size, train.batch_size),
    )


def llama(
    size: str, width: int, ffn_width: int, layers: int, heads: int, *, vocabulary: int, batch: int, length: int
) -> Shape:
    """A LLaMA on batches of `batch` x `length` tokens."""
    return Shape(
        size,
        "train-lm",
        f"d{width}-f{ffn_width}-l{layers}-h{heads}",
        {"size": "tiny", "width": width, "ffn_width": ffn_width, "layers": layers, "heads": heads},
        {"vocabulary": vocabulary, "sequence_length": length},
        batch,
    )


def resnet(
    size: str, model: str, *, images: str = "glyphs10", pixels: int = 32, stem: str = "3x3", batch: int, **changes: Any
) -> Shape:
    """A ResNet on batches of `batch` square images; `changes`: a `width` or `blocks` that are not its own."""
    width = f"-w{changes['width']}" if "width" in changes else ""
    blocks = f"-l{'.'.join(map(str, changes['blocks']))}" if "blocks" in changes else ""
    return Shape(
        size,
        "train-resnet",
        f"{model}{width}{blocks}-s{stem}",
        {"size": model, "stem": stem, **changes},
        {"images": images, "size": pixels},
        batch,
    )


def translator(size: str, model: Mapping[str, Any], *, vocabulary: int, batch: int, tokens: int) -> Shape:
    """An encoder-decoder on `batch` buckets of `tokens` tokens of sources, and as many of targets."""
    data = {"vocabulary_size": vocabulary, "batch_tokens": tokens, "max_length": min(tokens, 256)}
    name = _encoder_decoder(TransformerSettings.model_validate(dict(model)))
    return Shape(size, "train-mt", name, dict(model), data, batch)


def captioner(size: str, model: Mapping[str, Any], *, vocabulary: int, batch: int) -> Shape:
    """A captioner on batches of `batch` images, of 36 regions of 2,048 numbers, as many as detectors give."""
    data = {"corpus": "mscoco", "vocabulary_size": vocabulary}
    name = _encoder_decoder(CaptionerSettings.model_validate(dict(model)))
    return Shape(size, "train-caption", name, dict(model), data, batch)


def _encoder_decoder(settings: EncoderDecoderSettings) -> str:
    built = settings.shape()
    return f"d{built.width}-f{built.ffn_width}-l{built.encoder_layers}+{built.decoder_layers}-h{built.heads}"


def bert(size: str, model: Mapping[str, Any], *, vocabulary: int, batch: int, length: int) -> Shape:
    """A BERT on batches of `batch` x `length` tokens, 15 % of which it predicts."""
    data = {"vocabulary": vocabulary, "sequence_length": length}
    built = BertSettings.model_validate(dict(model)).shape()
    name = f"d{built.width}-f{built.ffn_width}-l{built.layers}-h{built.heads}"
    return Shape(size, "train-bert", name, dict(model), data, batch)


def _published(name: str) -> Shape:
    return llama(name, *LLAMA_SIZES[name], vocabulary=VOCABULARY, batch=TOKENS // LENGTH, length=LENGTH)


def _by_size(*shapes: Shape) -> dict[str, Shape]:
    return {shape.size: shape for shape in shapes}


LLAMAS = _by_size(
    llama("smoke", 128, 344, 4, 4, vocabulary=2048, batch=4, length=128),
    llama("bench", 256, 688, 4, 4, vocabulary=4096, batch=16, length=128),
    *map(_published, ("60m", "130m", "250m", "350m", "1b")),
    llama("60m-b64", *LLAMA_SIZES["60m"], vocabulary=VOCABULARY, batch=64, length=LENGTH),
)
"""What recipes train at scale smoke, a somewhat larger one for a CPU, and the published sizes, the smallest also on the
batches of scale small, where a GPU may wait for the host."""
CONNECTED = _by_size(*(replace(LLAMAS[size], size=f"residual-{size}") for size in ("bench", "60m")))
"""Those whose residual connections are compared."""
RESNETS = _by_size(
    resnet("resnet18-b32", "resnet18", batch=32),
    resnet("resnet18", "resnet18", batch=512),
    resnet("resnet18-b64", "resnet18", batch=64),
    resnet("resnet50", "resnet50", batch=512),
    resnet("resnet152", "resnet152", batch=512),
    resnet("resnet50-224", "resnet50", images="imagenet", pixels=224, stem="7x7", batch=256),
)
"""One for a CPU; the paper's networks on 32-pixel images, in batches that fill a GPU and in the paper's of 64, where
the host that launches the kernels is what a GPU waits for; and one as for ImageNet."""
TRANSLATORS = _by_size(
    translator(
        "mt-bench",
        {"size": "tiny", "width": 256, "ffn_width": 1024, "encoder_layers": 3, "decoder_layers": 3},
        vocabulary=4096,
        batch=1,
        tokens=2048,
    ),
    translator("base", {"size": "base"}, vocabulary=32000, batch=8, tokens=4096),
)
"""One for a CPU, and the Transformer (base) of Vaswani et al. on a step of their eight GPUs."""
CAPTIONERS = _by_size(
    captioner(
        "caption-bench",
        {"size": "tiny", "width": 256, "ffn_width": 1024, "encoder_layers": 3, "decoder_layers": 3},
        vocabulary=4096,
        batch=64,
    ),
    captioner("caption-base", {"size": "base"}, vocabulary=9567, batch=256),
)
"""One for a CPU, and that of scale paper on larger batches."""
BERTS = _by_size(
    bert("bert-bench", {"size": "mini"}, vocabulary=4096, batch=16, length=128),
    bert("bert-base", {"size": "base"}, vocabulary=30522, batch=256, length=128),
)
"""One for a CPU, as large as its LLaMA, and that of scale paper."""
